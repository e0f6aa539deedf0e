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
from openclaw_core.run.memory import SCORED_AHEAD
from openclaw_core.run.results import OldPass
from openclaw_core.types import Sample, TeacherScores

CHUNK = 16
POLL_S = 0.005


class ScoreKeeper:
    """Sends unscored samples of the store to the teacher, a chunk at a time, while everything else goes on.

    From the moment a batch is taken until its scores are complete the teacher gets no other work, so that what it is asked
    about the batch waits for one chunk at most, and that one has run since before. It keeps hidden states of at most
    SCORED_AHEAD batches.
    """

    def __init__(self, fleet: Fleet, store: Store, loss: Loss, batch_size: int) -> None:
        self.fleet, self.store = fleet, store
        self.most = SCORED_AHEAD * batch_size
        self.needs = needs(loss)
        self._under_way: tuple[list[str], list[Any]] | None = None
        self._scores: dict[str, TeacherScores] = {}
        self._awaited: list[str] = []

    def advance(self) -> None:
        """Takes in what the teacher has finished and gives it the next chunk; returns at once."""
        if not self.needs.teacher:
            return
        if self._under_way is not None and placement.done(self._under_way[1]):
            self._take_in()
        if self._under_way is None and (self._missing or (not self._awaited and len(self._scores) < self.most)):
            wanted = self._next_chunk()
            if wanted:
                self._under_way = ([s.sample_id for s in wanted], self.fleet.start_scoring(wanted, self.needs.candidates))

    def expect(self, batch: list[Sample]) -> None:
        """The batch is taken: its samples come first from now on."""
        self._awaited = [s.sample_id for s in batch if self.needs.scores(s.kind)]

    def of(self, batch: list[Sample]) -> list[TeacherScores]:
        """Scores of the batch's samples that have an OPD term, waiting for those that are still missing."""
        self.expect(batch)
        names = self._awaited
        while self._missing:
            self.advance()
            self.fleet.check_alive()
            time.sleep(POLL_S)
        if not self.needs.at_student:
            self._awaited = []
        return [self._scores[name] for name in names]

    def at_student(self, scores: list[TeacherScores], old: dict[str, OldPass]) -> list[TeacherScores]:
        """The same scores with the teacher's log-probs at the student's top-K, from what the teacher kept."""
        found = self.fleet.teacher_at([(s.sample_id, old[s.sample_id].top.ids) for s in scores]) if scores else {}
        self._awaited = []
        return [replace(s, at_student=found[s.sample_id]) for s in scores]

    def forget(self) -> None:
        """Lets go of samples that were trained, or dropped since they were scored."""
        waiting = self.store.waiting_ids() if self._scores else set()
        names = [name for name in self._scores if name not in waiting]
        for name in names:
            del self._scores[name]
        if names:
            self.fleet.forget(names)

    @property
    def _missing(self) -> bool:
        return any(name not in self._scores for name in self._awaited)

    def _next_chunk(self) -> list[Sample]:
        chunk = self.store.unscored(CHUNK if self._missing else min(CHUNK, self.most - len(self._scores)))
        skipped = [s.sample_id for s in chunk if not self.needs.scores(s.kind)]
        if skipped:
            self.store.mark_scored(skipped)
        wanted = [s for s in chunk if self.needs.scores(s.kind)]
        return [s for s in wanted if s.sample_id in self._awaited] or wanted

    def _take_in(self) -> None:
        assert self._under_way is not None
        names, references = self._under_way
        self._under_way = None
        self._scores |= {s.sample_id: s for s in placement.wait(references)[0]}
        self.store.mark_scored(names)
