"""What all tests share: Ctrl-C reaches them and what they start, even if the test run is in the background."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from tiny import tiny_llama

SLOW = frozenset(
    f"test_{name}"
    for name in (
        *("architectures", "cage", "commands", "confined", "engine", "integrity", "new_domain", "optimizers"),
        *("optimizers_cli", "proposers", "sandbox", "smollm2", "validator", "verifiers_math", "vllm_server"),
    )
)
"""Files that load models, start processes or play whole runs."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests of slow files, so that ``-m "not slow"`` leaves them out."""
    for item in items:
        if item.path.stem in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A directory with the model and tokenizer of `tiny_llama`."""
    folder = tmp_path_factory.mktemp("tiny")
    model, tokenizer = tiny_llama()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
