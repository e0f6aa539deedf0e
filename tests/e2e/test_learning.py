"""The demonstration itself: a preference is learned from conversation alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e import product

SETTINGS = ["--set", "users.eval_tasks=400"]  # enough to tell a true rate of 0.94 from 0.9
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def test_the_demo_learns_the_preference_and_stays_able(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    report = json.loads(product.run("--json", "train", "--profile", "tiny-cpu", "--run-folder", str(folder), *SETTINGS))
    assert report["state"] == "finished"
    assert report["before"]["preference_rate"] < 0.01
    assert report["after"]["preference_rate"] >= 0.8
    assert report["after"]["solved_rate"] >= 0.9
    assert report["held"]["sessions"] > 0
    steps = json.loads(product.run("--json", "inspect-candidates", str(folder)))
    assert steps
    exported = tmp_path / "hf"
    product.run("convert-ckpt", str(folder), str(exported))
    assert (exported / "model.safetensors").is_file()
