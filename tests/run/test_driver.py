"""What the driver leaves of a run, whatever went on in its loop."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict
from functools import partial
from types import SimpleNamespace

import pytest

from openclaw_core.config.load import load_profile
from openclaw_core.config.schema import Loss
from openclaw_core.loss.needs import needs
from openclaw_core.rollout.store import NewTurn, Store
from openclaw_core.run import driver
from openclaw_core.run import progress as progress_module
from openclaw_core.run.legs import Leg, keep_leg, legs_of
from openclaw_core.run.plan import make_plan
from openclaw_core.run.progress import Progress, SilentWatcher
from openclaw_core.run.report import build_report, report_text
from openclaw_core.run.runfolder import RunFolder
from openclaw_core.run.status import read_status
from openclaw_core.run.stopping import PATIENT
from openclaw_core.types import Turn


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """Launches a run, or goes on with it, with loop(run, progress) in place of everything between start and stop."""
    resolved = load_profile("tiny-cpu", ["train.steps=9"], {})
    plan = make_plan(resolved)
    folder = tmp_path / "run"

    def launched(loop):
        monkeypatch.setattr(driver, "prepare", lambda *_: None)
        monkeypatch.setattr(driver, "_run", lambda _, progress, *rest: loop(RunFolder(folder), progress))
        resume = folder if folder.exists() else None
        return driver.launch(resolved, plan, run_folder=folder, resume=resume, watcher=SilentWatcher())

    return launched


class Notes(SilentWatcher):
    """Keeps what it is told."""

    def __init__(self):
        self.lines = []

    def note(self, text):
        self.lines.append(text)


@pytest.fixture
def run_of(tmp_path, monkeypatch):
    """_run with loop(stop) in place of the processes and the loop; returns what was said."""

    class Fleet:
        proxy_url = "http://127.0.0.1:4711/v1"

        def __init__(self, *_):
            pass

        def start(self, sources):
            pass

        stop = blame = lambda self: None

    def run(body):
        notes = Notes()
        monkeypatch.setattr(driver, "Fleet", Fleet)
        monkeypatch.setattr(driver, "Frozen", lambda *_: SimpleNamespace(prove=lambda: None))
        loop = lambda *given: SimpleNamespace(run=lambda: body(given[-1], notes), close=lambda: None)  # noqa: E731
        monkeypatch.setattr(driver, "Loop", loop)
        job = SimpleNamespace(run=None, plan=None, sources=None, resolved=SimpleNamespace(config=None))
        with driver.StopRequest(notes.note, at_once=True) as stop:
            driver._run(job, Progress("run", 1), notes, stop)
        return notes.lines

    return run


def test_the_proxys_address_is_told_once_it_answers(run_of):
    said = run_of(lambda stop, notes: notes.note("first step"))
    assert said == ["The proxy answers: point OpenAI clients at http://127.0.0.1:4711/v1", "first step"]


def test_a_signal_is_told_at_once(run_of):
    def body(stop, notes):
        os.kill(os.getpid(), signal.SIGINT)
        deadline = time.monotonic() + 5.0
        while PATIENT not in notes.lines and time.monotonic() < deadline:
            time.sleep(0.01)
        notes.note("still in the loop")

    assert run_of(body)[-2:] == [PATIENT, "still in the loop"]


def test_an_interrupted_start_says_how_to_go_on(tmp_path, monkeypatch):
    resolved, folder, notes = load_profile("tiny-cpu", (), {}), tmp_path / "run", Notes()

    def prepare(resolved, plan, run, *_):
        run.config.write_text(resolved.to_yaml())
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(driver, "prepare", prepare)
    with pytest.raises(KeyboardInterrupt):
        driver.launch(resolved, make_plan(resolved), run_folder=folder, resume=None, watcher=notes)
    assert f"Go on with openclaw train --resume {folder}" in notes.lines
    assert read_status(RunFolder(folder)).next_step_why == "none: the run is stopped"


def test_the_report_counts_what_came_while_the_run_drained(launch):
    def loop(run, progress):
        store = Store(run.store)
        store.count("received", 5)
        progress.funnel = {"received": 5}
        store.count("received", 2)
        store.count("main", 2)
        turn = Turn("a", store.open_session().session_id, "a", (), (), {}, (1, 2), (3, 4), (-0.1, -0.2), "length", 0)
        store.add_turn(NewTurn(turn, "text", "a"))
        store.drop_turn("a", "length")
        store.close()

    report = launch(loop)
    run = RunFolder(driver.Path(report.folder))
    funnel = read_status(run).store.funnel
    assert (report.funnel["received"], report.funnel["main"]) == (7, 2)
    assert report.funnel == funnel.counts()
    assert json.loads(run.report.read_text())["funnel"] == report.funnel
    assert report.dropped == funnel.dropped == {"length": 1}


def test_the_time_of_a_resumed_run_is_that_of_all_legs(launch, tmp_path, monkeypatch):
    def leg(steps, stages, seconds, *, killed=False):
        def loop(run, progress):
            progress.seconds |= stages
            for _ in range(steps):
                progress.step += 1
                run.update(step=progress.step)
                keep_leg(run, progress)
            if killed:
                monkeypatch.setattr(driver, "keep_leg", lambda *_: None)

        monkeypatch.setattr(driver, "keep_leg", keep_leg)
        monkeypatch.setattr(driver, "Progress", partial(Progress, started=time.time() - seconds))
        return launch(loop)

    assert leg(4, {"start": 5.0, "train": 30.0}, 400).legs[0].wall_seconds == pytest.approx(400, abs=1)
    monkeypatch.setattr(driver, "saved_step", lambda *_: 2)
    leg(3, {"start": 6.0, "collect": 1.0, "train": 40.0}, 300, killed=True)
    report = leg(0, {"start": 7.0}, 200)
    assert [(one.after_step, one.step) for one in report.legs] == [(0, 4), (2, 5), (2, 2)]
    assert report.seconds == {"start": 18.0, "train": 70.0, "collect": 1.0}
    assert report.wall_seconds == pytest.approx(900, abs=3)
    text = report_text(report)
    assert "steps 1 to 4 in 400 s; steps 3 to 5 in 300 s; no step in 200 s" in text
    assert "start 18, train 70, collect 1" in text
    assert json.loads((tmp_path / "run" / "report.json").read_text())["legs"][1]["step"] == 5


def test_a_leg_says_which_steps_it_made():
    legs = [Leg(0.0, after, step, 7.4) for after, step in ((0, 4), (4, 5), (5, 5))]
    assert [str(leg) for leg in legs] == ["steps 1 to 4 in 7 s", "step 5 in 7 s", "no step in 7 s"]


def test_legs_that_cannot_be_understood_are_none(launch):
    report = launch(lambda run, _: run.update(facts={"legs": [{"began": "soon"}, 3]}))
    run = RunFolder(driver.Path(report.folder))
    assert [leg.step for leg in legs_of(run.read())] == [0]
    for broken in (3, "legs", [3], [{"began": 1.0}], [{**asdict(report.legs[0]), "seconds": {"train": "long"}}]):
        run.update(facts={"legs": broken})
        assert legs_of(run.read()) == ()
        assert build_report(run).wall_seconds == 0.0


@pytest.mark.parametrize(
    ("missing", "subset", "exposed"),
    [(0, "student", 1), (10, "student", 1), (30, "student", 11), (30, "teacher", 30), (0, "teacher", 0)],
)
def test_the_teachers_exposed_time_is_what_the_loop_waits_for_it_alone(monkeypatch, missing, subset, exposed):
    """missing: seconds that the teacher still needs when the batch is full. The old pass takes 20 s, a question to it 1 s."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: clock.now, time=time.time))

    class Scores:
        needs = needs(Loss(subset=subset))

        def of(self, batch):
            clock.now = max(clock.now, missing)
            return []

        def at_student(self, scores, old):
            clock.now += 1
            return scores

    def old_pass(batch, scores):
        clock.now += 20
        return {"s": None}

    loop = object.__new__(driver.Loop)
    loop.scores, loop.progress, loop.fleet = Scores(), Progress("run", 1), SimpleNamespace(old_pass=old_pass)
    loop._complete_scores([])
    assert loop.progress.seconds["teacher"] == exposed


def test_scoring_goes_on_while_the_batch_fills(monkeypatch):
    monkeypatch.setattr(driver, "POLL_S", 0.0)
    happened = []
    batches = iter([None, None, ["sample"]])

    def take(*_):
        happened.append("taken")
        return next(batches)

    loop = object.__new__(driver.Loop)
    loop.config, loop.version, loop.progress = load_profile("tiny-cpu", (), {}).config, 0, Progress("run", 1)
    loop.stop, loop.store = SimpleNamespace(requested=False), SimpleNamespace(take_batch=take)
    loop.scores = SimpleNamespace(advance=lambda: happened.append("advanced"))
    loop.fleet, loop._shown = SimpleNamespace(check_alive=lambda: None), float("inf")
    assert loop._collect() == ["sample"]
    assert happened == ["advanced", "taken"] * 3
