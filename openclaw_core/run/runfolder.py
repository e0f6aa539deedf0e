"""The folder of a run: where each thing lies, and run.json, which says what the run is doing.

run.json is replaced as a whole and under a lock, so that a reader always sees a complete one.
"""

from __future__ import annotations

import difflib
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any

from ..errors import UsageError, UserError
from ..files import shown, write_atomic
from ..track.jsonl import dumps
from .processes import ProcessRecord

MANIFEST_VERSION = 1
STATES = ("starting", "running", "stopping", "stopped", "failed", "finished")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_STEP_FOLDER = re.compile(r"step-(\d{6,})")


def valid_name(name: str, *, what: str = "run name") -> str:
    """name, where it is safe as one part of a path; raises UsageError otherwise."""
    if not _NAME.fullmatch(name) or ".." in name:
        raise UsageError(
            f"The {what} {name!r} can't be used.",
            "Use 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or a digit, without '..'.",
        )
    return name


def file_key(identifier: str) -> str:
    """A file name for an id from outside: its hash, so that no id becomes a path."""
    return hashlib.sha256(identifier.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Manifest:
    """run.json. Times are seconds since the epoch; step is the last finished optimizer step, saved_step the last checkpoint's.

    state is one of STATES, reason says why it stopped or failed. versions maps packages to versions, facts holds small
    things that readers want without the configuration (student folder, tokenizer folder, preference, target rate ...).
    """

    name: str
    state: str = "starting"
    reason: str = ""
    created: float = 0.0
    updated: float = 0.0
    step: int = 0
    steps: int = 0
    saved_step: int | None = None
    saved_at: float | None = None
    weight_version: int = 0
    resumed: tuple[float, ...] = ()
    processes: tuple[ProcessRecord, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    manifest_version: int = MANIFEST_VERSION


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Paths of one run; nothing is made until it is written. Use create for a new run and open_run for one that is there."""

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
            return _manifest(record)
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
            self._write(new)
        return new

    def add_processes(self, *records: ProcessRecord) -> Manifest:
        """Record processes that this run started; one that is there by pid and start is replaced."""
        with self._locked():
            old = self.read()
            keys = {(record.pid, record.start) for record in records}
            kept = tuple(record for record in old.processes if (record.pid, record.start) not in keys)
            new = replace(old, processes=kept + records, updated=time.time())
            self._write(new)
        return new

    def survivors(self) -> list[ProcessRecord]:
        """Recorded processes that still live (same pid and same start)."""
        return [record for record in self.read().processes if record.alive()]

    def _write(self, manifest: Manifest) -> None:
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


def create_run(root: Path, name: str, *, steps: int = 0, facts: dict[str, Any] | None = None) -> RunFolder:
    """Make the folder of a new run under root; raises UsageError where the name is bad or taken."""
    run = RunFolder(Path(os.path.realpath(root)) / valid_name(name))
    if run.manifest_path.exists():
        raise UsageError(f"The run {name} exists already in {root}.", "Give another --run-folder, or go on with --resume.")
    if run.path.exists() and (not run.path.is_dir() or any(run.path.iterdir())):
        raise UsageError(f"{run.path} holds something else already.", "Give a --run-folder that isn't there yet, or is empty.")
    try:
        for folder in (run.path, run.dumps, run.checkpoints, run.weights, run.logs):
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"The run folder {run.path} cannot be made: {error.strerror}.", "Give another --run-folder.") from None
    now = time.time()
    run._write(Manifest(name=name, created=now, updated=now, steps=steps, facts=facts or {}))
    return run


def new_run_name(profile: str, now: float | None = None) -> str:
    """A name for a run of a profile: the profile, then the local time."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(profile).stem).strip(".-_")[:40] or "run"
    return valid_name(f"{stem}-{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}")


def list_runs(root: Path) -> list[RunFolder]:
    """Run folders under root, newest first."""
    if not root.is_dir():
        return []
    found = [entry for entry in root.iterdir() if (entry / "run.json").is_file()]
    return [RunFolder(entry) for entry in sorted(found, key=lambda entry: (entry / "run.json").stat().st_mtime, reverse=True)]


def open_run(run: str | Path, root: Path = Path("runs")) -> RunFolder:
    """The run at a path, or of that name under root; "latest" is the newest.

    Raises UsageError naming the nearest run where there is none, and UserError where the folder holds none.
    """
    text = str(run)
    try:
        return _find_run(text, root)
    except OSError as error:
        raise UsageError(f"The run {shown(text)} can't be looked at: {error.strerror}.", "Check the path.") from None


def _find_run(text: str, root: Path) -> RunFolder:
    if text == "latest":
        runs = list_runs(root)
        if not runs:
            raise UsageError(f"There is no run in {root}.", "Start one with `openclaw train`, or give the folder of a run.")
        return runs[0]
    given = Path(text)
    for path in (given, root / text if _NAME.fullmatch(text) else given):
        if (path / "run.json").is_file():
            return RunFolder(path.resolve())
    if given.is_dir():
        raise UserError(f"{text} is not a run folder: it has no run.json.", "Give the folder of a run.")
    if given.exists():
        raise UsageError(f"The run {shown(text)} is a file.", "Give the folder of a run.")
    names = [item.name for item in list_runs(root)]
    near = difflib.get_close_matches(given.name, names, n=1)
    hint = f"Did you mean {near[0]}?" if near else f"Runs in {root}: {', '.join(names[:5]) or 'none'}."
    raise UsageError(f"There is no run {shown(text)}.", hint)


_NUMBER = (int, float)
_KINDS: dict[str, type | tuple[type, ...]] = {
    "name": str, "state": str, "reason": str, "created": _NUMBER, "updated": _NUMBER, "step": int, "steps": int,
    "saved_step": (int, type(None)), "saved_at": (*_NUMBER, type(None)), "weight_version": int, "versions": dict, "facts": dict,
}  # fmt: skip


def _manifest(record: dict[str, Any]) -> Manifest:
    if not isinstance(record, dict):
        raise ValueError("it holds no object")
    version = record.get("manifest_version")
    if version != MANIFEST_VERSION:
        raise ValueError(f"it has manifest_version {version!r}, this program reads {MANIFEST_VERSION}")
    known = {item.name: record[item.name] for item in fields(Manifest) if item.name in record}
    wrong = [name for name, kinds in _KINDS.items() if name in known and not isinstance(known[name], kinds)]
    if wrong:
        raise ValueError(f"{wrong[0]} is {known[wrong[0]]!r}")
    try:
        known["processes"] = tuple(ProcessRecord(**entry) for entry in record.get("processes", ()))
    except TypeError:
        raise ValueError("an entry of processes is none") from None
    if not all(isinstance(one.pid, int) and isinstance(one.since, _NUMBER) for one in known["processes"]):
        raise ValueError("an entry of processes has no pid or no time")
    known["resumed"] = tuple(record.get("resumed", ()))
    return Manifest(**known)
