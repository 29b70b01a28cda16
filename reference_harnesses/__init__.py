"""Harnesses to begin from and to compare with: per domain the plain h0 and a strong hand-written one."""

from collections.abc import Mapping

BASELINES: Mapping[str, str] = {
    "chess": "reference_harnesses.chess.h0:ChessH0",
    "math": "reference_harnesses.math.h0:MathH0",
    "searchqa": "reference_harnesses.searchqa.h0:SearchQAH0",
}
"""Domain name → reference of the harness that optimisation starts from."""

STRONG: Mapping[str, str] = {
    "chess": "reference_harnesses.chess.strong:ChessStrong",
    "math": "reference_harnesses.math.strong:MathStrong",
    "searchqa": "reference_harnesses.searchqa.strong:SearchQAStrong",
}
"""Domain name → reference of the strong hand-written harness."""
