"""The archive as text: a rollout, a candidate against its parent, and the index, as a person or a proposer reads them.

Pure functions from data to text, every text bounded. Where the texts are kept is
`optimizers.archive.store`. What a model or a harness wrote is quoted line by line, so that it cannot pass for the
archive's own words.
"""

from __future__ import annotations

import difflib
import hashlib
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from harness_sdk.trajectory import Trajectory
from harness_sdk.types import Message, Turn
from optimizers.archive.records import Entry, HarnessScore
from optimizers.statistics import sign_test

MAX_TRAJECTORY = 24_000
"""Characters of a rollout's text; middle turns are left out beyond it."""

MAX_QUOTE = 6_000
"""Characters of one quoted message, completion or result."""

MAX_DIFF = 20_000
"""Characters of one diff."""

MAX_TEXTS = 256
"""Rollouts of one harness at one version of the weights that are kept as text."""

MAX_ROWS = 12
"""Rows of one table; longer ones say how many are left out."""

MEANINGS: Mapping[str, str] = {
    "format": "the reply could not be read as an action",
    "truncated": "the reply was cut off by its token limit before an action could be read",
    "illegal": "an action was read, but the environment refused it",
    "wrong": "valid actions, but not the right ones",
    "budget": "the limit on turns or tokens came before an end",
    "timeout": "it took too long",
    "harness_error": "the harness's own code failed",
    "harness_violation": "the harness committed something that the model had not said",
}


def clean(text: str) -> str:
    """Returns text with control characters and lone surrogates written as escapes: one NUL makes a file binary."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t " else c.encode("unicode_escape").decode() for c in text)


def slug(text: str, length: int = 48) -> str:
    """Returns a file name for an arbitrary text; different texts give different names."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", text)
    plain = plain.lstrip(".-")[:length]
    if plain and plain == text:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{plain}_{digest}" if plain else digest


def outcome(trajectory: Trajectory) -> str:
    """Returns a rollout's outcome as one word: ``solved``, its failure, or ``unknown``."""
    if trajectory.reward is None:
        return "unknown"
    return trajectory.score.failure or ("solved" if trajectory.reward > 0 else "unsolved")


def file_names(trajectories: Sequence[Trajectory]) -> list[str]:
    """Returns the file name of each rollout: outcome first, so that a listing sorts by it."""
    seen: Counter[str] = Counter()
    names = []
    for trajectory in trajectories:
        task = trajectory.task.id
        names.append(f"{outcome(trajectory)}-{slug(task)}-{seen[task]}.txt")
        seen[task] += 1
    return names


# One rollout


def trajectory_text(trajectory: Trajectory) -> str:
    """Returns a rollout as text: an outcome header, the first prompt in full, then what each turn added.

    Args:
        trajectory: The rollout.
    """
    facts = ", ".join(f"{key} {value}" for key, value in trajectory.task.data.items())
    metrics = ", ".join(f"{key} {value:g}" for key, value in trajectory.score.metrics.items())
    reward = "unknown (infrastructure failure)" if trajectory.reward is None else f"{trajectory.reward:g}"
    head = [
        f"task: {trajectory.task.id}" + (f" ({facts})" if facts else ""),
        f"harness: {trajectory.harness}, weights version {trajectory.weights_version}, rollout {trajectory.index}",
        f"outcome: {outcome(trajectory)}",
        f"reward: {reward}",
        f"failure: {trajectory.score.failure or 'none'}",
        f"stopped: {trajectory.stopped}",
        f"turns: {len(trajectory.turns)}",
        f"tokens: {trajectory.tokens} sampled, {trajectory.prompt_tokens} in prompts",
        *([f"metrics: {metrics}"] if metrics else []),
    ]
    header = "\n".join(_line(line) for line in head)
    return header + "\n" + _bounded(list(_turns(trajectory)), MAX_TRAJECTORY - len(header))


def _turns(trajectory: Trajectory) -> Iterator[str]:
    """Yields one section per model call."""
    before: Sequence[Message] = ()
    for number, call in enumerate(trajectory.calls, 1):
        parts = [f"\n=== turn {number}: prompt{_prompt_note(before, call.messages)}"]
        known = _known(trajectory.turns[number - 2]) if number > 1 else {}
        parts += _added(before, call.messages, known)
        before = call.messages
        if number <= len(trajectory.turns):
            parts += _turn(number, trajectory.turns[number - 1])
        yield "\n".join(parts)


