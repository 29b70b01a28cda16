"""The offline proposer: reads why rollouts fail and writes harnesses against it. No model, no network, seeded.

It stands in for an LLM proposer on a laptop and in CI, and is a baseline to compare one with. Its mechanisms are
general: each is a known way to help a small model follow a format or see what matters, phrased over the shapes of
observations and tools. None knows a rule of a domain, reads an answer, or decides in the model's place.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from harness_sdk.loader import harness_id, load
from harness_sdk.randomness import derive_seed
from harness_sdk.validator import validate
from optimizers.archive.records import Entry, HarnessScore
from optimizers.proposers.offline.extending import extend
from optimizers.proposers.offline.recipes import Facts, Recipe
from optimizers.proposers.offline.templates import render
from optimizers.proposers.protocol import Brief, Proposal, Proposed, first_new
from whale_env.core import DomainSpec
from whale_env.errors import WhaleError
from whale_env.registry import declared

STAGES: Mapping[str, float] = {"wrong": 0.3, "illegal": 0.03, "budget": 0.03}
"""How far a failed rollout came: valid but wrong, read but invalid. Unread is 0, solved is 1."""

VOTES = 5
"""Model calls of a vote, unless a majority agrees before."""


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One general way to change a harness.

    Attributes:
        name: Short name; the class is called by the last mechanism and how many there are.
        axis: Which part of a harness it changes.
        hypothesis: What should get better, and why.
        against: The failures it is meant for, with weights.
        change: The changed recipe, or None where it does not apply.
    """

    name: str
    axis: str
    hypothesis: str
    against: Mapping[str, float]
    change: Callable[[Recipe, Facts], Recipe | None]


def mechanisms(facts: Facts) -> list[Mechanism]:
    """Returns the mechanisms that a domain of these shapes allows."""
    return [*_for_all(facts), *(_for_choices(facts) if facts.choices else _for_values(facts)), *_for_informing(facts)]


def _for_all(facts: Facts) -> list[Mechanism]:
    return [
        Mechanism(
            "OpenTag",
            "prompt",
            f"Replies that wander before the <{facts.tool}> tag are unread; begin the reply with the tag.",
            {"format": 0.7, "truncated": 0.7},
            lambda r, f: replace(r, opened=True) if r.reading == "tags" and f.kind != "other" else None,
        ),
        Mechanism(
            "FreshRetry",
            "history",
            "A small model repeats what it reads, its mistakes too; a retry from a clean prompt is independent.",
            {"format": 0.3, "truncated": 0.3, "illegal": 0.3},
            lambda r, f: replace(r, retry="fresh"),
        ),
        Mechanism(
            "MoreRetries",
            "budget",
            "Failures to write a usable action are partly chance; more tries let more rollouts reach a verdict.",
            {"format": 0.2, "truncated": 0.2, "illegal": 0.3, "budget": 0.2},
            lambda r, f: (
                replace(r, max_failures=r.max_failures + 2, max_turns=r.max_turns + 2) if r.max_failures < 6 else None
            ),
        ),
        Mechanism(
            "NoSystem",
            "prompt",
            "A system text takes a small model's attention away from the observation; leave it out.",
            {"format": 0.2, "truncated": 0.2, "wrong": 0.2},
            lambda r, f: replace(r, system=""),
        ),
    ]


