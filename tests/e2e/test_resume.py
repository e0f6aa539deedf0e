"""A run that is ended in every way it can be, and goes on each time."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e import product

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
BATCH = 8
SETTINGS = [
    "--set", f"train.batch_size={BATCH}", "--set", "train.steps=12", "--set", "train.save_every=2",
    "--set", "users.eval_tasks=10", "--set", "users.eval_every=100", "--set", "users.concurrency=8",
]  # fmt: skip


def test_no_sample_is_lost_or_trained_twice(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    begin = ("train", "--profile", "tiny-cpu", "--run-folder", str(folder), *SETTINGS)
    for step, role in enumerate(("rollout-0-server", "actor-0", "teacher-0", "proxy-0", "users-0"), 2):
        process = product.start(log, *begin)
        product.until(product.reaches(folder, step), process, log)
        os.kill(product.pid_of(folder, role), signal.SIGKILL)
        assert process.wait(product.PATIENCE_S) == 1
        assert_ended(folder, "failed")
        begin = ("train", "--resume", str(folder))

    for ending, step in ((signal.SIGKILL, 7), (signal.SIGTERM, 9), (signal.SIGINT, 10)):
        saved = product.manifest(folder).saved_step
        process = product.start(log, "train", "--resume", str(folder))
        product.until(product.reaches(folder, step), process, log)
        os.kill(process.pid, ending)
        code = process.wait(product.PATIENCE_S)
        if ending is signal.SIGKILL:
            assert product.manifest(folder).saved_step >= saved
            continue
        assert code == 0, log.read_text()[-4000:]
        assert_ended(folder, "stopped")
        found = product.manifest(folder)
        assert found.saved_step == found.step >= step, "a stop saves the last step"

    product.run("train", "--resume", str(folder))
    assert_ended(folder, "finished")
    assert Counter(product.trained_steps(folder).values()) == dict.fromkeys(range(1, 13), BATCH)
    report = product.run("--json", "status", str(folder))
    assert '"finished"' in report


def assert_ended(folder: Path, state: str) -> None:
    assert product.manifest(folder).state == state
    deadline = time.monotonic() + 20
    while product.living(folder) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert product.living(folder) == []
