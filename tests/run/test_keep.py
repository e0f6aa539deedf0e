"""What a step leaves in the run folder."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from openclaw_core.config.load import load_profile
from openclaw_core.dumps.reader import DumpReader
from openclaw_core.dumps.schema import DroppedHint
from openclaw_core.dumps.writer import DumpWriter
from openclaw_core.rollout.dispatch import TOO_LONG
from openclaw_core.rollout.hints import accepted_hints, rank_hints
from openclaw_core.rollout.store import NewTurn, Store, Vote
from openclaw_core.run.keep import EXCERPT, Keeper
from openclaw_core.run.results import StepResult
from openclaw_core.run.runs import create_run
from openclaw_core.track.sinks import Sinks
from openclaw_core.types import Candidate, Sample, SampleKind, TeacherScores, TopK, Turn

HINTS = (
    "Use capitals, please.",
    "Use capitals, please!!",
    "In capitals, and no dot.",
    "Capitals " * 100,
    "Be nice to me now.",
    "ok",
)


@pytest.fixture
def keeper(tmp_path):
    run = create_run(tmp_path, "demo")
    store = Store(run.store)
    job = SimpleNamespace(
        run=run,
        resolved=load_profile("tiny-cpu", (), {}),
        plan=SimpleNamespace(architectures={"student": SimpleNamespace(vocab=48)}),
        sources=SimpleNamespace(teacher="teacher"),
    )
    yield Keeper(job, store, DumpWriter(run.dumps), Sinks())
    store.close()


def judged(store, name, votes, most):
    turn = Turn(name, store.open_session().session_id, name, (), (), {}, (1, 2), (3, 4), (-0.1, -0.2), "stop", 0)
    store.add_turn(NewTurn(turn, "text", name))
    store.close_turn(name, ({"role": "user", "content": "again, please"},))
    store.record_votes(name, votes, rank_hints(votes, most))
    return turn


def test_the_dump_names_the_hints_that_became_no_candidate(keeper):
    store = keeper.store
    votes = [Vote("hint", i, 0 if text.startswith("Be nice") else 1, text) for i, text in enumerate((*HINTS, HINTS[0]))]
    turn = judged(store, "many", votes, 3)
    plain = judged(store, "plain", [Vote("verdict", 0, 1)], 3)
    dropped = accepted_hints(store.hints("many"))[2].text
    store.reject_hint("many", dropped, TOO_LONG)
    store.add_event(TOO_LONG, "many", hint=dropped, tokens=5210, limit=4096)
    candidates = tuple(Candidate((1,), hint) for hint in accepted_hints(store.hints("many")))
    batch = [
        Sample("s", turn.turn_id, SampleKind.OPD, 0.0, (1, 2), (3, 4), (-0.1, -0.2), (1, 1), candidates, 0),
        Sample("p", plain.turn_id, SampleKind.RL, 1.0, (1, 2), (3, 4), (-0.1, -0.2), (1, 1), (Candidate((1, 2)),), 0),
    ]
    keeper.dump(1, batch, [], StepResult(1.0, 2, dumps={name: {"entropy": np.zeros(2)} for name in "sp"}))

    first, second = DumpReader(keeper.job.run.dumps).step(1).samples
    assert [hint.text for hint in first.hints] == list(HINTS[:2])
    assert first.hints[0].votes == 2
    long = HINTS[3].strip()
    assert first.dropped_hints == (
        DroppedHint(HINTS[2], len(HINTS[2]), 1, "too_long_for_teacher", 5210, 4096),
        DroppedHint(long[:EXCERPT], len(long), 1, "more than max_candidates"),
        DroppedHint(HINTS[4], len(HINTS[4]), 0, "not decided for"),
        DroppedHint("ok", 2, 1, "too short"),
    )
    assert second.dropped_hints == ()


def test_a_teachers_id_of_probability_0_is_no_id(keeper):
    turn = judged(keeper.store, "one", [Vote("hint", 0, 1, HINTS[0])], 3)
    candidates = tuple(Candidate((1,), hint) for hint in accepted_hints(keeper.store.hints("one")))
    sample = Sample("s", turn.turn_id, SampleKind.OPD, 0.0, (1, 2), (3, 4), (-0.1, -0.2), (1, 1), candidates, 0)
    ids, logprobs = np.array([[[5, 6], [7, 8]]]), np.array([[[0.0, -np.inf], [-0.5, -0.9]]], np.float32)
    keeper.dump(1, [sample], [TeacherScores("s", TopK(ids, logprobs))], StepResult(1.0, 2))
    (found,) = DumpReader(keeper.job.run.dumps).step(1).samples
    assert found.get("teacher_ids").tolist() == [[[5, -1], [7, 8]]]
