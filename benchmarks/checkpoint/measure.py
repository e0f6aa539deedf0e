"""One measurement: a program as a child process, its wall time, its processor time and its peak resident memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Cost:
    """Seconds of wall clock and of processor, peak resident bytes, and the machine's load average before and after."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    load_before: float
    load_after: float

    def to_dict(self) -> dict[str, float]:
        return {key: round(value, 2) for key, value in asdict(self).items()}


def run(command: Sequence[str]) -> Cost:
    """Runs a program to its end. Raises RuntimeError with its output when it fails.

    Linux counts to a child's peak what its parent held when it started it: so a small process of this file starts it.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    starter = [sys.executable, "-S", "-E", __file__, *command]
    done = subprocess.run(starter, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    return Cost(**json.loads(done.stdout))


def _start(command: Sequence[str]) -> int:
    """Runs the program in this process's name: its cost goes to stdout, its output to stderr; returns its exit code."""
    before = os.getloadavg()[0]
    started = time.monotonic()
    child = subprocess.Popen(list(command), stdout=sys.stderr, stderr=sys.stderr)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.monotonic() - started
    child.returncode = os.waitstatus_to_exitcode(status)
    cost = Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, before, os.getloadavg()[0])
    print(json.dumps(asdict(cost)))
    return child.returncode


def convert_command(source: Path, target: Path) -> list[str]:
    """The product's own command, as a user would type it."""
    return [sys.executable, "-m", "openclaw_cli", "--quiet", "convert-ckpt", str(source), str(target)]


def copy_and_hash_command(source: Path, target: Path) -> list[str]:
    """cp of the weights to a new folder, synced as a conversion is, then sha256sum of the copy."""
    script = 'set -e; mkdir "$2"; cp "$1"/*.safetensors "$2"/; sync "$2"/*; sha256sum "$2"/*'
    return ["bash", "-c", script, "copy", str(source), str(target)]


if __name__ == "__main__":
    sys.exit(_start(sys.argv[1:]))
