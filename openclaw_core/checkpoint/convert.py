"""Hugging Face folder <-> torch_dist, streamed unit by unit: no model, no process group, no GPU."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from openclaw_core.checkpoint.atomic import new_folder
from openclaw_core.checkpoint.jobs import Done, Job, Journal, StoppedError, fingerprint, has_journal, run_jobs, split_jobs
from openclaw_core.checkpoint.manifest import Manifest, sync, write_manifest
from openclaw_core.checkpoint.plan import DTYPES, WORKERS, Plan, plan_conversion
from openclaw_core.checkpoint.sides import HfFolderSide, Side, TorchDistSide
from openclaw_core.checkpoint.verify import Each, Progress, TensorCheck
from openclaw_core.errors import Findings, UserError

__all__ = ["DTYPES", "Conversion", "Plan", "convert", "plan_conversion"]


@dataclass(frozen=True)
class Conversion:
    """A finished conversion: what was planned, the comparison of every tensor (empty without verify), and its cost.

    kept counts the bytes that an interrupted run had finished, whose hashes still held.
    """

    plan: Plan
    checks: tuple[TensorCheck, ...]
    seconds: float
    peak_bytes: int
    kept: int = 0


def convert(
    plan: Plan,
    *,
    overwrite: bool = False,
    verify: bool = True,
    progress: Progress | None = None,
    last_check: Callable[[Path], None] = lambda folder: None,
) -> Conversion:
    """Carries out a plan. The target appears whole, with its manifest, or not at all.

    verify compares every tensor bitwise after writing and hashes it; with it, a conversion that was killed or interrupted
    goes on where it was: finished parts are hashed again and kept. progress is called with a stage (write, verify), bytes
    done and bytes in all. last_check sees the complete folder before it takes the target's place, and may raise. Raises
    UserError when the target exists, the disk is full, a tensor differs or the source changed meanwhile.
    """
    started = time.monotonic()
    identity = _fingerprint(plan)
    with new_folder(
        plan.target,
        overwrite=overwrite,
        needed_bytes=plan.room,
        resumable=lambda partial: verify and has_journal(partial, identity),
    ) as folder:
        journal = Journal(folder, identity)
        side: Side = TorchDistSide(plan, folder) if plan.to == "torch_dist" else HfFolderSide(plan, folder, bool(journal.done))
        with closing(side), _unchanged(plan, identity):
            run = _Run(plan, side, journal, verify, progress)
            run.all()
            companions = side.finish(run.places)
            checks = (*run.checks(), *(side.check_carried() if verify else []))
            _require_equal(plan.target, checks)
        _finish(plan, folder, checks, companions, side.files)
        seconds = time.monotonic() - started
        last_check(folder)
        journal.close()
    return Conversion(plan, checks, seconds, _peak_bytes(), run.kept)


class _Run:
    """All jobs of a conversion: written, read back, synced in the background."""

    def __init__(self, plan: Plan, side: Side, journal: Journal, verify: bool, progress: Progress | None) -> None:
        self._side, self._journal, self._verify, self._progress = side, journal, verify, progress
        self._jobs = split_jobs(plan.mapping.units, plan.stored_dtypes)
        self._target, self._order = plan.target, plan.mapping.hf
        self._total = sum(job.nbytes for job in self._jobs)
        self._counts = {"write": 0, "verify": 0}
        self._lock = threading.Lock()
        self._found: dict[int, Done] = {}
        self._syncing = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self.kept = 0

    def all(self) -> None:
        """Runs every job to its end. Raises Findings with every tensor that differs."""
        with self._syncing:
            run_jobs(self._jobs, self._one, WORKERS)
        _require_equal(self._target, [check for done in self._found.values() for check in done.checks])

    @property
    def places(self) -> dict[int, list[tuple[int, int]]]:
        return {number: done.places for number, done in self._found.items()}

    def checks(self) -> tuple[TensorCheck, ...]:
        """Of every tensor, in the mapping's order."""
        found = {check.name: check for done in self._found.values() for check in done.checks}
        return tuple(found[name] for name in self._order if name in found)

    def _one(self, job: Job, stop: threading.Event) -> None:
        def counting(stage: str) -> Each:
            def each(nbytes: int) -> None:
                if stop.is_set():
                    raise StoppedError
                self._count(stage, nbytes)

            return each

        earlier = self._journal.done.get(job.number)
        if earlier is not None:
            sums = self._side.hashes(job, earlier.places, counting("verify"))
            if sums == {check.name: check.sha256 for check in earlier.checks}:
                self._count("write", job.nbytes)
                with self._lock:
                    self._found[job.number] = earlier
                    self.kept += job.nbytes
                return
        path, places = self._side.write(job, counting("write"))
        self._syncing.submit(sync, path)
        checks = self._side.check(job, places, counting("verify")) if self._verify else []
        done = Done(places, checks)
        if self._verify and all(check.equal for check in checks):
            self._journal.add(job, done)
        with self._lock:
            self._found[job.number] = done

    def _count(self, stage: str, nbytes: int) -> None:
        with self._lock:
            self._counts[stage] += nbytes
            if self._progress is not None:
                self._progress(stage, min(self._counts[stage], self._total), self._total)


