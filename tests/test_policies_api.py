"""OpenAIPolicy and AnthropicPolicy against a local HTTP server that speaks both protocols, and misbehaves on demand."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from http_server import Reply, Server, running

from harness_sdk.harness import Harness
from harness_sdk.loader import LoadedHarness
from harness_sdk.policies import api
from harness_sdk.policies.anthropic import AnthropicPolicy, translate
from harness_sdk.policies.api import cut_at_stop, read_call
from harness_sdk.policies.base import GREEDY, Generation, PolicyError, PromptTooLongError, Request, Sampling
from harness_sdk.policies.openai import OpenAIPolicy
from harness_sdk.rollout import jobs_for, rollout
from harness_sdk.session import HarnessSession, LocalSession
from harness_sdk.types import ParseFailure
from whale_env.core import DomainSpec, EnvHandle, Outcome, ToolEnv, said_verbatim
from whale_env.types import Observation, Score, Split, Task, ToolCall, ToolSpec

pytest.importorskip("openai")
pytest.importorskip("anthropic")

KEY = "sk-not-a-real-key-0123456789"
USER = [{"role": "user", "content": "2 + 2?"}]
TOOL = {"type": "function", "function": {"name": "answer", "description": "Answers.", "parameters": {"type": "object"}}}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(api, "FIRST_WAIT", 0.001)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    with running(lambda body, number: Reply(chat("4"))) as started:
        yield started


def chat(text: str | None, finish: str = "stop", calls: list[Any] | None = None, **choice: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls is not None:
        message["tool_calls"] = calls
    return {
        "id": "c1",
        "object": "chat.completion",
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, **choice}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3},
    }


def native(name: str, arguments: Any, call_id: Any = "id") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def claude(*blocks: dict[str, Any], stop: str = "end_turn", **fields: Any) -> dict[str, Any]:
    usage = {"input_tokens": 5, "output_tokens": 2}
    return {
        "type": "message",
        "role": "assistant",
        "content": list(blocks),
        "stop_reason": stop,
        "usage": usage,
        **fields,
    }


def says(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def ask(policy: Any, request: Request | None = None, times: int = 1) -> list[Generation]:
    async def main() -> list[Generation]:
        try:
            return list(
                await asyncio.gather(
                    *(policy.generate(request or Request(USER, sampling=GREEDY)) for _ in range(times))
                )
            )
        finally:
            await policy.close()

    return asyncio.run(main())


def openai(at: Server, **kwargs: Any) -> OpenAIPolicy:
    return OpenAIPolicy("m", base_url=f"{at.url}/v1", **kwargs)


def anthropic(at: Server, **kwargs: Any) -> AnthropicPolicy:
    return AnthropicPolicy("claude", base_url=at.url, **{"sampling": True, **kwargs})


# --- what is asked -------------------------------------------------------------------------------------------------


def test_vllm_gets_all_sampling_fields(server: Server) -> None:
    request = Request(USER, [TOOL], Sampling(0.7, 20, 0.9, 0.05), max_tokens=9, stop=("</answer>",), seed=2**40 + 3)
    server.script = lambda body, number: Reply(vllm("a</answer>", [1, 2], [3]))
    ask(openai(server, server="vllm"), request)
    sent = server.requests[0]
    assert server.paths == ["/v1/chat/completions"]
    expected = {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "max_tokens": 9, "seed": 3}
    assert {key: sent[key] for key in expected} == expected
    assert sent["stop"] == ["</answer>"] and sent["include_stop_str_in_output"] is True
    assert sent["return_token_ids"] is True and sent["logprobs"] is True
    assert sent["tools"] == [TOOL]


def test_plain_server_gets_no_unknown_fields_and_one_warning(server: Server) -> None:
    policy = openai(server)
    with pytest.warns(UserWarning, match="takes no top_k or min_p") as caught:
        ask(policy, Request(USER, sampling=Sampling(1.0, 20)), times=3)
    assert len(caught) == 1
    known = {"model", "messages", "temperature", "top_p", "seed", "max_tokens"}
    assert all(set(sent) == known for sent in server.requests)


def test_openai_itself_needs_a_key_and_takes_the_new_limit_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(PolicyError, match="set OPENAI_API_KEY"):
        OpenAIPolicy("gpt")
    policy = OpenAIPolicy("gpt", api_key=KEY)
    assert policy._fields(Request(USER, sampling=GREEDY))["max_completion_tokens"] == 1024


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"server": "vlm"}, "unknown server 'vlm'. Use one of: openai, vllm"),
        ({"base_url": "localhost:8000"}, "must begin with http"),
        ({"concurrency": 0}, "concurrency must be at least 1, not 0"),
        ({"timeout": 0}, "timeout must be more than 0 seconds"),
        ({"retries": -1}, "retries must be at least 0"),
    ],
)
def test_bad_arguments_are_named(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OpenAIPolicy("m", **{"base_url": "http://localhost", **kwargs})


def test_a_final_assistant_message_is_continued_or_refused(server: Server) -> None:
    messages = [*USER, {"role": "assistant", "content": "It is"}]
    server.script = lambda body, number: Reply(vllm(" 4", [1, 2], [3]))
    ask(openai(server, server="vllm"), Request(messages, sampling=GREEDY))
    sent = server.requests[0]
    assert sent["continue_final_message"] is True and sent["add_generation_prompt"] is False
    with pytest.raises(PolicyError, match="cannot continue a final assistant message"):
        ask(openai(server), Request(messages, sampling=GREEDY))
    assert len(server.requests) == 1


def test_an_empty_prefix_is_none(server: Server) -> None:
    ask(openai(server), Request([*USER, {"role": "assistant", "content": ""}], sampling=GREEDY))
    assert server.requests[0]["messages"] == USER


# --- what is read --------------------------------------------------------------------------------------------------


def vllm(text: str, prompt_ids: Sequence[int], token_ids: Sequence[int], **choice: Any) -> dict[str, Any]:
    logprobs = {"content": [{"token": "x", "logprob": -0.5, "bytes": None, "top_logprobs": []} for _ in token_ids]}
    answer = chat(text, logprobs=logprobs, token_ids=list(token_ids), **choice)
    return {**answer, "prompt_token_ids": list(prompt_ids)}


def test_text_and_counts(server: Server) -> None:
    (generation,) = ask(openai(server))
    assert (generation.completion.text, generation.completion.finish_reason) == ("4", "stop")
    assert generation.completion.tokens == 3
    assert generation.token_ids == generation.prompt_ids == ()


@pytest.mark.parametrize(
    ("said", "finish"),
    [("stop", "stop"), ("length", "length"), ("tool_calls", "stop"), ("content_filter", "abort"), (None, "abort")],
)
def test_finish_reasons(server: Server, said: Any, finish: str) -> None:
    server.script = lambda body, number: Reply(chat("4", said))
    assert ask(openai(server))[0].completion.finish_reason == finish


def test_ids_and_logprobs_of_vllm(server: Server) -> None:
    server.script = lambda body, number: Reply(vllm("4", [1, 2, 3], [4, 5]))
    policy = openai(server, server="vllm")
    policy.require_token_ids()
    policy.weights_version = 7
    (generation,) = ask(policy)
    assert generation.prompt_ids == (1, 2, 3) and generation.token_ids == (4, 5)
    assert generation.logprobs == (-0.5, -0.5) and generation.weights_version == 7
    assert generation.completion.tokens == 2


def test_training_needs_token_ids(server: Server) -> None:
    policy = openai(server)
    assert not policy.supports_training
    with pytest.raises(ValueError, match=r"127.0.0.1 gives no token ids.*server='vllm'"):
        policy.require_token_ids()
    promised = openai(server, server="vllm")
    ask(promised)  # evaluation goes on without ids
    promised.require_token_ids()
    with pytest.raises(PolicyError, match="gives no token ids"):
        ask(promised)
    with pytest.raises(ValueError, match="nothing can be trained"):
        anthropic(server).require_token_ids()


def test_ids_without_their_logprobs_are_an_error(server: Server) -> None:
    answer = vllm("4", [1], [2, 3])
    answer["choices"][0]["logprobs"]["content"].pop()
    server.script = lambda body, number: Reply(answer)
    with pytest.raises(PolicyError, match="2 token ids but 1 log-prob"):
        ask(openai(server, server="vllm"))


def test_stop_string_stays_in_the_text(server: Server) -> None:
    request = Request(USER, sampling=GREEDY, stop=("</a>", "</b>"))
    server.script = lambda body, number: Reply(chat("x", stop_reason="</b>"))
    assert ask(openai(server, server="vllm"), request)[0].completion.text == "x</b>"
    server.script = lambda body, number: Reply(chat("x</a>", matched_stop="</a>"))
    assert ask(openai(server, server="sglang"), request)[0].completion.text == "x</a>"


def test_a_server_that_cannot_say_what_matched_is_cut_here(server: Server) -> None:
    server.script = lambda body, number: Reply(chat("x</b>y</a>z", "length"))
    (generation,) = ask(openai(server), Request(USER, sampling=GREEDY, stop=("</a>", "</b>")))
    assert "stop" not in server.requests[0]
    assert (generation.completion.text, generation.completion.finish_reason) == ("x</b>", "stop")


def test_tool_calls_keep_order_and_get_ids_of_their_own(server: Server) -> None:
    calls = [native("answer", '{"text": "4"}', "a"), native("answer", "", "a"), native("search", {"q": 1}, None)]
    server.script = lambda body, number: Reply(chat(None, "tool_calls", calls))
    (generation,) = ask(openai(server), Request(USER, [TOOL], GREEDY))
    found = generation.completion.tool_calls
    assert found == (ToolCall("answer", {"text": "4"}), ToolCall("answer", {}), ToolCall("search", {"q": 1}))
    assert [call.id for call in found] == ["a", "call_1", "call_2"]
    assert generation.completion.text == ""


def test_a_broken_call_is_text_and_its_neighbours_live(server: Server) -> None:
    calls = [native("answer", '{"text": "4'), native("answer", '{"text": "5"}'), "junk", native("answer", "[1]")]
    server.script = lambda body, number: Reply(chat("Well", "tool_calls", calls))
    completion = ask(openai(server))[0].completion
    assert completion.tool_calls == (ToolCall("answer", {"text": "5"}),)
    assert completion.text.startswith('Well\n<tool_call>{"name": "answer", "arguments": {"text": "4}')
    assert completion.structured and [failure.kind for failure in completion.unread] == ["format"] * 3
    server.script = lambda body, number: Reply(chat("", "length", calls[:1]))
    (cut,) = ask(openai(server))[0].completion.unread
    assert cut.kind == "truncated" and "answer" in cut.reason


@pytest.mark.parametrize("finish", ["length", "content_filter", None])
@pytest.mark.parametrize("arguments", ["", None, '{"text": "4', "{", '{"text":'])
def test_a_call_that_was_cut_off_is_not_run(server: Server, finish: str | None, arguments: Any) -> None:
    calls = [native("answer", '{"text": "5"}', "a"), native("answer", arguments, "b")]
    server.script = lambda body, number: Reply(chat("", finish, calls))  # type: ignore[arg-type]
    completion = ask(openai(server))[0].completion
    assert completion.tool_calls == (ToolCall("answer", {"text": "5"}),)
    assert [failure.kind for failure in completion.unread] == ["truncated"]
    server.script = lambda body, number: Reply(chat("", finish, calls[1:]))  # type: ignore[arg-type]
    completion = ask(openai(server))[0].completion
    assert not completion.tool_calls and completion.unread[0].kind == "truncated"


def test_a_call_that_was_whole_before_the_cut_runs(server: Server) -> None:
    server.script = lambda body, number: Reply(chat("", "length", [native("answer", '{"text": "5"}')]))
    assert ask(openai(server))[0].completion.tool_calls == (ToolCall("answer", {"text": "5"}),)
    server.script = lambda body, number: Reply(chat("", "tool_calls", [native("look", "")]))
    assert ask(openai(server))[0].completion.tool_calls == (ToolCall("look", {}),)


@pytest.mark.parametrize("stop", ["max_tokens", "model_context_window_exceeded"])
@pytest.mark.parametrize("given", [{}, {"text": "4"}, None])
def test_a_call_of_claudes_that_was_cut_off_is_not_run(server: Server, stop: str, given: Any) -> None:
    def use(arguments: Any, call_id: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": call_id, "name": "answer", "input": arguments}

    blocks = [says("Well"), use({"text": "5"}, "a"), use(given, "b")]
    server.script = lambda body, number: Reply(claude(*blocks, stop=stop))
    completion = ask(anthropic(server))[0].completion
    assert completion.tool_calls == (ToolCall("answer", {"text": "5"}),)
    assert [failure.kind for failure in completion.unread] == ["truncated"]
    server.script = lambda body, number: Reply(claude(use({}, "a"), stop="tool_use"))
    assert ask(anthropic(server))[0].completion.tool_calls == (ToolCall("answer", {}),)


@pytest.mark.parametrize("arguments", ['{"a": NaN}', "[" * 100_000, "null", 3, "{'a': 1}"])
def test_unreadable_arguments_are_a_typed_failure(arguments: Any) -> None:
    failure = read_call("answer", arguments, "id")
    assert isinstance(failure, ParseFailure) and "answer" in failure.reason


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{"message": None}]}, {"choices": "no"}])
def test_an_answer_without_a_message_is_one_error(server: Server, answer: Any) -> None:
    server.script = lambda body, number: Reply(answer)
    with pytest.raises(PolicyError, match="holds no message"):
        ask(openai(server))


def test_content_in_parts_and_null_content(server: Server) -> None:
    server.script = lambda body, number: Reply(chat([says("a"), says("b")] if number == 0 else None))  # type: ignore[arg-type]
    policy = openai(server)
    assert [ask(policy)[0].completion.text for _ in range(2)] == ["ab", ""]


def test_cut_at_stop_takes_the_first_to_end() -> None:
    assert cut_at_stop("xabcy", ("abc", "b")) == ("xab", True)
    assert cut_at_stop("x", ("abc",)) == ("x", False)


# --- what goes wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [openai, anthropic])
@pytest.mark.parametrize(
    "bad",
    [
        Reply({"error": {"message": "slow down"}}, 429),
        Reply({"error": {"message": "slow down"}}, 429, {"retry-after": "0.01"}),
        Reply({"error": {"message": "oops"}}, 500),
        Reply(b"<html>bad gateway</html>", 502),
        Reply({"error": {"message": "overloaded"}}, 529),
        Reply(b'{"choices": [{"mess', 200),
        Reply(b"[]", 200),
        Reply(chat("4"), cut=True),
        Reply(chat("4"), delay=30.0),
    ],
    ids=["429", "429-wait", "500", "502-html", "529", "half-json", "no-object", "cut", "slow"],
)
def test_what_may_pass_is_tried_again(server: Server, make: Any, bad: Reply) -> None:
    good = Reply(chat("4")) if make is openai else Reply(claude(says("4")))
    server.script = lambda body, number: bad if number == 0 else good
    (generation,) = ask(make(server, timeout=1.5 if bad.delay else 30.0))
    assert generation.completion.text == "4"
    assert len(server.requests) == 2


def packed(size: int) -> bytes:
    return gzip.compress(b'{"choices": "' + b" " * size + b'"}')


@pytest.mark.parametrize("make", [openai, anthropic])
@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (Reply(packed(50_000_000), headers={"content-encoding": "gzip"}), "packed .'gzip'., which was not asked for"),
        (Reply(packed(50_000_000), 500, {"content-encoding": "gzip"}), "packed .'gzip'., which was not asked for"),
        (Reply(packed(50), headers={"content-encoding": "br"}), "packed .'br'."),
        (Reply(b'{"choices": "' + b" " * 1_000_000), "more than 100000 bytes"),
        (Reply(b'{"error": "' + b" " * 1_000_000, 400), "more than 100000 bytes"),
        (Reply(b'{"choices": ' + b"[" * 90_000), "not JSON"),
        (Reply(b'{"choices": ' + b"[" * 500 + b"]" * 500 + b"}"), "not JSON"),
        (Reply(b'{"content": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001), "not JSON"),
        (Reply(b'{"choices": ' + b"1" * 90_000 + b"}"), "not JSON"),
        (Reply(b'{"choices": \xff}'), "not JSON"),
        (Reply({"error": {"message": "no"}}, 400), "400 no"),
        (Reply(b"[" * 90_000, 400), "400"),
    ],
    ids=[
        "bomb",
        "bomb-500",
        "br",
        "long",
        "long-400",
        "deep",
        "nested",
        "objects",
        "number",
        "bytes",
        "400",
        "deep-400",
    ],
)
def test_what_a_broken_server_sends_is_one_line(
    server: Server, make: Any, reply: Reply, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MAX_ANSWER", 100_000)
    server.script = lambda body, number: reply
    with pytest.raises(PolicyError, match=words) as caught:
        ask(make(server, retries=1))
    assert len(str(caught.value)) < 700 and "\n" not in str(caught.value)
    assert server.headers[0]["accept-encoding"] == "identity"


@pytest.mark.parametrize("make", [openai, anthropic])
@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_does_not_carry_the_key_elsewhere(server: Server, make: Any, status: int) -> None:
    with running(lambda body, number: Reply(chat("4"))) as other:
        server.script = lambda body, number: Reply({}, status, {"location": f"{other.url}/v1/messages"})
        with pytest.raises(PolicyError, match=rf"redirects \({status}\) to {other.url}/v1/messages; give that address"):
            ask(make(server))
        assert not other.requests and len(server.requests) == 1


def test_retries_end_in_one_line(server: Server) -> None:
    server.script = lambda body, number: Reply({"error": {"message": "no\nluck"}}, 503)
    with pytest.raises(PolicyError, match=r"127.0.0.1: 503 no luck \(tried 3 times\)"):
        ask(openai(server, retries=2))
    assert len(server.requests) == 3


def test_retry_after_is_waited_for(server: Server) -> None:
    server.script = lambda body, number: Reply({}, 429, {"retry-after": "0.2"}) if number == 0 else Reply(chat("4"))
    began = time.monotonic()
    ask(openai(server))
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("make", [openai, anthropic])
@pytest.mark.parametrize(
    ("status", "said", "message"),
    [
        (401, f"Incorrect API key provided: {KEY}", r"refused the key \(401\); check (OPENAI|ANTHROPIC)_API_KEY"),
        (403, "no", r"refused the key \(403\)"),
        (404, "The model `m` does not exist", "404 The model `m` does not exist"),
        (400, f"bad field for {KEY}", r"400 bad field for \[key\]"),
    ],
)
def test_what_will_not_pass_fails_at_once(server: Server, make: Any, status: int, said: str, message: str) -> None:
    server.script = lambda body, number: Reply({"error": {"message": said}}, status)
    with pytest.raises(PolicyError, match=message) as caught:
        ask(make(server))
    assert len(server.requests) == 1
    assert KEY not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [openai, anthropic])
@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 2048 tokens. However, your request has 3000 input tokens.",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "the request exceeds the available context size (4096), try increasing it",
    ],
)
def test_a_prompt_that_does_not_fit_is_the_harness_s_doing(server: Server, make: Any, said: str) -> None:
    server.script = lambda body, number: Reply({"error": {"message": said}}, 400)
    with pytest.raises(PromptTooLongError, match=said[:20]):
        ask(make(server))


def test_prompt_limit_counts_what_the_server_counted(server: Server) -> None:
    with pytest.raises(PromptTooLongError, match="7 tokens; the limit is 6"):
        ask(openai(server), Request(USER, sampling=GREEDY, max_prompt_tokens=6))
    server.script = lambda body, number: Reply(claude(says("4")))
    with pytest.raises(PromptTooLongError, match="5 tokens; the limit is 4"):
        ask(anthropic(server), Request(USER, sampling=GREEDY, max_prompt_tokens=4))


def test_nobody_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(PolicyError, match="connection failed"):
        ask(OpenAIPolicy("m", base_url=f"http://127.0.0.1:{port}/v1", retries=0))


def test_concurrency_is_bounded(server: Server) -> None:
    server.script = lambda body, number: Reply(chat("4"), delay=0.02)
    ask(openai(server, concurrency=3), times=12)
    assert len(server.requests) == 12
    assert server.most_busy <= 3


def test_one_policy_serves_one_event_loop_after_another(server: Server) -> None:
    policy = openai(server)

    async def once() -> str:
        text = (await policy.generate(Request(USER, sampling=GREEDY))).completion.text
        await policy.close()
        return text

    assert [asyncio.run(once()) for _ in range(3)] == ["4", "4", "4"]


@pytest.mark.parametrize("make", [openai, anthropic])
def test_the_key_is_sent_and_shown_nowhere(server: Server, make: Any) -> None:
    server.script = lambda body, number: Reply(chat("4") if make is openai else claude(says("4")))
    policy = make(server)
    ask(policy)
    assert KEY in " ".join(server.headers[0].values())
    assert KEY not in repr(policy)
    assert KEY not in repr(vars(policy)) and KEY not in repr(vars(policy._api))


# --- Anthropic's protocol ------------------------------------------------------------------------------------------


def test_translation_alternates_roles_and_pairs_results() -> None:
    call = {"id": "t1", "type": "function", "function": {"name": "search", "arguments": '{"q": "x"}'}}
    lost = {"id": "t2", "type": "function", "function": {"name": "search", "arguments": '{"q": "y"}'}}
    system, turns = translate(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a"},
            {"role": "user", "content": "b"},
            {"role": "assistant", "content": "", "tool_calls": [call, lost]},
            {"role": "user", "content": "and"},
            {"role": "tool", "content": "found", "tool_call_id": "t1"},
            {"role": "tool", "content": "stray", "tool_call_id": "t9"},
            {"role": "assistant", "content": " "},
            {"role": "system", "content": "Hurry."},
            {"role": "assistant", "content": "So"},
        ]
    )
    assert system == "Be brief.\n\nHurry."
    assert turns == [
        {"role": "user", "content": [says("a"), says("b")]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "search", "input": {"q": "x"}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "found"}, says("and"), says("stray")],
        },
        {"role": "assistant", "content": [says("So")]},
    ]


def test_claude_request_fields(server: Server) -> None:
    server.script = lambda body, number: Reply(claude(says("4")))
    request = Request(USER, [TOOL], Sampling(0.5, 20, 0.9), max_tokens=9, stop=("</a>", "\n"))
    ask(anthropic(server), request)
    with pytest.warns(UserWarning, match="pass sampling=True"):
        ask(anthropic(server, sampling=False), request, times=2)
    with pytest.warns(UserWarning, match="no min_p"):
        ask(anthropic(server), Request(USER, sampling=Sampling(1.0, 0, 1.0, 0.1)))
    first, second, _, third = server.requests
    assert server.paths[0] == "/v1/messages"
    assert (first["temperature"], first["top_k"], first["top_p"], first["max_tokens"]) == (0.5, 20, 0.9, 9)
    assert first["stop_sequences"] == ["</a>"]
    assert first["tools"] == [{"name": "answer", "description": "Answers.", "input_schema": {"type": "object"}}]
    assert not {"temperature", "top_k", "top_p"} & (set(second) | set(third))


@pytest.mark.parametrize(
    ("stop", "finish"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("refusal", "stop"),
        ("tool_use", "stop"),
        ("pause_turn", "abort"),
    ],
)
def test_claude_stop_reasons(server: Server, stop: str, finish: str) -> None:
    server.script = lambda body, number: Reply(claude(says("4"), stop=stop))
    completion = ask(anthropic(server))[0].completion
    assert (completion.text, completion.finish_reason, completion.tokens) == ("4", finish, 2)


def test_claude_tool_use_and_stop_sequence(server: Server) -> None:
    use = {"type": "tool_use", "id": "t1", "name": "answer", "input": {"text": "4"}}
    broken = {"type": "tool_use", "id": "t2", "name": "answer", "input": "4"}
    blocks = [{"type": "thinking", "thinking": "hm"}, says("So <a>"), use, broken]
    server.script = lambda body, number: Reply(claude(*blocks, stop="tool_use"))
    completion = ask(anthropic(server))[0].completion
    assert completion.tool_calls == (ToolCall("answer", {"text": "4"}),) and completion.tool_calls[0].id == "t1"
    assert completion.text == 'So <a>\n<tool_call>["answer", "4"]'
    server.script = lambda body, number: Reply(claude(says("<a>4"), stop="stop_sequence", stop_sequence="</a>"))
    completion = ask(anthropic(server), Request(USER, sampling=GREEDY, stop=("</a>",)))[0].completion
    assert (completion.text, completion.finish_reason) == ("<a>4</a>", "stop")


# --- through the rollout loop --------------------------------------------------------------------------------------


class Sums:
    """64 sums with one answer tool."""

    spec = DomainSpec(
        "sums",
        (
            ToolSpec(
                "answer",
                "Answers.",
                {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
                True,
            ),
        ),
    )

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"sum-{n}", "sums", "train", {"n": n}) for n in range(64)] if split == "train" else []

    def start(self, task: Task, seed: int) -> SumSession:
        return SumSession(int(str(task.data["n"])))


class SumSession:
    def __init__(self, n: int) -> None:
        self.n, self.right = n, False

    def observe(self) -> Observation:
        return Observation(f"{self.n} + 1 = ?")

    def apply(self, call: ToolCall) -> Outcome:
        self.right = call.arguments["text"] == str(self.n + 1)
        return Outcome(self.observe(), done=True)

    def said(self, call: ToolCall, text: str) -> bool:
        return said_verbatim(call, text)

    def score(self) -> Score:
        return Score(1.0) if self.right else Score(0.0, "wrong")


class SumsHandle(EnvHandle):
    def _make(self) -> ToolEnv:
        return ToolEnv(Sums())


def default_harness() -> LoadedHarness:
    async def opened(seed: int) -> HarnessSession:
        return LocalSession(Harness())

    return LoadedHarness("0" * 12, "Harness", "", True, opened)


def test_63_of_64_rollouts_survive_one_hanging_request(server: Server) -> None:
    def script(body: dict[str, Any], number: int) -> Reply:
        n = int(body["messages"][-1]["content"].split()[0])
        return Reply(
            chat(None, "tool_calls", [native("answer", json.dumps({"text": str(n + 1)}))]), delay=30.0 if n == 17 else 0
        )

    server.script = script
    policy = openai(server, timeout=1.0, retries=1)
    handle = SumsHandle("sums", {})

    async def main() -> Any:
        try:
            return await rollout(jobs_for(default_harness(), handle.tasks("train")), handle, policy)
        finally:
            await policy.close()

    with pytest.warns(UserWarning, match="takes no top_k"):
        done = asyncio.run(main())
    rewards = [trajectory.reward for trajectory in done]
    assert rewards[17] is None and done[17].score.failure == "env_error"
    assert done[17].stopped == "policy: 127.0.0.1: no answer in 1 s (tried 2 times)"
    assert rewards[:17] + rewards[18:] == [1.0] * 63
    assert KEY not in json.dumps([trajectory.to_json() for trajectory in done])
