"""The folder of a run: where each thing lies, and run.json, which says what the run is doing.

run.json is replaced as a whole and under a lock, so that a reader always sees a complete one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from ..errors import UsageError, UserError
from ..files import write_atomic
from ..track.jsonl import dumps
from .manifest import STATES, Manifest, parse_manifest
from .processes import ProcessRecord

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_STEP_FOLDER = re.compile(r"step-(\d{6,})")


def valid_name(name: str, *, what: str = "run name") -> str:
    """name, where it is safe as one part of a path; raises UsageError otherwise."""
    if not NAME.fullmatch(name) or ".." in name:
        raise UsageError(
            f"The {what} {name!r} can't be used.",
            "Use 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or a digit, without '..'.",
        )
    return name


def file_key(identifier: str) -> str:
    """A file name for an id from outside: its hash, so that no id becomes a path."""
    return hashlib.sha256(identifier.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run; nothing is made until it is written. runs.py makes and finds them."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def manifest_path(self) -> Path:
        return self.path / "run.json"

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def store(self) -> Path:
        return self.path / "store.sqlite"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def dumps(self) -> Path:
        return self.path / "dumps"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        return self.path / "weights"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def report(self) -> Path:
        return self.path / "report.json"

    def log(self, role: str) -> Path:
        """The log of a role; raises UsageError for a role that is no plain name."""
        return self.logs / f"{valid_name(role, what='role')}.log"

    def checkpoint(self, step: int) -> Path:
        """Folder of the checkpoint of a step."""
        return self.checkpoints / f"step-{step:06d}"

    def checkpoint_steps(self) -> list[int]:
        """Steps that have a checkpoint folder, oldest first; folders that are still being written have another name."""
        if not self.checkpoints.is_dir():
            return []
        matches = (_STEP_FOLDER.fullmatch(entry.name) for entry in self.checkpoints.iterdir() if entry.is_dir())
        return sorted(int(match[1]) for match in matches if match)

    def tokenizer(self) -> Path | None:
        """tokenizer.json of the student: in the run's weights, or in a folder that the manifest names; else None."""
        folders = [self.weights]
        if self.weights.is_dir():
            folders += sorted(entry for entry in self.weights.iterdir() if entry.is_dir())
        if self.manifest_path.exists():
            facts = self.read().facts
            folders += [Path(facts[key]) for key in ("tokenizer", "student") if isinstance(facts.get(key), str)]
        found = (folder if folder.name == "tokenizer.json" else folder / "tokenizer.json" for folder in folders)
        return next((path for path in found if path.is_file()), None)

    def read(self) -> Manifest:
        """The manifest; raises UserError where it is missing or cannot be understood."""
        try:
            record = json.loads(self.manifest_path.read_text("utf-8"))
            return parse_manifest(record)
        except FileNotFoundError:
            raise UserError(f"{self.path} is not a run folder: it has no run.json.", "Give the folder of a run.") from None
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise UserError(f"{self.manifest_path} cannot be read: {error}.", "Restore it, or use another run.") from None

    def update(self, **changes: Any) -> Manifest:
        """Change fields of the manifest, safely beside other writers; returns the new one.

        versions and facts are merged key by key. Raises ValueError for an unknown state and TypeError for an unknown field.
        """
        with self._locked():
            old = self.read()
            for name in ("versions", "facts"):
                if name in changes:
                    changes[name] = {**getattr(old, name), **changes[name]}
            new = replace(old, **changes, updated=time.time())
            self.write(new)
        return new

    def add_processes(self, *records: ProcessRecord) -> Manifest:
        """Record processes that this run started; one that is there by pid and start is replaced."""
        with self._locked():
            old = self.read()
            keys = {(record.pid, record.start) for record in records}
            kept = tuple(record for record in old.processes if (record.pid, record.start) not in keys)
            new = replace(old, processes=kept + records, updated=time.time())
            self.write(new)
        return new

    def survivors(self) -> list[ProcessRecord]:
        """Recorded processes that still live (same pid and same start)."""
        return [record for record in self.read().processes if record.alive()]

    def write(self, manifest: Manifest) -> None:
        """Replace run.json; ValueError for an unknown state."""
        if manifest.state not in STATES:
            raise ValueError(f"state {manifest.state!r} is none of {', '.join(STATES)}")
        write_atomic(self.manifest_path, dumps(asdict(manifest), indent=2) + "\n")

    @contextmanager
    def held(self) -> Iterator[None]:
        """For the one process that drives the run; UsageError while another does. A killed one lets go at once."""
        with (self.path / ".driver.lock").open("a+") as lock:
            if not _taken(lock):
                lock.seek(0)
                what = f"The run {self.name} is going on in process {lock.read().strip() or '?'}."
                raise UsageError(what, "Stop that one first (SIGINT), or wait for its end.")
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            yield

    def driven(self) -> bool | None:
        """Whether a process drives the run now; None where none ever did."""
        try:
            with (self.path / ".driver.lock").open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return None
        except BlockingIOError:
            return True
        return False

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.path / ".run.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _taken(lock: IO[str]) -> bool:
    """Takes the driver's lock, unless another driver has it; somebody who only looks has it for an instant (driven)."""
    for _ in range(5):
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.05)
    return False
