"""Which run a user means: a path, a name below runs/, or the latest."""

from __future__ import annotations

from pathlib import Path

from ..errors import UserError
from .runfolder import RunFolder
from .runs import list_runs, open_run


def named_run(run: str, root: Path = Path("runs")) -> RunFolder:
    """open_run, where "latest" is the newest run that trains: serving moves it only where there is none.

    Raises UsageError and UserError as open_run does.
    """
    training = next(filter(_trains, list_runs(root)), None) if run == "latest" else None
    return training or open_run(run, root)


def _trains(run: RunFolder) -> bool:
    """Whether a run has steps to make; one whose manifest can't be read is left to whoever reads it, who tells why."""
    try:
        return run.read().steps > 0
    except UserError:
        return True