def _prompt_note(before: Sequence[Message], now: Sequence[Message]) -> str:
    same = _same(before, now)
    if not before:
        return f" of {len(now)} message{'s' * (len(now) != 1)}"
    if same == len(before):
        return f", the {same} as before and {len(now) - same} added"
    return f", {same} of {len(before)} as before and {len(now) - same} new or changed (the history was rewritten)"


def _known(turn: Turn) -> dict[str, str]:
    """Returns what the reader has just seen, so that a prompt which repeats it need not be read again."""
    known = {result: "the result above" for result in turn.results}
    if turn.feedback is not None:
        known[turn.feedback] = "the feedback above"
    known[turn.completion.text] = "what the model wrote above"
    return {text.strip(): told for text, told in known.items() if text.strip()}


def _added(before: Sequence[Message], now: Sequence[Message], known: Mapping[str, str]) -> list[str]:
    lines = []
    for position in range(_same(before, now), len(now)):
        message = now[position]
        old = before[position] if position < len(before) else None
        told = known.get(message["content"].strip())
        lines.append(f"--- {message['role']}" + (f": {told}" if told else ""))
        if told is None and old is not None and old["role"] == message["role"]:
            changes = _diff(old["content"], message["content"], context=0)
            if len(changes) < len(message["content"]) // 2:
                lines.append(f"(changed against the prompt before)\n{_quote(changes)}")
                continue
        lines += [] if told else [_quote(message["content"])]
        lines += [f"tool call: {_quote(str(call.get('function', call)))}" for call in message.get("tool_calls", ())]
    return lines


def _turn(number: int, turn: Turn) -> list[str]:
    completion = turn.completion
    lines = [
        f"=== turn {number}: the model wrote {completion.tokens} tokens, ended by {completion.finish_reason}",
        _quote(completion.text),
        *(f"native tool call: {_quote(f'{c.name} {dict(c.arguments)}')}" for c in completion.tool_calls),
        f"=== turn {number}: what came of it",
    ]
    for position, call in enumerate(turn.calls):
        lines.append(f"read as: {_quote(f'{call.name} {dict(call.arguments)}')}")
        if position < len(turn.results):
            lines.append(f"result:\n{_quote(turn.results[position])}")
    if turn.failure is not None:
        lines.append(f"{turn.failure.kind}: {_quote(turn.failure.reason)}")
    if turn.feedback is not None:
        lines.append(f"feedback to the model:\n{_quote(turn.feedback)}")
    return lines if turn.calls or turn.failure or turn.feedback else [*lines, "no action"]


def _bounded(sections: Sequence[str], limit: int) -> str:
    """Returns as many whole sections as fit, from both ends: beginnings and endings explain the most."""
    if sum(len(section) + 1 for section in sections) <= limit:
        return "\n".join([*sections, ""])
    half = limit // 2
    head: list[str] = []
    tail: list[str] = []
    rest = list(sections)
    while rest and sum(map(len, head)) + len(rest[0]) <= half:
        head.append(rest.pop(0))
    while rest and sum(map(len, tail)) + len(rest[-1]) <= half:
        tail.insert(0, rest.pop())
    if not head and rest:
        head.append(_cut(rest.pop(0), half))
    if not tail and rest:
        tail.append(_cut(rest.pop(), half))
    first, last = len(head) + 1, len(head) + len(rest)
    note = f"\n[turns {first} to {last} left out; trajectories.jsonl has them]" if rest else ""
    return "\n".join(part for part in (*head, note, *tail, "") if part or not rest)


def texts(trajectories: Sequence[Trajectory]) -> dict[str, str]:
    """Returns the rollouts of a harness at one version of the weights as text, by file name."""
    names = file_names(trajectories)
    return {names[i]: trajectory_text(trajectories[i]) for i in _pick(trajectories, MAX_TEXTS)}


