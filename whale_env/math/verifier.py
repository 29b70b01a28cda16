r"""Verdicts on mathematical answers: is this answer equal to the reference?

``boxed_answer`` reads the last ``\boxed{}``; ``math_equal`` compares its content with the reference. Plain numbers and
equal strings are settled here, at once. All else goes to a worker process (`worker_pool`), where `equality` builds
sympy objects from a closed grammar and compares them under a CPU and memory limit, so that neither a
tower of exponents nor a hostile string can hang, bloat or run anything in this process. What cannot be decided in time
is not equal. The rules of equality, also the debatable ones, stand in ``docs/verifiers.md``.

Nothing here reads free text around the box, and nothing judges how an answer was reached.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache

from whale_env.errors import InputError
from whale_env.math.equality.text import boxed_answer
from whale_env.math.worker_pool import WorkerPool
from whale_env.wording import shortened

__all__ = ["UnparsableReferenceError", "boxed_answer", "check_reference", "math_equal", "worker_cpu_seconds"]

_MAX_LENGTH = 20_000  # characters; longer texts are compared as text only
_PLAIN = re.compile(r"([-+]?)\s*((?:[0-9]+|[1-9][0-9]{0,2}(?:,[0-9]{3})+)(?:\.[0-9]*)?|\.[0-9]+)(?:\s*/\s*([0-9]+))?")
_QUOTIENT = re.compile(r"/\s*0*(?!1\Z)[1-9]")
_MAX_DIGITS = 400

_pool = WorkerPool()


class UnparsableReferenceError(InputError):
    """A reference answer that no answer could ever equal, because it cannot be read."""


def math_equal(reference: str, answer: str) -> bool:
    """Whether ``answer`` is mathematically equal to ``reference``; never raises on any text.

    Args:
        reference: The trusted answer of the data set.
        answer: The model's answer, out of its box.

    Returns:
        False also where the question cannot be decided within the time and memory limits. Safe from any thread; at
        most five seconds, unless the machine lets the worker hardly run at all: then it waits rather than guess.
    """
    given = answer.strip()
    if not given or given.lower() == "nan" or not reference.strip():
        return False
    return _equal(reference.strip(), given)


def _quick(reference: str, answer: str) -> bool | None:
    wanted, given = _plain(reference), _plain(answer)
    if isinstance(given, Fraction) and given.denominator == 1 and _QUOTIENT.search(answer) and "/" not in reference:
        return False  # a division that is yet to be done
    if wanted is not None and given is not None and (wanted == given or ("/" in reference) == ("/" in answer)):
        return wanted == given
    if len(reference) > _MAX_LENGTH or len(answer) > _MAX_LENGTH:
        return reference == answer
    return None


def _equal(reference: str, answer: str) -> bool:
    verdict = _quick(reference, answer)
    if verdict is not None:
        return verdict
    try:
        return _asked(reference, answer)
    except _UndecidedError:
        return False


class _UndecidedError(Exception):
    """Raised so that only decided verdicts are remembered."""


@lru_cache(maxsize=4096)
def _asked(reference: str, answer: str) -> bool:
    verdict = _pool.ask("equal", reference, answer)
    if not isinstance(verdict, bool):
        raise _UndecidedError
    return verdict


def _plain(text: str) -> Fraction | str | None:
    """The value of a plain number; a very long one as its digits, since converting those takes quadratic time."""
    match = _PLAIN.fullmatch(text)
    if not match:
        return None
    sign, number, denominator = match.groups()
    number = number.replace(",", "")
    if len(text) > _MAX_DIGITS:
        if denominator:
            return None
        whole, _, fraction = number.partition(".")
        digits = f"{whole.lstrip('0') or '0'}.{fraction.rstrip('0')}"
        return f"{'-' if sign == '-' and digits != '0.' else ''}{digits}"
    if denominator and not int(denominator):
        return None
    value = Fraction(number.rstrip(".")) / int(denominator or 1)
    return -value if sign == "-" else value


def worker_cpu_seconds() -> float:
    """Processor time of the processes that work for this one, their start included; for measuring."""
    return _pool.cpu_seconds()


def check_reference(reference: str) -> None:
    """Refuses a reference that cannot be read, at load time instead of as a silent zero for every answer.

    Raises:
        UnparsableReferenceError: With the reference and the reason.
    """
    text = reference.strip()
    if not text:
        raise UnparsableReferenceError("the reference answer is empty: give the answer that the task expects")
    if _plain(text) is not None:
        return
    problem = "it is too long" if len(text) > _MAX_LENGTH else _pool.ask("check", text, "")
    if problem is None:
        problem = "it could not be read in time"
    if problem:
        shown = shortened(text, 120)
        raise UnparsableReferenceError(
            f"cannot read the reference answer {shown!r}: {problem}. Give plain text or LaTeX, without the box."
        )
