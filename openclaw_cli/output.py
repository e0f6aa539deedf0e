"""The one way to say something: data to stdout, everything else to stderr, in one of three modes.

human  data as tables and text, notes, warnings, progress bars on a terminal
json   data, or an error in its place, as one JSON document; warnings and errors as text on stderr
quiet  only the shortest form of the data, and errors
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from openclaw_core.errors import UserError

Mode = Literal["human", "json", "quiet"]
PIPE_WIDTH = 160


class ReaderGone(Exception):
    """Whoever read stdout or stderr has closed it: there is nobody left to tell anything."""


class Bar(Protocol):
    """What a progress bar can be told."""

    def advance(self, amount: float = 1.0) -> None: ...

    def describe(self, text: str) -> None: ...


class _NoBar:
    def advance(self, amount: float = 1.0) -> None:
        """Nobody is watching."""

    def describe(self, text: str) -> None:
        """Nobody is watching."""


class Output:
    """Where a command's results and remarks go; made once per call by app.py, reached with active()."""

    def __init__(self, mode: Mode = "human") -> None:
        self.mode: Mode = mode
        self._has_said = False

    @property
    def human(self) -> bool:
        return self.mode == "human"

    @property
    def json(self) -> bool:
        return self.mode == "json"

    @property
    def quiet(self) -> bool:
        return self.mode == "quiet"

    def console(self, *, stderr: bool = False) -> Console:
        """A rich console that honours NO_COLOR, and keeps long lines whole where nobody reads a terminal."""
        from rich.console import Console

        stream = sys.stderr if stderr else sys.stdout
        width = None if stream.isatty() else PIPE_WIDTH
        return Console(file=stream, width=width, highlight=False, soft_wrap=False)

    def data(
        self,
        value: Any,
        human: RenderableType | Callable[[Console], None] | Iterable[RenderableType] | None = None,
        quiet: str | Iterable[str] | None = None,
    ) -> None:
        """The one result: value as JSON, human as a text, a renderable, several, or a function of the console; quiet as lines."""
        self._has_said = True
        with _read_by_someone():
            if self.json:
                sys.stdout.write(to_json(value))
            elif self.quiet:
                for line in [quiet] if isinstance(quiet, str) else (quiet or ()):
                    sys.stdout.write(f"{line}\n")
            else:
                self._show(value if human is None else human)
            sys.stdout.flush()

    def _show(self, shown: Any) -> None:
        if isinstance(shown, str):
            sys.stdout.write(shown if shown.endswith("\n") else f"{shown}\n")
            return
        console = self.console()
        if callable(shown):
            shown(console)
        elif isinstance(shown, list | tuple):
            for part in shown:
                self._show(part) if isinstance(part, str) else console.print(part)
        else:
            console.print(shown)

    def note(self, text: str) -> None:
        """A remark on what is going on, for people only."""
        if self.human:
            self._say(text)

    def warn(self, what: str, remedy: str = "") -> None:
        """Something that goes on but probably isn't meant."""
        if not self.quiet:
            self._say(f"warning: {what} {remedy}".rstrip(), "yellow")

    def error(self, error: UserError | str) -> None:
        """One sentence and its remedy on stderr; with json also as an object on stdout, unless data stands there already."""
        if self.json and not self._has_said:
            findings = getattr(error, "findings", None)
            body: dict[str, Any] = {"error": getattr(error, "what", str(error)), "remedy": getattr(error, "remedy", "")}
            if findings is not None:
                if body["error"].endswith(":"):  # it leads to a list, which stands elsewhere here
                    body["error"] = f"{body['error'][:-1]}."
                if not body["remedy"] and any(remedy for _, remedy in findings):
                    body["remedy"] = "See the remedy of each finding."
                body["findings"] = [{"what": one, "remedy": other} for one, other in findings]
            if getattr(error, "nearest", None):
                body["nearest"] = error.nearest  # type: ignore[union-attr]
            self.data(body)
        self._say(f"error: {error}", "red")
        sys.stderr.flush()

    def _say(self, text: str, style: str = "") -> None:
        text = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)
        with _read_by_someone():
            if style and sys.stderr.isatty():
                self.console(stderr=True).print(text, style=style, markup=False, soft_wrap=True)
            else:
                sys.stderr.write(f"{text}\n")

    @contextmanager
    def progress(self, label: str, total: float | None = None, *, nbytes: bool = False) -> Iterator[Bar]:
        """A progress bar on stderr: only for people, and only on a terminal. With nbytes, total is bytes: the rate is shown."""
        if not self.human or not sys.stderr.isatty():
            yield _NoBar()
            return
        from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

        columns = [*Progress.get_default_columns()]
        columns += [DownloadColumn(), TransferSpeedColumn()] if nbytes else []
        with Progress(*columns, console=self.console(stderr=True), transient=True) as progress:
            yield _RichBar(progress, progress.add_task(label, total=total))


@contextmanager
def _read_by_someone() -> Iterator[None]:
    """Makes ReaderGone of a closed pipe, which in a command's own work would mean another one."""
    try:
        yield
    except BrokenPipeError as error:
        raise ReaderGone from error


class _RichBar:
    def __init__(self, progress: Any, task: Any) -> None:
        self.progress, self.task = progress, task

    def advance(self, amount: float = 1.0) -> None:
        self.progress.advance(self.task, amount)

    def describe(self, text: str) -> None:
        self.progress.update(self.task, description=text)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> Table:
    """A rich table of plain cells (no markup is read from them); columns that start with '>' are flushed right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for name in columns:
        made.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    return made


def scalar_text(value: object) -> str:
    """A value as YAML has it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def size_text(count: float) -> str:
    """Bytes in the unit that fits."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.{1 if count >= 10 * size else 2}f} {unit}"
    return f"{count:.0f} B"


def to_json(value: Any) -> str:
    """value as a JSON document with a line end."""
    return json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=2) + "\n"


def plain(value: Any) -> Any:
    """value as JSON's own types: dataclasses and models become objects, paths text, NaN and infinities null."""
    if value is None or isinstance(value, bool | int | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(plain(key)): plain(entry) for key, entry in value.items()}
    if hasattr(value, "model_dump"):
        return plain(value.model_dump())
    if hasattr(value, "to_dict"):
        return plain(value.to_dict())
    if is_dataclass(value) and not isinstance(value, type):
        return plain(asdict(value))
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Iterable):
        return [plain(entry) for entry in value]
    return str(value)


_active = Output()


def active() -> Output:
    """The output of the command that is running."""
    return _active


def use(mode: Mode) -> Output:
    """Sets the mode for the command that is about to run."""
    _active.mode, _active._has_said = mode, False
    return _active