def _pick(trajectories: Sequence[Trajectory], limit: int) -> list[int]:
    """Returns positions of at most ``limit`` rollouts, every outcome in turn, in their order."""
    if len(trajectories) <= limit:
        return list(range(len(trajectories)))
    by_outcome: dict[str, list[int]] = defaultdict(list)
    for position, trajectory in enumerate(trajectories):
        by_outcome[outcome(trajectory)].append(position)
    chosen: list[int] = []
    while len(chosen) < limit:
        for positions in by_outcome.values():
            if positions and len(chosen) < limit:
                chosen.append(positions.pop(0))
    return sorted(chosen)


# A candidate against its parent


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
        f"Axis: {_line(after.entry.axis) or 'not given'}. Hypothesis: {_line(after.entry.hypothesis) or 'not given'}",
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
    lines += ["## Source", "", _fenced(_diff(before.source, after.source, context=3) or "no difference", "diff"), ""]
    return "\n".join([*lines, *_prompts(examples)])


def _prompts(examples: Sequence[Example]) -> list[str]:
    """Returns the first prompt that differs, on one example: one that was gained if there is one."""
    if not examples:
        return []
    for example in sorted(examples, key=lambda e: (e.change <= 0, e.change == 0)):
        for old, new in zip(example.before, example.after, strict=True):
            for number, (a, b) in enumerate(zip(old.calls, new.calls, strict=False)):
                if a.messages != b.messages:
                    changes = _diff(_prompt(a.messages), _prompt(b.messages), context=2)
                    title = f"## Prompt of turn {number + 1} on example {_line(example.task)}, rollout {old.index}"
                    return [title, "", _fenced(_cut(changes, MAX_DIFF // 2), "diff"), ""]
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
            lines.append(f"| {_cell(example.task)} | {_shares(example.before)} | {_shares(example.after)} | {read} |")
        lines += [*_more(len(flipped), "outcomes.jsonl of both"), ""]
    return lines


def _key(trajectory: Trajectory) -> tuple[str, int, int]:
    return trajectory.task.id, trajectory.index, trajectory.seed


def _paths(side: Side, version: int) -> dict[tuple[str, int, int], str]:
    """Returns where each rollout that is kept as text lies."""
    names = file_names(side.trajectories)
    kept = _pick(side.trajectories, MAX_TEXTS)
    return {_key(side.trajectories[i]): f"{side.entry.id}/{folder(version)}/{names[i]}" for i in kept}


def _shares(trajectories: Sequence[Trajectory]) -> str:
    solved = sum(t.reward == 1.0 for t in trajectories)
    kinds = Counter(outcome(t) for t in trajectories if t.reward != 1.0)
    told = ", ".join(kind for kind, _ in kinds.most_common())
    return f"{solved}/{len(trajectories)}" + (f" ({told})" if told else "")


def _prompt(messages: Sequence[Message]) -> str:
    return "\n".join(f"--- {message['role']}\n{clean(message['content'])}" for message in messages)


# The index


@dataclass(frozen=True, slots=True)
class View:
    """What the index is made from.

    Attributes:
        entries: All harnesses, oldest first.
        summary: Lines of ``evolution_summary.jsonl``.
        files: Names of the rollout texts at the current weights, by harness id.
        weights_version: The current weights.
        accepted: Id of the accepted harness.
    """

    entries: Sequence[Entry]
    summary: Sequence[Mapping[str, Any]]
    files: Mapping[str, Sequence[str]]
    weights_version: int
    accepted: str


GUIDE = """## What is where

Paths are relative to this folder.

- `<id>/harness.py`: the source. `<id>/meta.json`: parent, hypothesis, axis, scores by weights version.
- `<id>/diff.md`: which examples flipped against the parent, the source diff, the prompt diff.
- `<id>/trajectories/weights-<version>/<outcome>-<example>-<n>.txt`: one rollout each, the outcome in the name and in
  the header. `<id>/outcomes.jsonl`: all outcomes, a line each. `<id>/trajectories.jsonl`: the same rollouts with ids.
- `evolution_summary.jsonl`: every candidate ever proposed, a line each, rejected ones too; `rejected/`: their sources
  and reports.
"""


def index_text(view: View) -> str:
    """Returns the index: what to read first, what fails most, what was tried."""
    version = view.weights_version
    ranked = sorted(
        (e for e in view.entries if version in e.scores), key=lambda e: e.scores[version].rank(), reverse=True
    )
    entries = {entry.id: entry for entry in view.entries}
    accepted = entries[view.accepted]
    score = accepted.scores.get(version)
    first = [f"The accepted harness: `{accepted.id}/harness.py`, {_line(accepted.name)}, {_summed(score)}."]
    if score and score.failures:
        worst = max(score.failures, key=lambda kind: (score.failures[kind], kind))
        example = _example(view, accepted.id, worst)
        first.append(f"Its commonest failure, {worst}" + (f": `{example}`." if example else "."))
    helped = [line for line in view.summary if line["verdict"] == "accepted" and line.get("diff")]
    if helped:
        first.append(f"What last helped: `{helped[-1]['diff']}`.")
    lines = [
        "# The archive of harnesses",
        "",
        f"{len(view.entries)} harnesses. Weights version {version} is current: only scores at it are ranked.",
        "",
        "## Read first",
        "",
        *(f"{number}. {text}" for number, text in enumerate(first, 1)),
        "",
    ]
    lines += [*_ranking(ranked, view, score), *_failures(view, accepted, score), *_tried(view), *_axes(view)]
    lines += [*_stale(view), GUIDE]
    return "\n".join(lines)


def _ranking(ranked: Sequence[Entry], view: View, incumbent: HarnessScore | None) -> list[str]:
    if not ranked:
        return []
    lines = [
        f"## Best at weights version {view.weights_version}",
        "",
        "| harness | axis | reward | against accepted | turns | tokens | failures | source |",
        "|---|---|---:|---:|---:|---:|---|---|",
    ]
    for entry in ranked[:MAX_ROWS]:
        score = entry.scores[view.weights_version]
        against = "accepted" if entry.id == view.accepted else _signed(score, incumbent)
        lines.append(
            f"| {_cell(entry.name)} | {_cell(entry.axis)} | {score.reward:.3f} | {against} | {score.turns:.2f} "
            f"| {score.tokens:.1f} | {_kinds(score.failures)} | `{entry.id}/harness.py` |"
        )
    return [*lines, *_more(len(ranked), "evolution_summary.jsonl"), ""]


def _failures(view: View, accepted: Entry, score: HarnessScore | None) -> list[str]:
    if score is None or not score.rollouts:
        return []
    title = ["## Where the accepted harness fails", ""]
    if not score.failures:
        return [*title, f"Nowhere: all {score.rollouts} rollouts are solved.", ""]
    lines = [*title, "| failure | rollouts | share | meaning | example |", "|---|---:|---:|---|---|"]
    for kind, count in sorted(score.failures.items(), key=lambda item: (-item[1], item[0])):
        example = _example(view, accepted.id, kind)
        path = f"`{example}`" if example else "none kept"
        lines.append(f"| {kind} | {count} | {count / score.rollouts:.0%} | {MEANINGS.get(kind, '')} | {path} |")
    return [*lines, ""]


def _tried(view: View) -> list[str]:
    """Returns what did not help and what was never scored, the newest first."""
    scored = [x for x in view.summary if x["verdict"] == "not accepted"]
    flat = [x for x in reversed(scored) if x["delta"] is None or x["delta"] <= 0]
    lines: list[str] = []
    if flat:
        lines += [
            "## Tried, and did not help",
            "",
            "| harness | axis | against the accepted one then | weights | hypothesis | read |",
            "|---|---|---:|---|---|---|",
        ]
        for x in flat[:MAX_ROWS]:
            stale = "" if x["weights_version"] == view.weights_version else " (stale)"
            delta = "unknown" if x["delta"] is None else f"{x['delta']:+.3f}"
            read = f"`{x['diff']}`" if x.get("diff") else f"`{x['id']}/harness.py`"
            lines.append(
                f"| {_cell(x['name'])} | {_cell(x['axis'])} | {delta} | {x['weights_version']}{stale} "
                f"| {_cell(x['hypothesis'], 160)} | {read} |"
            )
        lines += [*_more(len(flat), "evolution_summary.jsonl"), ""]
    refused = [x for x in reversed(view.summary) if x["verdict"] == "rejected"]
    if refused:
        lines += ["## Rejected before a rollout", "", "| candidate | why | read |", "|---|---|---|"]
        for x in refused[:MAX_ROWS]:
            lines.append(f"| {_cell(x['name'])} | {_cell(x['why'], 160)} | `{x['report']}` |")
        lines += [*_more(len(refused), "evolution_summary.jsonl"), ""]
    return lines


def _axes(view: View) -> list[str]:
    deltas: dict[str, list[float]] = defaultdict(list)
    for x in view.summary:
        if x["verdict"] in ("accepted", "not accepted"):
            deltas[x["axis"]].append(-math.inf if x["delta"] is None else x["delta"])
    if not deltas:
        return []
    lines = ["## Axes", "", "| axis | candidates | accepted | best change when tried |", "|---|---:|---:|---:|"]
    wins = Counter(x["axis"] for x in view.summary if x["verdict"] == "accepted")
    for axis, values in sorted(deltas.items(), key=lambda item: -len(item[1]))[:MAX_ROWS]:
        best = max(values)
        lines.append(
            f"| {_cell(axis)} | {len(values)} | {wins[axis]} | {'unknown' if best == -math.inf else f'{best:+.3f}'} |"
        )
    return [*lines, ""]


def _stale(view: View) -> list[str]:
    old = [e for e in view.entries if e.scores and view.weights_version not in e.scores]
    if not old:
        return []
    lines = [
        "## Stale: scored at older weights only",
        "",
        "Not ranked; what failed or worked then may not now.",
        "",
        "| harness | axis | last score | at weights version | source |",
        "|---|---|---:|---:|---|",
    ]
    for entry in old[::-1][:MAX_ROWS]:
        version = max(entry.scores)
        lines.append(
            f"| {_cell(entry.name)} | {_cell(entry.axis)} | {entry.scores[version].reward:.3f} (stale) | {version} "
            f"| `{entry.id}/harness.py` |"
        )
    return [*lines, *_more(len(old), "the folders beside this file"), ""]


def folder(weights_version: int) -> str:
    """Returns where a harness's rollout texts lie within its folder."""
    return f"trajectories/weights-{weights_version}"


def _example(view: View, harness_id: str, kind: str) -> str | None:
    name = next((name for name in view.files.get(harness_id, ()) if name.startswith(f"{kind}-")), None)
    return name and f"{harness_id}/{folder(view.weights_version)}/{name}"


# Small pieces


def _told(entry: Entry) -> str:
    return f"{_line(entry.name)} ({entry.id})"


def _summed(score: HarnessScore | None) -> str:
    if score is None:
        return "not scored at these weights"
    if not score.rollouts:
        return "score unknown (infrastructure failures only)"
    return f"search reward {score.reward:.3f} over {score.rollouts} rollouts"


def _signed(score: HarnessScore, other: HarnessScore | None) -> str:
    return "" if other is None else f"{score.reward - other.reward:+.3f}"


def _kinds(failures: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(failures.items(), key=lambda x: -x[1])) or "none"


def _more(count: int, where: str) -> list[str]:
    return ["", f"{count - MAX_ROWS} more: see {where}."] if count > MAX_ROWS else []


def _line(text: str, limit: int = 600) -> str:
    line = " ".join(clean(str(text)).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _cell(text: str, limit: int = 60) -> str:
    return _line(text, limit).replace("|", "\\|").replace("`", "'")


def _quote(text: str) -> str:
    cut = _cut(clean(text), MAX_QUOTE)
    return "\n".join(f"| {line}" for line in cut.split("\n"))


def _cut(text: str, limit: int) -> str:
    """Returns a text with its middle left out beyond the limit."""
    if len(text) <= limit:
        return text
    half = limit // 2 - 20
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _diff(before: str, after: str, context: int) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=context)
    return _cut(clean("\n".join(lines)), MAX_DIFF)


def _fenced(text: str, language: str) -> str:
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _same(before: Sequence[Message], now: Sequence[Message]) -> int:
    pairs = zip(before, now, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(now)))
