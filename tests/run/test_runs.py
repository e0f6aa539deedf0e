from __future__ import annotations

import os

import pytest

from openclaw_core.config.load import load_profile
from openclaw_core.errors import UsageError, UserError
from openclaw_core.run.resolve import resolve_run
from openclaw_core.run.runfolder import valid_name
from openclaw_core.run.runs import create_run, list_runs, new_run_name, open_run


def test_a_new_run_has_its_folders_and_a_manifest(tmp_path):
    run = create_run(tmp_path / "runs", "demo", steps=40, facts={"student": "/models/tiny"})
    manifest = run.read()
    assert (manifest.name, manifest.state, manifest.step, manifest.steps, manifest.saved_step) == (
        "demo",
        "starting",
        0,
        40,
        None,
    )
    assert run.dumps.is_dir()
    assert run.log("trainer-0") == run.path / "logs" / "trainer-0.log"
    assert run.checkpoint(10).name == "step-000010"


def test_names_for_new_runs_come_from_the_profile():
    assert new_run_name("tiny-cpu", 0.0).startswith("tiny-cpu-19")
    assert new_run_name("/some where/my profile!.yaml", 0.0).startswith("my-profile-")
    assert valid_name(new_run_name("", 0.0))


def test_a_taken_name_is_refused(tmp_path):
    create_run(tmp_path, "demo")
    with pytest.raises(UsageError, match="exists already"):
        create_run(tmp_path, "demo")


def test_runs_are_found_by_path_name_and_latest(tmp_path):
    for number, name in enumerate(("first", "second")):
        run = create_run(tmp_path, name)
        os.utime(run.manifest_path, (number, number))
    assert open_run(tmp_path / "first").name == "first"
    assert open_run("first", tmp_path).name == "first"
    assert open_run("latest", tmp_path).name == "second"
    assert [run.name for run in list_runs(tmp_path)] == ["second", "first"]
    with pytest.raises(UsageError, match="Did you mean second"):
        open_run("secnod", tmp_path)
    with pytest.raises(UserError, match=r"no run\.json"):
        open_run(tmp_path)
    with pytest.raises(UsageError, match="There is no run in"):
        open_run("latest", tmp_path / "empty")


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
        open_run("latest", tmp_path / "runs")
    make_run("serve-first", 0)
    assert open_run("latest", tmp_path / "runs").name == "serve-first", "where none trains"
    make_run("train-old", 5)
    make_run("train-new", 5)
    make_run("serve-new", 0)
    assert open_run("latest", tmp_path / "runs").name == "train-new"
    assert open_run("serve-new", tmp_path / "runs").name == "serve-new"
    assert open_run(str(tmp_path / "runs" / "train-old")).name == "train-old"


def test_a_latest_run_that_cannot_be_read_is_not_passed_over(make_run, tmp_path):
    make_run("train-old", 5)
    broken = make_run("broken", 5)
    broken.manifest_path.write_text("{")
    assert open_run("latest", tmp_path / "runs").name == "broken"


def test_a_resume_of_the_latest_run_is_of_one_that_trains(make_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, steps in (("train", 5), ("serve", 0)):
        make_run(name, steps).config.write_text(load_profile("tiny-cpu", (), {}).to_yaml())
    assert resolve_run(None, resume="latest", env={})[1].name == "train"


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    for name in ("full", "file"):
        with pytest.raises(UsageError, match="holds something else"):
            create_run(tmp_path, name)
    assert [entry.name for entry in (tmp_path / "full").iterdir()] == ["thesis.tex"]
    assert create_run(tmp_path, "empty").read().name == "empty"