@contextmanager
def _unchanged(plan: Plan, identity: str) -> Iterator[None]:
    """Raises UserError where the source changed within the block, whatever that led to."""
    failed: Exception | None = None
    try:
        yield
    except Exception as error:  # of a mapped file that is cut short reads and writes fail in many ways
        failed = error
    try:
        changed = _fingerprint(plan) != identity
    except OSError:
        changed = True
    if changed:
        what = f"{plan.source.root} changed while it was converted; {plan.target} wasn't written."
        raise UserError(what, "Convert again when nothing writes to it.") from failed
    if failed is not None:
        raise failed


def _peak_bytes() -> int:
    """The most memory that this process had resident; getrusage's figure may be that of the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _require_equal(target: Path, checks: Sequence[TensorCheck]) -> None:
    wrong = [(f"{check.name} differs from {check.stored}.", "") for check in checks if not check.equal]
    if wrong:
        raise Findings(f"{target} wasn't written: {len(wrong)} of {len(checks)} tensors differ after the round trip.", wrong)


def _fingerprint(plan: Plan) -> str:
    facts: dict[str, Any] = {
        "target": plan.to,
        "stored": {name: (shape, str(plan.stored_dtypes[name])) for name, shape in plan.mapping.stored.items()},
        "hf": {name: (shape, str(plan.hf_dtypes[name])) for name, shape in plan.mapping.hf.items()},
        "units": len(plan.mapping.units),
        "architecture": dataclasses.asdict(plan.architecture),
        "config": os.path.realpath(plan.config_folder),
    }
    files = [path for path in plan.source.folder.iterdir() if path.is_file()]
    return fingerprint(facts, files)


def _finish(plan: Plan, folder: Path, checks: tuple[TensorCheck, ...], companions: dict[str, str], files: dict[str, str]) -> None:
    sums = {check.name: check.sha256 for check in checks}

    def stated(tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]]) -> dict[str, dict[str, Any]]:
        return {
            name: {"shape": list(shape), "dtype": str(dtype).removeprefix("torch."), "sha256": sums.get(name)}
            for name, (shape, dtype) in tensors.items()
        }

    tensors = stated({name: (shape, plan.hf_dtypes[name]) for name, shape in plan.mapping.hf.items()})
    carried = stated({name: (entry.shape, entry.dtype) for name, entry in plan.carried.items()})
    vocabulary = {
        "real": plan.architecture.vocab,
        "padded": plan.layout.padded if plan.to == "torch_dist" else plan.architecture.vocab,
    }
    facts = dataclasses.asdict(plan.architecture)
    source = str(plan.source.folder.absolute())
    write_manifest(folder, Manifest(plan.to, source, facts, vocabulary, tensors, companions, carried, files, plan.left_out))
