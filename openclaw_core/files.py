"""Paths that users name, and files that are replaced as a whole."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path
from typing import Literal

from .errors import UsageError


def expanded(path: str | Path) -> Path:
    """path with the home folder that a leading ~ or ~user stands for; UsageError where there is none."""
    given = Path(path)
    try:
        return given.expanduser()
    except RuntimeError:
        what = f"The path {shown(path)} begins with {shown(given.parts[0])}, a home folder that isn't known."
        raise UsageError(what, "Check the path.") from None


def check_path(path: str | Path, what: str, kind: Literal["file", "folder"] | None = "folder") -> None:
    """Raises UsageError where path, given by the user as what, isn't there or is no such thing; kind None takes both.

    What lies in it is for its reader to judge. Imports nothing, so that a wrong path is told at once.
    """
    if not str(path):
        raise UsageError(f"{what} is named by an empty path.", f"Name a {kind or 'file or folder'}.")
    place = expanded(path)
    try:
        found = "folder" if place.is_dir() else "file" if place.exists() else None
    except OSError as error:
        raise UsageError(f"{what} {shown(path)} can't be looked at: {_why(error)}.", "Check the path.") from None
    if found is None:
        from_hub = kind == "folder" and str(path).count("/") == 1 and not str(path).startswith((".", "/", "~"))
        remedy = "Download it first: `hf download ORG/MODEL --local-dir FOLDER`." if from_hub else "Check the path."
        raise UsageError(f"{what} {shown(path)} doesn't exist.", remedy)
    if kind is not None and found != kind:
        raise UsageError(f"{what} {shown(path)} is a {found}.", f"Name a {kind}.")


def shown(path: str | Path, most: int = 200) -> str:
    """A path in a sentence: control characters escaped, the middle of a very long one left out."""
    text = "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in str(path))
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 2 :]}"


def _why(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def write_atomic(path: Path, content: str | bytes) -> None:
    """Replace path by content as a whole: a reader sees the old or the new one, also after a crash. An OSError names path."""
    data = content.encode() if isinstance(content, str) else content
    try:
        _replace(path, data)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _replace(path: Path, data: bytes) -> None:
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
