"""Generated mathematics problems with exact answers, in five tiers, from a seed.

Arithmetic, algebra, number theory and counting. Tier 1 is one step with small numbers, within reach of a model with
135 million parameters; tier 5 is like the easier problems of a school contest. Answers are computed by the
templates (`templates`), never looked up. Splits and reading files: `problems`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from whale_env.errors import InputError
from whale_env.math.templates import TEMPLATES, Template

TIERS: tuple[str, ...] = ("1", "2", "3", "4", "5")
TOPICS: tuple[str, ...] = ("arithmetic", "algebra", "number theory", "counting")


@dataclass(frozen=True, slots=True)
class Generated:
    """One generated problem.

    Attributes:
        text: The problem.
        answer: The answer as plain text: an integer or ``a/b``.
        tier: ``"1"`` to ``"5"``.
        topic: One of `TOPICS`.
        kind: Template and numbers in order of size: the same for problems that differ only in wording or order.
    """

    text: str
    answer: str = field(repr=False)
    tier: str
    topic: str
    kind: str


def generate(tier: str, count: int, seed: int = 0) -> list[Generated]:
    """Generates different problems of one tier.

    Args:
        tier: One of `TIERS`.
        count: How many.
        seed: Same seed, same problems, in every process.

    Returns:
        At most ``count`` problems, no two with the same text; fewer if the templates have no more to give.

    Raises:
        InputError: An unknown tier.
    """
    if tier not in TIERS:
        raise InputError(f"unknown tier {tier!r}; the tiers are {', '.join(TIERS)}")
    rng = random.Random(f"{seed}/{tier}")
    found: dict[str, Generated] = {}
    open_templates = list(_templates(tier))
    while open_templates and len(found) < count:
        topic, template = entry = rng.choice(open_templates)
        for _ in range(20):
            text, answer = template(rng)
            if text not in found:
                numbers = " ".join(sorted(re.findall(r"\d+|[A-Z]{4,}", text)))
                kind = f"{template.__name__} {numbers}"
                found[text] = Generated(text, str(answer), tier, topic, kind)
                break
        else:
            open_templates.remove(entry)
    return list(found.values())


def _templates(tier: str) -> Iterator[tuple[str, Template]]:
    for topic, templates in TEMPLATES[tier].items():
        for template in templates:
            yield topic, template
