"""Question answering: the plain starting harness and a strong hand-written one, each as a proposer would write it."""

from reference_harnesses.searchqa.h0 import SearchQAH0
from reference_harnesses.searchqa.strong import SearchQAStrong

__all__ = ["SearchQAH0", "SearchQAStrong"]
