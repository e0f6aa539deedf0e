"""Drives `openclaw train` as a child process: one folder per run, from one copy of the program, never longer than its time."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path

import psutil

from benchmarks.experiments import Run
from benchmarks.results import Record, from_dict, read_run, to_dict
from openclaw_core.errors import UserError
from openclaw_core.files import write_atomic

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("openclaw_cli", "openclaw_core", "profiles")
# What a finished run keeps: enough to read it again, without tensors and conversations.
LEFT_OUT = ("dumps", "checkpoints", "models", "weights", "store.sqlite", "store.sqlite-wal", "store.sqlite-shm")
RESULT = "result.json"
SAMPLE_EVERY_S = 1.0
PATIENCE_S = 90.0


def machine() -> str:
    """Processor, cores and versions that a run's times depend on."""
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    return f"{model}, {cores} cores, {memory:.0f} GiB, Python {platform.python_version()}, torch {version('torch')}"


def folder_of(work: Path, run: Run) -> Path:
    """The run's folder below work: readable, and one per set of settings."""
    key = hashlib.sha256(json.dumps(run.settings).encode()).hexdigest()[:12]
    return work / "runs" / f"{key}-seed{run.seed}"


def result_of(work: Path, run: Run) -> Record | None:
    """What an earlier call wrote down about this run; None where nothing is known."""
    try:
        record = from_dict(json.loads((folder_of(work, run) / RESULT).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return record if record.settings == run.settings else None


@dataclass(frozen=True)
class Program:
    """A copy of the packages that all runs of a work folder use, so that edits meanwhile can't mix versions. name tells which."""

    folder: Path
    name: str

    @classmethod
    def in_work(cls, work: Path) -> Program:
        """The copy below work, made at the first call. The name is its commit, and says where files differed from it."""
        folder, label = work / "program", work / "program.txt"
        if not label.exists():
            shutil.rmtree(folder, ignore_errors=True)
            for package in PACKAGES:
                shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
            write_atomic(label, _commit() + "\n")
        return cls(folder, label.read_text().strip())

    def environment(self) -> dict[str, str]:
        """This process's environment with the copy first on the path; runs get their own Ray cluster."""
        kept = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS" and not name.startswith("OPENCLAW__")}
        path = os.pathsep.join(part for part in (str(self.folder), kept.get("PYTHONPATH", "")) if part)
        return {**kept, "PYTHONPATH": path}


def _commit() -> str:
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", *PACKAGES)
        return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "not under version control"


@dataclass
class CpuTimes:
    """CPU seconds of a process and all below it, as last seen while they lived."""

    seen: dict[tuple[int, float], float] = field(default_factory=dict)

    def look(self, pid: int) -> list[psutil.Process]:
        """Reads every living process of the tree; returns them."""
        with suppress(psutil.Error):
            top = psutil.Process(pid)
            tree = [top, *top.children(recursive=True)]
            for process in tree:
                with suppress(psutil.Error):
                    times = process.cpu_times()
                    self.seen[process.pid, process.create_time()] = times.user + times.system
            return tree
        return []

    @property
    def total(self) -> float:
        return sum(self.seen.values())


class Driver:
    """Runs one or more at a time, from several threads; stop() ends those under way the way a terminal would."""

    def __init__(self, work: Path, *, timeout_s: float, jobs: int, keep: bool) -> None:
        self.work, self.timeout_s, self.jobs, self.keep = work, timeout_s, jobs, keep
        self.program = Program.in_work(work)
        self.machine = machine()
        self._stop = threading.Event()

    def stop(self) -> None:
        """Runs under way end; later ones don't start."""
        self._stop.set()

    def run(self, run: Run) -> Record | None:
        """Runs it from the start and writes its result down; None where stop() came first, of which nothing is kept."""
        if self._stop.is_set():
            return None
        before = result_of(self.work, run)
        folder = folder_of(self.work, run)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        output, cpu = folder.with_suffix(".txt"), CpuTimes()
        begin = time.monotonic()
        trouble = self._drive(run, folder, output, cpu)
        if trouble is None and self._stop.is_set():
            shutil.rmtree(folder, ignore_errors=True)
            if before:
                self._keep(folder, output, before)
            output.unlink(missing_ok=True)
            return None
        record = read_run(run, folder)
        if trouble or not record.finished:
            reason = trouble or record.error
            record = replace(record, state="failed", error=f"{reason} {_last_words(output)}".strip())
        earlier = (*before.earlier, before.error) if before and before.error else before.earlier if before else ()
        record = replace(
            record,
            earlier=earlier,
            wall_seconds=round(time.monotonic() - begin, 1),
            cpu_seconds=round(cpu.total, 1),
            load=round(os.getloadavg()[0], 1),
            jobs=self.jobs,
            machine=self.machine,
            program=self.program.name,
        )
        self._keep(folder, output, record)
        return record

    def _drive(self, run: Run, folder: Path, output: Path, cpu: CpuTimes) -> str | None:
        """Starts the child and waits for it; what went wrong, or None."""
        argv = [sys.executable, "-m", "openclaw_cli", "--json", *run.arguments(), "--run-folder", str(folder)]
        with output.open("wb") as log:
            child = subprocess.Popen(
                argv,
                cwd=self.program.folder,
                env=self.program.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + self.timeout_s
        while child.poll() is None:
            cpu.look(child.pid)
            if self._stop.is_set():
                _end(child, cpu)
                return None
            if time.monotonic() > deadline:
                _end(child, cpu)
                return f"It took longer than {self.timeout_s:.0f} s."
            with suppress(subprocess.TimeoutExpired):
                child.wait(SAMPLE_EVERY_S)
        return None if child.returncode == 0 else f"It ended with exit code {child.returncode}."

    def _keep(self, folder: Path, output: Path, record: Record) -> None:
        folder.mkdir(exist_ok=True)
        output.replace(folder / "output.txt")
        if record.finished and not self.keep:
            for name in LEFT_OUT:
                path = folder / name
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        write_atomic(folder / RESULT, json.dumps(to_dict(record)) + "\n")


def _end(child: subprocess.Popen[bytes], cpu: CpuTimes) -> None:
    """Asks the run to stop, as a user would; what is left of it after a while is ended, by process and not by name."""
    tree = cpu.look(child.pid)
    child.send_signal(signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        child.wait(PATIENCE_S)
    for process in {*tree, *cpu.look(child.pid)}:
        with suppress(psutil.Error):
            if process.is_running():
                process.kill()
    child.wait()


def _last_words(output: Path) -> str:
    """What the run said itself: the error of its JSON, else its last line."""
    lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
    for line in reversed(lines):
        with suppress(ValueError):
            body = json.loads(line)
            if isinstance(body, dict) and "error" in body:
                return str(body["error"])
    return lines[-1].strip()[:300] if lines and lines[-1].strip() != "}" else ""


def require_program() -> None:
    """Raises UserError where the packages aren't beside the benchmarks, as in an installed copy."""
    missing = [package for package in PACKAGES if not (ROOT / package).is_dir()]
    if missing:
        raise UserError(f"{ROOT} has no {', '.join(missing)}.", "Start the benchmarks from a checkout of the repository.")
