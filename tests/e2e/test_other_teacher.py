"""The whole loop with a teacher of another family and size, read from its Hugging Face folder as it is."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.e2e import product

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
make = runpy.run_path(str(Path(__file__).parents[1] / "teacher" / "foreign.py"))["make"]
SETTINGS = [
    "--set", "train.batch_size=4", "--set", "train.steps=2", "--set", "users.eval_tasks=4", "--set", "users.concurrency=4",
    "--set", "loss.opd_on_rl_only=anchor",
]  # fmt: skip


def test_a_teacher_of_another_size_completes_steps_and_stays_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    make(tmp_path / "teacher")
    product.run(
        "train", "--profile", "tiny-cpu", "--run-folder", str(folder), "--set", f"teacher.hf={tmp_path / 'teacher'}", *SETTINGS
    )
    facts = product.manifest(folder).facts
    assert facts["teacher_hash"] == facts["teacher_hash_end"]
    steps = [line for line in product.metrics(folder) if line["step"] > 0 and "loss/opd" in line]
    assert len(steps) == 2
    for line in steps:
        assert line["loss/opd"] != 0
        assert 0 < line["teacher/tokens"] <= line["teacher/tokens_whole"] <= line["teacher/tokens_published"]
        assert line["seconds/teacher"] >= 0
