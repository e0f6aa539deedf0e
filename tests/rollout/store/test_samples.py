from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from openclaw_core.errors import UserError
from openclaw_core.rollout.store import NewTurn, Store
from openclaw_core.types import Candidate, Hint, Sample, SampleKind, Turn


def sample_of(turn: Turn, *, version: int | None = None) -> Sample:
    return Sample(
        f"sample-{turn.turn_id}",
        turn.turn_id,
        SampleKind.OPD_RL,
        -1.0,
        turn.prompt_ids,
        turn.response_ids,
        turn.response_logprobs,
        (1, 1),
        (Candidate((1, 9, 3), Hint("use capitals", 2)), Candidate((1, 2, 3))),
        turn.weight_version if version is None else version,
        ((0, 1), (1, 2)),
    )


@pytest.fixture
def add_samples(store, make_turn):
    def add(count: int, *, version: int = 0) -> list[Sample]:
        samples = []
        for _ in range(count):
            turn = make_turn(weight_version=version)
            store.close_turn(turn.turn_id, ({"role": "user", "content": "x"},))
            samples.append(sample_of(turn))
            assert store.add_sample(samples[-1])
        return samples

    return add


def test_sample_survives_a_round_trip_exactly(store, add_samples):
    (sample,) = add_samples(1)
    assert store.sample(sample.sample_id).sample == sample
    assert store.sample_of_turn(sample.turn_id).sample == sample


def test_a_turn_gives_one_sample(store, make_turn, add_samples):
    (sample,) = add_samples(1)
    assert not store.add_sample(sample)
    open_turn = make_turn()
    assert not store.add_sample(sample_of(open_turn))
    assert store.funnel().sampled == 1


def test_batches_are_full_oldest_first_and_disjoint(store, add_samples):
    samples = add_samples(17)
    assert store.take_batch(18, 8, 0) == []
    assert store.ready_count() == 17
    assert store.take_batch(16, 8, 0) == samples[:16]
    assert store.take_batch(2, 8, 0) == []
    assert store.take_batch(1, 8, 0) == samples[16:]


def test_stale_samples_are_dropped_by_reason_and_all_dropped_is_no_crash(store, add_samples):
    add_samples(16, version=1)
    (fresh,) = add_samples(1, version=3)
    assert store.take_batch(16, 2, 4) == []
    funnel = store.funnel()
    assert (funnel.dropped, funnel.ready) == ({"stale": 16}, 1)
    assert store.take_batch(1, 2, 4) == [fresh]


def test_trained_needs_taken_and_is_all_or_nothing(store, add_samples):
    taken, ready = add_samples(2)
    store.take_batch(1, 8, 0)
    with pytest.raises(UserError, match=ready.sample_id):
        store.mark_trained([taken.sample_id, ready.sample_id], 1)
    assert store.sample(taken.sample_id).state == "taken"
    store.mark_trained([taken.sample_id], 1)
    with pytest.raises(UserError, match="trained before"):
        store.mark_trained([taken.sample_id], 2)
    assert store.sample(taken.sample_id).trained_step == 1


def test_rollback_goes_by_the_trained_step(store, add_samples):
    samples = add_samples(8)
    for step in (1, 2, 3):
        store.mark_trained([s.sample_id for s in store.take_batch(2, 8, step)], step)
    store.take_batch(1, 8, 3)
    store.mark_scored([samples[0].sample_id, samples[4].sample_id])
    back = store.rollback(1)
    assert (back.untrained, back.untaken) == (4, 1)
    assert store.take_batch(6, 8, 1) == samples[2:]
    assert samples[4] in store.unscored(10)
    assert samples[0] not in store.unscored(10)


def test_rollback_revives_what_was_stale_for_weights_that_are_gone(store, add_samples):
    samples = add_samples(2, version=0)
    assert store.take_batch(1, 3, 9) == []
    assert store.rollback(2).revived == 2
    assert store.take_batch(2, 3, 2) == samples


def test_funnel_counts_every_stage(store, add_samples, make_turn):
    make_turn()
    samples = add_samples(4)
    store.mark_scored([s.sample_id for s in samples[:3]])
    store.mark_trained([s.sample_id for s in store.take_batch(2, 8, 0)], 1)
    store.drop_sample(samples[3].sample_id, "by hand")
    store.count("received", 7)
    store.count("refused:paused")
    funnel = store.funnel()
    assert (funnel.received, funnel.answered, funnel.open, funnel.closed) == (7, 5, 1, 4)
    assert (funnel.sampled, funnel.scored, funnel.trained, funnel.ready) == (4, 3, 2, 1)
    assert (funnel.dropped, funnel.refused) == ({"by hand": 1}, {"paused": 1})


