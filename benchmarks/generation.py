"""How many rollouts a second a model generates on this machine: ``python -m benchmarks.generation``.

Two workloads, both without end tokens, so that all completions are equally long and all contestants do the same work:

- *groups*: G samples for each of some distinct prompts, a step of RSFT;
- *episodes*: four turns with a growing context; what was sampled and a new observation join the prompt.

Contestants: `TransformersPolicy`; plain ``model.generate(num_return_sequences=G)`` of transformers on the same model,
which computes the whole prompt again every turn; `TransformersPolicy` whose prefix cache is emptied between turns (it
still computes what a batch shares only once); with ``--generate-batch`` transformers' own continuous batching,
``model.generate_batch``; and, with ``--vllm-python``, vLLM in an interpreter of its own. Rounds
are interleaved and medians shown, so that a busy moment hits all alike. Caches are empty when a round begins. Ends with
status 1 when a ratio misses its bound. That the tokens are right is checked by tests and by `benchmarks.vllm_check`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from benchmarks import command
from harness_sdk import models
from harness_sdk.policies import Generation, Request, Sampling, TransformersPolicy
from harness_sdk.types import Completion, Message

TURNS = 4
WORDS = re.findall(
    r"\w+",
    """water river house light stone green small large paper music garden window summer winter morning evening road
    field forest ocean bridge market letter number silver golden yellow people children teacher doctor farmer""",
)
MARK = "@@"
"""Begins the lines of the vLLM worker that are answers; the others are its log."""

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """What every contestant has to do.

    Attributes:
        prompts: Distinct prompts.
        ids: Their ids.
        group: Samples of each.
        tokens: Sampled ids of a completion.
        observation: What is said between two turns.
        between: Its ids, with what the chat template puts around it.
    """

    prompts: list[list[Message]]
    ids: list[Ids]
    group: int
    tokens: int
    observation: str
    between: Ids

    def first(self, prompts: int) -> Work:
        """Returns the same for fewer prompts."""
        return replace(self, prompts=self.prompts[:prompts], ids=self.ids[:prompts])


def build(policy: TransformersPolicy, prompts: int, length: int, group: int, tokens: int) -> Work:
    """Makes prompts of an exact length that differ from the system text on.

    Raises:
        SystemExit: The length is less than the chat template needs.
    """
    words = [word for word in WORDS if len(policy.tokenizer(f" {word}", add_special_tokens=False).input_ids) == 1]

    def chat(number: int, count: int) -> list[Message]:
        order = (words[(number * 7 + i * (number + 1)) % len(words)] for i in range(count))
        return [
            {"role": "system", "content": f"{number} is your number."},
            {"role": "user", "content": "Say " + " ".join(order)},
        ]

    chats, ids = [], []
    for number in range(prompts):
        missing = length - len(policy.encode(chat(number, 1), [])[1]) + 1
        if missing < 1:
            raise SystemExit(
                f"--length {length} is too short for the chat template; use at least {length - missing + 2}"
            )
        chats.append(chat(number, missing))
        ids.append(policy.encode(chats[-1], [])[1])
    if {len(prompt) for prompt in ids} != {length} or len(set(ids)) != prompts:
        raise SystemExit("this model's tokenizer joins words: prompts of an exact length cannot be made from them")
    observation = "The answer was noted. Here is more to read: " + " ".join(words[:20] * 2)
    said = Generation(
        Completion("x"), policy.encode(chats[0], [])[0], ids[0], (policy.tokenizer.encode("x")[0],), (0.0,)
    )
    follow_up = policy.encode(after(chats[0], said, observation), [], said)[1]
    return Work(chats, ids, group, tokens, observation, follow_up[length + 1 :])


def after(messages: list[Message], said: Generation, observation: str) -> list[Message]:
    """Returns the messages of the next turn."""
    more: list[Message] = [
        {"role": "assistant", "content": said.completion.text},
        {"role": "user", "content": observation},
    ]
    return [*messages, *more]


class Contestant(Protocol):
    """Something that generates.

    Attributes:
        name: Its name in the table.
    """

    name: str

    def groups(self, work: Work) -> float:
        """Samples a group for every prompt; returns the seconds."""
        ...

    def episodes(self, work: Work) -> float:
        """Plays `TURNS` turns of a group of episodes for every prompt; returns the seconds."""
        ...


class Ours:
    """`TransformersPolicy`, as the rollout loop uses it: messages in, text and ids out."""

    def __init__(self, policy: TransformersPolicy, *, forgets: bool = False) -> None:
        self.name = "TransformersPolicy" + (", prefix cache emptied every turn" if forgets else "")
        self._policy, self._forgets = policy, forgets

    def groups(self, work: Work) -> float:
        """See `Contestant.groups`."""
        return self._play(work, 1)

    def episodes(self, work: Work) -> float:
        """See `Contestant.episodes`."""
        return self._play(work, TURNS)

    def _play(self, work: Work, turns: int) -> float:
        self._policy.forget()
        asked = [
            Request(messages, sampling=Sampling(1.0, 20), max_tokens=work.tokens, seed=seed)
            for messages in work.prompts
            for seed in range(work.group)
        ]

        async def main() -> list[Generation]:
            requests = asked
            answers: list[Generation] = []
            for turn in range(turns):
                if turn:
                    requests = [
                        replace(request, messages=after(request.messages, said, work.observation), previous=said)
                        for request, said in zip(requests, answers, strict=True)
                    ]
                if turn and self._forgets:
                    self._policy.forget()
                answers = list(await asyncio.gather(*(self._policy.generate(request) for request in requests)))
            return answers

        began = time.perf_counter()
        answers = asyncio.run(main())
        took = time.perf_counter() - began
        length = len(work.ids[0]) + (turns - 1) * (work.tokens + len(work.between))
        if {(len(a.prompt_ids), len(a.token_ids)) for a in answers} != {(length, work.tokens)}:
            raise SystemExit("the completions differ in length, or a prompt did not continue the last one")
        return took


class ById:
    """What contestants that take ids have in common: the episodes of `Ours`, id by id."""

    def groups(self, work: Work) -> float:
        """See `Contestant.groups`."""
        return self._timed(work.ids, work.group, work.tokens)[0]

    def episodes(self, work: Work) -> float:
        """See `Contestant.episodes`."""
        prompts = [prompt for prompt in work.ids for _ in range(work.group)]
        took, said = self._timed(work.ids, work.group, work.tokens)
        for _ in range(TURNS - 1):
            prompts = [(*prompt, *ids, *work.between) for prompt, ids in zip(prompts, said, strict=True)]
            seconds, said = self._timed(prompts, 1, work.tokens, going_on=True)
            took += seconds
        return took

    def _timed(
        self, prompts: Sequence[Ids], group: int, tokens: int, *, going_on: bool = False
    ) -> tuple[float, list[Ids]]:
        raise NotImplementedError


class Plain(ById):
    """``model.generate`` of transformers."""

    def __init__(self, model: Any, rows: int, pad: int) -> None:
        self.name = f"model.generate, {rows} rows"
        self._model, self._rows, self._pad = model, rows, pad

    def _timed(
        self, prompts: Sequence[Ids], group: int, tokens: int, *, going_on: bool = False
    ) -> tuple[float, list[Ids]]:
        import torch

        size = max(self._rows // group, 1)
        said: list[Ids] = []
        began = time.perf_counter()
        for start in range(0, len(prompts), size):
            ids = torch.tensor(prompts[start : start + size], device=self._model.device)
            output = self._model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                temperature=1.0,
                top_k=20,
                max_new_tokens=tokens,
                num_return_sequences=group,
                pad_token_id=self._pad,
            )
            said += [tuple(row) for row in output[:, ids.shape[1] :].tolist()]
        took = time.perf_counter() - began
        if {len(ids) for ids in said} != {tokens}:
            raise SystemExit("model.generate gave completions of other lengths")
        return took, said


class Paged(ById):
    """``model.generate_batch`` of transformers: continuous batching over paged, prefix-sharing attention."""

    name = "model.generate_batch"

    def __init__(self, model: Any) -> None:
        self._model = model

    def _timed(
        self, prompts: Sequence[Ids], group: int, tokens: int, *, going_on: bool = False
    ) -> tuple[float, list[Ids]]:
        from transformers import ContinuousBatchingConfig, GenerationConfig

        config = GenerationConfig(  # type: ignore[no-untyped-call]
            do_sample=True,
            temperature=1.0,
            top_k=20,
            max_new_tokens=tokens,
            num_return_sequences=group,
            eos_token_id=-1,
        )
        attention = self._model.config._attn_implementation
        began = time.perf_counter()
        answers = self._model.generate_batch(
            [list(prompt) for prompt in prompts],
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(use_cuda_graph=False),
            progress_bar=False,
        )
        took = time.perf_counter() - began
        self._model.set_attn_implementation(attention)
        said = [tuple(answer.generated_tokens) for answer in answers.values()]
        if len(said) != len(prompts) * group or {len(ids) for ids in said} != {tokens}:
            raise SystemExit("model.generate_batch lost completions, or cut some")
        return took, said


class VLLM(ById):
    """vLLM in a process of its own, which measures itself."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process, self._log = process, log
        self.name = f"vLLM {self._ask(None)['version']}"

    def _timed(
        self, prompts: Sequence[Ids], group: int, tokens: int, *, going_on: bool = False
    ) -> tuple[float, list[Ids]]:
        answer = self._ask({"prompts": prompts, "group": group, "tokens": tokens, "going_on": going_on})
        return answer["seconds"], [tuple(ids) for ids in answer["said"]]

    def _ask(self, question: dict[str, Any] | None) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        if question is not None:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith(MARK):
                answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
                return answer
        tail = "\n".join(self._log.read_text("utf-8", "replace").splitlines()[-5:])
        raise SystemExit(f"vLLM ended with status {self._process.wait()}:\n{tail}")


