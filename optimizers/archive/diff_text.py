"""A candidate against its parent, as text: which examples flipped, what changed in source and prompt."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from harness_sdk.trajectory import Trajectory
from harness_sdk.types import Message
from optimizers.archive.quoting import (
    MAX_DIFF,
    MAX_ROWS,
    cell,
    clean,
    fenced,
    left_out,
    one_line,
    unified,
    without_middle,
)
from optimizers.archive.records import Entry
from optimizers.archive.rollout_text import MAX_TEXTS, file_names, folder, outcome, pick
from optimizers.statistics import sign_test


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison.

    Attributes:
        entry: The harness.
        source: Its source.
        trajectories: Its rollouts at the compared weights.
    """

    entry: Entry
    source: str
    trajectories: Sequence[Trajectory]


@dataclass(frozen=True, slots=True)
class Example:
    """One task under both harnesses.

    Attributes:
        task: Its id.
        before: The parent's rollouts.
        after: The candidate's rollouts, with the same seeds.
    """

    task: str
    before: tuple[Trajectory, ...]
    after: tuple[Trajectory, ...]

    @property
    def change(self) -> float:
        """How much the mean reward rose."""
        return fmean(t.reward or 0.0 for t in self.after) - fmean(t.reward or 0.0 for t in self.before)


def paired(before: Sequence[Trajectory], after: Sequence[Trajectory]) -> list[Example]:
    """Returns the tasks that both sides played with the same seeds and whose rewards are all known."""

    def keyed(trajectories: Sequence[Trajectory]) -> dict[tuple[str, int, int], Trajectory]:
        return {_key(t): t for t in trajectories if t.reward is not None}

    old, new = keyed(before), keyed(after)
    pairs: dict[str, list[tuple[Trajectory, Trajectory]]] = defaultdict(list)
    for key in sorted(old.keys() & new.keys()):
        pairs[key[0]].append((old[key], new[key]))
    return [Example(task, tuple(a for a, _ in both), tuple(b for _, b in both)) for task, both in pairs.items()]


def diff_text(before: Side, after: Side, weights_version: int, note: str = "") -> str:
    """Returns what a candidate changed, in behaviour and in source, against its parent.

    Args:
        before: The parent.
        after: The candidate.
        weights_version: The weights at which both were rolled out.
        note: A sentence to begin with.
    """
    examples = paired(before.trajectories, after.trajectories)
    lines = [
        f"# {_told(after.entry)} against {_told(before.entry)}",
        "",
        *([note, ""] if note else []),
        f"Axis: {one_line(after.entry.axis) or 'not given'}. "
        f"Hypothesis: {one_line(after.entry.hypothesis) or 'not given'}",
        "",
        "Paths are relative to the folder that holds index.md.",
        "",
    ]
    if examples:
        lines += _behaviour(before, after, examples, weights_version)
    else:
        stale = ", ".join(f"{s.reward:.3f} at version {v}" for v, s in sorted(before.entry.scores.items()))
        lines += [
            f"No rollouts of both at weights version {weights_version} with the same seeds: behaviour is not compared."
            + (f" Stale scores of {before.entry.name}: {stale}." if stale else ""),
            "",
        ]
    lines += ["## Source", "", fenced(unified(before.source, after.source, context=3) or "no difference", "diff"), ""]
    return "\n".join([*lines, *_prompts(examples)])


def _told(entry: Entry) -> str:
    return f"{one_line(entry.name)} ({entry.id})"


