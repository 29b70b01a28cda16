"""The paper preset is the published setting."""

from __future__ import annotations

import json
from pathlib import Path
from pkgutil import resolve_name

import pytest

from harness_sdk import Harness
from harness_sdk.policies.chat import ChatEncoder
from optimizers.config import BackendConfig, ConfigError, checked, checked_backend, preset, require_data
from whale_env.registry import declared
from whale_env.types import SPLITS

# domain, model, response limit, test tasks
PUBLISHED = [
    ("chess", "Qwen/Qwen3.5-4B", 16_384, 0),
    ("math", "Qwen/Qwen3.5-2B", 8_192, 0),
    ("searchqa", "Qwen/Qwen3.5-2B", 8_192, 7 * 256),
]


@pytest.mark.parametrize(("env", "model", "limit", "test"), PUBLISHED)
def test_the_published_numbers(env: str, model: str, limit: int, test: int) -> None:
    config = checked(preset("paper", env))
    assert (config.model, config.agent.limits.max_tokens) == (model, limit)
    weights, search = config.weights, config.search
    assert (weights.prompts, weights.samples, weights.minibatch, weights.trainer.lr) == (256, 8, 64, 1e-7)
    assert (weights.epochs, search.iterations, search.examples, search.candidates) == (0.6, 6, 256, 3)
    assert (search.proposer.kind, search.proposer.model) == ("anthropic", "claude-opus-4-7")
    assert (config.agent.sampling.temperature, config.agent.sampling.top_k) == (1.0, 20)
    assert (config.evaluation.tasks, config.evaluation.k, config.backend.thinking) == (test, 8, "on")
    schedule = config.schedule
    assert (schedule.window, schedule.min_epochs, schedule.patience) == (0.2, 0.2, 0.2)
    assert (schedule.min_iterations, schedule.iteration_patience, schedule.max_iterations) == (6, 2, 15)


@pytest.mark.parametrize("env", ["chess", "math", "searchqa"])
def test_without_its_data_it_says_how_to_fetch_it(env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = preset("paper", env)
    with pytest.raises(ConfigError, match=rf"python -m whale_env\.datasets get {env} --out data/{env}"):
        require_data(config)
    for path in json.loads(config.env_args)["source"].values():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()
    assert set(json.loads(config.env_args)["source"]) == set(SPLITS)
    require_data(config)
    require_data(preset("laptop", env))


class Asked:
    """A tokenizer that notes what its chat template is told."""

    chat_template = "tools"
    added_tokens_decoder: dict[int, str] = {}  # noqa: RUF012
    all_special_tokens = ()

    def __init__(self) -> None:
        self.told: dict[str, object] = {}

    def apply_chat_template(self, messages: object, **told: object) -> str:
        self.told = told
        return ""

    def __call__(self, text: str, **_: object) -> object:
        raise AssertionError("nothing to tokenise")


@pytest.mark.parametrize(("thinking", "told"), [(True, True), (False, False), (None, None)])
def test_the_template_is_told_whether_to_think(thinking: bool | None, told: bool | None) -> None:
    tokenizer = Asked()
    ChatEncoder(tokenizer, (), thinking).encode([{"role": "user", "content": "Hi"}], [])
    assert tokenizer.told.get("enable_thinking") is told


def test_a_remote_backend_refuses_the_flag() -> None:
    with pytest.raises(ConfigError, match=r"--backend\.thinking on"):
        checked_backend(BackendConfig(kind="openai", thinking="on"))


@pytest.mark.parametrize("env", ["math", "searchqa"])
def test_the_starting_harness_leaves_the_response_limit_to_the_run(env: str) -> None:
    spec, agent = declared(env), preset("paper", env).agent.limits
    h0: type[Harness] = resolve_name(spec.baseline)
    assert h0.max_tokens_per_turn >= agent.max_tokens <= h0.max_tokens
    assert h0.max_prompt_tokens >= agent.max_prompt_tokens


@pytest.mark.parametrize(("env", "tokens"), [("math", 128), ("searchqa", 96)])
def test_small_caps_are_the_laptop_presets(env: str, tokens: int) -> None:
    assert preset("laptop", env).agent.limits.max_tokens == tokens
