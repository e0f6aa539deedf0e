"""What the driver leaves of a run, whatever went on in its loop."""

from __future__ import annotations

import json

import pytest

from openclaw_core.config.load import load_profile
from openclaw_core.rollout.store import NewTurn, Store
from openclaw_core.run import driver
from openclaw_core.run.plan import make_plan
from openclaw_core.run.progress import SilentWatcher
from openclaw_core.run.runfolder import RunFolder
from openclaw_core.run.status import read_status
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
