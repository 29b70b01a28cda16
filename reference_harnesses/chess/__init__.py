"""Chess: the plain starting harness and a strong hand-written one, each as a proposer would write it."""

from reference_harnesses.chess.h0 import ChessH0
from reference_harnesses.chess.strong import ChessStrong

__all__ = ["ChessH0", "ChessStrong"]
