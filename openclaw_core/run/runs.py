"""Runs by name: making a new one, and finding those that are there."""

from __future__ import annotations

import difflib
import os
import re
import time
from pathlib import Path
from typing import Any

from ..errors import UsageError, UserError
from ..files import shown
from .manifest import Manifest
from .runfolder import NAME, RunFolder, valid_name


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
    run.write(Manifest(name=name, created=now, updated=now, steps=steps, facts=facts or {}))
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
    """The run at a path, or of that name under root; "latest" is the newest that trains, or the newest where none does: serving
    doesn't move it.

    Raises UsageError naming the nearest run where there is none, and UserError where the folder holds none.
    """
    text = str(run)
    try:
        return _find_run(text, root)
    except OSError as error:
        raise UsageError(f"The run {shown(text)} can't be looked at: {error.strerror}.", "Check the path.") from None


def _trains(run: RunFolder) -> bool:
    """Whether a run has steps to make; one whose manifest can't be read is left to whoever reads it, who tells why."""
    try:
        return run.read().steps > 0
    except UserError:
        return True


def _find_run(text: str, root: Path) -> RunFolder:
    if text == "latest":
        runs = list_runs(root)
        if not runs:
            raise UsageError(f"There is no run in {root}.", "Start one with `openclaw train`, or give the folder of a run.")
        return next(filter(_trains, runs), runs[0])
    given = Path(text)
    for path in (given, root / text if NAME.fullmatch(text) else given):
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
