"""What a validation found: problems that say where, what, and how to repair it.

Plain data and its text form. Finding problems is not done here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from whale_env import wording

SHOWN_PROBLEMS = 60
SHOWN_WIDTH = 120


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One reason why a source is refused.

    Attributes:
        line: Line, from 1.
        column: Character in the line, from 1.
        rule: Id of the broken rule (see `harness_sdk.validator.RULES`).
        message: What is wrong.
        fix: What to write instead.
        quote: The source line.
    """

    line: int
    column: int
    rule: str
    message: str
    fix: str
    quote: str = ""

    def __str__(self) -> str:
        start = max(0, self.column - SHOWN_WIDTH // 2) if len(self.quote) > SHOWN_WIDTH else 0
        shown = printable(self.quote[start : start + SHOWN_WIDTH])
        marker = " " * len(printable(self.quote[start : max(start, self.column - 1)]))
        return (
            f"line {self.line}, column {self.column} [{self.rule}] {self.message}\n"
            f"    {self.line:>4} | {shown}\n"
            f"         | {marker}^\n"
            f"    fix: {self.fix}"
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a validation.

    Attributes:
        ok: Whether the source may go on to the behaviour checks.
        problems: Every problem found, in source order; empty when ``ok``.
        class_name: The harness class, if exactly one was found.
    """

    ok: bool
    problems: tuple[Problem, ...] = ()
    class_name: str | None = None

    def render(self) -> str:
        """Returns a text from which a person or a language model can repair the source."""
        if self.ok:
            return f"{self.class_name}: valid"
        count = len(self.problems)
        parts = [f"{self.class_name or 'harness'}: refused, {count} problem{'s' if count != 1 else ''}"]
        parts += [str(problem) for problem in self.problems[:SHOWN_PROBLEMS]]
        if count > SHOWN_PROBLEMS:
            parts.append(f"… and {count - SHOWN_PROBLEMS} more")
        return "\n\n".join(parts)

    def __str__(self) -> str:
        return self.render()


def printable(text: str) -> str:
    """Returns the text with everything that a terminal or a chat template could act on escaped."""
    text = "".join(c if c.isprintable() else "    " if c == "\t" else ascii(c)[1:-1] for c in text)
    return re.sub(r"<\|", r"<\\u007c", text)


def shortened(name: object, limit: int = 60) -> str:
    """Returns a name for a message: escaped and bounded."""
    return printable(wording.shortened(str(name), limit))
