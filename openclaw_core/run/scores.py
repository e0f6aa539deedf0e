"""Teacher scores of samples that wait for their batch: asked for as soon as a sample exists, kept until it is trained."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from openclaw_core.config.schema import Loss
from openclaw_core.loss.needs import needs
from openclaw_core.rollout.store import Store
from openclaw_core.run import placement
from openclaw_core.run.fleet import Fleet
from openclaw_core.run.results import OldPass
from openclaw_core.types import Sample, TeacherScores

CHUNK = 16


class ScoreKeeper:
    """Sends unscored samples of the store to the teacher, a chunk at a time, while everything else goes on."""

    def __init__(self, fleet: Fleet, store: Store, loss: Loss) -> None:
        self.fleet, self.store = fleet, store
        self.needs = needs(loss)
        self.tokens = 0
        self.waited_s = 0.0
        self._under_way: tuple[list[str], list[Any]] | None = None
        self._scores: dict[str, TeacherScores] = {}

    def advance(self) -> None:
        """Takes in what the teacher has finished and gives it the next chunk; returns at once."""
        if not self.needs.teacher:
            return
        if self._under_way is not None and placement.done(self._under_way[1]):
            self._take_in()
        if self._under_way is None:
            chunk = self.store.unscored(CHUNK)
            self._skip([s.sample_id for s in chunk if not self.needs.scores(s.kind)])
            wanted = [s for s in chunk if self.needs.scores(s.kind)]
            if wanted:
                self._under_way = ([s.sample_id for s in wanted], self.fleet.start_scoring(wanted, self.needs.candidates))

    def of(self, batch: list[Sample]) -> list[TeacherScores]:
        """Scores of the batch's samples that have an OPD term, waiting for those that are still missing."""
        begun = time.monotonic()
        wanted = [s.sample_id for s in batch if self.needs.scores(s.kind)]
        while any(name not in self._scores for name in wanted):
            self.advance()
            time.sleep(0.005)
        self.waited_s = time.monotonic() - begun
        return [self._scores[name] for name in wanted]

    def at_student(self, scores: list[TeacherScores], old: dict[str, OldPass]) -> list[TeacherScores]:
        """The same scores with the teacher's log-probs at the student's top-K, from what the teacher kept."""
        found = self.fleet.teacher_at([(s.sample_id, old[s.sample_id].top.ids) for s in scores])
        return [replace(s, at_student=found[s.sample_id]) for s in scores]

    def forget(self, batch: list[Sample]) -> None:
        """The batch is trained."""
        names = [s.sample_id for s in batch if self._scores.pop(s.sample_id, None) is not None]
        if names:
            self.fleet.forget(names)

    def take_tokens(self) -> int:
        """Tokens forwarded since the last call."""
        tokens, self.tokens = self.tokens, 0
        return tokens

    def _skip(self, names: list[str]) -> None:
        if names:
            self.store.mark_scored(names)

    def _take_in(self) -> None:
        assert self._under_way is not None
        names, references = self._under_way
        self._under_way = None
        scores, tokens = placement.wait(references)[0]
        self.tokens += tokens
        self._scores |= {s.sample_id: s for s in scores}
        self.store.mark_scored(names)
