"""Checks of a harness without a model: it is validated, then played, and what to fix is said.

The command is ``python -m harness_sdk.check FILE --env chess``. Scripted policies say nothing useful in many ways
(noise, silence, floods, binary, cut-off tags, calls of nonsense, the prompt itself) on a few search tasks. A sound
harness survives all of them, packs the same prompts for the same episode whatever came before, earns nothing from
noise, and calls tools that are there. The same checks stand between a proposed candidate and its first model call.
Whether it reads what a good model would say is not found out here.
"""

from harness_sdk.check.facts import facts
from harness_sdk.check.playing import behaviour
from harness_sdk.check.report import Behaviour, Finding

__all__ = ["Behaviour", "Finding", "behaviour", "facts"]
