"""Random search: the offline proposer's mechanisms, drawn without looking at scores or failures (a control)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness_sdk.loader import harness_id
from harness_sdk.randomness import derive_seed
from optimizers.proposers.offline.proposer import Mechanism, mechanisms, recipe_of
from optimizers.proposers.offline.recipes import Facts, Recipe
from optimizers.proposers.offline.templates import render
from optimizers.proposers.protocol import Brief, Proposal, Proposed, first_new

TRIES = 64


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
