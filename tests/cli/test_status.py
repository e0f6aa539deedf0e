from __future__ import annotations

import io
import json
import os
from dataclasses import replace

import pytest
from rich.console import Console
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_cli.status_text import duration, status_text
from openclaw_core.rollout.store import Store
from openclaw_core.run.processes import ProcessRecord
from openclaw_core.run.runs import create_run
from openclaw_core.run.status import read_status
from openclaw_core.track.sinks import JsonlSink


def call(*args):
    return CliRunner().invoke(app, ["status", *map(str, args)])


@pytest.fixture
def run(tmp_path):
    run = create_run(tmp_path, "demo", steps=40)
    run.update(state="running", step=3, saved_step=None, weight_version=3)
    store = Store(run.store)
    store.count("received", 12)
    store.count("refused:too_long", 2)
    store.close()
    JsonlSink(run.metrics).write(3, {"loss/total": 0.25, "batch/response_tokens": 18.5, "eval/preference_rate": 0.4})
    return run


def test_the_funnel_comes_first_and_no_save_says_so(run):
    done = call(run.path)
    assert done.exit_code == 0
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    assert lines[0].startswith("demo  running  step 3 of 40")
    assert lines[1].split() == ["received", "main", "answered", "closed", "judged", "hinted", "sampled", "scored", "trained"]
    assert lines[3].split() == ["12", *"00000000"]
    text = " ".join(done.stdout.split())
    assert "last save none yet" in text
    assert "refused too_long 2" in text
    assert "held in 40% at step 3" in text
    assert "batch/response_tokens 18.5" in text
    assert "absent config.yaml" in text


def test_json(run):
    body = json.loads(call(run.path, "--json").stdout, parse_constant=lambda text: pytest.fail(text))
    assert (body["state"], body["saved_step"], body["abandoned"]) == ("running", None, False)
    assert body["store"]["funnel"]["received"] == 12


def test_trouble_has_exit_code_1(run):
    done = call(run.path, "--stall-after", 1)
    assert done.exit_code == 0
    record = json.loads(run.manifest_path.read_text())
    run.manifest_path.write_text(json.dumps({**record, "created": record["created"] - 500}))
    done = call(run.path)
    assert done.exit_code == 1
    assert "STALLED at answered for 8 min: 12 requests came and none was answered" in " ".join(done.stdout.split())
    assert call(run.path, "--stall-after", 10000).exit_code == 0
    run.add_processes(ProcessRecord("driver", 2**22 + 1, "gone", 0.0))
    done = call(run.path, "--stall-after", 10000)
    assert done.exit_code == 1
    assert "nothing drives the run any more" in " ".join(done.stdout.split())
    run.update(state="failed", reason="the judge went away")
    done = call(run.path)
    assert (done.exit_code, "failed: the judge went away" in done.stdout) == (1, True)
    assert call(run.path, "--quiet").stdout == "failed 3 40\n"


def test_a_stopped_run_names_what_goes_on_with_it(run):
    run.config.write_text("{}")
    run.update(state="stopped")
    assert f"go on with openclaw train --resume {run.path}" in " ".join(call(run.path).stdout.split())


def test_the_proxys_address(run):
    run.update(facts={"proxy": "http://127.0.0.1:4711/v1"})
    assert "proxy http://127.0.0.1:4711/v1" in " ".join(call(run.path).stdout.split())
    assert json.loads(call(run.path, "--json").stdout)["proxy"] == "http://127.0.0.1:4711/v1"


def test_wrong_runs_are_one_sentence(tmp_path):
    done = call(tmp_path / "none")
    assert done.exit_code == 2
    assert "There is no run" in done.stderr
    assert "Traceback" not in done.stderr
    (tmp_path / "run.json").write_text("[]")
    done = call(tmp_path)
    assert done.exit_code == 1
    assert "cannot be read" in done.stderr


def test_processes_of_earlier_legs_are_shown_only_while_they_live(run):
    me = ProcessRecord.of("actor-0", os.getpid())
    run.add_processes(ProcessRecord("driver-of-leg-1", 2**22 + 1, "gone", 110.0), replace(me, since=120.0))
    run.add_processes(ProcessRecord("driver-of-leg-2", 2**22 + 2, "gone", 210.0))
    leg = {"after_step": 0, "step": 0, "wall_seconds": 1.0, "seconds": {}}
    run.update(state="stopped", facts={"legs": [{"began": 100.0, **leg}, {"began": 200.0, **leg}]})
    text = call(run.path).stdout
    assert "driver-of-leg-1" not in text
    assert "left over from an earlier leg" in next(line for line in text.splitlines() if "actor-0" in line)
    assert "1 ended, none alive" in text
    past = json.loads(call(run.path, "--json").stdout)["past_processes"]
    assert [(one["role"], one["alive"]) for one in past] == [("driver-of-leg-1", False), ("actor-0", True)]


def test_it_fits_100_columns(run):
    run.add_processes(ProcessRecord("engine", 1, "x", 0.0))
    stream = io.StringIO()
    status_text(read_status(run), Console(file=stream, width=100, highlight=False))
    assert max(map(len, stream.getvalue().splitlines())) <= 100


def test_durations_are_short():
    assert [duration(seconds) for seconds in (5, 119, 600, 9000)] == ["5 s", "119 s", "10 min", "2.5 h"]