WRITER = """
import sys
from openclaw_core.rollout.store import NewTurn, Store
from openclaw_core.types import Candidate, Sample, SampleKind, Turn

store = Store(sys.argv[1])
session = store.open_session().session_id
for number in range(10**6):
    turn = Turn(f"t{number}", session, "l", ({"role": "user", "content": "x"},), (), {"role": "assistant", "content": "y"},
                (1,), (2, 3), (-0.1, -0.2), "stop", 0)
    store.add_turn(NewTurn(turn, "y", f"k{number}"))
    store.close_turn(turn.turn_id, ({"role": "user", "content": "z"},))
    if number % 3:
        store.add_sample(
            Sample(f"s{number}", turn.turn_id, SampleKind.RL, 1.0, (1,), (2, 3), (-0.1, -0.2), (1, 1), (Candidate((1,)),), 0)
        )
    if number % 20 == 19:
        store.mark_trained([sample.sample_id for sample in store.take_batch(5, 8, 0)], number)
    if number == 60:
        print("far enough", flush=True)
"""


def test_a_killed_writer_loses_and_doubles_nothing(tmp_path):
    path = tmp_path / "store.sqlite"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "far enough\n"
        process.kill()
    store = Store(path)
    store.rollback(59)
    records = store.samples(limit=10**6)
    assert len({r.sample.sample_id for r in records}) == len({r.sample.turn_id for r in records}) == len(records)
    assert {r.state for r in records} == {"ready", "trained"}
    assert sorted(r.trained_step for r in records if r.state == "trained") == [19] * 5 + [39] * 5 + [59] * 5
    by_state = {state: {t.turn.turn_id for t in store.turns(state=state, limit=10**6)} for state in ("open", "closed", "sampled")}
    assert by_state["sampled"] == {r.sample.turn_id for r in records}
    assert set(store.pending_turns(10**6)) == by_state["closed"]
    assert len(by_state["open"]) <= 1
    assert sum(map(len, by_state.values())) == store.funnel().answered >= 61
    assert store.connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


class StoreMachine(RuleBasedStateMachine):
    """Capture, driver and crashes in any order, against a model of what was taken and trained."""

    def __init__(self) -> None:
        super().__init__()
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.store = Store(f"{self.folder.name}/store.sqlite")
        self.session = self.store.open_session().session_id
        self.made = 0
        self.step = self.checkpoint = 0
        self.taken: list[str] = []
        self.trained: dict[str, int] = {}

    @rule(count=st.integers(1, 5))
    def capture(self, count):
        for _ in range(count):
            turn = Turn(f"t{self.made}", self.session, "l", (), (), {}, (1,), (2, 3), (-0.1, -0.2), "stop", self.step)
            self.store.add_turn(NewTurn(turn, "", f"k{self.made}"))
            self.store.close_turn(turn.turn_id, ())
            assert self.store.add_sample(sample_of(turn))
            self.made += 1

    @precondition(lambda self: not self.taken)
    @rule(n=st.integers(1, 4), staleness=st.integers(0, 3))
    def take(self, n, staleness):
        batch = [s.sample_id for s in self.store.take_batch(n, staleness, self.step)]
        assert len(batch) in (0, n)
        assert not set(batch) & set(self.trained), "a sample that the checkpointed weights know is trained again"
        self.taken = batch

    @precondition(lambda self: self.taken)
    @rule()
    def train(self):
        self.step += 1
        self.store.mark_trained(self.taken, self.step)
        self.trained |= dict.fromkeys(self.taken, self.step)
        self.taken = []

    @rule()
    def save(self):
        self.checkpoint = self.step

    @rule()
    def crash_and_resume(self):
        self.store.close()
        self.store = Store(f"{self.folder.name}/store.sqlite")
        self.store.rollback(self.checkpoint)
        self.step, self.taken = self.checkpoint, []
        self.trained = {i: step for i, step in self.trained.items() if step <= self.checkpoint}

    @invariant()
    def every_sample_is_somewhere_once(self):
        records = self.store.samples(limit=10**6)
        assert len(records) == self.made
        states = {r.sample.sample_id: r.state for r in records}
        assert {i for i, state in states.items() if state == "trained"} == set(self.trained)
        assert {i for i, state in states.items() if state == "taken"} == set(self.taken)
        assert all(r.reason == "stale" for r in records if r.state == "dropped")

    def teardown(self):
        self.store.close()
        self.folder.cleanup()


TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(max_examples=12, stateful_step_count=25, deadline=None)