def _for_choices(facts: Facts) -> list[Mechanism]:
    """What helps where an observation lists what can be chosen."""
    title = (facts.choices or "").replace("_", " ")
    enough = max(8, facts.longest * 2)
    found = [
        Mechanism(
            "ReadChoices",
            "parsing",
            f"Replies that name one of the {title} without the tag are unread; take it wherever it stands.",
            {"format": 1.0, "truncated": 1.0},
            lambda r, f: replace(r, reading="choices", opened=False),
        ),
        Mechanism(
            "AskForChoice",
            "prompt",
            f"The model copies the format example instead of choosing; ask for one of the {title} directly.",
            {"format": 0.9, "truncated": 0.9, "illegal": 1.0, "wrong": 0.5},
            lambda r, f: replace(r, instructions=f"Answer with the best of the {title}.\nBest:"),
        ),
        Mechanism(
            "Vote",
            "budget",
            f"A sampled reply is partly chance; ask {VOTES} times and take the one of the {title} named most often.",
            {"wrong": 1.0},
            lambda r, f: replace(r, votes=VOTES) if r.reading == "choices" else None,
        ),
        Mechanism(
            "OtherOrders",
            "ordering",
            f"Where one of the {title} stands sways a small model; list them in another order at each call.",
            {"wrong": 0.9, "format": 0.2, "truncated": 0.2},
            lambda r, f: replace(r, order="shuffled") if r.view != "full" else None,
        ),
        Mechanism(
            "OneALine",
            "observation",
            f"In one row the {title} run into each other; give each a line of its own.",
            {"wrong": 0.6, "format": 0.5, "truncated": 0.5},
            lambda r, f: replace(r, layout="lines") if r.view != "full" else None,
        ),
        Mechanism(
            "OnlyChoices",
            "observation",
            f"A small model makes nothing of what stands beside the {title}; show them alone.",
            {"wrong": 0.7, "format": 0.4, "truncated": 0.4},
            lambda r, f: replace(r, context=False) if r.view != "full" and f.facts else None,
        ),
        _short_replies(enough, 0.5),
    ]
    for notation in facts.notations:
        found.append(
            Mechanism(
                f"List{notation.title()}",
                "observation",
                f"The full observation buries the {title}; show short facts and one list of them ({notation}).",
                {"format": 0.9, "truncated": 0.9, "illegal": 1.0, "wrong": 0.8},
                lambda r, f, notation=notation: replace(r, view=notation),  # type: ignore[misc]
            )
        )
    return found


def _for_values(facts: Facts) -> list[Mechanism]:
    """What helps where the model has to come up with a value: a number, a phrase or one of a few."""
    form = f"{facts.form[0]}…{facts.form[1]}" if any(facts.form) else f"<{facts.tool}>…</{facts.tool}>"
    found = []
    if facts.kind not in ("option", "other"):  # no invented example has a value of the domain's own
        found.append(
            Mechanism(
                "WorkedExamples",
                "prompt",
                f"The model does not know what {form} is for; show two worked examples, of things that no task is "
                "about.",
                {"format": 1.0, "truncated": 1.0, "budget": 0.8, "wrong": 0.4},
                lambda r, f: replace(r, examples=2),
            )
        )
    found.append(
        Mechanism(
            "AskPlainly",
            "prompt",
            "Instructions about tags confuse a small model; ask for the answer in a few plain words.",
            {"format": 0.7, "truncated": 0.7, "budget": 0.5, "wrong": 0.3},
            lambda r, f: replace(r, instructions="Answer briefly.\nAnswer:", system=""),
        )
    )
    if facts.kind == "string":
        found.append(
            Mechanism(
                "ReadLine",
                "parsing",
                f"Replies that give the {facts.tool} without the tag are unread; take the first line of the reply.",
                {"format": 0.9, "truncated": 0.7},
                lambda r, f: replace(r, reading="line", opened=False),
            )
        )
    if facts.kind == "option":
        options = ", ".join(facts.options)
        found += [
            Mechanism(
                "ReadOption",
                "parsing",
                f"Replies that name one of the few values of {facts.argument} without the tag are unread; take the one "
                "that is named.",
                {"format": 1.0, "truncated": 0.9},
                lambda r, f: replace(r, reading="option", opened=False),
            ),
            Mechanism(
                "AskForOption",
                "prompt",
                f"The model does not know what {facts.argument} can be; list the few values and ask for one of them.",
                {"format": 0.9, "truncated": 0.9, "illegal": 1.0, "wrong": 0.3},
                lambda r, f: replace(r, instructions=f"Answer with one of: {options}.\nAnswer:"),
            ),
        ]
    found.append(_short_replies(48, 0.3))
    if facts.numeric:
        found.append(
            Mechanism(
                "ReadNumber",
                "parsing",
                f"Replies that give the result without {form} are unread; take the last number of the reply.",
                {"format": 1.0, "truncated": 0.9},
                lambda r, f: replace(r, reading="number", opened=False),
            )
        )
    return found


