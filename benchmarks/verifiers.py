r"""How many verdicts a core gives: ``python -m benchmarks.verifiers [--cases N] [--json FILE]``.

Chess lines, short answers and mathematical answers, right and wrong mixed, made by seed from the puzzles, questions and
problems that ship with the package; the LaTeX ones are built here in the style of school contests. Each round has
cases of its own, so that nothing is answered from memory, and one thread asks. A core's rate is taken from processor
time, that of the workers included, so that other programs hardly change it. Every verdict is compared with the expected
one. Ends with status 1 when a goal is missed or a verdict is wrong. Beside ours stands math-verify, where it is
installed, on the same mathematical cases. Contested cases, hostile text and time bounds are the tests' business.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import chess

from benchmarks import command
from whale_env.chess.puzzles import Puzzle, load_puzzles
from whale_env.math.problems import generated_problems
from whale_env.math.verifier import worker_cpu_seconds
from whale_env.searchqa.questions import Question, load_questions
from whale_env.verifiers import answer_matches, boxed_answer, chess_line, math_equal, tagged_answer

THOUGHT = "I look at what is asked, write down what I know, and go on one step at a time until only one value is left. "


@dataclass(frozen=True, slots=True)
class Case:
    """One verdict to be had.

    Attributes:
        verdict: Gives it.
        expected: What it must be.
        about: What to call it in a message.
        peer: What math-verify says of it, where that can be asked.
    """

    verdict: Callable[[], object]
    expected: object
    about: str
    peer: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Rate:
    """What was measured of one kind.

    Attributes:
        kind: What was judged.
        goal: Verdicts per second and core that are asked for.
        best: Verdicts per second of processor time, the workers' included, in the best round.
        worst: The same in the worst round.
        wall: Verdicts per second of the clock in the best round; other programs slow it down.
        cases: Verdicts in a round.
        wrong: Verdicts that were not as expected, all rounds together.
    """

    kind: str
    goal: float
    best: float
    worst: float
    wall: float
    cases: int
    wrong: int


# ---------------------------------------------------------------- chess


def chess_cases(rng: random.Random, puzzles: Sequence[Puzzle]) -> Iterator[Case]:
    """Yields whole lines in UCI or SAN: solved, with a wrong move, with an illegal one, or broken off."""
    while True:
        puzzle = rng.choice(puzzles)
        board = chess.Board(puzzle.fen)
        line = [chess.Move.from_uci(text) for text in puzzle.moves.split()]
        played, legal_but_wrong = [], []
        for ply, move in enumerate(line):
            if ply % 2:
                others = [other for other in board.legal_moves if other != move and not _mates(board, other)]
                legal_but_wrong.append(rng.choice(others).uci() if others else None)
                played.append(rng.choice((move.uci(), board.san(move))))
            board.push(move)
        at = rng.randrange(len(played))
        wrong = legal_but_wrong[at]
        outcomes: list[tuple[list[str], str]] = [(played, "solved"), (played, "solved"), (["e9e4"], "illegal")]
        if wrong is not None:
            outcomes.append(([*played[:at], wrong], "failed"))
        if len(played) > 1:
            outcomes.append((played[:-1], "incomplete"))
        moves, expected = rng.choice(outcomes)
        yield Case(partial(chess_line, puzzle.fen, puzzle.moves, moves), expected, f"{puzzle.id}: {moves}")


def _mates(board: chess.Board, move: chess.Move) -> bool:
    board.push(move)
    mates = board.is_checkmate()
    board.pop()
    return mates


# ---------------------------------------------------------------- short answers


def short_answer_cases(rng: random.Random, questions: Sequence[Question]) -> Iterator[Case]:
    """Yields messages with an answer tag: an alias of the reference in some spelling, or another question's answer."""
    spellings = (str, str.upper, "The {}".format, "{}.".format, "“{}”".format)
    while True:
        question, other = rng.sample(questions, 2)
        right = rng.random() < 0.5
        answers = question.answers if right else other.answers
        if not right and answer_matches(question.answers, answers[0]):
            continue
        text = THOUGHT * rng.randrange(1, 8)
        text += f"<answer>{rng.choice(spellings)(rng.choice(answers) if right else answers[0])}</answer>"
        yield Case(partial(_short_answer, question.answers, text), right, f"{text[-80:]!r} for {question.answers}")


def _short_answer(aliases: Sequence[str], text: str) -> bool:
    given = tagged_answer(text)
    return given is not None and answer_matches(aliases, given)


# ---------------------------------------------------------------- mathematics


