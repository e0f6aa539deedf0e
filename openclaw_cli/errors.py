"""From an exception to one sentence, its remedy and the exit code."""

from __future__ import annotations

import os
import sys
import traceback

from openclaw_core.errors import UserError

from .output import active

INTERRUPTED = 130


def debugging() -> bool:
    """Whether the user asked for tracebacks."""
    return os.environ.get("OPENCLAW_DEBUG", "") not in ("", "0")


def report(error: BaseException) -> int:
    """Says on stderr what went wrong; returns the exit code: 1 findings and failures, 2 wrong usage, 130 interrupted."""
    if debugging():
        traceback.print_exception(error, file=sys.stderr)
    if isinstance(error, UserError):
        active().error(error)
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        active().note("Interrupted.")
        return INTERRUPTED
    active().error(as_user_error(error))
    return 1


def _has_working_folder() -> bool:
    try:
        os.getcwd()
    except OSError:
        return False
    return True


def as_user_error(error: BaseException) -> UserError:
    """An unforeseen failure in a sentence: the system's own words where they name the file, else a pointer to the trace."""
    if isinstance(error, OSError) and error.strerror:
        if isinstance(error, FileNotFoundError) and not error.filename and not _has_working_folder():
            return UserError("The folder that this was started in is gone.", "Start it in one that exists.")
        place = f"{error.filename}: " if error.filename else ""
        return UserError(f"{place}{error.strerror.lower()}.", "Check the path and its permissions, then try again.")
    text = " ".join(str(error).split()) or "no message"
    return UserError(
        f"Something failed that should not: {type(error).__name__}: {text}.", "Run again with OPENCLAW_DEBUG=1 for the traceback."
    )
