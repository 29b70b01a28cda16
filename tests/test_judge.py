"""The optional judge of short answers, against a server on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from json_server import serving

import whale_env
from whale_env import ToolCall, http_json
from whale_env.searchqa.judge import RUBRIC, FakeJudge, Judge, JudgeConfig, JudgeError, LLMJudge, Verdict
from whale_env.types import SPLITS

ASK = ("Where?", ["United States", "USA"])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_json, "FIRST_WAIT", 0.001)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)


def openai(word: str) -> bytes:
    return json.dumps({"choices": [{"message": {"content": word}}]}).encode()


def test_openai_judge_asks_once_and_remembers(tmp_path: Path) -> None:
    asked: list[Any] = []

    def reply(path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, bytes]:
        asked.append((path, headers.get("authorization"), body))
        candidate = json.loads(body["messages"][1]["content"])["candidate"]
        return 200, openai("Correct." if candidate == "U.S. of America" else "incorrect")

    with serving(reply) as url:
        judge = LLMJudge(JudgeConfig.of(f"openai:small@{url}/v1"), cache=tmp_path)
        assert judge.judge(*ASK, "usa") == Verdict(True, "exact") and not asked
        assert judge.judge(*ASK, "U.S. of America") == Verdict(True, "judge")
        assert judge.judge(*ASK, "France") == Verdict(False, "judge")
        again = LLMJudge(JudgeConfig.of(f"openai:small@{url}/v1"), cache=tmp_path)
        assert again.judge(*ASK, "U.S. of America") == Verdict(True, "judge")
        assert judge.judge(*ASK, "x" * 401) == judge.judge(*ASK, " ") == Verdict(False, "exact")
        other = LLMJudge(JudgeConfig.of(f"openai:large@{url}/v1"), cache=tmp_path)
        other.judge(*ASK, "France")
    assert [body["model"] for _, _, body in asked] == ["small", "small", "large"]
    path, key, body = asked[0]
    assert (path, key, body["temperature"]) == ("/v1/chat/completions", None, 0)
    assert body["messages"][0] == {"role": "system", "content": RUBRIC}


def test_anthropic_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    asked: list[Any] = []

    def reply(path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, bytes]:
        asked.append((path, headers["x-api-key"], body["system"], body["temperature"]))
        return 200, json.dumps({"content": [{"type": "text", "text": "correct"}]}).encode()

    with serving(reply) as url:
        judge = LLMJudge(JudgeConfig.of(f"anthropic:some-model@{url}/v1"), cache=tmp_path)
        assert judge.judge(*ASK, "America") == Verdict(True, "judge")
    assert asked == [("/v1/messages", "secret", RUBRIC, 0)]
    assert "secret" not in "".join(path.read_text() for path in tmp_path.rglob("*.json"))


@pytest.mark.parametrize(
    ("statuses", "word", "expected", "requests"),
    [
        ([503, 429], "correct", Verdict(True, "judge"), 3),
        ([500] * 9, "correct", Verdict(False, "fallback"), 4),
        ([401], "correct", Verdict(False, "fallback"), 1),
        ([], "I would say it is correct", Verdict(False, "fallback"), 1),
    ],
)
def test_retries_then_exact_match(
    statuses: list[int], word: str, expected: Verdict, requests: int, tmp_path: Path
) -> None:
    seen: list[str] = []

    def reply(path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, bytes]:
        seen.append(path)
        return (statuses[len(seen) - 1], b"") if len(seen) <= len(statuses) else (200, openai(word))

    with serving(reply) as url:
        assert LLMJudge(JudgeConfig.of(f"openai:m@{url}"), cache=tmp_path).judge(*ASK, "America") == expected
    assert len(seen) == requests
    assert any(tmp_path.rglob("*.json")) == (expected.source == "judge")


def test_a_judge_that_cannot_be_set_up() -> None:
    for name, why in (
        ("openai", "must be openai:MODEL or anthropic:MODEL"),
        ("openai:m@localhost", "must be openai:MODEL"),
        ("mistral:m", "unknown kind of judge 'mistral'"),
        ("openai:m", "the judge 'm' needs a key in OPENAI_API_KEY"),
    ):
        with pytest.raises(JudgeError, match=why):
            whale_env.make("searchqa", judge=name)


@pytest.fixture
def play(tmp_path: Path) -> Callable[..., Any]:
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"question": ASK[0], "answer": ASK[1]}), encoding="utf-8")

    def one(judge: Judge | None, text: str) -> Any:
        env = whale_env.make("searchqa", source=str(path), retriever="none", judge=judge)
        env.reset(options={"task": next(task.id for split in SPLITS for task in env.tasks(split))})
        env.step(ToolCall("answer", {"text": text}))
        score = env.score()
        return score.reward, score.failure, score.metrics.get("judge_fallback")

    return one


def test_the_environment_asks_the_judge(play: Callable[..., Any]) -> None:
    judge = FakeJudge(["America"])
    assert play(judge, "USA") == (1.0, None, 0.0) and not judge.asked
    assert play(judge, "<answer>America</answer>") == (1.0, None, 0.0)
    assert play(judge, "France") == (0.0, "wrong", 0.0)
    assert play(FakeJudge(fails=True), "America") == (0.0, "wrong", 1.0)
    assert play(None, "America") == (0.0, "wrong", None)
