"""A folder that appears whole or not at all: written beside its place, synced, renamed."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from openclaw_core.checkpoint.manifest import conversion_in, sync
from openclaw_core.checkpoint.names import LOCK, MANIFEST, OLD, PARTIAL, REPLACES, TEMPLATES_FOLDER
from openclaw_core.errors import UsageError, UserError
from openclaw_core.files import expanded

_SUBFOLDERS = re.compile(rf"release|hf|iter_\d+|{TEMPLATES_FOLDER}")


@contextmanager
def new_folder(
    target: Path, *, overwrite: bool, needed_bytes: int, resumable: Callable[[Path], bool] = lambda partial: False
) -> Iterator[Path]:
    """Yields a temporary sibling of target; when the block ends well it takes target's place in one rename.

    An existing target is refused unless overwrite; then it is kept until the new one is complete, and where this run is killed
    before it could remove it, replaced tells. What an interrupted run left behind is removed first, unless resumable(partial)
    says that it can be gone on from; one that is still being written is refused. Raises UsageError where target exists, and
    UserError for the rest and when the disk has less than needed_bytes free. A block that ends by KeyboardInterrupt or for want
    of room leaves the sibling for the next run.
    """
    partial, old = target.with_name(f".{target.name}{PARTIAL}"), _old(target)
    _make_parent(target)
    with _lock(target):
        _check_leftovers(partial, old)
        if old.is_dir() and not target.exists():
            old.rename(target)
        check_target(target, overwrite=overwrite)
        keep = partial.exists() and resumable(partial)
        for leftover in (old,) if keep else (partial, old):
            if leftover.exists():
                shutil.rmtree(leftover)
        check_room(target, needed_bytes - (_allocated(partial) if keep else 0))
        partial.mkdir(exist_ok=True)
        try:
            yield partial
            if target.exists():
                (partial / REPLACES).touch()
            _sync_tree(partial)
            if target.exists():
                target.rename(old)
            partial.rename(target)
            sync(target.parent)
        except BaseException as error:
            kept = isinstance(error, KeyboardInterrupt | OSError) and resumable(partial)
            if not kept:
                shutil.rmtree(partial, ignore_errors=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                what = f"{target.parent} has no room left; {target.name} wasn't written."
                again = "; the same command goes on where it was" if kept else ""
                raise UserError(what, f"Make room and convert again{again}.") from error
            raise
        _drop_replaced(target)


def replaced(target: Path) -> Path | None:
    """The folder that target took the place of, where the run that made target was killed before it could remove it."""
    old = _old(target)
    return old if (target / REPLACES).is_file() and old.is_dir() and not old.is_symlink() else None


def _drop_replaced(target: Path) -> None:
    old, marker = replaced(target), target / REPLACES
    if old is not None:
        shutil.rmtree(old)
    if marker.is_file():
        marker.unlink()


def _old(target: Path) -> Path:
    return target.with_name(f".{target.name}{OLD}")


def check_target(target: Path, *, overwrite: bool) -> None:
    """Raises UsageError where something is in target's place that may not be replaced, UserError where it never may be, or
    where nothing can be made there."""
    place = _nearest(target)
    if not place.is_dir() or not os.access(place, os.W_OK):
        what = "isn't writable" if place.is_dir() else "is no folder"
        raise UserError(f"{place} {what}.", "Choose a place you can write to.")
    if target.exists() and not overwrite and (not target.is_dir() or any(target.iterdir())):
        way = "pass --overwrite" if conversion_in(target) else "remove it yourself"
        old = replaced(target)
        left = f" {old} is what it replaced, left by a conversion that was killed: it can be removed." if old else ""
        raise UsageError(f"{target} exists.", f"Choose another place, or {way}.{left}")
    _check_replaceable(target)


def would_replace(target: Path) -> dict[str, str] | None:
    """kind and source of the conversion that overwrite would take away; None where there is none, or it is refused."""
    try:
        check_target(target, overwrite=True)
    except UserError:
        return None
    return conversion_in(target)


def check_existing(source: str | Path, target: str, *, overwrite: bool) -> None:
    """check_target where something is in target's place already, at no cost; what is misplaced is left to the plan."""
    place = expanded(target).absolute()
    if target and place.exists() and not misplaced(expanded(source), place):
        check_target(place, overwrite=overwrite)


