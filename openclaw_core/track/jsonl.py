"""Lines of standard JSON that survive a kill: whole lines only are written, and reading tells what it could not read."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import first_line


@dataclass(frozen=True, slots=True)
class Problem:
    """Something on disk that could not be read as it should: which file, which line (from 1) where it has lines, and what."""

    file: str
    what: str
    line: int | None = None

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}, line {self.line}"
        return f"{where}: {self.what}"


def standard(value: Any) -> Any:
    """value as standard JSON can hold it: non-finite numbers become None, arrays and numpy scalars plain Python."""
    if isinstance(value, dict):
        return {str(key): standard(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [standard(item) for item in value]
    if hasattr(value, "tolist"):
        return standard(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def dumps(value: Any, *, indent: int | None = None) -> str:
    """Standard JSON text of value; raises TypeError for what JSON has no form for."""
    return json.dumps(standard(value), ensure_ascii=False, allow_nan=False, indent=indent)


def append(path: Path, record: dict[str, Any]) -> None:
    """Append record as one line and bring it to disk. A line that a kill left half written is ended first."""
    line = dumps(record).encode() + b"\n"
    with path.open("ab+") as file:
        if file.tell() and not _ends_with_newline(file):
            line = b"\n" + line
        file.write(line)
        file.flush()
        os.fsync(file.fileno())


def _ends_with_newline(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")


@dataclass(frozen=True, slots=True)
class Line:
    """One readable line: its number from 1, its object, and how many non-standard numbers it held (read as None)."""

    number: int
    record: dict[str, Any]
    non_finite: int = 0


def read(path: Path) -> Iterator[Line | Problem]:
    """The lines of path in order; a Problem in place of each that is no JSON object. Empty lines are skipped.

    Raises OSError where path cannot be opened.
    """
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if raw.strip():
                yield _parse(path.name, number, raw)


def _parse(name: str, number: int, raw: bytes) -> Line | Problem:
    bad = 0

    def constant(_: str) -> None:
        nonlocal bad
        bad += 1

    def number_of(text: str) -> float | None:
        value = float(text)
        if math.isfinite(value):
            return value
        constant(text)
        return None

    try:
        record = json.loads(raw, parse_constant=constant, parse_float=number_of)
    except (ValueError, RecursionError) as error:
        cut = "" if raw.endswith(b"\n") else "half written, "
        return Problem(name, f"{cut}not JSON ({first_line(error)})", number)
    if not isinstance(record, dict):
        return Problem(name, f"holds a {type(record).__name__}, not an object", number)
    return Line(number, record, bad)
