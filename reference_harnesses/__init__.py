"""Harnesses to begin from and to compare with: per domain the plain h0 and a strong hand-written one."""

from collections.abc import Mapping

BASELINES: Mapping[str, str] = {
    "chess": "reference_harnesses.chess:ChessH0",
    "math": "reference_harnesses.math:MathH0",
    "searchqa": "reference_harnesses.searchqa:SearchQAH0",
}
"""Domain name → reference of the harness that optimisation starts from."""

STRONG: Mapping[str, str] = {
    "chess": "reference_harnesses.chess:ChessStrong",
    "math": "reference_harnesses.math:MathStrong",
    "searchqa": "reference_harnesses.searchqa:SearchQAStrong",
}
"""Domain name → reference of the strong hand-written harness."""
