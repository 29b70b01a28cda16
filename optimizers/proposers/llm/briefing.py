"""What a proposer is told: the skill and the SDK, the same in every round, and this round's task with an archive index.

Texts only. How they are sent is the business of each proposer.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from importlib import resources

from harness_sdk import harness, types
from harness_sdk.validator import RULES
from optimizers.archive.records import Entry
from optimizers.proposers.protocol import Brief
from whale_env import types as words
from whale_env.wording import shortened

OBSERVATIONS = 4
"""First observations of tasks that are shown."""
OBSERVED = 2500
"""Characters of one."""
INDEXED = 60
"""Harnesses in the index, the best at the current weights first."""


def skill() -> str:
    """Returns the skill text: what a harness is, and how to make a better one."""
    return resources.files("optimizers.proposers.llm").joinpath("skill.md").read_text("utf-8")


def sdk() -> Mapping[str, str]:
    """Returns the sources that a harness is written against, by file name."""
    return {
        "harness_sdk/harness.py": inspect.getsource(harness),
        "harness_sdk/types.py": inspect.getsource(types),
        "whale_env/types.py": inspect.getsource(words),
        "validator_rules.md": "\n".join(f"- `{rule}`: {text}" for rule, text in RULES.items()) + "\n",
    }


def system() -> str:
    """Returns the system text of a conversation."""
    parts = [skill(), *(f"# {name}\n\n```\n{text}```" for name, text in sdk().items())]
    return "\n\n".join(parts)


def opening(brief: Brief, turns: int) -> str:
    """Returns the task of a round.

    Args:
        brief: The round.
        turns: Replies that the proposer has.
    """
    tools = [json.dumps(tool.to_json(), ensure_ascii=False) for tool in brief.tools]
    shown = [
        shortened(f"text:\n{seen.text}\n\ndata: {json.dumps(seen.data, ensure_ascii=False, default=str)}", OBSERVED)
        for seen in brief.observations[:OBSERVATIONS]
    ]
    return "\n\n".join(
        [
            f"Domain: {brief.env}. Hand in {brief.count} candidates; you have {turns} replies.",
            *([brief.restriction] if brief.restriction else []),
            "Its tools:\n" + "\n".join(tools),
            "What tasks begin with:",
            *(f"<observation>\n{text}\n</observation>" for text in shown),
            f"The accepted harness is {brief.incumbent}:\n```python\n{brief.archive.source(brief.incumbent)}\n```",
            "The archive, scored at the current weights, best first (the rest is stale and does not compete "
            "unless you hand it in again):",
            index(brief),
        ]
    )


def index(brief: Brief) -> str:
    """Returns one line for each harness of the archive."""
    version = brief.weights_version
    entries = brief.archive.entries()
    entries.sort(key=lambda e: e.scores[version].rank() if version in e.scores else (-1.0, 0.0, 0.0), reverse=True)
    lines = [_line(entry, version) for entry in entries[:INDEXED]]
    rest = len(entries) - len(lines)
    return "\n".join(lines) + (f"\n… and {rest} more in the archive" if rest else "")


def _line(entry: Entry, version: int) -> str:
    if version in entry.scores:
        score = entry.scores[version]
        failures = ", ".join(f"{kind} {count}" for kind, count in score.failures.items())
        result = (
            f"reward {score.reward:.3f} over {score.rollouts}, {score.turns:.1f} turns ({failures or 'no failure'})"
        )
    else:
        result = "stale: " + ", ".join(f"{s.reward:.3f} at weights {v}" for v, s in sorted(entry.scores.items()))
    about = f"parent {entry.parent}; {entry.axis}; {shortened(entry.hypothesis, 200)}"
    return f"- {entry.id} {entry.name}: {result}. {about}"
