"""Verdicts on answers: chess lines, mathematical answers, short text answers.

Each name is loaded on first use, so that importing the package brings in neither sympy nor a chess engine. Verifiers
compare what they are given; which message of an episode holds the answer is the environment's business.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whale_env.chess.verifier import chess_line
    from whale_env.math.verifier import UnparsableReferenceError, boxed_answer, check_reference, math_equal
    from whale_env.searchqa.verifier import answer_matches, normalised, squad_normalised, tagged_answer

_HOME = {
    "UnparsableReferenceError": "math",
    "answer_matches": "searchqa",
    "boxed_answer": "math",
    "chess_line": "chess",
    "check_reference": "math",
    "math_equal": "math",
    "normalised": "searchqa",
    "squad_normalised": "searchqa",
    "tagged_answer": "searchqa",
}

__all__ = [
    "UnparsableReferenceError",
    "answer_matches",
    "boxed_answer",
    "check_reference",
    "chess_line",
    "math_equal",
    "normalised",
    "squad_normalised",
    "tagged_answer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"whale_env.{_HOME[name]}.verifier"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
