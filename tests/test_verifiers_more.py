# ruff: noqa: RUF001
"""Verifiers on unusual but well-meant spellings, on hostile text, and on a machine that hardly lets them run."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar

import chess
import pytest

from whale_env.chess.verifier import parse_move
from whale_env.math import worker_pool
from whale_env.math.worker_pool import WorkerPool
from whale_env.verifiers import answer_matches, boxed_answer, check_reference, math_equal

# Mathematics: reference, answer, verdict

SPELLINGS = {
    "unicode": [
        ("12", "１２", True), ("12", "１３", False), ("x+1", "𝑥+1", True), ("5", "𝟓", True), (r"\alpha", "𝛼", True),
        (r"\frac{3}{7}", "³⁄₇", True), (r"\frac{3}{7}", "⁷⁄₃", False), ("x^{10}", "x¹⁰", True), ("x^{10}", "x¹", False),
        ("x^{-1}", "x⁻¹", True), ("x^{n+1}", "xⁿ⁺¹", True), ("x_{10}", "x₁₀", True), (r"\log_2 8", "log₂8", True),
        (r"\sqrt[3]{2}", "∛2", True), (r"\frac{\pi}{4}", "π⁄4", True), (r"90^\circ", "90º", True), ("2 ✕ 3", "6", True),
        (r"2\sigma+\Delta", "2σ+Δ", True), (r"\mu", "μ", True), (r"\phi", "ϕ", True), (r"\epsilon", "ε", True),
        (r"5\text{ μm}", "5 µm", True), (r"5\text{ μm}", r"5\text{ km}", False),
    ],
    "layout": [
        ("5", r"\begin{equation}5\end{equation}", True), ("x^2", r"\begin{align*}x^2\end{align*}", True),
        ("5", r"\begin{aligned}6\end{aligned}", False), ("5", r"\boxed{\boxed{\boxed{5}}}", True),
        (r"11,\! 111,\! 100", "11111100", True), (r"1,\! 2", "12", False), (r"\frac65", r"\nicefrac{6}{5}", True),
        (r"\nicefrac{6}{5}", "1.2", True), ("1.2", r"\sfrac65", True), (r"\dbinom52", "10", True),
        (r"\nu+1", r"1+\nu", True), (r"\mathbb{R}", r"\R", True), ("x_1^2", "x^2_1", True), ("x^2_1", "x^2", False),
        ("2^{x_1^2}", "2^{x^2_1}", True), ("x_{12}^{-1}", "x^{-1}_{12}", True),
    ],
    "programs' output": [
        ("14 - i", "14.0 + -1.0i", True), ("x-y", "x+-y", True), ("5--3", "8", True), ("2", "--2", False),
        ("1,2,3", "[3, 2, 1]", True), ("1,2", "[1,2]", False), ("(1,2),(3,4)", "[(3,4), (1,2)]", True),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1, 2], [3, 4]]", True),
        (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1, 3], [2, 4]]", False), (r"\max\{3,5\}", "5", True),
        ("10^{-5}", "1e-05", True), ("0", "1e-400", False), ("1e400", "10^{401}", False),
    ],
    "words": [
        (r"\mathbb{R}", r"\text{All real numbers.}", True), (r"\text{all real numbers}", r"(-\infty,\infty)", True),
        (r"\text{all real numbers}", r"\text{all integers}", False), (r"\mathbb{R}", r"\text{no}", False),
        (r"\text{no solution}", "no solutions", True), (r"\text{no solution}", r"\varnothing", True),
        ("0", "no solution", False), (r"52_{\text{eight}}", "52_8", True), (r"52_{\text{eight}}", "52_9", False),
        ("abc", "cba", True), ("abc", "cbaa", False), (r"8:00\text{ a.m.}", "8:00 am", True),
        (r"8:00\text{ a.m.}", "8:00 pm", False), ("5", "USD 5", True), ("5", "US$5", True), ("5", "USD 6", False),
    ],
    "dots": [
        (r"\frac13", "0.333...", True), (r"\frac16", r"0.1666\ldots", True), (r"\frac13", "0.33...", False),
        (r"\frac13", "0.3334...", False), (r"\pi", "3.14159...", False),
    ],
}  # fmt: skip
CASES = [case for cases in SPELLINGS.values() for case in cases]


@pytest.mark.parametrize(("reference", "answer", "expected"), CASES)
def test_spellings(reference: str, answer: str, expected: bool) -> None:
    check_reference(reference)
    assert math_equal(reference, answer) is expected


def test_eight_threads_agree_with_one() -> None:
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda case: math_equal(case[0], f"{case[1]} "), CASES))
    assert verdicts == [expected for _, _, expected in CASES]


WRAPPERS = [
    ("(", ")"), ("{", "}"), (r"\sqrt{", "}"), (r"\frac{1}{", "}"), (r"\left(", r"\right)"), ("|", "|"), ("-(", ")"),
    (r"\sin(", ")"), ("x^{", "}"), ("x_{", "}"), (r"\boxed{", "}"), (r"\text{", "}"), ("[", "]"), (r"\{", r"\}"),
    ("f(", ")"), (r"\lfloor ", r"\rfloor "), (r"\log_{", "}"), ("(1,", ")"), (r"\max\{", r"\}"), ("[[1],", "]"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after"), WRAPPERS)
def test_deep_nesting_ends(before: str, after: str) -> None:
    for depth in (40, 3_000):
        started = time.process_time()
        assert not math_equal("7.5", f"{before * depth}1{after * depth}")
        assert time.process_time() - started < 1  # in this process; a worker has its own bound


HOSTILE = [
    r"\sin(\sin(3+e^{e^{e^3}}))", "2^{30^5}", r"0.1^{10^{10}}", "(-8908862/1000)^{-587521891221989/1000}",
    r"\exp(\exp(\exp(\exp(10))))", r"\tan(10^{10^3})", r"\prod_{k=1}^{2000} k^k", r"\binom{10000}{5000}", "(3000!)^{3}",
    r"\int_0^1 \sin(x^{100}) \ln x dx", "(x+y+z)^{300}", "x^{10^{50}}", r"\sqrt[10^{10}]{2}", "i^{i^{i^{i}}}",
    r"\frac{0}{0}", r"\infty-\infty", r"\tan(\pi/2)", "x^2_1" * 300, "x^{" * 300 + "2_1" + "}_3" * 300,
    "0." + "12" * 40 + "...", "²" * 3_000, "³⁄₄" * 1_000, "𝟓" * 3_000, "μ" * 3_000, "+-" * 2_000 + "1",
    "[[" * 800 + "]]" * 800, r"\begin{aligned}" * 300, "1" + r",\! 111" * 1_000 + "x", "x>1 or " * 250 + "x>2",
    "\x00" * 50, "\u202e6", "\ud800", "\U0010ffff",
]  # fmt: skip


@pytest.mark.parametrize("answer", HOSTILE)
def test_hostile_text_is_not_equal_and_ends(answer: str) -> None:
    started = time.process_time()
    assert not math_equal("5", answer)
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\boxed{\boxed{5}}", r"\boxed{5}"),
        (r"\boxed{\text{a \boxed{1} b}} and \boxed{2}", "2"),
        (r"\boxed{\{1\}\}}", r"\{1\}\}"),
        (r"\boxed{1} \boxedx{2}", "1"),
        (r"\boxed" * 3, None),
        ("５ \\boxed{５}", "５"),
    ],
)
def test_boxes_in_boxes(text: str, expected: str | None) -> None:
    assert boxed_answer(text) == expected


def _worker_of(pool: WorkerPool) -> int:
    (worker,) = pool._all
    return worker._process.pid


def test_a_worker_that_is_held_up_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = WorkerPool(1)
    try:
        assert pool.ask("equal", "x+1", "1+x") is True
        monkeypatch.setattr(worker_pool, "_SECONDS", 0.2)
        worker = _worker_of(pool)
        os.kill(worker, signal.SIGSTOP)
        threading.Timer(1.0, os.kill, (worker, signal.SIGCONT)).start()
        assert pool.ask("equal", "x+2", "2+x") is True
        assert _worker_of(pool) == worker
    finally:
        pool.close()


def test_a_worker_that_computes_too_long_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_SECONDS", 0.3)
    monkeypatch.setattr(worker_pool, "_FAIR_CPU_SECONDS", 0.05)
    pool = WorkerPool(1)
    try:
        pool.ask("equal", "x+1", "1+x")
        worker = _worker_of(pool)
        assert pool.ask("equal", "5", r"\prod_{k=1}^{2000} k^k") is None
        assert not Path(f"/proc/{worker}").exists()
        assert pool.cpu_seconds() == 0
    finally:
        pool.close()


class Held:
    """A worker whose hanging questions stay until an event lets them go; others it answers at once."""

    release = threading.Event()
    hanging = threading.Semaphore(0)
    asked: ClassVar[list[tuple[str, float]]] = []

    def ask(self, request: bytes, seconds: float) -> bytes | None:
        _, reference, _, cpu = json.loads(request)
        self.asked.append((reference, cpu))
        if reference != "hang":
            return b"true\n"
        if cpu < worker_pool._CPU_SECONDS:
            return json.dumps(worker_pool.LATE).encode()
        self.hanging.release()
        self.release.wait()
        return json.dumps(worker_pool.LATE).encode()

    def cpu_seconds(self) -> float:
        return 0.0

    def close(self) -> None:
        pass


def test_hanging_questions_keep_no_other_one_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_Worker", Held)
    pool = WorkerPool(2)
    with ThreadPoolExecutor(64) as threads:
        waiting = [threads.submit(pool.ask, "equal", "hang", str(n)) for n in range(60)]
        for _ in range(2):
            Held.hanging.acquire()  # both places for hard questions are taken, and 58 are on their way there
        good = [threads.submit(pool.ask, "equal", "good", str(n)) for n in range(4)]
        assert [each.result(timeout=60) for each in good] == [True] * 4
        assert not any(each.done() for each in waiting)
        Held.release.set()
        assert [each.result(timeout=60) for each in waiting] == [None] * 60
    assert sum(reference == "hang" for reference, _ in Held.asked) == 120
    assert {cpu for reference, cpu in Held.asked if reference == "good"} == {worker_pool._QUICK_CPU_SECONDS}


def test_a_hard_question_gets_all_its_time_at_the_second_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pool, "_QUICK_CPU_SECONDS", 1e-6)
    pool = WorkerPool(1)
    try:
        assert pool.ask("equal", "x^2-9", "(x-3)(x+3)") is True
        assert pool.ask("equal", "x^2-9", "(x-3)(x+4)") is False
        assert pool.ask("check", r"\frac{1}{", "")
        assert pool.ask("equal", "5", r"\prod_{k=1}^{2000} k^k") is None
    finally:
        pool.close()


# Short answers


@pytest.mark.parametrize(
    ("answer", "alias", "expected"),
    [
        ("ﬁsh", "fish", True),
        ("Ｐａｒｉｓ", "Paris", True),
        ("\ufeffParis\u200b", "Paris", True),
        ("\u200e Paris\x00\n", "Paris", True),
        ("Par\u200bis", "Paris", False),
        ("Par\u200dis", "Paris", False),
        ("OʼBrien", "O'Brien", True),
        ("Hawaiʻi", "Hawai'i", True),
        ("H₂O", "H2O", True),
        ("10²", "102", False),
        ("10²", "10²", True),
        ("1\u202f250 000", "1250000", True),
        ("1 25", "125", False),
        ("1250 000", "1250000", False),
        ("١٢", "12", True),
        ("Henry Ⅷ", "Henry VIII", True),
        ("2½", "2 1/2", True),
        ("½", "12", False),
        ("İstanbul", "istanbul", True),
        ("Nike®", "Nike", True),
        ("№ 5", "No. 5", True),
        ("The ™", "", False),
        ("an\u2009Hour\t", "The hour", True),
        ("THE THE", "the the", True),
        ("9/11", "911", False),
        ("24/7", "247", False),
        ("«Côte d’Ivoire»", "Côte d'Ivoire", True),
        ("Cote d'Ivoire", "Côte d'Ivoire", False),
        ("\ud800", "x", False),
    ],
)
def test_short_answers(answer: str, alias: str, expected: bool) -> None:
    assert answer_matches([alias], answer) is expected
    assert answer_matches([answer], alias) is expected


# Chess

CASTLING = chess.Board("r3k2r/8/8/8/8/8/8/R3K2R w KQkq - 0 1")
PROMOTION = chess.Board("1n5k/P7/8/8/8/8/8/K6N w - - 0 1")


@pytest.mark.parametrize(
    ("board", "text", "expected"),
    [
        *((CASTLING, text, "e1g1") for text in ("O-O", "0-0", "O-O+", "0-0!?", "e1g1", "e1h1", "e1-g1", "O-O#")),
        *((CASTLING, text, "e1c1") for text in ("O-O-O", "0-0-0", "0-0-0+!", "e1c1", "e1a1")),
        *((CASTLING, text, None) for text in ("o-o", "OO", "O-0", "O - O", "e1g1q", "e1h1Q", "Kg1", "Kh1", "O-O 1-0")),
        *((PROMOTION, text, "a7a8q") for text in ("a7a8q", "a7a8Q", "a7a8=q", "a8=Q", "a8Q", "a8=Q+!!", "a7-a8=Q")),
        *((PROMOTION, text, "a7b8n") for text in ("axb8=N", "axb8N", "axb8n", "a7xb8=N", "ab8N", "a7b8N??")),
        *((PROMOTION, text, None) for text in ("a7a8", "a8", "a8=K", "a8=P", "a8(Q)", "a8 = Q", "bxa8=Q", "a8=Q=Q")),
        *((PROMOTION, text, None) for text in ("Nf2=Q", "h1f2q", "Nf3", "--", "0000", "N@f3", "Nf2 good", "2. Nf2")),
        *((PROMOTION, text, "h1f2") for text in ("Nf2", "Nf2!", "Nf2?!", "Nhf2", "Nh1f2", "Nh1-f2+", " Nf2\n")),
    ],
)
def test_moves(board: chess.Board, text: str, expected: str | None) -> None:
    move = parse_move(board, text)
    assert (move.uci() if move else None) == expected


def test_moves_are_read_in_bounded_time() -> None:
    started = time.process_time()
    for text in ("a8=Q" * 100_000, "O-" * 100_000, "!" * 100_000, "e1g1" + "#" * 100_000):
        assert parse_move(CASTLING, text) is None
    assert time.process_time() - started < 1
