"""One rollout as text: an outcome header, the first prompt in full, then what each turn added.

How all rollouts of a harness are named, and which of them are kept as text, is here too. What a model or a harness
wrote is quoted line by line.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from harness_sdk.trajectory import Trajectory
from harness_sdk.types import Message, Turn
from optimizers.archive.quoting import one_line, quoted, slug, unified, without_middle

MAX_TRAJECTORY = 24_000
"""Characters of a rollout's text; middle turns are left out beyond it."""

MAX_TEXTS = 256
"""Rollouts of one harness at one version of the weights that are kept as text."""


def outcome(trajectory: Trajectory) -> str:
    """Returns a rollout's outcome as one word: ``solved``, its failure, or ``unknown``."""
    if trajectory.reward is None:
        return "unknown"
    return trajectory.score.failure or ("solved" if trajectory.reward > 0 else "unsolved")


def folder(weights_version: int) -> str:
    """Returns where a harness's rollout texts lie within its folder."""
    return f"trajectories/weights-{weights_version}"


def file_names(trajectories: Sequence[Trajectory]) -> list[str]:
    """Returns the file name of each rollout: outcome first, so that a listing sorts by it."""
    seen: Counter[str] = Counter()
    names = []
    for trajectory in trajectories:
        task = trajectory.task.id
        names.append(f"{outcome(trajectory)}-{slug(task)}-{seen[task]}.txt")
        seen[task] += 1
    return names


def texts(trajectories: Sequence[Trajectory]) -> dict[str, str]:
    """Returns the rollouts of a harness at one version of the weights as text, by file name."""
    names = file_names(trajectories)
    return {names[i]: trajectory_text(trajectories[i]) for i in pick(trajectories, MAX_TEXTS)}


def pick(trajectories: Sequence[Trajectory], limit: int) -> list[int]:
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
    header = "\n".join(one_line(line) for line in head)
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
            changes = unified(old["content"], message["content"], context=0)
            if len(changes) < len(message["content"]) // 2:
                lines.append(f"(changed against the prompt before)\n{quoted(changes)}")
                continue
        lines += [] if told else [quoted(message["content"])]
        lines += [f"tool call: {quoted(str(call.get('function', call)))}" for call in message.get("tool_calls", ())]
    return lines


def _turn(number: int, turn: Turn) -> list[str]:
    completion = turn.completion
    lines = [
        f"=== turn {number}: the model wrote {completion.tokens} tokens, ended by {completion.finish_reason}",
        quoted(completion.text),
        *(f"native tool call: {quoted(f'{c.name} {dict(c.arguments)}')}" for c in completion.tool_calls),
        f"=== turn {number}: what came of it",
    ]
    for position, call in enumerate(turn.calls):
        lines.append(f"read as: {quoted(f'{call.name} {dict(call.arguments)}')}")
        if position < len(turn.results):
            lines.append(f"result:\n{quoted(turn.results[position])}")
    if turn.failure is not None:
        lines.append(f"{turn.failure.kind}: {quoted(turn.failure.reason)}")
    if turn.feedback is not None:
        lines.append(f"feedback to the model:\n{quoted(turn.feedback)}")
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
        head.append(without_middle(rest.pop(0), half))
    if not tail and rest:
        tail.append(without_middle(rest.pop(), half))
    first, last = len(head) + 1, len(head) + len(rest)
    note = f"\n[turns {first} to {last} left out; trajectories.jsonl has them]" if rest else ""
    return "\n".join(part for part in (*head, note, *tail, "") if part or not rest)


def _same(before: Sequence[Message], now: Sequence[Message]) -> int:
    pairs = zip(before, now, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(before), len(now)))
