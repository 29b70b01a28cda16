"""The optional judge of short answers, against a server on this machine."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from http_server import redirecting, serving

import whale_env
from whale_env import ToolCall, http_json
from whale_env.searchqa.judge import (
    RUBRIC,
    FakeJudge,
    Judge,
    JudgeConfig,
    JudgeError,
    JudgeUnavailableError,
    LLMJudge,
    Verdict,
)
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


@pytest.mark.parametrize(
    ("status", "body", "why", "requests"),
    [
        (500, b"", "HTTP 500", 4),
        (429, b"", "HTTP 429", 4),
        (401, b"", "HTTP 401", 1),
        (302, b"", "HTTP 302", 1),
        (200, b"<html>", "gave no JSON", 1),
        (200, b"[" * 100_000, "gave no JSON", 1),
        (200, b"{}", "not with a chat completion; is it the openai API", 1),
        (200, b'{"choices": []}', "not with a chat completion", 1),
        (200, b"[1]", "not with a chat completion", 1),
    ],
)
def test_a_service_that_gives_no_verdict_is_an_error_and_no_wrong_answer(
    status: int, body: bytes, why: str, requests: int, tmp_path: Path, play: Callable[..., Any]
) -> None:
    seen: list[str] = []

    def reply(path: str, headers: dict[str, str], body_: dict[str, Any]) -> tuple[int, bytes]:
        seen.append(path)
        return status, body

    with serving(reply) as url:
        judge = LLMJudge(JudgeConfig.of(f"openai:m@{url}"), cache=tmp_path)
        with pytest.raises(JudgeUnavailableError, match=why) as refused:
            judge.judge(*ASK, "America")
        assert len(seen) == requests and "\n" not in str(refused.value)
        assert judge.judge(*ASK, "USA") == Verdict(True, "exact")
        with pytest.raises(JudgeUnavailableError):
            play(judge, "America")
    with pytest.raises(JudgeUnavailableError, match="nothing answers"):
        judge.judge(*ASK, "America")
    assert not any(tmp_path.rglob("*.json"))


def test_a_cut_connection_is_tried_again(tmp_path: Path) -> None:
    left = [3]

    def serve(listener: socket.socket) -> None:
        while left[0] >= 0:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                word = openai("correct")
                size = len(word) + (100 if left[0] else 0)  # promises more than it sends
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + word)
                left[0] -= 1

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        config = JudgeConfig.of(f"openai:m@http://127.0.0.1:{listener.getsockname()[1]}")
        assert LLMJudge(config, cache=tmp_path).judge(*ASK, "America") == Verdict(True, "judge")
        thread.join(timeout=60)
    assert left == [-1]


def test_a_redirect_does_not_carry_the_key_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    seen: list[Any] = []

    def record(path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, bytes]:
        seen.append(headers)
        return 200, openai("correct")

    with (
        serving(record) as elsewhere,
        redirecting(elsewhere) as url,
        pytest.raises(JudgeUnavailableError, match="HTTP 30"),
    ):
        LLMJudge(JudgeConfig.of(f"openai:m@{url}"), cache=tmp_path).judge(*ASK, "America")
    assert not seen


def test_verdicts_that_cannot_be_kept_count_all_the_same(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "judge").write_text("a file where a folder should be")
    with serving(lambda *_: (200, openai("correct"))) as url:
        judge = LLMJudge(JudgeConfig.of(f"openai:m@{url}"), cache=tmp_path)
        assert judge.judge(*ASK, "America") == Verdict(True, "judge")
    assert "cannot be kept" in caplog.text


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
    assert play(FakeJudge(undecided=True), "America") == (0.0, "wrong", 1.0)
    with pytest.raises(JudgeUnavailableError):
        play(FakeJudge(fails=True), "America")
    assert play(None, "America") == (0.0, "wrong", None)
