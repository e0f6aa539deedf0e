"""What validate --numerics proves, and that it sees weights which aren't those of the folder beside them."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_core.checkpoint.convert import convert
from openclaw_core.checkpoint.plan import plan_conversion
from openclaw_core.errors import UserError
from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.run import numerics
from openclaw_core.teacher.compat import CHECKS, validate

launch = runpy.run_path(str(Path(__file__).parents[1] / "worlds.py"))["launch"]
foreign = runpy.run_path(str(Path(__file__).parents[1] / "teacher" / "foreign.py"))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory) -> Path:
    """A torch_dist checkpoint."""
    folder = tmp_path_factory.mktemp("numerics")
    foreign["make"](folder / "hf")
    convert(plan_conversion(folder / "hf", folder / "teacher", to="torch_dist"))
    return folder / "teacher"


def test_both_models_are_computed_and_the_student_learns_nothing_from_itself(teacher):
    call = ["validate", "--student", str(foreign["TINY"]), "--teacher", str(teacher), "--numerics", "--json"]
    done = CliRunner().invoke(app, call)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["checks"][len(CHECKS) :]
    assert [check["state"] for check in found] == ["ok"] * 3
    assert [check["number"] for check in found] == [len(CHECKS) + n for n in (1, 2, 3)]
    assert "nats in fp32" in found[0]["student"]
    assert "nats in fp32" in found[1]["teacher"]


def test_one_log_prob_that_differs_is_seen(tmp_path):
    tiny = foreign["TINY"]
    vocab = architecture_from_hf(tiny).vocab
    ids = numerics._text_ids(tiny, vocab)
    theirs = numerics._hugging_face(tiny, ids, torch.float32, torch.device("cpu"), vocab)
    theirs[3, theirs[3].argmax()] += 0.02
    torch.save({"model": str(tiny), "ids": ids, "theirs": theirs}, tmp_path / "given.pt")
    launch(Path(__file__).with_name("numerics_program.py"), "compare", 1, tmp_path)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["rows"] == len(theirs)
    assert found["difference"] == pytest.approx(0.02, abs=1e-4)


@pytest.mark.parametrize(
    ("dtype", "difference", "state"), [("fp32", 2e-5, "ok"), ("fp32", 2e-4, "problem"), ("bf16", 0.05, "ok")]
)
def test_what_is_more_than_rounding_is_a_problem(monkeypatch, dtype, difference, state):
    tiny = str(foreign["TINY"])
    cells = {"student/shortest": 0.0, "overlap/shortest": 1e-3 if state == "problem" else 1e-8}
    found = {"rows": 3, "difference": difference, "cells": cells}
    monkeypatch.setattr(numerics, "_in_its_own_process", lambda task: found)
    report = numerics.prove(validate(tiny, tiny), tiny, tiny, dtype=dtype)
    assert [check.state for check in report.checks[len(CHECKS) :]] == [state] * 3
    if state == "problem":
        assert "at most 0.0001 is rounding" in report.problems[0].finding
        assert "overlap/shortest (1.0e-03)" in report.problems[2].finding


def test_what_cannot_be_computed_is_a_sentence(tmp_path):
    report = validate(str(tmp_path), str(tmp_path))
    with pytest.raises(UserError, match="couldn't be computed"):
        numerics.prove(report, str(tmp_path), str(tmp_path))


def test_a_pair_with_problems_is_not_computed_and_that_is_said(tmp_path):
    tiny = tmp_path / "tiny"
    shutil.copytree(foreign["TINY"], tiny)
    (tiny / "tokenizer.json").write_text("{")
    call = ["validate", "--student", str(tiny), "--teacher", str(foreign["TINY"]), "--numerics"]
    done = CliRunner().invoke(app, [*call, "--json"])
    assert done.exit_code == 1
    last = json.loads(done.stdout)["checks"][-1]
    assert (last["number"], last["state"], last["finding"]) == (
        len(CHECKS) + 1,
        "skipped",
        "Not computed: the pair has problems.",
    )
    assert f"{len(CHECKS) + 1}." in CliRunner().invoke(app, call).stdout.split("Not checked:")[1]
