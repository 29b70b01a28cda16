"""Mathematics: the plain starting harness and a strong hand-written one, each as a proposer would write it."""

from reference_harnesses.math.h0 import MathH0
from reference_harnesses.math.strong import MathStrong

__all__ = ["MathH0", "MathStrong"]
