"""Conversions that were killed go on from what was finished, and only if it still has its hashes and the same source."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from openclaw_core.checkpoint import convert as module
from openclaw_core.checkpoint import jobs
from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.names import JOURNAL
from openclaw_core.checkpoint.recheck import recheck
from openclaw_core.checkpoint.torch_dist import TorchDistReader, resolve

PROGRAM = """
import functools, os, time
from pathlib import Path
from openclaw_core.checkpoint import convert as module
from openclaw_core.checkpoint.convert import convert, plan_conversion
module.split_jobs = functools.partial(module.split_jobs, limit=4096)
module.WORKERS = 1
journal = Path({partial!r}) / "journal.jsonl"
def wait(stage, done, total):
    if stage == "verify" and journal.is_file() and len(journal.read_text().splitlines()) > 4:
        print("now", flush=True)
        time.sleep(60)
convert(plan_conversion({source!r}, {target!r}, hf_config={config!r}), progress=wait)
"""


@pytest.fixture
def small_jobs(monkeypatch):
    monkeypatch.setattr(module, "split_jobs", lambda units, dtypes: jobs.split_jobs(units, dtypes, 4096))


def kill_midway(source: Path, target: Path, config: Path | None = None) -> Path:
    """Starts a conversion, kills it after four jobs, and returns the unfinished folder."""
    partial = target.with_name(f".{target.name}.partial")
    code = PROGRAM.format(source=str(source), target=str(target), partial=str(partial), config=config and str(config))
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline().strip() == "now"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    return partial


@pytest.mark.parametrize("direction", ["import", "export"])
def test_a_killed_conversion_goes_on(make_hf, read_hf, tmp_path, small_jobs, direction):
    source = make_hf(tie_word_embeddings=False)
    target = tmp_path / "made"
    if direction == "export":
        convert(plan_conversion(source, tmp_path / "td"))
    origin = source if direction == "import" else tmp_path / "td"
    kill_midway(origin, target)
    done = convert(plan_conversion(origin, target))
    assert 0 < done.kept < done.plan.nbytes
    assert len(done.checks) == 36
    assert all(check.equal for check in done.checks)
    assert not (target / JOURNAL).exists()
    if direction == "import":
        convert(plan_conversion(target, tmp_path / "back"))
        target = tmp_path / "back"
    a, b = read_hf(source), read_hf(target)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_finished_parts_that_changed_are_made_again(make_hf, tmp_path, small_jobs):
    source = make_hf()
    partial = kill_midway(source, tmp_path / "td")
    with (partial / "release" / "__0_0.distcp").open("r+b") as file:
        file.seek(2000)
        file.write(b"\xff" * 64)
    done = convert(plan_conversion(source, tmp_path / "td"))
    assert all(check.equal for check in done.checks)
    assert TorchDistReader(resolve(tmp_path / "td")).contents.tensors


def test_another_conversion_starts_anew(make_hf, tmp_path, small_jobs):
    source = make_hf()
    kill_midway(source, tmp_path / "td")
    assert convert(plan_conversion(source, tmp_path / "td", tp=4)).kept == 0


def test_a_resumed_conversion_keeps_nothing_of_another_config(make_hf, read_hf, tmp_path, small_jobs):
    """The shapes are the same with twice the heads of half the size; which rows are whose isn't."""
    one = make_hf("one", family="llama", head_dim=16)
    two = make_hf("two", family="llama", head_dim=8, num_attention_heads=8, num_key_value_heads=4)
    convert(plan_conversion(one, tmp_path / "td"))
    (tmp_path / "td" / "release").rename(tmp_path / "bare")
    kill_midway(tmp_path / "bare", tmp_path / "made", one)
    done = convert(plan_conversion(tmp_path / "bare", tmp_path / "made", hf_config=two))
    assert done.kept == 0
    convert(plan_conversion(tmp_path / "bare", tmp_path / "anew", hf_config=two))
    made, anew, other = (read_hf(folder) for folder in (tmp_path / "made", tmp_path / "anew", one))
    assert all(torch.equal(made[name], anew[name]) for name in anew)
    assert any(not torch.equal(made[name], other[name]) for name in other)
    kill_midway(tmp_path / "bare", tmp_path / "again", two)
    assert convert(plan_conversion(tmp_path / "bare", tmp_path / "again", hf_config=two)).kept > 0


def test_an_interrupt_leaves_what_is_finished(make_hf, tmp_path, small_jobs, monkeypatch):
    source = make_hf()
    honest = module.run_jobs

    def interrupted(all_jobs, work, workers):
        honest(all_jobs[:3], work, workers)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "run_jobs", interrupted)
        with pytest.raises(KeyboardInterrupt):
            convert(plan_conversion(source, tmp_path / "td"))
    assert not (tmp_path / "td").exists()
    assert convert(plan_conversion(source, tmp_path / "td")).kept > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "td"]


@pytest.mark.parametrize("direction", ["import", "export"])
def test_an_interrupt_of_the_last_check_leaves_all_that_was_written(make_hf, tmp_path, small_jobs, direction):
    source = make_hf()
    if direction == "export":
        convert(plan_conversion(source, tmp_path / "td"))
        source = tmp_path / "td"

    def interrupted(folder):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(plan_conversion(source, tmp_path / "made"), last_check=interrupted)
    assert not (tmp_path / "made").exists()
    done = convert(plan_conversion(source, tmp_path / "made"))
    assert done.kept == sum(job.nbytes for job in jobs.split_jobs(done.plan.mapping.units, done.plan.stored_dtypes))
    assert not (tmp_path / "made" / JOURNAL).exists()
    assert not recheck(tmp_path / "made", source).problems


def test_no_tensor_lies_in_two_jobs(make_hf, tmp_path):
    plan = plan_conversion(make_hf(tie_word_embeddings=False), tmp_path / "td")
    made = jobs.split_jobs(plan.mapping.units, plan.stored_dtypes, 1)
    assert len(made) == 30
    assert [unit for job in made for unit in job.units] == list(plan.mapping.units)
    names = [{one.name for unit in job.units for one in unit.slices} for job in made]
    assert sum(map(len, names)) == len(set().union(*names)) == 36