def _for_informing(facts: Facts) -> list[Mechanism]:
    """What helps where tools inform: the harness asks one with the observation's own words."""
    found = []
    for tool in facts.informing:
        found.append(
            Mechanism(
                f"{tool.title()}First",
                "tools",
                f"The model answers from memory or never calls {tool} rightly; call {tool} with the observation's own "
                "words before a reply counts, and show what it gives above the question.",
                {"format": 0.7, "truncated": 0.6, "budget": 0.9, "wrong": 0.9},
                lambda r, f, tool=tool: replace(r, inform=tool),  # type: ignore[misc]
            )
        )
    for tool in facts.counts:
        found.append(
            Mechanism(
                f"One{tool.title()}Result",
                "observation",
                f"Several results of {tool} bury the one that matters; ask for one.",
                {"wrong": 0.6, "format": 0.3},
                lambda r, f, tool=tool: replace(r, few=True) if r.inform == tool else None,  # type: ignore[misc]
            )
        )
    return found


def _short_replies(enough: int, weight: float) -> Mechanism:
    return Mechanism(
        "ShortReplies",
        "budget",
        f"What is asked for takes a few tokens; stopping at {enough} leaves no room to wander and saves sampling.",
        {"truncated": weight, "format": weight / 2},
        lambda r, f: replace(r, max_tokens_per_turn=enough) if r.max_tokens_per_turn > enough else None,
    )


class OfflineProposer:
    """Proposes one mechanism at a time against the commonest failures, and combinations of those that helped."""

    async def propose(self, brief: Brief) -> Proposed:
        """Writes up to ``brief.count`` candidates that have no score at these weights yet."""
        rng = random.Random(derive_seed("offline-proposer", brief.seed))
        facts = Facts.of(brief.tools, brief.observations)
        known = mechanisms(facts)
        base = self._base(brief)
        recipe = recipe_of(brief, base)
        plans = self._plans(brief, base, recipe, known, facts, rng)
        kept = _kept(brief, base, recipe)
        written = (_write(names, recipe, known, facts, base.id, kept) for names in plans)
        new = ((harness_id(p.source, p.name), p) for p in written if p is not None)
        return first_new(brief, chain(_again(brief), new))

    def _base(self, brief: Brief) -> Entry:
        """Returns the harness to build upon: the furthest one at these weights, the incumbent among equals."""
        entries = [e for e in brief.archive.entries() if brief.weights_version in e.scores]
        return max(entries, key=lambda e: (merit(e.scores[brief.weights_version]), e.id == brief.incumbent, e.id))

    def _plans(
        self, brief: Brief, base: Entry, recipe: Recipe, known: list[Mechanism], facts: Facts, rng: random.Random
    ) -> Iterator[tuple[str, ...]]:
        """Yields sets of mechanisms to add to the base, the most promising first."""
        helped = tuple(name for name in self._helped(brief) if name not in recipe.mechanisms)
        yield helped
        failures = base.scores[brief.weights_version].failures
        total = max(sum(failures.values()), 1)
        worth = {
            m.name: sum(weight * failures.get(kind, 0) / total for kind, weight in m.against.items())
            + 0.05 * rng.random()
            for m in known
        }
        ranked = sorted((m for m in known if m.name not in recipe.mechanisms), key=lambda m: -worth[m.name])
        fresh = [mechanism.name for mechanism in ranked if mechanism.name not in helped]
        yield from ((*helped, name) for name in fresh)
        yield from ((name,) for name in fresh)
        for first in ranked:
            for second in ranked:
                if first is not second:
                    yield (first.name, second.name)

    def _helped(self, brief: Brief) -> list[str]:
        """Returns the mechanisms whose trial came further than its parent at the same weights, the best first.

        A candidate may carry earlier helpers along; the mechanism on trial is the last one added.
        """
        entries = {entry.id: entry for entry in brief.archive.entries()}
        gains: dict[str, float] = {}
        for entry in entries.values():
            parent = entries.get(entry.parent or "")
            added = entry.traits.get("added", [])
            if parent is None or not added:
                continue
            for version in set(entry.scores) & set(parent.scores):
                before, after = merit(parent.scores[version]), merit(entry.scores[version])
                if after > before:
                    gains[added[-1]] = max(gains.get(added[-1], 0.0), after - before)
        return sorted(gains, key=lambda name: -gains[name])


def _again(brief: Brief) -> Iterator[tuple[str, Proposal]]:
    """Yields the best harness of earlier weights, once at these: other weights may be what it lacked."""
    version, entries = brief.weights_version, brief.archive.entries()
    if any(e.scores.keys() - {version} and version in e.scores and e.id != brief.incumbent for e in entries):
        return
    stale = [e for e in entries if e.scores and version not in e.scores]
    if stale:
        best = max(stale, key=lambda e: (e.scores[max(e.scores)].rank(), e.id))
        source = brief.archive.source(best.id)
        yield best.id, Proposal(best.name, source, best.parent, best.axis, best.hypothesis, best.traits)