def problem_cases(rng: random.Random) -> Iterator[Case]:
    """Yields answers to generated problems: plain numbers and fractions, the wrong ones near the right ones."""
    problems = list(generated_problems(200, rng.randrange(1 << 30)))
    while True:
        answer = rng.choice(problems).answer
        numerator, _, denominator = answer.partition("/")
        right = rng.random() < 0.5
        number = int(numerator) + (0 if right else rng.choice((-10, -1, 1, 2, 10)))
        forms = [f"{number}/{denominator}", rf"\frac{{{number}}}{{{denominator}}}"] if denominator else [f"{number}"]
        forms.append(f"{number}.0" if not denominator else rf"\dfrac{{{2 * number}}}{{{2 * int(denominator)}}}")
        given = rng.choice(forms)
        yield _math_case(answer, _message(rng, given), right, f"{given} for {answer}")


def latex_cases(rng: random.Random) -> Iterator[Case]:
    """Yields LaTeX answers of the kinds that contest problems have, the right ones in another spelling."""
    while True:
        reference, equal, different = rng.choice(LATEX)(rng)
        right = rng.random() < 0.5
        given = equal if right else different
        yield _math_case(reference, _message(rng, given), right, f"{given} for {reference}")


def _math_case(reference: str, text: str, right: bool, about: str) -> Case:
    return Case(partial(_boxed, reference, text), right, about, partial(_by_math_verify, reference, text))


def _by_math_verify(reference: str, text: str) -> bool:
    from math_verify import parse, verify

    return bool(verify(parse(f"\\boxed{{{reference}}}"), parse(text)))


def _boxed(reference: str, text: str) -> bool:
    answer = boxed_answer(text)
    return answer is not None and math_equal(reference, answer)


def _message(rng: random.Random, answer: str) -> str:
    return f"{THOUGHT * rng.randrange(1, 8)}The answer is $\\boxed{{{answer}}}$."


Triple = tuple[str, str, str]
"""A reference, an equal answer in another spelling, a different answer."""


def _fraction(rng: random.Random) -> Triple:
    a, b, k = rng.randrange(1, 99), rng.randrange(2, 99), rng.randrange(2, 9)
    return rf"\frac{{{a}}}{{{b}}}", rf"\dfrac{{{a * k}}}{{{b * k}}}", rf"\frac{{{a + 1}}}{{{b}}}"


def _decimal(rng: random.Random) -> Triple:
    a = rng.randrange(1, 999)
    return rf"\frac{{{a}}}{{8}}", f"{a / 8:.3f}", f"{a / 8 + 0.001:.3f}"


def _mixed_number(rng: random.Random) -> Triple:
    whole, b = rng.randrange(1, 20), rng.randrange(3, 20)
    a = rng.randrange(1, b)
    return rf"{whole}\frac{{{a}}}{{{b}}}", f"{whole * b + a}/{b}", f"{whole * b - a}/{b}"


def _root(rng: random.Random) -> Triple:
    a, b = rng.randrange(2, 12), rng.choice((2, 3, 5, 6, 7, 10))
    return rf"{a}\sqrt{{{b}}}", rf"\sqrt{{{a * a * b}}}", rf"{a}\sqrt{{{b + 1}}}"


def _surd(rng: random.Random) -> Triple:
    a, b = rng.randrange(2, 30), rng.choice((2, 3, 5, 7))
    return rf"\frac{{{a}}}{{\sqrt{{{b}}}}}", rf"\frac{{{a}\sqrt{{{b}}}}}{{{b}}}", rf"\frac{{\sqrt{{{b}}}}}{{{a}}}"


def _pi(rng: random.Random) -> Triple:
    a, b = rng.randrange(1, 40), rng.randrange(2, 13)
    return rf"\frac{{{a}\pi}}{{{b}}}", rf"{a}\pi/{b}", rf"\frac{{{a}\pi}}{{{b + 1}}}"


def _polynomial(rng: random.Random) -> Triple:
    a, b = rng.randrange(1, 20), rng.randrange(1, 20)
    return f"(x+{a})(x-{b})", f"x^2+{a - b}x-{a * b}".replace("+-", "-"), f"x^2+{a * b}x-{a + b + 50}"


def _exponential(rng: random.Random) -> Triple:
    a = rng.randrange(2, 9)
    return rf"{a}^{{n+1}}-1", rf"{a} \cdot {a}^n - 1", rf"{a}^n-1"


def _rational_function(rng: random.Random) -> Triple:
    a, b = rng.randrange(1, 20), rng.randrange(21, 40)
    return rf"\frac{{1}}{{x+{a}}}", rf"\frac{{x+{b}}}{{(x+{a})(x+{b})}}", rf"\frac{{1}}{{x-{a}}}"


