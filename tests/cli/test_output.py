"""Output and errors: three modes, strict JSON, exit codes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from openclaw_cli.errors import as_user_error, report
from openclaw_cli.live import watching
from openclaw_cli.output import Mode, Output, plain, scalar_text, size_text, table, use
from openclaw_core.errors import Findings, UsageError, UserError
from openclaw_core.types import SampleKind


@dataclass
class Thing:
    name: str
    where: Path
    values: tuple[float, ...]


def test_json_is_strict(capsys: pytest.CaptureFixture[str]) -> None:
    Output("json").data(
        {"a": float("nan"), "b": Thing("x", Path("/y"), (1.0, float("inf"))), 3: {SampleKind.OPD}, "k": SampleKind.RL}
    )
    body = json.loads(capsys.readouterr().out)
    assert body == {"a": None, "b": {"name": "x", "where": "/y", "values": [1.0, None]}, "3": ["opd"], "k": "rl"}


def test_modes(capsys: pytest.CaptureFixture[str]) -> None:
    for mode in ("human", "json", "quiet"):
        out = Output(mode)  # type: ignore[arg-type]
        out.data({"n": 1}, "one thing", quiet=["1"])
        out.note("a note")
        out.warn("careful.", "Stop.")
    shown = capsys.readouterr()
    assert shown.out == 'one thing\n{\n  "n": 1\n}\n1\n'
    assert shown.err == "a note\nwarning: careful. Stop.\nwarning: careful. Stop.\n"


def test_tables_show_cells_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    Output().data([], table(("name", ">count"), [("[red]x[/red]", 3), (None, 4)]))
    assert "[red]x[/red]" in capsys.readouterr().out


def test_progress_is_silent_away_from_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with Output().progress("work", total=2) as bar:
        bar.advance()
        bar.describe("more")
    shown = capsys.readouterr()
    assert shown.out == shown.err == ""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("x."), 1),
        (UsageError("x."), 2),
        (Findings("x:", [("a", "b")]), 1),
        (KeyboardInterrupt(), 130),
        (ValueError("x"), 1),
    ],
)
def test_exit_codes(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    use("human")
    assert report(error) == code
    assert "Traceback" not in capsys.readouterr().err


def test_unforeseen_failures_in_a_sentence() -> None:
    assert str(as_user_error(PermissionError(13, "Permission denied", "/x"))).startswith("/x: permission denied.")
    assert "OPENCLAW_DEBUG=1" in str(as_user_error(ValueError("two\nlines")))
    assert "two lines" in str(as_user_error(ValueError("two\nlines")))


def test_scalars_as_yaml_has_them() -> None:
    assert [scalar_text(value) for value in (None, True, (1, 2), 1e-5, "x")] == ["null", "true", "1,2", "1e-05", "x"]
    assert plain(Path("/x")) == "/x"


def test_sizes_in_the_unit_that_fits() -> None:
    assert [size_text(count) for count in (0, 1023, 1536, 2**20, 20 * 2**30)] == [
        "0 B",
        "1023 B",
        "1.50 KiB",
        "1.00 MiB",
        "20.0 GiB",
    ]


@pytest.mark.parametrize("mode", ["human", "json", "quiet"])
def test_what_ends_the_process_is_told_as_every_error(mode: Mode, capsys: pytest.CaptureFixture[str]) -> None:
    with watching(Output(mode)) as watcher:
        watcher.last(UserError("The raylet is gone.", "Go on."))
    shown = capsys.readouterr()
    assert shown.err == "error: The raylet is gone. Go on.\n"
    assert (json.loads(shown.out) if mode == "json" else shown.out) == (
        {"error": "The raylet is gone.", "remedy": "Go on."} if mode == "json" else ""
    )