def recipe_of(brief: Brief, entry: Entry) -> Recipe:
    """Returns the recipe that a harness was written from, or what its source declares."""
    if "recipe" in entry.traits:
        return Recipe.from_json(entry.traits["recipe"])
    return Recipe.read(brief.archive.source(entry.id), Facts.of(brief.tools, brief.observations))


@dataclass(frozen=True, slots=True)
class Kept:
    """A harness that children extend instead of being written anew.

    Attributes:
        id: Its id in the archive.
        name: Its name, for people.
        recipe: What its source declares.
        source: Its source.
        class_name: Its class; empty where the source is not one that a candidate may hold.
    """

    id: str
    name: str
    recipe: Recipe
    source: str = ""
    class_name: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns what a child's traits keep of it."""
        return {"id": self.id, "recipe": self.recipe.to_json()}


def _kept(brief: Brief, base: Entry, recipe: Recipe) -> Kept | None:
    """Returns what the children of a harness extend; None where a recipe stands for all of it.

    It does for what was rendered from one, and for the harness that a domain offers to begin with.
    """
    if "recipe" in base.traits and "root" not in base.traits:
        return None
    root = base.traits.get("root", {"id": base.id, "recipe": recipe.to_json()})
    entry, source = brief.archive.entry(root["id"]), brief.archive.source(root["id"])
    if entry.parent is None and source in _baselines(brief.env):
        return None
    report = validate(source, brief.env)
    if not report.ok:
        report = validate(source, brief.env, entry.name)
    class_name = report.class_name or "" if report.ok else ""
    return Kept(entry.id, entry.name, Recipe.from_json(root["recipe"]), source, class_name)


def _baselines(env: str) -> set[str]:
    """Returns the sources that a domain's recipes were made for: its own baseline, and the plain `Harness`."""
    found = {load(DomainSpec("", ()).baseline).source}
    with contextlib.suppress(WhaleError):
        found.add(load(declared(env).baseline).source)
    return found


def merit(score: HarnessScore) -> float:
    """Returns how far the mean rollout came (`STAGES`).

    Steadier than the reward alone: when hardly anything is solved yet, one lucky rollout decides the mean reward, but
    how many replies became a valid action does not hang on luck.
    """
    far = sum(STAGES.get(kind, 0.0) * count for kind, count in score.failures.items())
    return score.reward + far / max(score.rollouts, 1)


def _write(
    names: tuple[str, ...], recipe: Recipe, known: list[Mechanism], facts: Facts, parent: str, kept: Kept | None
) -> Proposal | None:
    by_name = {mechanism.name: mechanism for mechanism in known}
    changed = recipe
    used: list[str] = []
    for name in names:
        step = by_name[name].change(changed, facts)
        if step is not None and step != changed:
            changed = step
            used.append(name)
    if not used or used[-1] != names[-1]:  # the mechanism that the plan was for does not apply here
        return None
    names = tuple(used)
    changed = replace(changed, mechanisms=(*recipe.mechanisms, *names))
    hypothesis = " ".join(by_name[name].hypothesis for name in names)
    axis = by_name[names[0]].axis if len(names) == 1 else "combination"
    title = "Adds " + ", ".join(names) + (f" to {', '.join(recipe.mechanisms)}." if recipe.mechanisms else ".")
    class_name = f"{names[-1]}{len(changed.mechanisms)}"
    source = render(changed, facts, class_name, f"{title}\n\nHypothesis: {hypothesis}\n")
    traits = {"recipe": changed.to_json(), "added": list(names)}
    if kept is not None:
        # The same recipe all along but for what was added, so that only that is written below the root's source.
        before = render(kept.recipe, facts, class_name, "Before.")
        extended = extend(kept.source, kept.class_name, before, source, class_name) if kept.class_name else None
        if extended is not None and validate(extended, "").ok:
            return Proposal(class_name, extended, parent, axis, hypothesis, {**traits, "root": kept.to_json()})
        hypothesis += f" (Replaces the hooks of {kept.name}, which cannot be extended; keeps its texts and limits.)"
        source = render(changed, facts, class_name, f"{title}\n\nHypothesis: {hypothesis}\n")
    return Proposal(class_name, source, parent, axis, hypothesis, traits)