def _complex(rng: random.Random) -> Triple:
    a, b = rng.randrange(1, 50), rng.randrange(2, 50)
    return f"{a}+{b}i", f"{b}i + {a}", f"{a}-{b}i"


def _pair(rng: random.Random) -> Triple:
    a, b = rng.randrange(-50, 50), rng.randrange(51, 99)
    return f"({a},{b})", rf"\left({a}, {b}.0\right)", f"({b},{a})"


def _interval(rng: random.Random) -> Triple:
    a, b = rng.randrange(-50, 0), rng.randrange(1, 50)
    return rf"(-\infty,{a})\cup[{b},\infty)", rf"x<{a} \text{{ or }} x \ge {b}", rf"(-\infty,{a}]\cup[{b},\infty)"


def _inequality(rng: random.Random) -> Triple:
    a, b = rng.randrange(1, 50), rng.randrange(51, 99)
    return f"[{a},{b}]", rf"{a} \le x \le {b}", rf"{a} < x \le {b}"


def _roots(rng: random.Random) -> Triple:
    a, b, c = sorted(rng.sample(range(-50, 50), 3))
    return f"{a}, {b}, {c}", f"{c},{a},{b}", f"{a}, {b}"


def _finite_set(rng: random.Random) -> Triple:
    a, b = rng.randrange(1, 50), rng.randrange(51, 99)
    return rf"\{{{a},{b}\}}", rf"\left\{{{b}, {a}\right\}}", rf"\{{{a},{b + 1}\}}"


def _plus_or_minus(rng: random.Random) -> Triple:
    a, b = rng.randrange(1, 30), rng.choice((2, 3, 5, 7))
    return rf"{a}\pm\sqrt{{{b}}}", rf"{a}+\sqrt{{{b}}},\ {a}-\sqrt{{{b}}}", rf"{a}+\sqrt{{{b}}}"


def _matrix(rng: random.Random) -> Triple:
    a, b, c, d = (rng.randrange(-20, 20) for _ in range(4))
    return (
        rf"\begin{{pmatrix}} {a} & {b} \\ {c} & {d} \end{{pmatrix}}",
        rf"\begin{{bmatrix}}{a}&{b}\\{c}&{d}\end{{bmatrix}}",
        rf"\begin{{pmatrix}} {a} & {b} \\ {c} & {d + 1} \end{{pmatrix}}",
    )


def _line(rng: random.Random) -> Triple:
    a, b = rng.randrange(2, 20), rng.randrange(1, 20)
    return f"y={a}x+{b}", f"{a}x - y + {b} = 0", f"y={a}x-{b}"


def _percent(rng: random.Random) -> Triple:
    a = rng.randrange(1, 99)
    return rf"{a}\%", f"0.{a:02}", rf"{a + 1}\%"


def _unit(rng: random.Random) -> Triple:
    a = rng.randrange(2, 500)
    return rf"{a}\text{{ cm}}^2", f"{a}", rf"{a}\text{{ m}}^2"


def _degrees(rng: random.Random) -> Triple:
    a = rng.randrange(1, 360)
    return rf"{a}^\circ", rf"{a}\text{{ degrees}}", rf"{a + 1}^{{\circ}}"


def _thousands(rng: random.Random) -> Triple:
    a = rng.randrange(10_000, 9_999_999)
    return f"{a}", f"{a:,}".replace(",", r"{,}"), f"{a + 1000:,}".replace(",", r"\,")


def _power(rng: random.Random) -> Triple:
    a, b = rng.randrange(2, 12), rng.randrange(3, 12)
    return f"{a}^{{{b}}}", f"{a**b}", f"{a ** (b + 1)}"


def _binomial(rng: random.Random) -> Triple:
    n, k = rng.randrange(6, 20), rng.randrange(2, 5)
    value = rf"\frac{{{n}!}}{{{k}!({n - k})!}}"
    return rf"\binom{{{n}}}{{{k}}}", value, rf"\binom{{{n}}}{{{k + 1}}}" if n != 2 * k + 1 else f"{n}"


def _trigonometry(rng: random.Random) -> Triple:
    a = rng.randrange(2, 40)
    return rf"{a}\sin^2 x", rf"{a} - {a}\cos^2 x", rf"{a}\cos^2 x"


def _logarithm(rng: random.Random) -> Triple:
    a, b = rng.randrange(2, 12), rng.randrange(2, 7)
    return rf"{b}\ln {a}", rf"\ln {a**b}", rf"\ln {a**b + 1}"


def _numeral(rng: random.Random) -> Triple:
    a = rng.randrange(100, 999)
    return f"{a}_{{9}}", f"{a}_9", f"{a}_8" if a % 9 else f"{a + 1}_9"


