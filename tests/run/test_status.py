from __future__ import annotations

import os
import time
from dataclasses import replace

import pytest
import yaml

from openclaw_core.config.schema import Config
from openclaw_core.errors import UserError
from openclaw_core.rollout.store import HintRecord, NewTurn, Store, Vote
from openclaw_core.run.processes import ProcessRecord
from openclaw_core.run.runs import create_run
from openclaw_core.run.status import read_status
from openclaw_core.track.sinks import JsonlSink
from openclaw_core.types import Candidate, Hint, Sample, SampleKind, Turn

LATER = 1000.0


@pytest.fixture
def run(tmp_path):
    run = create_run(tmp_path, "demo", steps=40, facts={"target_rate": 0.8})
    config = Config.model_validate({"student": {"hf": "tiny"}, "train": {"batch_size": 4}, "loss": {"w_rl": 0}})
    run.config.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    run.update(state="running")
    return run


@pytest.fixture
def store(run):
    store = Store(run.store)
    yield store
    store.close()


def add_turn(store, name):
    turn = Turn(name, store.open_session().session_id, name, (), (), {}, (1, 2), (3, 4), (-0.1, -0.2), "stop", 0)
    store.count("received")
    store.count("main")
    store.add_turn(NewTurn(turn, "text", name))
    return turn


def close(store, turn):
    assert store.close_turn(turn.turn_id, ({"role": "user", "content": "again, please"},))


def judge(store, turn):
    hints = (HintRecord("use capitals please", 2, True), HintRecord("ok", 1, False, "short"))
    votes = (Vote("verdict", 0, -1), Vote("verdict", 1, None, reason="unparsable"), Vote("hint", 0, 1, "use capitals please"))
    store.record_votes(turn.turn_id, votes, hints)


def sample(store, turn):
    candidates = (Candidate((1,), Hint("use capitals please", 2)),)
    made = Sample(f"s-{turn.turn_id}", turn.turn_id, SampleKind.OPD_RL, -1.0, (1, 2), (3, 4), (-0.1, -0.2), (1, 1), candidates, 0)
    assert store.add_sample(made)
    return made.sample_id


def stalled(run, after=300.0):
    return read_status(run, stall_after_s=after, now=time.time() + LATER).stall


def test_an_empty_run_tells_what_is_absent(tmp_path):
    status = read_status(create_run(tmp_path, "bare", steps=5))
    assert (status.state, status.saved_step, status.store, status.stall) == ("starting", None, None, None)
    assert [text.split()[0] for text in status.absent] == ["config.yaml", "store.sqlite", "metrics.jsonl"]
    assert status.next_step_s is None


def test_counts_votes_and_hints(run, store):
    for name in "abc":
        turn = add_turn(store, name)
        close(store, turn)
        judge(store, turn)
    sample(store, turn)
    view = read_status(run).store
    assert (view.funnel.received, view.funnel.judged, view.funnel.hinted, view.funnel.sampled) == (3, 3, 3, 1)
    assert view.votes == {"verdict": {"none": 3, "-1": 3}, "hint": {"+1": 3}}
    assert view.no_votes == {"unparsable": 3}
    assert (view.hints_accepted, view.hints_rejected) == (3, {"short": 3})
    assert view.reward == -1.0
    assert [(one.stage, one.count) for one in view.waiting] == [("sampled", 2), ("scored", 1)]


def test_the_next_step_is_estimated_from_the_pace_of_samples(run, store):
    assert "none was made in the last 300 s" in read_status(run).next_step_why
    for name in "ab":
        turn = add_turn(store, name)
        close(store, turn)
        sample(store, turn)
    status = read_status(run)
    assert status.next_step_s == pytest.approx(2 / (2 / 300.0))
    assert "2 of 4 samples are ready, 0.4 a minute" in status.next_step_why
    for name in "cd":
        turn = add_turn(store, name)
        close(store, turn)
        sample(store, turn)
    assert read_status(run).next_step_s == 0.0


def test_a_stall_names_the_stage(run, store):
    assert stalled(run).stage == "received"
    turns = [add_turn(store, name) for name in "abcd"]
    assert (stalled(run).stage, stalled(run).what[:13]) == ("closed", "4 turns wait ")
    for turn in turns:
        close(store, turn)
    assert stalled(run).stage == "judged"
    assert "4 turns wait for the judge" in stalled(run).what
    for turn in turns:
        judge(store, turn)
    assert stalled(run).stage == "sampled"
    ids = [sample(store, turn) for turn in turns]
    store.mark_scored(ids[:1])
    assert stalled(run).stage == "scored"
    store.mark_scored(ids)
    store.take_batch(4, 8, 0)
    assert stalled(run).stage == "trained"
    store.mark_trained(ids, 1)
    assert stalled(run).stage == "received"
    assert stalled(run, after=2 * LATER) is None