@contextmanager
def vllm_worker(python: str, model: str, dtype: str) -> Iterator[VLLM]:
    """Starts vLLM under another interpreter and ends it afterwards."""
    environment = {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    command = [python, "-m", "benchmarks.generation", "--worker", "--model", model, "--dtype", dtype]
    with tempfile.TemporaryDirectory() as scratch, (Path(scratch) / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env={**environment, **os.environ},
            cwd=Path(__file__).parents[1],
        )
        try:
            yield VLLM(process, Path(scratch) / "log")
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def work_in_vllm(model: str, dtype: str) -> None:
    """Answers questions on standard input until it is closed (see `VLLM`)."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import tokens_input

    llm = LLM(
        model, dtype=dtype, max_model_len=4096, max_num_seqs=256, enable_prefix_caching=True, disable_log_stats=True
    )
    print(MARK + json.dumps({"version": version_of("vllm", "vllm-cpu")}), flush=True)
    for line in sys.stdin:
        question = json.loads(line)
        params = SamplingParams(
            n=question["group"],
            temperature=1.0,
            top_k=20,
            max_tokens=question["tokens"],
            ignore_eos=True,
            logprobs=0,
            detokenize=True,
        )
        if not question["going_on"]:
            llm.reset_prefix_cache()
        prompts: Any = [tokens_input(prompt) for prompt in question["prompts"]]
        began = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        took = time.perf_counter() - began
        said = [list(sample.token_ids) for output in outputs for sample in output.outputs]
        print(MARK + json.dumps({"seconds": took, "said": said}), flush=True)


def version_of(*names: str) -> str:
    """Returns the version of the first distribution that is installed."""
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "of unknown version"


class Table:
    """Prints a workload's medians and ratios, keeps them, and remembers whether a ratio missed its bound."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.missed = False

    def workload(self, name: str, rollouts: int, seconds: dict[str, list[float]], bounds: dict[str, float]) -> None:
        """Prints one workload.

        Args:
            name: What was done.
            rollouts: How many in a round.
            seconds: Rounds by contestant, ours first.
            bounds: Least ratio of our speed to a contestant's, by the beginning of its name.
        """
        print(f"{name}\n  {'':50} {'rollouts/s':>10} {'lowest':>8} {'highest':>8}   ours is")
        rates = {key: sorted(rollouts / value for value in values) for key, values in seconds.items()}
        ours = statistics.median(next(iter(rates.values())))
        for key, values in rates.items():
            rate = statistics.median(values)
            bound = next((least for start, least in bounds.items() if key.startswith(start)), None)
            missed = bound is not None and ours / rate < bound
            self.missed |= missed
            note = "" if bound is None else f"(at least {bound:g}{' MISSED' if missed else ''})"
            print(
                f"  {key:50} {rate:10.2f} {values[0]:8.2f} {values[-1]:8.2f}   {ours / rate:.2f} x {note}", flush=True
            )
            self.rows.append(
                {"workload": name, "contestant": key, "rollouts_per_second": rate, "rounds": values}
                | {"ratio": ours / rate, "bound": bound, "missed": missed}
            )


def rounds_of(
    contestants: Sequence[Contestant], play: Callable[[Contestant], float], rounds: int
) -> dict[str, list[float]]:
    """Returns the seconds of every round by contestant, rounds interleaved."""
    seconds: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for number in range(rounds):
        for contestant in contestants:
            took = play(contestant)
            seconds[contestant.name].append(took)
            print(f"    round {number + 1}, {contestant.name}: {took:.1f} s", file=sys.stderr, flush=True)
    return seconds


def measure(options: argparse.Namespace, policy: TransformersPolicy, vllm: VLLM | None, table: Table) -> None:
    """Runs both workloads."""
    work = build(policy, options.prompts, options.length, options.group, options.tokens)
    few = work.first(options.episode_prompts)
    ours, pad = Ours(policy), policy.tokenizer.pad_token_id or 0
    plain = [Plain(policy.model, rows, pad) for rows in options.generate_rows]
    paged = [Paged(policy.model)] if options.generate_batch else []
    peers: list[Contestant] = [*plain, *paged, *([vllm] if vllm else [])]
    warm = replace(work.first(1), tokens=2)
    for contestant in [ours, *peers]:
        contestant.groups(warm)
    # Bounds are for the best that plain generation does, so each of its batch sizes must be beaten.
    name = (
        f"groups: {len(work.ids)} prompts of {options.length} tokens, {work.group} samples of {work.tokens} tokens each"
    )
    seconds = rounds_of([ours, *peers], lambda one: one.groups(work), options.rounds)
    table.workload(name, len(work.ids) * work.group, seconds, {"model.generate,": 4.0, "vLLM": 1.0})
    name = (
        f"episodes: {TURNS} turns, {len(few.ids)} prompts of {options.length} tokens, {work.group} episodes each, "
        f"{work.tokens} tokens sampled and {len(work.between)} observed a turn"
    )
    forgetful: Contestant = Ours(policy, forgets=True)
    seconds = rounds_of([ours, forgetful, *peers], lambda one: one.episodes(few), options.rounds)
    table.workload(name, len(few.ids) * few.group, seconds, {"model.generate,": 3.0})


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = command.parser("generation", (__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m", help="a model name, hub name or directory")
    parser.add_argument(
        "--dtype", default="auto", help="of all contestants (default: what TransformersPolicy picks here)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds; medians are shown (default: %(default)s)")
    parser.add_argument("--prompts", type=int, default=16, help="distinct prompts of groups (default: %(default)s)")
    parser.add_argument("--episode-prompts", type=int, default=4, help="of episodes (default: %(default)s)")
    parser.add_argument("--length", type=int, default=300, help="tokens of a prompt (default: %(default)s)")
    parser.add_argument("--group", type=int, default=8, help="samples of a prompt (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens of a completion (default: %(default)s)")
    parser.add_argument(
        "--generate-rows", type=int, nargs="+", default=[32], help="batch sizes of model.generate (default: 32)"
    )
    parser.add_argument(
        "--generate-batch", action="store_true", help="also run model.generate_batch; give fewer --prompts, it is slow"
    )
    parser.add_argument("--vllm-python", help="an interpreter with vLLM or vllm-cpu, to run it beside")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    for name in ("rounds", "prompts", "episode_prompts", "length", "group", "tokens"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, not {getattr(options, name)}")
    options.episode_prompts = min(options.episode_prompts, options.prompts)
    return options


def without_end(policy_model: str, dtype: str) -> TransformersPolicy:
    """Loads a model that no token ends."""
    policy = TransformersPolicy(policy_model, dtype=dtype)
    policy.model.generation_config.eos_token_id = None
    policy.tokenizer.eos_token = None
    return TransformersPolicy(policy.model, tokenizer=policy.tokenizer)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    options = parse(arguments)
    if options.worker:
        work_in_vllm(options.model, options.dtype)
        return 0
    import torch

    load_before = os.getloadavg()[0]
    policy = without_end(options.model, options.dtype)
    dtype = str(policy.model.dtype).removeprefix("torch.")
    machine = {
        "dtype": dtype,
        "device": str(policy.model.device),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": load_before,
        "torch": version_of("torch"),
        "transformers": version_of("transformers"),
    }
    print(f"{options.model}: " + ", ".join(f"{key} {value}" for key, value in machine.items()), flush=True)
    table = Table()
    if options.vllm_python:
        with vllm_worker(options.vllm_python, models.resolve(options.model), dtype) as vllm:
            measure(options, policy, vllm, table)
    else:
        measure(options, policy, None, table)
    if options.json:
        options.json.write_text(json.dumps({**machine, "rows": table.rows}, indent=1) + "\n", "utf-8")
    return int(table.missed)


if __name__ == "__main__":
    command.finish(main)