def misplaced(source: Path, target: Path) -> list[tuple[str, str]]:
    """Why nothing is made in target's place, whatever is there: it is a link, or the source or its folder; with remedies."""
    found = [(f"{target} is a link.", "Name the folder that it leads to.")] if target.is_symlink() else []
    root, real = (Path(os.path.realpath(path)) for path in (source, target))
    if real == root or real in root.parents or root in real.parents:
        found.append((f"{target} and {root} lie in each other.", "Choose a place of its own for the result."))
    return found


def check_room(target: Path, needed: int) -> None:
    """Raises UserError where the disk that target will lie on has less than needed bytes free."""
    free = shutil.disk_usage(_nearest(target)).free
    if free < needed:
        raise UserError(
            f"{target.parent} has {free / 1e9:,.1f} GB free, the result takes {needed / 1e9:,.1f} GB.",
            "Make room or choose another disk.",
        )


def _check_leftovers(partial: Path, old: Path) -> None:
    """A conversion leaves folders there, in old's place a whole conversion; anything else is somebody's."""
    others = [str(place) for place in (partial, old) if place.is_symlink() or (place.exists() and not place.is_dir())]
    if not others and old.is_dir() and any(old.iterdir()) and conversion_in(old) is None:
        others = [str(old)]
    if others:
        raise UserError(f"{', '.join(others)} is in the way: no folder that a conversion left.", "Move it away.")


def _nearest(target: Path) -> Path:
    """The innermost folder of target's that is there."""
    return next(folder for folder in target.parents if folder.exists())


@contextmanager
def _lock(target: Path) -> Iterator[None]:
    """Holds target's lock file; raises UserError when another process does."""
    path = target.with_name(f".{target.name}{LOCK}")
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        raise UserError(f"{target} can't be made: {error.strerror}.", "Choose a place you can write to.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not path.exists() or path.stat().st_ino != os.fstat(handle).st_ino:
            raise BlockingIOError
    except BlockingIOError:
        os.close(handle)
        raise UserError(f"{target} is being written by another conversion.", "Wait for it, or stop it.") from None
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _check_replaceable(target: Path) -> None:
    """--overwrite replaces what a conversion made, and is no way to lose a model, a run's checkpoint or other files."""
    names = [path.name for path in target.iterdir()] if target.is_dir() else [target.name] * target.exists()
    if names and conversion_in(target) is None:
        why = f"its {MANIFEST} names none" if MANIFEST in names else f"there is no {MANIFEST}"
        what = f"{target} wasn't made by a conversion ({why}), so --overwrite doesn't replace it."
        raise UserError(what, "Choose another place, or remove it yourself.")
    others = sorted(name for name in names if (target / name).is_dir() and not _SUBFOLDERS.fullmatch(name))
    if others:
        what = f"{target} holds folders that no checkpoint has ({', '.join(others)}), so it isn't overwritten."
        raise UserError(what, "Choose another place, or move them away.")


def _make_parent(target: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{target.parent} can't be made: {error.strerror}.", "Choose a place you can write to.") from None


def _allocated(folder: Path) -> int:
    """Bytes on disk that a folder's files take up already; holes don't count."""
    return sum((Path(place) / name).stat().st_blocks * 512 for place, _, files in os.walk(folder) for name in files)


def _sync_tree(folder: Path) -> None:
    for place, _, files in os.walk(folder):
        for name in files:
            sync(Path(place) / name)
        sync(Path(place))
