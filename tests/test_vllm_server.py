"""`VLLMPolicy` against a server: a small one that speaks vLLM's HTTP routes, with a real tiny model behind them.

A real vLLM is checked by ``python -m benchmarks.vllm_check --server``.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import torch
from http_server import serving
from safetensors.torch import load_file
from tiny import tiny_llama

from harness_sdk.policies import GREEDY, Generation, PolicyError, Request, Sampling, TransformersPolicy, VLLMPolicy, api
from harness_sdk.policies.engine import Engine, Row
from harness_sdk.policies.vllm_sync import fingerprint
from optimizers.run import backend

pytest.importorskip("openai")

MODEL, TOKENIZER = tiny_llama()
ASKED = [
    Request([{"role": "user", "content": f"Find the best move, {n}."}], sampling=GREEDY, max_tokens=9) for n in range(4)
]


class FakeVLLM:
    """The routes, the model, and what was asked of them."""

    def __init__(self) -> None:
        self.model = copy.deepcopy(MODEL)
        self.asked: list[tuple[str, dict[str, list[str]], dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.dev = True
        self.paused = False
        self.answers: dict[str, Callable[[], tuple[int, bytes]]] = {}

    def reply(self, path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, bytes]:
        url = urlsplit(path)
        self.asked.append((url.path, parse_qs(url.query), body))
        self.headers.append(headers)
        if url.path in self.answers:
            return self.answers[url.path]()
        if url.path not in ("/v1/models", "/v1/completions") and not self.dev:
            return 404, b'{"detail": "Not Found"}'
        answer = getattr(self, "do_" + url.path.strip("/").replace("/", "_").replace(".", "_"))(body)
        return 200, json.dumps(answer).encode()

    def do_v1_models(self, body: dict[str, Any]) -> Any:
        return {"object": "list", "data": [{"id": "model", "max_model_len": 2048}]}

    def do_server_info(self, body: dict[str, Any]) -> Any:
        return {"vllm_config": {"model_config": {"dtype": "torch.float32"}, "device_config": {"device": "cuda"}}}

    def do_get_world_size(self, body: dict[str, Any]) -> Any:
        return {"world_size": 1}

    def do_v1_completions(self, body: dict[str, Any]) -> Any:
        assert not self.paused
        assert body["model"] == "model" and body["return_token_ids"]
        sampling = Sampling(body["temperature"], body["top_k"], body["top_p"], body["min_p"])
        ends = frozenset(body["stop_token_ids"])
        row = Row(tuple(body["prompt"]), body["max_tokens"], sampling, body["seed"])
        batch = Engine(self.model, ends, 10).start([row])
        while batch.rows:
            batch.step()
        finish, logprobs = "stop" if row.ended else "length", {"token_logprobs": row.logprobs}
        choice = {"index": 0, "token_ids": row.ids, "finish_reason": finish, "logprobs": logprobs}
        return {"choices": [choice], "usage": {"prompt_tokens_details": {"cached_tokens": 3}}}

    def do_weight_checker(self, body: dict[str, Any]) -> Any:
        assert body == {"action": "checksum"} and self.paused
        named = self.model.named_parameters()
        return {"checksums": {name: hashlib.sha256(p.detach().numpy().tobytes()).hexdigest() for name, p in named}}

    def do_pause(self, body: dict[str, Any]) -> Any:
        self.paused = True
        return {"status": "paused"}

    def do_resume(self, body: dict[str, Any]) -> Any:
        self.paused = False
        return {"status": "resumed"}

    def do_collective_rpc(self, body: dict[str, Any]) -> Any:
        assert body["method"] == "reload_weights" and self.paused
        folder = Path(body["kwargs"]["weights_path"])
        self.model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
        self.model.tie_weights()
        return {"results": [None]}

    def do_reset_prefix_cache(self, body: dict[str, Any]) -> Any:
        return {"success": True}

    def do_sleep(self, body: dict[str, Any]) -> Any:
        return {"status": "sleeping"}

    def do_wake_up(self, body: dict[str, Any]) -> Any:
        return {"status": "awake"}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FakeVLLM, str]]:
    monkeypatch.setattr(api, "FIRST_WAIT", 0.001)
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    server = FakeVLLM()
    with serving(server.reply) as url:
        yield server, url


@pytest.fixture
def policy(fake: tuple[FakeVLLM, str], tiny_model: str) -> Iterator[VLLMPolicy]:
    with VLLMPolicy(tiny_model, url=fake[1]) as made:
        yield made


def ask(policy: Any, requests: list[Request]) -> list[Generation]:
    async def main() -> list[Generation]:
        return list(await asyncio.gather(*(policy.generate(request) for request in requests)))

    return asyncio.run(main())


def reference() -> TransformersPolicy:
    return TransformersPolicy(copy.deepcopy(MODEL), tokenizer=TOKENIZER)


def changed() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {name: p + 0.05 * torch.randn_like(p) for name, p in MODEL.named_parameters()}


def equal(ours: list[Generation], theirs: list[Generation]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert (a.prompt_text, a.prompt_ids, a.token_ids, a.completion) == (
            b.prompt_text,
            b.prompt_ids,
            b.token_ids,
            b.completion,
        )
        assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)


def test_a_server_answers_as_a_model_in_this_process(fake: tuple[FakeVLLM, str], policy: VLLMPolicy) -> None:
    first, expected = ask(policy, ASKED), ask(reference(), ASKED)
    equal(first, expected)
    more = [{"role": "assistant", "content": first[0].completion.text}, {"role": "user", "content": "Again."}]
    second = [replace(ASKED[0], messages=ASKED[0].messages + more, previous=first[0])]
    equal(ask(policy, second), ask(reference(), second))
    assert policy.cached_tokens == 3 * 5
    sent = [body for path, _, body in fake[0].asked if path == "/v1/completions"]
    assert sent[-1]["prompt"][: len(first[0].prompt_ids + first[0].token_ids)] == [
        *first[0].prompt_ids,
        *first[0].token_ids,
    ]
    drawn = replace(ASKED[0], sampling=Sampling(0.7, 5, 0.9, 0.01), seed=2**62 + 1, stop=("x", "yy"))
    ask(policy, [drawn])
    assert fake[0].asked[-1][2] == {
        "model": "model",
        "prompt": list(first[0].prompt_ids),
        "return_token_ids": True,
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.01,
        "max_tokens": 9,
        "seed": 2**62 + 1,
        "stop": ["x", "yy"],
        "include_stop_str_in_output": True,
        "stop_token_ids": [TOKENIZER.eos_token_id],
        "logprobs": 0,
    }


def test_weights_arrive_between_requests(fake: tuple[FakeVLLM, str], policy: VLLMPolicy) -> None:
    mine = reference()
    for version, weights in ((1, changed()), (2, changed()), (3, dict(MODEL.named_parameters()))):
        policy.load_weights(weights, version)
        mine.load_weights(weights, version)
        equal(ask(policy, ASKED), ask(mine, ASKED))
        assert policy.weights_version == version and not fake[0].paused
    rpcs = [body["kwargs"]["weights_path"] for path, _, body in fake[0].asked if path == "/collective_rpc"]
    assert len(rpcs) == 3 and not any(Path(path).exists() for path in rpcs)
    assert ("/pause", {"mode": ["wait"], "clear_cache": ["false"]}, {}) in fake[0].asked


@pytest.mark.parametrize(
    ("route", "answer", "words"),
    [
        ("/collective_rpc", (200, b'{"results": []}'), "unchanged after a reload"),
        ("/collective_rpc", (500, b'{"error": {"message": "out of luck"}}'), "out of luck"),
        ("/reset_prefix_cache", (200, b'{"success": false}'), "kept cached prefixes"),
        ("/weight_checker", (503, b"{}"), "503"),
    ],
)
def test_a_reload_that_fails_is_no_new_version(
    fake: tuple[FakeVLLM, str], policy: VLLMPolicy, route: str, answer: tuple[int, bytes], words: str
) -> None:
    policy.load_weights(dict(MODEL.named_parameters()), 1)
    fake[0].answers[route] = lambda: answer
    with pytest.raises(PolicyError, match=words):
        policy.load_weights(changed(), 2)
    assert policy.weights_version == 1 and not fake[0].paused
    fake[0].answers.clear()
    policy.load_weights(changed(), 2)
    assert policy.weights_version == 2


def test_a_server_that_takes_no_orders_samples_but_does_not_train(fake: tuple[FakeVLLM, str], tiny_model: str) -> None:
    fake[0].dev = False
    with VLLMPolicy(tiny_model, url=fake[1] + "/v1/") as policy:
        equal(ask(policy, ASKED), ask(reference(), ASKED))
        with pytest.raises(ValueError, match="VLLM_SERVER_DEV_MODE=1"):
            backend.require_token_ids(policy)
        with pytest.raises(PolicyError, match="VLLM_SERVER_DEV_MODE=1"):
            policy.load_weights(changed(), 1)


BROKEN = [
    b"{}",
    b"[]",
    b"no json",
    b'{"choices": []}',
    b'{"choices": [{"token_ids": [1], "logprobs": null}]}',
    b'{"choices": [{"token_ids": [1, 2], "logprobs": {"token_logprobs": [-1]}}]}',
    b'{"choices": [{"token_ids": ["x"], "logprobs": {"token_logprobs": [-1]}}]}',
    b'{"choices": [{"token_ids": null, "logprobs": {"token_logprobs": []}}], "usage": 3}',
]


@pytest.mark.parametrize("answer", BROKEN)
def test_a_broken_answer_is_a_policy_error(fake: tuple[FakeVLLM, str], policy: VLLMPolicy, answer: bytes) -> None:
    fake[0].answers["/v1/completions"] = lambda: (200, answer)
    with pytest.raises(PolicyError):
        ask(policy, ASKED[:1])


def test_passing_failures_are_tried_again(fake: tuple[FakeVLLM, str], policy: VLLMPolicy) -> None:
    left = [503, 429]

    def flaky() -> tuple[int, bytes]:
        if left:
            return left.pop(), b"{}"
        fake[0].answers.clear()
        return fake[0].reply("/v1/completions", {}, fake[0].asked[-1][2])

    fake[0].answers["/v1/completions"] = flaky
    equal(ask(policy, ASKED[:1]), ask(reference(), ASKED[:1]))


def test_the_key_is_sent_and_not_shown(fake: tuple[FakeVLLM, str], tiny_model: str) -> None:
    with VLLMPolicy(tiny_model, url=fake[1], api_key="hidden-key-12345") as policy:
        ask(policy, ASKED[:1])
        assert all(headers["authorization"] == "Bearer hidden-key-12345" for headers in fake[0].headers)
        fake[0].answers["/v1/completions"] = lambda: (401, b'{"error": "hidden-key-12345 is wrong"}')
        with pytest.raises(PolicyError, match="VLLM_API_KEY") as caught:
            ask(policy, ASKED[:1])
    assert "hidden-key" not in str(caught.value) and "hidden-key" not in repr(vars(policy))


def test_what_a_user_can_get_wrong_is_said(fake: tuple[FakeVLLM, str], tiny_model: str) -> None:
    with pytest.raises(ValueError, match="start it with"):
        VLLMPolicy(tiny_model, url=fake[1], engine={"dtype": "float32"})
    with pytest.raises(ValueError, match="unknown weight_sync 'floppy'"):
        VLLMPolicy(tiny_model, url=fake[1], weight_sync="floppy")
    with pytest.raises(PolicyError, match="connection failed"):
        VLLMPolicy(tiny_model, url="http://127.0.0.1:9")
    fake[0].answers["/v1/models"] = lambda: (200, b'{"data": [{"id": "x"}]}')
    with pytest.raises(PolicyError, match="not a vLLM server"):
        VLLMPolicy(tiny_model, url=fake[1])


def test_sleep_and_new_weights_wake_it(fake: tuple[FakeVLLM, str], tiny_model: str) -> None:
    with VLLMPolicy(tiny_model, url=fake[1], sleeps=True) as policy:
        policy.load_weights(changed(), 1)
        policy.sleep(keep_weights=False)
        with pytest.raises(PolicyError, match="load_weights"):
            ask(policy, ASKED[:1])
        with pytest.raises(ValueError, match="discarded"):
            policy.wake()
        policy.load_weights(dict(MODEL.named_parameters()), 2)
        assert [q.get("tags") for path, q, _ in fake[0].asked if path == "/wake_up"] == [["weights"], ["kv_cache"]]
        equal(ask(policy, ASKED), ask(reference(), ASKED))
        policy.sleep()
        policy.wake()
        assert fake[0].asked[-1][:2] == ("/wake_up", {})
    policy.close()
    with pytest.raises(PolicyError, match="build a new"):
        ask(policy, ASKED[:1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fingerprints_tell_weights_apart_as_the_engine_sees_them(dtype: torch.dtype) -> None:
    one = dict(MODEL.named_parameters())
    mark = fingerprint(one, dtype)
    assert mark == fingerprint({name: p.clone() for name, p in reversed(one.items())}, dtype)
    for name, parameter in list(one.items())[:3]:
        other = parameter.detach().clone()
        other.view(-1)[-1] += 0.25
        assert fingerprint({**one, name: other}, dtype) != mark
        swapped = parameter.detach().flip(-1)
        assert torch.equal(swapped, parameter) or fingerprint({**one, name: swapped}, dtype) != mark
    below = {name: p.double() * (1 + 1e-12) for name, p in one.items()}
    assert fingerprint(below, dtype) == mark
