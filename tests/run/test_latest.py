from __future__ import annotations

import os

import pytest

from openclaw_core.errors import UsageError
from openclaw_core.run.latest import named_run
from openclaw_core.run.resolve import resolve_run
from openclaw_core.run.runs import create_run


@pytest.fixture
def make_run(tmp_path):
    """Makes runs in tmp_path/runs, each newer than the one before; 0 steps is what serving has."""
    made = []

    def make(name, steps):
        run = create_run(tmp_path / "runs", name, steps=steps)
        made.append(run)
        os.utime(run.manifest_path, (1e9 + len(made), 1e9 + len(made)))
        return run

    return make


def test_the_latest_run_is_one_that_trains(make_run, tmp_path):
    with pytest.raises(UsageError, match="There is no run in"):
        named_run("latest", tmp_path / "runs")
    make_run("serve-first", 0)
    assert named_run("latest", tmp_path / "runs").name == "serve-first", "where none trains"
    make_run("train-old", 5)
    make_run("train-new", 5)
    make_run("serve-new", 0)
    assert named_run("latest", tmp_path / "runs").name == "train-new"
    assert named_run("serve-new", tmp_path / "runs").name == "serve-new"
    assert named_run(str(tmp_path / "runs" / "train-old")).name == "train-old"


def test_a_latest_run_that_cannot_be_read_is_not_passed_over(make_run, tmp_path):
    make_run("train-old", 5)
    broken = make_run("broken", 5)
    broken.manifest_path.write_text("{")
    assert named_run("latest", tmp_path / "runs").name == "broken"


def test_a_resume_of_the_latest_run_is_of_one_that_trains(make_run, tmp_path, monkeypatch):
    from openclaw_core.config.load import load_profile

    monkeypatch.chdir(tmp_path)
    for name, steps in (("train", 5), ("serve", 0)):
        make_run(name, steps).config.write_text(load_profile("tiny-cpu", (), {}).to_yaml())
    assert resolve_run(None, resume="latest", env={})[1].name == "train"
