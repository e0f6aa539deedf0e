"""When the teacher gets which samples, what the loop waits for, and what is let go."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from openclaw_core.config.schema import Loss
from openclaw_core.run import scores as room
from openclaw_core.run.scores import ScoreKeeper
from openclaw_core.teacher.schedule import published_tokens, whole_tokens
from openclaw_core.types import Candidate, Hint, Sample, SampleKind, TeacherScores, TopK

HINT = Hint("say it in capitals")


def sample(name: str, kind: SampleKind = SampleKind.OPD, prompts: tuple[int, ...] = (4, 6)) -> Sample:
    candidates = tuple(Candidate((1,) * n, HINT) for n in prompts)
    return Sample(name, name, kind, 0.0, (1,), (2, 3), (0.0, 0.0), (1, 1), candidates, 0)


def scored(one: Sample) -> TeacherScores:
    return TeacherScores(one.sample_id, TopK(np.zeros((1, 2, 1)), np.zeros((1, 2, 1))), tokens=5)


class FakeStore:
    def __init__(self, samples: list[Sample]) -> None:
        self.samples, self.marked, self.gone = samples, set(), set()

    def unscored(self, limit: int) -> list[Sample]:
        return [s for s in self.samples if s.sample_id not in self.marked | self.gone][:limit]

    def mark_scored(self, names) -> None:
        self.marked |= set(names)

    def waiting_ids(self) -> set[str]:
        return {s.sample_id for s in self.samples} - self.gone


class FakeFleet:
    """A teacher that finishes what it was given when told."""

    def __init__(self) -> None:
        self.given: list[tuple[list[str], str]] = []
        self.finished = False
        self.forgotten: list[str] = []

    def start_scoring(self, samples, candidates):
        self.given.append(([s.sample_id for s in samples], candidates))
        self.finished = False
        return [[scored(s) for s in samples]]

    def teacher_at(self, requests):
        return {name: np.ones((1, *ids.shape)) for name, ids in requests}

    def forget(self, names) -> None:
        self.forgotten += names

    def check_alive(self) -> None:
        """of() asks for it each time it has to wait: here that is when the teacher gets on."""
        self.finished = True


@pytest.fixture
def make(monkeypatch):
    def make(samples: list[Sample], loss: Loss | None = None, batch_size: int = 2) -> SimpleNamespace:
        fleet, store = FakeFleet(), FakeStore(samples)
        monkeypatch.setattr(room.placement, "done", lambda references: fleet.finished)
        monkeypatch.setattr(room.placement, "wait", lambda references: references)
        return SimpleNamespace(fleet=fleet, store=store, keeper=ScoreKeeper(fleet, store, loss or Loss(), batch_size))

    return make


def old(*samples: Sample):
    return {s.sample_id: SimpleNamespace(top=TopK(np.zeros((2, 1)), np.zeros((2, 1)))) for s in samples}


def test_samples_are_scored_as_they_come_one_chunk_at_a_time(make):
    a, b, c = map(sample, "abc")
    it = make([a, b])
    it.keeper.advance()
    it.store.samples.append(c)
    it.keeper.advance()
    assert it.fleet.given == [(["a", "b"], "all")], "the teacher is at work"
    it.fleet.finished = True
    it.keeper.advance()
    assert it.fleet.given[1:] == [(["c"], "all")]
    assert it.store.marked == {"a", "b"}


def test_no_work_is_begun_between_a_batch_and_its_last_question(make):
    a, b, c = map(sample, "abc")
    it = make([a, b])
    it.keeper.advance()
    it.store.samples.append(c)
    it.keeper.expect([a, b])
    found = it.keeper.of([a, b])
    it.keeper.advance()
    assert [names for names, _ in it.fleet.given] == [["a", "b"]], "c waits for the batch's last question"
    assert it.keeper.at_student(found, old(a, b))[0].at_student is not None
    it.keeper.advance()
    assert it.fleet.given[-1][0] == ["c"]


def test_a_batch_goes_first(make):
    a, b, c, d = map(sample, "abcd")
    it = make([a, b, c, d])
    it.keeper.expect([c, d])
    it.keeper.advance()
    assert it.fleet.given[0][0] == ["c", "d"]


def test_the_teacher_works_two_batches_ahead_at_most(make):
    it = make([sample(name) for name in "abcdefgh"])
    for _ in range(5):
        it.keeper.advance()
        it.fleet.finished = True
    assert [names for names, _ in it.fleet.given] == [["a", "b", "c", "d"]]


def test_trained_and_stale_samples_are_forgotten(make):
    a, b, c = map(sample, "abc")
    it = make([a, b, c])
    it.keeper.of([a, b])
    it.store.gone = {"a", "c"}
    it.keeper.forget()
    assert sorted(it.fleet.forgotten) == ["a"]
    assert it.keeper.of([b])[0].sample_id == "b"


@pytest.mark.parametrize(
    ("loss", "kinds", "given"),
    [
        (Loss(w_opd=0), [SampleKind.OPD, SampleKind.RL], []),
        (Loss(opd_on_rl_only="skip"), [SampleKind.RL, SampleKind.OPD], [(["1"], "all")]),
        (Loss(opd_on_rl_only="anchor"), [SampleKind.RL, SampleKind.OPD], [(["0", "1"], "all")]),
        (Loss(selection="shortest"), [SampleKind.OPD], [(["0"], "first")]),
        (Loss(max_candidates=1), [SampleKind.OPD], [(["0"], "first")]),
    ],
)
def test_no_pass_where_nothing_asks_for_one(make, loss, kinds, given):
    samples = [sample(str(i), kind) for i, kind in enumerate(kinds)]
    it = make(samples, loss)
    it.keeper.advance()
    assert it.fleet.given == given
    found = it.keeper.of(samples)
    assert [s.sample_id for s in found] == [name for names, _ in given for name in names]


def test_schedules_of_others():
    batch = [sample("a", prompts=(4, 6, 9)), replace(sample("b", prompts=(8,)), kind=SampleKind.RL)]
    assert whole_tokens(batch) == (4 + 6 + 9 + 3 * 2) + (8 + 2)
    assert whole_tokens(batch, first_only=True) == 4 + 2 + 8 + 2
    assert published_tokens(batch) == (4 + 6 + 9 + 3 * 2) + 3 * (8 + 2)
    assert published_tokens([]) == 0
