"""A search of one's own, for ``--search.method random_search:RandomSearch``: system texts drawn without looking."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from optimizers.archive.records import Iteration
from optimizers.proposers.protocol import Proposal, Proposed
from optimizers.search.acceptance import argmax
from optimizers.search.meta_harness import admit
from optimizers.search.protocol import Bench, Outcome, Place, Scored
from optimizers.search.scoring import Scorer

SOURCE = 'from harness_sdk import Harness\n\n\nclass Drawn(Harness):\n    system = "{number}"\n    max_turns = 1\n'


class RandomSearch:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    async def propose(self, at: Place, folder: Path, usd_left: float) -> Proposed:
        rng = random.Random(f"{self.bench.seed}/{at.cycle}/{at.iteration}")
        numbers = rng.sample(range(10), self.bench.config.candidates)
        written = (SOURCE.format(number=number) for number in numbers)
        return Proposed(tuple(Proposal("drawn", source, at.incumbent, "prompt", "") for source in written))

    async def iterate(self, at: Place, proposals: Sequence[Proposal], score: Scorer) -> Outcome:
        archive = self.bench.archive
        candidates, refused = await admit(proposals, archive, at.version, self.bench.check)
        for candidate in candidates:
            self.bench.harnesses.know(candidate.harness)
            archive.add(candidate.entry(at.cycle, at.iteration), candidate.harness)
        ids = [candidate.harness.id for candidate in candidates] if at.iteration else [at.incumbent]
        played = await score(ids, self.bench.tasks, self.bench.config.samples, f"search/{at.version}")
        scored = [Scored(x, archive.entry(x).name, archive.record(x, played[x], at.version)) for x in ids]
        best = argmax(archive.tables(at.version), at.incumbent)
        archive.conclude(Iteration(at.cycle, at.iteration, at.version, at.incumbent, best, ids, refused))
        return Outcome(best, archive.entry(best).scores[at.version].reward, scored, refused)