def test_refusals_and_drops_are_named_in_the_stall(run, store):
    store.count("received", 3)
    store.count("refused:too_long", 3)
    assert stalled(run).what == "3 requests came and none was answered (3 refused)"
    turn = add_turn(store, "a")
    store.drop_turn(turn.turn_id, "length")
    stall = read_status(run, stall_after_s=0.0).stall
    assert stall.stage in ("received", "sampled")
    late = time.time() + LATER
    store.connection.execute("UPDATE turns SET created_at = ?", (late,))
    stall = read_status(run, now=late).stall
    assert (stall.stage, "length 1" in stall.what) == ("sampled", True)


def test_a_finished_run_never_stalls(run, store):
    run.update(state="finished", step=40)
    assert stalled(run) is None
    assert read_status(run).next_step_why == "all steps are done"


def test_a_stopped_run_promises_no_step(run, store):
    run.update(state="stopped")
    assert read_status(run).next_step_s is None
    assert read_status(run).next_step_why == "none: the run is stopped; 0 samples wait for a resume"


def test_a_run_that_was_interrupted_while_it_started_names_what_goes_on_with_it(run):
    run.update(state="stopped", reason="SIGINT")
    assert (read_status(run).next_step_why, read_status(run).go_on) == (
        "none: the run is stopped", f"openclaw train --resume {run.path}"
    )  # fmt: skip
    run.update(state="finished")
    assert read_status(run).go_on == ""
    run.update(state="stopped", step=40)
    assert read_status(run).go_on == ""


def test_the_proxys_address_is_told_while_the_run_lives(run):
    run.update(facts={"proxy": "http://127.0.0.1:4711/v1"})
    with run.held():
        assert read_status(run).proxy == "http://127.0.0.1:4711/v1"
    assert read_status(run).proxy == ""
    run.update(state="stopped")
    assert read_status(run).proxy == ""


def test_metrics_constants_and_readings(run):
    sink = JsonlSink(run.metrics)
    sink.write(0, {"eval/preference_rate": 0.0})
    sink.write(1, {"loss/opd": 0.5, "loss/grpo": None})
    status = read_status(run)
    assert (status.metrics["step"], status.metrics["loss/opd"]) == (1, 0.5)
    assert status.constants["loss/grpo"] == "loss.w_rl is 0"
    assert status.reading.preference_rate == 0.0


def test_a_run_whose_processes_are_all_gone_is_abandoned(run):
    assert not read_status(run).abandoned
    run.add_processes(ProcessRecord("driver", 2**22 + 1, "gone", 0.0))
    assert read_status(run).abandoned
    run.add_processes(ProcessRecord("trainer", 5, "x", 0.0, "another-host"))
    assert not read_status(run).abandoned
    run.update(state="stopped")
    assert not read_status(run).abandoned


def test_a_run_whose_driver_is_gone_is_abandoned_whoever_else_lives(run):
    run.add_processes(ProcessRecord("ray-1", 5, "x", 0.0, "another-host"))
    with run.held():
        assert read_status(run).driven
        assert not read_status(run).abandoned
    assert read_status(run).abandoned
    run.update(state="finished")
    assert not read_status(run).abandoned


def leg(run, began, *roles):
    """A leg of the run with a process of each role; those that are named alive- live on."""
    legs = run.read().facts.get("legs", [])
    run.update(facts={"legs": [*legs, {"began": began, "after_step": 0, "step": 0, "wall_seconds": 1.0, "seconds": {}}]})
    me = ProcessRecord.of("me", os.getpid())
    for number, role in enumerate(roles):
        living = {"pid": me.pid, "start": me.start} if role.startswith("alive-") else {"pid": 2**22 + number, "start": f"{began}"}
        run.add_processes(replace(me, role=role, since=began + 1.0, **living))


def test_processes_are_those_of_the_last_leg(run):
    leg(run, 100.0, "driver", "actor-0")
    assert [one.role for one in read_status(run).processes] == ["driver", "actor-0"]
    leg(run, 200.0, "driver")
    leg(run, 300.0, "driver", "alive-proxy")
    status = read_status(run)
    assert [(one.role, one.since) for one in status.processes] == [("driver", 301.0), ("alive-proxy", 301.0)]
    assert [(one.role, one.since) for one in status.past_processes] == [("driver", 101.0), ("actor-0", 101.0), ("driver", 201.0)]
    assert not status.abandoned


def test_who_lives_on_from_an_earlier_leg_drives_nothing(run):
    leg(run, 100.0, "alive-actor")
    leg(run, 200.0, "driver")
    assert read_status(run).abandoned


def test_broken_inputs_are_told_and_the_rest_is_read(run):
    run.store.write_bytes(b"not a store at all" * 100)
    run.config.write_text("student: {hf: 3}\nwrong: 1")
    run.metrics.write_text('{"step": 1, "loss/total": 0.5}\n{"step": 2, "lo')
    status = read_status(run)
    assert status.metrics["loss/total"] == 0.5
    told = "\n".join(status.problems)
    assert "config.yaml" in told
    assert "is not a store" in told
    assert "metrics.jsonl, line 2" in told
    run.manifest_path.write_text("{")
    with pytest.raises(UserError, match=r"run\.json"):
        read_status(run)