def _prompts(examples: Sequence[Example]) -> list[str]:
    """Returns the first prompt that differs, on one example: one that was gained if there is one."""
    if not examples:
        return []
    for example in sorted(examples, key=lambda e: (e.change <= 0, e.change == 0)):
        for old, new in zip(example.before, example.after, strict=True):
            for number, (a, b) in enumerate(zip(old.calls, new.calls, strict=False)):
                if a.messages != b.messages:
                    changes = unified(_prompt(a.messages), _prompt(b.messages), context=2)
                    title = f"## Prompt of turn {number + 1} on example {one_line(example.task)}, rollout {old.index}"
                    return [title, "", fenced(without_middle(changes, MAX_DIFF // 2), "diff"), ""]
                if old.turns[number : number + 1] != new.turns[number : number + 1]:
                    break  # from here on the prompts differ in what the model wrote, too
    return ["## Prompts", "", "Wherever the model had written the same before, both packed the same prompt.", ""]


def _behaviour(before: Side, after: Side, examples: Sequence[Example], version: int) -> list[str]:
    old, new = [t for e in examples for t in e.before], [t for e in examples for t in e.after]
    rows: list[tuple[str, float, float, str]] = [
        ("reward", fmean(t.reward or 0.0 for t in old), fmean(t.reward or 0.0 for t in new), ".3f"),
        ("turns", fmean(len(t.turns) for t in old), fmean(len(t.turns) for t in new), ".2f"),
        ("sampled tokens", fmean(t.tokens for t in old), fmean(t.tokens for t in new), ".1f"),
        ("prompt tokens", fmean(t.prompt_tokens for t in old), fmean(t.prompt_tokens for t in new), ".1f"),
    ]
    kinds = [Counter(outcome(t) for t in side if outcome(t) != "solved") for side in (old, new)]
    rows += [(f"failed: {kind}", kinds[0][kind], kinds[1][kind], ".0f") for kind in sorted(kinds[0] | kinds[1])]
    gained = sorted((e for e in examples if e.change > 0), key=lambda e: -e.change)
    lost = sorted((e for e in examples if e.change < 0), key=lambda e: e.change)
    even = len(examples) - len(gained) - len(lost)
    paths = [_paths(side, version) for side in (before, after)]
    lines = [
        f"At weights version {version}, on the same {len(examples)} examples with the same {len(old)} seeds "
        "(means per rollout, failures as counts):",
        "",
        "| | before | after | change |",
        "|---|---:|---:|---:|",
        *(f"| {name} | {a:{form}} | {b:{form}} | {b - a:+{form}} |" for name, a, b, form in rows),
        "",
        f"Examples: {len(gained)} gained, {len(lost)} lost, {even} the same; were it chance, so uneven a split or more "
        f"would have probability {sign_test(len(gained), len(lost)):.2g}.",
        "",
    ]
    for title, flipped in (("Gained", gained), ("Lost", lost)):
        if not flipped:
            continue
        lines += [f"## {title} ({len(flipped)})", "", "| example | before | after | read |", "|---|---|---|---|"]
        for example in flipped[:MAX_ROWS]:
            changed = [
                (a, b) for a, b in zip(example.before, example.after, strict=True) if (a.reward or 0) != (b.reward or 0)
            ]
            a, b = changed[0]
            read = " ".join(f"`{p}`" for p in (paths[0].get(_key(a)), paths[1].get(_key(b))) if p)
            lines.append(f"| {cell(example.task)} | {_shares(example.before)} | {_shares(example.after)} | {read} |")
        lines += [*left_out(len(flipped), "outcomes.jsonl of both"), ""]
    return lines


def _key(trajectory: Trajectory) -> tuple[str, int, int]:
    return trajectory.task.id, trajectory.index, trajectory.seed


def _paths(side: Side, version: int) -> dict[tuple[str, int, int], str]:
    """Returns where each rollout that is kept as text lies."""
    names = file_names(side.trajectories)
    kept = pick(side.trajectories, MAX_TEXTS)
    return {_key(side.trajectories[i]): f"{side.entry.id}/{folder(version)}/{names[i]}" for i in kept}


def _shares(trajectories: Sequence[Trajectory]) -> str:
    solved = sum(t.reward == 1.0 for t in trajectories)
    kinds = Counter(outcome(t) for t in trajectories if t.reward != 1.0)
    told = ", ".join(kind for kind, _ in kinds.most_common())
    return f"{solved}/{len(trajectories)}" + (f" ({told})" if told else "")


def _prompt(messages: Sequence[Message]) -> str:
    return "\n".join(f"--- {message['role']}\n{clean(message['content'])}" for message in messages)
