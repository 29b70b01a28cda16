"""The CPU engine against plain transformers: same tokens, same log-probabilities, whatever is batched or cached."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import random
import weakref
from pathlib import Path

import pytest
import torch
from tiny import tiny_llama

from harness_sdk.policies import (
    GREEDY,
    PolicyError,
    PromptTooLongError,
    Request,
    Sampling,
    TransformersPolicy,
    dtypes,
)
from harness_sdk.policies.engine import Engine, Row
from harness_sdk.policies.prefix_cache import PrefixCache
from harness_sdk.policies.sampling import RowSampler

MODEL, TOKENIZER = tiny_llama()
END = frozenset([TOKENIZER.eos_token_id])
HELLO = [{"role": "user", "content": "Find the best move."}]


def prompts(seed: int = 0) -> list[tuple[int, ...]]:
    """Prompts that share a header, some a longer trunk, of very different lengths."""
    rng = random.Random(seed)

    def draw(n: int) -> list[int]:
        return [rng.randrange(3, len(TOKENIZER)) for _ in range(n)]

    header, trunk = draw(30), draw(60)
    short = [tuple(header + draw(n)) for n in (1, 7, 40)]
    long = [tuple(header + trunk + draw(n)) for n in (0, 1, 20)]
    return [*short, *long, tuple(draw(5)), (7,)]


def run(rows: list[Row], capacity: int = 10_000, engine: Engine | None = None) -> list[Row]:
    batch = (engine or Engine(MODEL, END, capacity)).start(rows)
    while batch.rows:
        batch.step()
    return rows


def reference(prompt: tuple[int, ...], steps: int) -> list[int]:
    out = MODEL.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=steps,
        do_sample=False,
    )
    return [int(token) for token in out[0, len(prompt) :]]


def log_probs(ids: tuple[int, ...], start: int) -> list[float]:
    with torch.no_grad():
        logits = MODEL(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [float(logits[i - 1, ids[i]]) for i in range(start, len(ids))]


@pytest.mark.parametrize("capacity", [10_000, 40, 1])
def test_greedy_equals_generate_and_log_probs_recompute(capacity: int) -> None:
    rows = run([Row(p, 24, GREEDY, 0) for p in prompts() for _ in range(2)], capacity)
    for row in rows:
        assert row.ids == reference(row.prompt, 24)
        assert row.logprobs == pytest.approx(log_probs((*row.prompt, *row.ids), len(row.prompt)), abs=1e-3)


def test_a_next_turn_continues_from_the_cache() -> None:
    engine = Engine(MODEL, END, 10_000)
    first = run([Row(p, 9, Sampling(), i) for i, p in enumerate(prompts())], engine=engine)
    held = engine.cache.tokens
    second = run([Row((*r.prompt, *r.ids, 5, 6), 9, GREEDY, 0) for r in first], engine=engine)
    for row in second:
        assert row.ids == reference(row.prompt, 9)
    assert engine.cache.tokens < held + sum(len(r.ids) + 4 for r in second)  # the first turns were not held twice


def test_what_a_row_gets_does_not_depend_on_its_batch() -> None:
    everyone = run([Row(p, 12, Sampling(), i) for i, p in enumerate(prompts())])
    for i, prompt in enumerate(prompts()):
        assert run([Row(prompt, 12, Sampling(), i)])[0].ids == everyone[i].ids


def test_rows_end_at_the_end_token_at_stop_and_at_the_limit() -> None:
    prompt = prompts()[0]
    free = run([Row(prompt, 12, GREEDY, 0)])[0]
    assert len(free.ids) == 12 and not free.ended
    stop = run([Row(prompt, 12, GREEDY, 0, finished=lambda ids: len(ids) == 5)])[0]
    assert stop.ids == free.ids[:5] and stop.ended
    ending = Engine(MODEL, frozenset([free.ids[3]]), 100)
    ended = run([Row(prompt, 12, GREEDY, 0)], engine=ending)[0]
    assert ended.ended and ended.ids == free.ids[: free.ids.index(free.ids[3]) + 1]


def test_other_architectures_are_refused_with_a_way_out() -> None:
    import copy

    other = copy.deepcopy(MODEL)
    other.config.layer_types = ["full_attention", "linear_attention"]
    with pytest.raises(ValueError, match="VLLMPolicy"):
        Engine(other, END, 10)


@pytest.mark.parametrize(
    ("settings", "allowed"),
    [
        (Sampling(1.0, top_k=2), {0, 1}),
        (Sampling(1.0, top_k=0, top_p=0.6), {0}),
        (Sampling(1.0, top_k=0, top_p=0.7), {0, 1}),
        (Sampling(1.0, top_k=0, min_p=0.3), {0, 1}),
        (Sampling(0.0), {0}),
        (Sampling(1.0, top_k=0), {0, 1, 2, 3}),
    ],
)
def test_sampling_keeps_what_it_should(settings: Sampling, allowed: set[int]) -> None:
    logits = torch.tensor([[0.62, 0.25, 0.1, 0.03]]).log()
    sampler = RowSampler([settings] * 400, range(400))
    tokens, logprobs = sampler.draw(logits.repeat(400, 1))
    assert set(tokens) == allowed
    assert logprobs == pytest.approx([float(logits[0, token]) for token in tokens], abs=1e-5)
    if settings == Sampling(1.0, top_k=0):
        assert abs(tokens.count(0) / 400 - 0.62) < 0.08


def test_settings_differ_by_row() -> None:
    logits = torch.zeros(3, 50)
    logits[:, 7] = 1.0
    sampler = RowSampler([Sampling(0.0), Sampling(1.0, top_k=0), Sampling(0.01)], [1, 2, 3])
    draws = [sampler.draw(logits)[0] for _ in range(30)]
    assert all(draw[0] == 7 and draw[2] == 7 for draw in draws) and len({draw[1] for draw in draws}) > 10


@pytest.mark.parametrize("bad", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"min_p": 1.0}])
def test_bad_sampling_is_named(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Sampling(**bad)  # type: ignore[arg-type]


def test_prefix_cache_splits_evicts_and_forgets() -> None:
    def kv(n: int) -> torch.Tensor:
        return torch.arange(n, dtype=torch.float32).view(1, 1, 1, n, 1)

    cache = PrefixCache(8)
    cache.insert([1, 2, 3, 4], kv(4), 0)
    cache.insert([1, 2, 9], kv(1), 2)
    assert cache.match([1, 2, 3, 4, 5])[0] == 4 and cache.match([1, 2, 9])[0] == 3 and cache.match([2])[0] == 0
    assert torch.cat(cache.match([1, 2, 3])[1], dim=3).flatten().tolist() == [0.0, 1.0, 2.0]
    assert cache.tokens == 5
    cache.match([1, 2, 9])
    cache.insert([7, 7, 7, 7], kv(4), 0)  # nine: the leaf that was used longest ago goes
    assert cache.match([1, 2, 3])[0] == 2 and cache.match([1, 2, 9])[0] == 3 and cache.tokens == 7
    cache.clear()
    assert cache.match([7])[0] == 0 and cache.tokens == 0


def policy() -> TransformersPolicy:
    model, tokenizer = tiny_llama()
    return TransformersPolicy(model, tokenizer=tokenizer, dtype="float32")


def test_the_policy_batches_what_is_asked_together() -> None:
    mine = policy()

    async def ask() -> list[str]:
        requests = [Request(HELLO, max_tokens=8, seed=seed) for seed in range(6)]
        done = await asyncio.gather(*(mine.generate(request) for request in requests))
        assert all(len(g.token_ids) == len(g.logprobs) == g.completion.tokens for g in done)
        return [g.completion.text for g in done]

    first = asyncio.run(ask())
    assert asyncio.run(ask()) == first and len(set(first)) > 1


def test_the_policy_refuses_long_prompts_and_reports_failures() -> None:
    mine = policy()
    with pytest.raises(PromptTooLongError, match="the limit is 4"):
        asyncio.run(mine.generate(Request(HELLO, max_prompt_tokens=4)))
    mine._engine.start = None  # type: ignore[assignment, method-assign]
    with pytest.raises(PolicyError, match="TypeError"):
        asyncio.run(mine.generate(Request(HELLO)))


def test_new_weights_change_the_answer_and_drop_the_cache() -> None:
    mine, (other, _) = policy(), tiny_llama(seed=1)

    def ask() -> tuple[int, ...]:
        return asyncio.run(mine.generate(Request(HELLO, sampling=GREEDY, max_tokens=8))).token_ids

    before = ask()
    mine.load_weights(dict(other.named_parameters()), 5)
    assert mine.weights_version == 5 and mine._engine.cache.tokens == 0
    fresh = TransformersPolicy(other, tokenizer=TOKENIZER)
    after = asyncio.run(fresh.generate(Request(HELLO, sampling=GREEDY, max_tokens=8))).token_ids
    assert ask() == after != before
    with pytest.raises(ValueError, match=r"lack .* parameters"):
        mine.load_weights({}, 6)


def test_stop_strings_stay_in_the_text() -> None:
    mine = policy()
    free = asyncio.run(mine.generate(Request(HELLO, sampling=GREEDY, max_tokens=16))).completion
    stop = free.text[6:8]
    cut = asyncio.run(mine.generate(Request(HELLO, sampling=GREEDY, max_tokens=16, stop=(stop,)))).completion
    assert cut.finish_reason == "stop" and free.text.startswith(cut.text) and stop in cut.text
    assert len(cut.text) < len(free.text)


@pytest.mark.parametrize("name", ["float3", "int8", "bfloat16/", "/float32", "float32/float3", "nn", ""])
def test_unknown_dtypes_are_named(name: str) -> None:
    if name == "bfloat16/":
        assert dtypes.read(name) == dtypes.Dtypes("bfloat16", "bfloat16")
        return
    with pytest.raises(ValueError, match="unknown dtype"):
        dtypes.read(name)


@pytest.mark.parametrize(
    ("float32", "bfloat16", "chosen"),
    [
        ((0.6, 0.14), (0.3, 0.07), "bfloat16"),  # instructions for it
        ((0.6, 0.04), (0.3, 0.20), "bfloat16/float32"),  # only large products are faster
        ((0.6, 0.04), (0.5, 0.20), "float32"),  # not by enough for a second copy
        ((0.6, 0.14), (0.6, 0.135), "float32"),  # a tie goes to the more exact
        ((0.3, 0.14), (0.6, 0.07), "bfloat16"),
    ],
)
def test_the_faster_dtype_is_chosen(float32: tuple[float, float], bfloat16: tuple[float, float], chosen: str) -> None:
    assert str(dtypes.choose(dtypes.Seconds(*float32), dtypes.Seconds(*bfloat16))) == chosen


def test_a_machine_is_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "model"
    MODEL.save_pretrained(source)
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "cache" / "dtypes.json"
    first = dtypes.fastest(str(source), "cpu")
    assert "timing" in capsys.readouterr().err
    (entry,) = json.loads(file.read_text()).values()
    assert entry["chosen"] == {"prefill": first.prefill, "decode": first.decode}
    times = [dtypes.Seconds(**entry["seconds"][name]) for name in ("float32", "bfloat16")]
    assert dtypes.choose(*times) == first and all(t.prefill > 0 and t.decode > 0 for t in times)

    monkeypatch.setattr(dtypes, "measure", lambda source: (dtypes.Seconds(2, 1), dtypes.Seconds(1, 2)))
    assert dtypes.fastest(str(source), "cpu") == first
    for broken in ("{", "[]", json.dumps({key: {"chosen": {"prefill": "x"}} for key in json.loads(file.read_text())})):
        file.write_text(broken)
        assert str(dtypes.fastest(str(source), "cpu")) == "bfloat16/float32"
    monkeypatch.setenv("WHALE_CACHE", str(source / "config.json" / "no-directory"))
    assert str(dtypes.fastest(str(source), "cpu")) == "bfloat16/float32"


def test_prompts_and_samples_may_differ_in_dtype(tmp_path: Path) -> None:
    MODEL.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    mixed = TransformersPolicy(str(tmp_path), dtype="bfloat16/float32")
    assert mixed.dtype == "bfloat16/float32" and mixed.model.dtype == torch.float32
    asked = Request([{"role": "user", "content": "Find the best move. " * 8}], sampling=GREEDY, max_tokens=12)
    answers = [asyncio.run(mixed.generate(asked)) for _ in range(2)]  # the second from the cache
    for answer in answers:
        exact = log_probs((*answer.prompt_ids, *answer.token_ids), len(answer.prompt_ids))
        assert answer.logprobs == pytest.approx(exact, abs=0.1)
        assert answer.logprobs != pytest.approx(exact, abs=1e-6)  # prompts were not computed in float32
    mixed.load_weights({name: torch.zeros_like(p) for name, p in mixed.model.named_parameters()}, 1)
    flat = asyncio.run(mixed.generate(asked))
    assert flat.logprobs == pytest.approx([-math.log(len(MODEL.lm_head.weight))] * len(flat.logprobs), abs=1e-4)


@pytest.mark.parametrize("capacity", [10_000, 60])
@pytest.mark.parametrize("tokens", [1, 60, 150, 400, 2000, 100_000])
def test_memory_is_bounded_and_nothing_is_lost(tokens: int, capacity: int) -> None:
    def rows() -> list[Row]:
        return [Row(p, 3 + 4 * (i % 5), Sampling(), i) for i, p in enumerate(sorted(prompts() * 3))]

    free = run(rows())
    one = Engine(MODEL, END, capacity)
    engine = Engine(MODEL, END, capacity, memory=tokens * one._token_bytes())
    batch, waiting, held = engine.start(), rows(), []
    every, most = list(waiting), 0
    while waiting or batch.rows:
        joining = waiting[: batch.fits(waiting)]
        waiting = waiting[len(joining) :]
        batch.add(joining)
        most = max(most, len(batch.rows))
        held.append((len(batch.rows), batch._states._own[0, 0].numel() + batch._states._trunks[0, 0].numel()))
        batch.step()
    assert [row.ids for row in every] == [row.ids for row in free]
    size = one.empty().shape[2] * one.empty().shape[4]
    assert all(numbers <= engine.batch_tokens * size for rows, numbers in held if rows > 1)
    assert engine.cache.capacity <= max(tokens // 4, 1)
    assert most == (len(every) if tokens == 100_000 else most) and (tokens > 400 or most < len(every))


def test_rows_join_and_leave_a_running_batch() -> None:
    alone = run([Row(p, 4 + 5 * i, Sampling(), i) for i, p in enumerate(prompts())])
    batch = Engine(MODEL, END, 10_000).start()
    waiting = [Row(p, 4 + 5 * i, Sampling(), i) for i, p in enumerate(prompts())]
    rows = list(waiting)
    while waiting or batch.rows:
        batch.add(waiting[:2])
        waiting = waiting[2:]
        for _ in range(3):
            if batch.rows:
                batch.step()
    assert [row.ids for row in rows] == [row.ids for row in alone]


def test_a_busy_policy_answers_as_an_idle_one() -> None:
    """Requests that come while others are decoded join them; what each gets does not change."""
    mine = policy()

    def request(n: int) -> Request:
        return Request([{"role": "user", "content": f"Move {n}?"}], max_tokens=3 + 7 * n, seed=n)

    async def staggered() -> list[str]:
        async def later(n: int) -> str:
            for _ in range(3 * n):
                await asyncio.sleep(0)
            return (await mine.generate(request(n))).completion.text

        return list(await asyncio.gather(*(later(n) for n in range(6))))

    async def alone() -> list[str]:
        return [(await mine.generate(request(n))).completion.text for n in range(6)]

    assert asyncio.run(staggered()) == asyncio.run(alone())


def test_clearing_frees_the_states_at_once() -> None:
    """A run clears the cache hundreds of times; waiting for the garbage collector would take gigabytes."""
    cache = PrefixCache(100)
    cache.insert([1, 2, 3, 4], torch.zeros(1, 1, 1, 4, 1), 0)
    cache.insert([1, 2, 9], torch.zeros(1, 1, 1, 1, 1), 2)
    held = weakref.ref(cache._root.children[1].kv)
    gc.disable()
    try:
        cache.clear()
        assert held() is None
    finally:
        gc.enable()
