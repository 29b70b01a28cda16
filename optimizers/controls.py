"""Controls for harness search: what is left of a gain when only prompts, only chance, or nothing at all may change.

`same_but_prompts` decides whether a candidate is FST (harness search restricted to the prompt texts of h0), and
`FSTProposer` holds any proposer to it. `PromptProposer` writes such candidates offline, `RandomProposer` draws
mechanisms without a diagnosis, and `best_of` shows what selection gains from noise alone (``python -m
optimizers.controls``). How candidates are scored and selected is the same for all of them, and not decided here.
"""

from __future__ import annotations

import ast
import asyncio
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from optimizers import interrupts

if __name__ == "__main__":
    interrupts.silent()  # while the rest is imported

from harness_sdk.loader import LoadedHarness, harness_id, load
from harness_sdk.randomness import derive_seed
from harness_sdk.trajectory import Trajectory
from optimizers.config import RunConfig, baseline
from optimizers.offline_proposer import Mechanism, mechanisms, recipe_of
from optimizers.proposer import Brief, Proposal, Proposed, Proposer, first_new
from optimizers.recipes import Facts, Recipe
from optimizers.selection import OutcomeTable, Scorer
from optimizers.templates import render
from whale_env.core import EnvHandle
from whale_env.types import Task

PROMPTS = ("system", "instructions")
"""Prompt attributes where a harness declares none (``Harness.prompt_attributes``)."""
MOST_DIFFERENCES = 8
TRIES = 64


# Prompt-only search (FST)


def prompt_attributes(source: str) -> tuple[str, ...]:
    """Returns the prompt attributes that a harness's source declares, or the usual ones."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and _name(node) == "prompt_attributes":
            try:
                names = ast.literal_eval(node.value)
            except ValueError:
                break
            return tuple(str(name) for name in names)
    return PROMPTS


def same_but_prompts(h0_source: str, candidate_source: str, attributes: Sequence[str] = PROMPTS) -> list[str]:
    """Returns how a candidate differs from h0, but for string constants of prompt attributes.

    Both sources are compared as syntax trees, so layout and comments do not count; names, docstrings and everything
    that is computed do. A prompt attribute is an assignment in a class body.

    Args:
        h0_source: Source of the starting harness.
        candidate_source: Source of the candidate.
        attributes: Names of the prompt attributes.

    Returns:
        One line per difference, at most eight; empty if the candidate is FST. A source that is no Python differs.
    """
    trees = []
    for what, source in (("h0", h0_source), ("the candidate", candidate_source)):
        try:
            trees.append(_blanked(ast.parse(source), attributes))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            return [f"{what} is not Python: {error}"]
    found: list[str] = []
    try:
        _differences(trees[0], trees[1], "module", found)
    except RecursionError:
        return ["the candidate is nested too deeply to compare"]
    return found[:MOST_DIFFERENCES]


def _name(node: ast.stmt) -> str | None:
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return None


def _blanked(tree: ast.Module, attributes: Sequence[str]) -> ast.Module:
    """Empties the string constants of prompt attributes."""
    for node in ast.walk(tree):
        for statement in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(statement, ast.Assign | ast.AnnAssign) and _name(statement) in attributes:
                for part in ast.walk(statement.value) if statement.value else ():
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        part.value, part.kind = "", None
    return tree


def _differences(a: object, b: object, where: str, found: list[str]) -> None:
    if len(found) >= MOST_DIFFERENCES:
        return
    if type(a) is not type(b):
        found.append(f"{where}: {_told(a)} became {_told(b)}")
    elif isinstance(a, ast.AST):
        name = getattr(a, "name", None) or (_name(a) if isinstance(a, ast.stmt) else None)
        line = f"{where}, {type(a).__name__} {name}" if isinstance(a, ast.stmt) and name else where
        for field in a._fields:
            _differences(getattr(a, field, None), getattr(b, field, None), line, found)
    elif isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            found.append(f"{where}: {len(a)} parts became {len(b)}")
            return
        for one, other in zip(a, b, strict=True):
            _differences(one, other, where, found)
    elif a != b:
        found.append(f"{where}: {_told(a)} became {_told(b)}")


def _told(part: object) -> str:
    text = ast.unparse(part) if isinstance(part, ast.AST) else repr(part)
    return text if len(text) <= 60 else f"{text[:57]}..."


class FSTProposer:
    """Holds a proposer to prompt-only search: what is not FST is dropped, and said in ``Proposed.ended``."""

    def __init__(self, proposer: Proposer, h0_source: str) -> None:
        """Wraps a proposer.

        Args:
            proposer: Any proposer.
            h0_source: Source of the starting harness. Its ``prompt_attributes`` may change.
        """
        self._proposer, self._h0 = proposer, h0_source
        self._attributes = prompt_attributes(h0_source)

    async def propose(self, brief: Brief) -> Proposed:
        """Returns those of the proposer's candidates that differ from h0 in prompt texts only."""
        proposed = await self._proposer.propose(brief)
        kept: list[Proposal] = []
        notes = [proposed.ended] if proposed.ended else []
        for proposal in proposed.candidates:
            found = same_but_prompts(self._h0, proposal.source, self._attributes)
            if found:
                notes.append(f"{proposal.name} is not prompt-only: {'; '.join(found)}")
            else:
                kept.append(proposal)
        return replace(proposed, candidates=tuple(kept), ended="; ".join(notes))


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


