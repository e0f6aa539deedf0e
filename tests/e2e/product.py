"""Drives the command line as a user does, and reads what it leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from openclaw_core.rollout.store import Store
from openclaw_core.run.manifest import Manifest
from openclaw_core.run.runfolder import RunFolder

PATIENCE_S = 400.0


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "openclaw_cli", *arguments]


def start(log: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """The command in a session of its own, so that a signal to it reaches nobody else."""
    with log.open("ab") as out:
        environment = {**os.environ, "OPENCLAW_DEBUG": "1"}
        return subprocess.Popen(command(*arguments), stdout=out, stderr=out, start_new_session=True, env=environment)


def run(*arguments: str) -> str:
    """Standard output of a command that must succeed."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def manifest(folder: Path) -> Manifest | None:
    run_folder = RunFolder(folder)
    return run_folder.read() if run_folder.manifest_path.exists() else None


def until(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    """Waits for condition while the process lives."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert process.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.1)


def reaches(folder: Path, step: int) -> Callable[[], bool]:
    def reached() -> bool:
        found = manifest(folder)
        return found is not None and found.state == "running" and found.step >= step

    return reached


def pid_of(folder: Path, role: str) -> int:
    """The newest living process of a role."""
    found = manifest(folder)
    assert found is not None
    return next(record.pid for record in reversed(found.processes) if record.role == role and record.alive())


def living(folder: Path) -> list[str]:
    """Roles of recorded processes that still live."""
    return [record.role for record in RunFolder(folder).survivors()]


def trained_steps(folder: Path) -> dict[str, int]:
    """Step of each trained sample."""
    store = Store(RunFolder(folder).store, read_only=True)
    try:
        return {r.sample.sample_id: r.trained_step or 0 for r in store.samples(state="trained", limit=10_000)}
    finally:
        store.close()


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in RunFolder(folder).metrics.read_text().splitlines()]
