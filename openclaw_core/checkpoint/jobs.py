"""A conversion in pieces: jobs of whole tensors, run by two workers, each journalled with its hashes when it is verified."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from openclaw_core.checkpoint.mapping import Unit
from openclaw_core.checkpoint.names import JOURNAL
from openclaw_core.checkpoint.verify import TensorCheck

JOB_BYTES = 512 * 2**20
FORMAT = 1


@dataclass(frozen=True)
class Job:
    """Units that hold every slice of the tensors they touch; nbytes is the size of their boxes."""

    number: int
    units: tuple[Unit, ...]
    nbytes: int


@dataclass(frozen=True)
class Done:
    """A job that was written and compared: places as (start, length) of its boxes in its file, checks of its tensors."""

    places: list[tuple[int, int]]
    checks: list[TensorCheck]


def split_jobs(units: Iterable[Unit], dtypes: dict[str, torch.dtype], limit: int = JOB_BYTES) -> list[Job]:
    """Consecutive units, cut where limit bytes are reached and no tensor lies on both sides of the cut."""
    jobs: list[Job] = []
    group: list[Unit] = []
    size = 0
    for unit in units:
        if size >= limit and unit.slices and not {one.name for one in unit.slices} & {one.name for one in group[-1].slices}:
            jobs.append(Job(len(jobs), tuple(group), size))
            group, size = [], 0
        group.append(unit)
        size += math.prod(unit.sizes) * dtypes[unit.stored].itemsize
    return [*jobs, Job(len(jobs), tuple(group), size)]


def run_jobs(jobs: Iterable[Job], work: Callable[[Job, threading.Event], None], workers: int = 2) -> None:
    """Runs work over jobs in threads; the first error (or an interrupt) sets the event, and is raised once all have ended."""
    stop = threading.Event()
    with ThreadPoolExecutor(workers, thread_name_prefix="convert") as pool:
        futures = [pool.submit(work, job, stop) for job in jobs]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        except BaseException:
            _cancel(futures, stop)
            raise
        failed = next((future for future in done if future.exception() is not None), None)
        if failed is not None:
            _cancel(futures, stop)
            wait(futures)
            raise failed.exception()  # type: ignore[misc]


def _cancel(futures: list[Any], stop: threading.Event) -> None:
    stop.set()
    for future in futures:
        future.cancel()


class StoppedError(Exception):
    """A worker saw that another one failed."""


class Journal:
    """Which jobs of a conversion are done; lies in the unfinished folder. fingerprint says which conversion it is."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._path = folder / JOURNAL
        self._lock = threading.Lock()
        self.done: dict[int, Done] = _read(self._path, fingerprint) or {}
        if not self.done:
            self._path.write_text(json.dumps({"fingerprint": fingerprint}) + "\n", encoding="utf-8")

    def add(self, job: Job, done: Done) -> None:
        """Notes a job whose every tensor was equal."""
        record = {"job": job.number, "places": done.places, "checks": [asdict(check) for check in done.checks]}
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def close(self) -> None:
        """The conversion is complete."""
        self._path.unlink()


def has_journal(folder: Path, fingerprint: str) -> bool:
    """Whether an unfinished folder holds finished jobs of this very conversion."""
    return bool(_read(folder / JOURNAL, fingerprint))


def _read(path: Path, fingerprint: str) -> dict[int, Done] | None:
    """Finished jobs by number; None when this is the journal of another conversion. A line cut short ends it."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        if json.loads(lines[0])["fingerprint"] != fingerprint:
            return None
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None
    done: dict[int, Done] = {}
    for line in lines[1:]:
        try:
            record = json.loads(line)
            checks = [TensorCheck(**{**check, "shape": tuple(check["shape"])}) for check in record["checks"]]
            done[record["job"]] = Done([tuple(place) for place in record["places"]], checks)
        except (ValueError, KeyError, TypeError):
            break
    return done


def fingerprint(facts: dict[str, Any], files: Iterable[Path]) -> str:
    """Identifies a conversion: what it makes, and its source files by size and time of change."""
    sources = [(str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(files)]
    text = json.dumps({"format": FORMAT, "facts": facts, "sources": sources}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
