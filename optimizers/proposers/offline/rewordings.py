"""Rewordings of prompt texts: FST without a model. Nothing but string constants of prompt attributes changes."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain

from harness_sdk.loader import harness_id
from harness_sdk.randomness import derive_seed
from optimizers.proposers.fst import assigned_name, prompt_attributes
from optimizers.proposers.protocol import Brief, Proposal, Proposed, first_new


@dataclass(frozen=True, slots=True)
class Rewording:
    """One general way to change a prompt text.

    Attributes:
        name: Short name.
        hypothesis: What should get better, and why.
        change: The new text.
    """

    name: str
    hypothesis: str
    change: Callable[[str], str]


def _sentences(text: str) -> list[str]:
    return [part for part in text.replace("\n", " \n").split(". ") if part.strip()]


REWORDINGS = (
    Rewording("Leave out", "A small model loses the task in what stands around it.", lambda _: ""),
    Rewording(
        "First sentence",
        "The first sentence carries the task; the rest takes attention.",
        lambda text: _sentences(text)[0].rstrip(". ") + "." if _sentences(text) else text,
    ),
    Rewording("Only that", "Replies that explain are unread; forbid it.", lambda text: f"{text} Write only that."),
    Rewording("Be brief", "Long replies are cut; ask for a short one.", lambda text: f"{text} Be brief."),
    Rewording(
        "Check", "Careless answers are wrong; ask to look twice.", lambda text: f"{text} Check it before you answer."
    ),
    Rewording(
        "Step by step", "Answers at once are wrong; ask for thought.", lambda text: f"{text} Think step by step."
    ),
    Rewording("Expert", "A role sets the register.", lambda text: f"You are an expert. {text}"),
    Rewording("Important", "Emphasis moves attention to the form.", lambda text: f"Important: {text}"),
    Rewording("Twice", "What is said twice is followed more often.", lambda text: f"{text}\n{text}"),
)


COMBINED, LONGEST = 64, 6
"""Combinations tried of each length, and how many lengths there are, from two on."""

ADDED = 4_000
"""Characters by which a harness may grow: what is said twice again and again is no prompt any more."""


class PromptProposer:
    """A seeded offline proposer that changes nothing but prompt texts: FST without a model."""

    def __init__(self, h0_source: str) -> None:
        """Takes the source of the starting harness."""
        self._attributes = prompt_attributes(h0_source)

    async def propose(self, brief: Brief) -> Proposed:
        """Writes up to ``brief.count`` rewordings of the incumbent that have no score at these weights yet."""
        return first_new(brief, self._reworded(brief))

    def _reworded(self, brief: Brief) -> Iterator[tuple[str, Proposal]]:
        """Yields every single rewording in a seeded order, then seeded combinations of two, three and more."""
        rng = random.Random(derive_seed("prompt-proposer", brief.seed))
        source = brief.archive.source(brief.incumbent)
        choices = [(name, wording) for name in self._attributes for wording in REWORDINGS]
        choices = [choice for choice in choices if reworded(source, choice[0], choice[1].change) is not None]
        if not choices:
            return
        singles = [[choice] for choice in rng.sample(choices, len(choices))]
        combined = (rng.choices(choices, k=2 + number // COMBINED) for number in range(COMBINED * LONGEST))
        for plan in chain(singles, combined):
            new, class_name, used = source, "", []
            for attribute, wording in plan:
                changed = reworded(new, attribute, wording.change)
                if changed is not None and len(changed[0]) <= len(source) + ADDED:
                    new, class_name = changed
                    used.append((attribute, wording))
            if used:
                name = ", ".join(f"{wording.name} ({attribute})" for attribute, wording in used)
                hypothesis = " ".join(dict.fromkeys(wording.hypothesis for _, wording in used))
                yield harness_id(new, class_name), Proposal(name, new, brief.incumbent, "prompt", hypothesis)


def reworded(source: str, attribute: str, change: Callable[[str], str]) -> tuple[str, str] | None:
    """Rewrites one prompt text of a harness's source and leaves every other character as it is.

    Args:
        source: Source of a harness whose prompt attribute is a plain string.
        attribute: Which one.
        change: Gives the new text.

    Returns:
        The new source and the name of the class, or None where there is no such text or nothing changes.
    """
    for node in ast.walk(ast.parse(source)):
        for statement in node.body if isinstance(node, ast.ClassDef) else ():
            if not isinstance(statement, ast.Assign | ast.AnnAssign) or assigned_name(statement) != attribute:
                continue
            value = statement.value
            if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
                continue
            new = change(value.value)
            if new == value.value or value.end_lineno is None or value.end_col_offset is None:
                return None
            lines = source.encode().splitlines(keepends=True)
            before = b"".join(lines[: value.lineno - 1]) + lines[value.lineno - 1][: value.col_offset]
            after = lines[value.end_lineno - 1][value.end_col_offset :] + b"".join(lines[value.end_lineno :])
            assert isinstance(node, ast.ClassDef)
            return (before + repr(new).encode() + after).decode(), node.name
    return None
