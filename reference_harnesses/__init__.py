"""Harnesses to begin from and to compare with: per domain the plain h0 and a strong hand-written one."""

from collections.abc import Mapping

BASELINES: Mapping[str, str] = {
    "chess": "reference_harnesses.chess:ChessH0",
}
"""Domain name → reference of the harness that optimisation starts from."""

STRONG: Mapping[str, str] = {
    "chess": "reference_harnesses.chess:ChessStrong",
}
"""Domain name → reference of the strong hand-written harness."""
