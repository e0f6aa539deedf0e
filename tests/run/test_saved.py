"""A resume that can't work is refused before anything is started, and leaves the run as it was."""

from __future__ import annotations

import json

import pytest

from openclaw_core.errors import UsageError, UserError
from openclaw_core.rollout.store import Store
from openclaw_core.run.runs import create_run
from openclaw_core.run.saved import saved_step


@pytest.fixture
def run(tmp_path):
    run = create_run(tmp_path, "demo", steps=40)
    Store(run.store).close()
    for step in (20, 40):
        folder = run.checkpoint(step)
        folder.mkdir()
        (folder / "weights").write_bytes(b"12345")
        (folder / "trainer.json").write_text(json.dumps({"step": step, "files": {"weights": 5}}))
    return run


def test_the_newest_checkpoint_counts(run, tmp_path):
    assert saved_step(run, 60) == 40
    assert saved_step(create_run(tmp_path, "fresh"), 60) == 0


def test_all_steps_made(run):
    with pytest.raises(UserError, match=r"all of its 40 steps.*train\.steps"):
        saved_step(run, 40)


def test_fewer_steps_than_were_made(run):
    with pytest.raises(UsageError, match=r"stands at step 40, and train\.steps=10 lies before that.*more than 40"):
        saved_step(run, 10)


def test_a_damaged_checkpoint_names_the_one_before(run):
    (run.checkpoint(40) / "weights").write_bytes(b"1")
    with pytest.raises(UserError, match=r"step-000040 is damaged: weights.*go on from step 20"):
        saved_step(run, 60)
    (run.checkpoint(20) / "trainer.json").write_text("{")
    run.checkpoint(40).rename(run.path / "away")
    with pytest.raises(UserError, match=r"step-000020 isn't a complete checkpoint.*from the start"):
        saved_step(run, 60)


def test_a_damaged_store(run):
    run.store.write_bytes(b"no database" * 100)
    with pytest.raises(UserError, match="not a store of this program"):
        saved_step(run, 60)
