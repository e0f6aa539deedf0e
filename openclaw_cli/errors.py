"""From an exception to one sentence, its remedy and the exit code."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from typing import Any

import typer

from openclaw_core.errors import UsageError, UserError
from openclaw_core.files import shown

from .output import ReaderGone, active

INTERRUPTED = 130
UNREAD = 141  # what a shell reports of a program that SIGPIPE ended
_PARSING = typer.BadParameter.__mro__[1]  # what all errors of the parser are; Typer gives it no public name


def debugging() -> bool:
    """Whether the user asked for tracebacks."""
    return os.environ.get("OPENCLAW_DEBUG", "") not in ("", "0")


def report(error: BaseException) -> int:
    """Says on stderr what went wrong; returns the exit code: 1 findings and failures, 2 wrong usage, 130 interrupted, and,
    saying nothing, 141 where stdout or stderr was closed by its reader."""
    try:
        return unread() if isinstance(error, ReaderGone) else _say(error)
    except ReaderGone:
        return unread()


def unread() -> int:
    """The exit code where the reader has gone. What is still buffered goes nowhere, or Python would complain of it at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    return UNREAD


def _say(error: BaseException) -> int:
    if debugging():
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, UserError):
        active().error(error)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        active().note("Interrupted.")
        return INTERRUPTED
    if _asks_for_nothing(error) and not active().json:
        error.show()  # type: ignore[attr-defined]
        return 2
    told = as_user_error(error)
    active().error(told)
    return told.exit_code


def _wrong_usage(error: Any) -> UsageError:
    """What the parser of the command line says, without the usage that it would print before."""
    path = error.ctx.command_path if error.ctx is not None else "openclaw"
    said = "Missing command." if _asks_for_nothing(error) else " ".join(error.format_message().split())
    said = said.replace(": Value error, ", ": ")
    return UsageError(said if said.endswith((".", "?", "!")) else f"{said}.", f"`{path} --help` tells what it takes.")


def _asks_for_nothing(error: BaseException) -> bool:
    """Whether no command was given: people are shown what there is."""
    return type(error).__name__ == "NoArgsIsHelpError"


def _has_working_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def as_user_error(error: BaseException) -> UserError:
    """Wrong usage in our own form, and an unforeseen failure in a sentence: the system's own words where they name the file,
    else a pointer to the trace."""
    if isinstance(error, _PARSING):
        return _wrong_usage(error)
    if isinstance(error, OSError) and error.strerror:
        if isinstance(error, FileNotFoundError) and not error.filename and not _has_working_folder():
            return UserError("The folder that this was started in is gone.", "Start it in one that exists.")
        place = f"{shown(str(error.filename))}: " if error.filename else ""
        if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
            return UsageError(f"{place}{error.strerror.lower()}.", "Check the path.")
        return UserError(f"{place}{error.strerror.lower()}.", "Check the path and its permissions, then try again.")
    if isinstance(error, ValueError) and "embedded null" in str(error):
        return UsageError("A path holds a NUL character.", "Check the paths that were given.")
    text = " ".join(str(error).split()) or "no message"
    return UserError(
        f"Something failed that should not: {type(error).__name__}: {text}.", "Run again with OPENCLAW_DEBUG=1 for the traceback."
    )
