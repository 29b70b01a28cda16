"""Which backend a run gets, what it keeps of the choice, and runs of a model whose weights nobody here can change."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from http_server import serving

import whale_env
from harness_sdk.policies import ScriptedPolicy, TransformersPolicy
from optimizers.commands.cli import one_line_errors
from optimizers.commands.evaluate import parse_flags, show
from optimizers.commands.optimise import run_command
from optimizers.config import BackendConfig, RunConfig, checked, checked_backend, preset
from optimizers.run import backend, start

CHESS = {"tiers": ["1"]}


def small(**changes: Any) -> RunConfig:
    base = preset("smoke", "chess")
    limits = replace(base.agent.limits, max_prompt_tokens=1900, max_tokens=12)
    agent = replace(base.agent, limits=limits)
    evaluation = replace(base.evaluation, tasks=2, k=1)
    search = replace(base.search, iterations=2, candidates=1, examples=2, samples=1)
    return replace(base, agent=agent, evaluation=evaluation, search=search, **changes)


def chat(path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, bytes]:
    assert path == "/v1/chat/completions" and body["model"] == "big-model"
    message = {"role": "assistant", "content": "<move>e2e4</move>"}
    usage = {"prompt_tokens": 30, "completion_tokens": 9, "total_tokens": 39}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    return 200, json.dumps({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()


def test_the_harness_of_a_model_behind_an_api_can_be_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    env = whale_env.handle("chess", CHESS)
    with serving(chat) as url:
        remote = BackendConfig(kind="openai", url=f"{url}/v1", server="vllm")
        config = small(method="harness-only", model="big-model", backend=remote)
        result = start.start(config, env, tmp_path / "run", resume=False)
        assert result.base.rollouts == 2 and result.weights_version == 0
        assert not list((tmp_path / "run" / "checkpoints").glob("*"))
        assert len(list((tmp_path / "run" / "harnesses").iterdir())) > 1
        capsys.readouterr()
        flags = parse_flags(["--run", str(tmp_path / "run"), "--tasks", "1", "--k", "1"])
        show(flags)
        row = json.loads(capsys.readouterr().out)
        assert row["model"] == "big-model" and row["rollouts"] == 1
        with pytest.raises(ValueError, match="leave the --backend flags out"):
            parse_flags(["--run", str(tmp_path / "run"), "--backend.kind", "vllm"])
        for method in ("whale", "weight-only", "stagewise", "fst", "adaptive"):
            with pytest.raises(ValueError, match="use --method harness-only"):
                checked(replace(config, method=method))
            with pytest.raises(ValueError, match="takes no new weights; use --method harness-only"):
                start.start(replace(config, method=method), env, tmp_path / method, resume=False)


def scripted(model: str) -> ScriptedPolicy:
    return ScriptedPolicy([f"<move>{model}</move>"])


def test_a_backend_of_ones_own_is_a_function(tmp_path: Path) -> None:
    env = whale_env.handle("chess", CHESS)
    mine = BackendConfig(kind=f"{__name__}:scripted")
    result = start.start(small(method="harness-only", model="e2e4", backend=mine), env, tmp_path / "run", resume=False)
    assert result.base.rollouts == 2
    with pytest.raises(ValueError, match="scripted takes no new weights"):
        start.start(small(model="e2e4", backend=mine), env, tmp_path / "other", resume=False)


def test_a_run_keeps_the_dtype_it_began_with(tiny_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env = whale_env.handle("chess", CHESS)
    config = small(method="weight-only", model=tiny_model)
    asked, made = [], []

    def fastest(source: str, device: str) -> str:
        asked.append(source)
        return "bfloat16/float32"

    def local(source: str, *, dtype: str, thinking: bool | None) -> TransformersPolicy:
        made.append(dtype)
        return TransformersPolicy(source, dtype=dtype, thinking=thinking)

    monkeypatch.setattr(backend, "fastest", fastest)
    monkeypatch.setattr(backend, "TransformersPolicy", local)
    start.start(config, env, tmp_path / "run", resume=False)
    (tmp_path / "run" / "result.json").unlink()
    monkeypatch.setattr(backend, "fastest", lambda source, device: "float32")
    start.start(config, env, tmp_path / "run", resume=True)
    assert asked == [tiny_model] and made == ["bfloat16/float32"] * 2


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (BackendConfig(kind="vllm", engine="{tp: 2}"), "is not a JSON object"),
        (BackendConfig(kind="vllm", engine="[]"), "is not a JSON object"),
        (BackendConfig(kind="vlm"), "Did you mean 'vllm'?"),
        (BackendConfig(kind="no_such_module:make"), "No module named"),
        (BackendConfig(kind="json:nothing"), "has no attribute"),
        (BackendConfig(kind="builtins:str"), "made a str, which has no method generate"),
        (BackendConfig(dtype="float17"), "unknown dtype 'float17'"),
        (BackendConfig(kind="vllm", url="ftp://x"), "must begin with http"),
        (BackendConfig(kind="vllm", url="http://127.0.0.1:9"), "connection failed"),
        (BackendConfig(kind="openai"), "OPENAI_API_KEY"),
        (BackendConfig(kind="anthropic"), "ANTHROPIC_API_KEY"),
    ],
)
def test_what_a_user_can_get_wrong_is_one_line(
    config: BackendConfig,
    words: str,
    tiny_model: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "WHALE_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("harness_sdk.policies.api.FIRST_WAIT", 0.001)
    with pytest.raises(SystemExit) as left, one_line_errors(), backend.opened(config, tiny_model):
        pass
    assert left.value.code == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1


PAGE = (Path(__file__).parents[1] / "docs" / "policies.md").read_text("utf-8")
COMMANDS = [line for line in PAGE.replace("\\\n", " ").splitlines() if line.startswith("python -m optimizers.")]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_page_is_understood(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, *flags = shlex.split(command, comments=True)[2:]
    if module == "optimizers.evaluate":
        checked_backend(parse_flags(flags).backend)
        return
    monkeypatch.setattr("sys.argv", [module, *flags, "--dry-run"])
    run_command(module)


def test_the_backend_of_the_page_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = PAGE.partition("```python\n")[2].partition("```")[0]
    (tmp_path / source.split("\n", 1)[0].removeprefix("# ")).write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    command = next(command for command in COMMANDS if "my_backend:make" in command)
    show(parse_flags(shlex.split(command)[3:]))
    assert json.loads(capsys.readouterr().out)["rollouts"] == 4