class PromptProposer:
    """A seeded offline proposer that changes nothing but prompt texts: FST without a model."""

    def __init__(self, h0_source: str) -> None:
        """Takes the source of the starting harness."""
        self._attributes = prompt_attributes(h0_source)

    async def propose(self, brief: Brief) -> Proposed:
        """Writes up to ``brief.count`` rewordings of the incumbent that the archive does not hold yet."""
        return first_new(brief, self._reworded(brief))

    def _reworded(self, brief: Brief) -> Iterator[tuple[str, Proposal]]:
        rng = random.Random(derive_seed("prompt-proposer", brief.seed))
        source = brief.archive.source(brief.incumbent)
        choices = [(name, wording) for name in self._attributes for wording in REWORDINGS]
        for attribute, wording in rng.sample(choices, len(choices)):
            changed = reworded(source, attribute, wording.change)
            if changed is not None:
                new, class_name = changed
                name = f"{wording.name} ({attribute})"
                yield harness_id(new, class_name), Proposal(name, new, brief.incumbent, "prompt", wording.hypothesis)


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
            if not isinstance(statement, ast.Assign | ast.AnnAssign) or _name(statement) != attribute:
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


# Chance


class RandomProposer:
    """Random search: the offline proposer's mechanisms, drawn without looking at scores or failures."""

    async def propose(self, brief: Brief) -> Proposed:
        """Adds one or two random mechanisms to the incumbent, up to ``brief.count`` new candidates."""
        return first_new(brief, self._random(brief))

    def _random(self, brief: Brief) -> Iterator[tuple[str, Proposal]]:
        rng = random.Random(derive_seed("random-proposer", brief.seed))
        facts = Facts.of(brief.tools, brief.observations)
        known = mechanisms(facts)
        recipe = recipe_of(brief, brief.archive.entry(brief.incumbent))
        for _ in range(TRIES):
            chosen = rng.sample(known, min(rng.randint(1, 2), len(known)))
            proposal = _drawn(chosen, recipe, facts, brief.incumbent)
            if proposal is not None:
                yield harness_id(proposal.source, proposal.name), proposal


def _drawn(chosen: Sequence[Mechanism], recipe: Recipe, facts: Facts, parent: str) -> Proposal | None:
    changed = recipe
    for mechanism in chosen:
        step = mechanism.change(changed, facts)
        if step is None or step == changed:
            return None
        changed = step
    names = [mechanism.name for mechanism in chosen]
    changed = replace(changed, mechanisms=(*recipe.mechanisms, *names))
    class_name = f"Random{''.join(names)}{len(changed.mechanisms)}"
    axis = chosen[0].axis if len(chosen) == 1 else "combination"
    source = render(changed, facts, class_name, f"Adds {' and '.join(names)}, drawn at random.\n")
    return Proposal(class_name, source, parent, axis, "drawn at random", {"recipe": changed.to_json(), "added": names})