def _words(rng: random.Random) -> Triple:
    one, two = rng.sample(("odd", "even", "Monday", "Friday", "ellipse", "parabola", "Evelyn", "hyperbola"), 2)
    return rf"\text{{{one}}}", one.upper(), rf"\text{{{two}}}"


LATEX: Sequence[Callable[[random.Random], Triple]] = (
    _fraction, _decimal, _mixed_number, _root, _surd, _pi, _polynomial, _exponential, _rational_function, _complex,
    _pair, _interval, _inequality, _roots, _finite_set, _plus_or_minus, _matrix, _line, _percent, _unit, _degrees,
    _thousands, _power, _binomial, _trigonometry, _logarithm, _numeral, _words,
)  # fmt: skip


# ---------------------------------------------------------------- measuring


def measured(kind: str, goal: float, rounds: Sequence[Sequence[Case]], *, of_peer: bool = False) -> Rate:
    """Runs the rounds and returns their rates.

    Args:
        kind: What is judged, for the table.
        goal: Verdicts per second and core that are asked for.
        rounds: The cases of each round, all of them different.
        of_peer: Whether the peer is asked; what it gets wrong is counted, not shown.
    """
    rates, wall, wrong = [], [], 0
    for cases in rounds:
        began, busy = time.perf_counter(), _cpu_seconds()
        ask = [case.peer if of_peer and case.peer else case.verdict for case in cases]
        given = [verdict() for verdict in ask]
        wall.append(len(cases) / (time.perf_counter() - began))
        rates.append(len(cases) / max(_cpu_seconds() - busy, 1e-9))
        for case, verdict in zip(cases, given, strict=True):
            if verdict != case.expected:
                wrong += 1
                if not of_peer:
                    print(f"  WRONG: {verdict!r} instead of {case.expected!r}: {case.about}", file=sys.stderr)
    return Rate(kind, goal, max(rates), min(rates), max(wall), len(rounds[0]), wrong)


def _cpu_seconds() -> float:
    return time.process_time() + worker_cpu_seconds()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = command.parser("verifiers", "How many verdicts a second one core gives.")
    parser.add_argument("--cases", type=int, default=1000, help="verdicts in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, the best counts (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="what the cases are drawn from (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args(arguments)
    if options.cases < 1 or options.rounds < 1:
        parser.error(f"--cases and --rounds must be at least 1, not {options.cases} and {options.rounds}")
    rng = random.Random(options.seed)
    kinds: list[tuple[str, float, Iterator[Case]]] = [
        ("chess: puzzle lines", 1000, chess_cases(rng, load_puzzles())),
        ("exact match: short answers", 300, short_answer_cases(rng, load_questions())),
        ("math: generated problems", 100, problem_cases(rng)),
        ("math: LaTeX answers", 100, latex_cases(rng)),
    ]
    math_equal("x", "y")  # the start of a worker is no part of a verdict
    print(f"{options.rounds} rounds of {options.cases} verdicts, right and wrong mixed, asked by one thread")
    print(f"  {'':28}{'verdicts per second of one core':>32}{'':17}{'of the clock':>14}")
    print(f"  {'':28}{'best':>12}{'worst':>10}{'goal':>10}{'of goal':>9}{'best':>22}")
    rates, peers, has_peer = [], [], find_spec("math_verify") is not None
    for kind, goal, source in kinds:
        rounds = [list(islice(source, options.cases)) for _ in range(options.rounds)]
        rate = measured(kind, goal, rounds)
        rates.append(rate)
        print(
            f"  {kind:28}{rate.best:12,.0f}{rate.worst:10,.0f}{goal:10,.0f}{rate.best / goal:8.1f}x{rate.wall:22,.0f}"
            f"{'  MISSED' if rate.best < goal else ''}{f'  {rate.wrong} WRONG' if rate.wrong else ''}",
            flush=True,
        )
        if rounds[0][0].peer and has_peer:
            rate = measured(f"{kind}, math-verify", 0.0, rounds, of_peer=True)
            peers.append(rate)
            figures = f"{rate.best:12,.0f}{rate.worst:10,.0f}{'':19}{rate.wall:22,.0f}"
            print(f"    {'by math-verify':26}{figures}  {rate.wrong} wrong", flush=True)
    if options.json:
        options.json.write_text(
            json.dumps([asdict(rate) for rate in (*rates, *peers)], indent=1) + "\n", encoding="utf-8"
        )
    return int(any(rate.best < rate.goal or rate.wrong for rate in rates))


if __name__ == "__main__":
    command.finish(main)