@dataclass(frozen=True, slots=True)
class BestOf:
    """What selection makes of noise alone.

    Attributes:
        means: Mean reward of the same harness under each seed.
        best: The largest: what picking the best of so many reports.
        mean: Their mean: what the harness is worth.
        rollouts: Rollouts it took.
    """

    means: tuple[float, ...]
    best: float
    mean: float
    rollouts: int

    @property
    def excess(self) -> float:
        """The gain that is reported where there is none (the winner's curse)."""
        return self.best - self.mean

    def to_json(self) -> Mapping[str, object]:
        """Returns the numbers as JSON data."""
        return {"means": list(self.means), "best": self.best, "mean": self.mean, "excess": self.excess}


async def best_of(harness: str, tasks: Sequence[Task], samples: int, count: int, score: Scorer) -> BestOf:
    """Scores one harness again and again with other seeds, as if each time were a candidate: no proposer, no change.

    Args:
        harness: Its id.
        tasks: The search tasks.
        samples: Rollouts per task.
        count: How many candidates a search of the same budget would score.
        score: Rolls out.

    Raises:
        ValueError: ``count`` is not positive, or no reward is known.
    """
    if count < 1:
        raise ValueError(f"count is {count}; at least 1 scoring is needed")
    tables, rollouts = [], 0
    for number in range(count):
        played = (await score([harness], tasks, samples, f"best-of/{number}"))[harness]
        tables.append(OutcomeTable.of(harness, played))
        rollouts += len(played)
    means = tuple(table.mean for table in tables if table.rewards)
    if not means:
        raise ValueError(f"none of {rollouts} rollouts of {harness} has a known reward")
    return BestOf(means, max(means), fmean(means), rollouts)


def main() -> None:
    """``python -m optimizers.controls``: best-of-N without a proposer, as often as a search would score candidates."""
    from optimizers.cli import one_line_errors, read_config

    with one_line_errors():
        config = read_config("optimizers.controls", planned)
        print(json.dumps(asyncio.run(_best_of(config)).to_json(), indent=2))


def planned(config: RunConfig) -> list[tuple[str, int]]:
    """Returns the rollouts that best-of-N will take, without doing anything.

    Raises:
        ValueError: The environment has no search task.
    """
    env, tasks = _searched(config)
    harness, count = _harness(config, env), _scorings(config)
    name = f"best of {count}: {harness.name} on {len(tasks)} search tasks, {config.search.samples} times each"
    return [(name, count * len(tasks) * config.search.samples)]


def _scorings(config: RunConfig) -> int:
    """Returns how many harnesses a search of the same budget scores."""
    return 1 + (config.search.iterations - 1) * config.search.candidates


def _searched(config: RunConfig) -> tuple[EnvHandle, Sequence[Task]]:
    from whale_env.registry import arguments_from, handle

    env = handle(config.env, arguments_from(config.env_args)).sealed()
    tasks = env.tasks("search")[: config.search.examples or None]
    if not tasks:
        raise ValueError(f"{config.env} has no task in its search split, which best-of-N is played on")
    return env, tasks


def _harness(config: RunConfig, env: EnvHandle) -> LoadedHarness:
    domain = env.prototype.domain.spec.name
    return load(config.harness or baseline(domain), env=domain)


async def _best_of(config: RunConfig) -> BestOf:
    from optimizers.backend import opened, resolved
    from optimizers.evaluate import rollouts
    from optimizers.meta_harness import score

    env, tasks = _searched(config)
    harness = _harness(config, env)
    with opened(config.backend, resolved(config.backend, config.model)) as policy:

        async def play(
            ids: Sequence[str], tasks: Sequence[Task], samples: int, label: str
        ) -> Mapping[str, Sequence[Trajectory]]:
            how = rollouts(config.agent, config.seed, label)
            return (await score([harness], env, policy, (tasks, samples), how))[0]

        return await best_of(harness.id, tasks, config.search.samples, _scorings(config), play)


if __name__ == "__main__":
    main()
