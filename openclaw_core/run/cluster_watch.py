"""Ends a run whose own Ray cluster has lost its raylet or its control service, and says so.

Ray itself ends the driver without a word after the one, and waits a minute for another of the other.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from collections.abc import Callable

import psutil

from openclaw_core.errors import UserError

WATCHED = ("raylet", "gcs_server")


class ClusterWatch:
    """Calls lost(name) from a thread as soon as one of those that this process started ends, unless stop() came first.

    Where this process started none (a cluster of somebody else's), or the system has no pidfd, nothing is watched.
    """

    def __init__(self, lost: Callable[[str], None]) -> None:
        self._lost = lost
        self._stopped = threading.Event()
        children = [(child.pid, child.name()) for child in psutil.Process().children()]
        if hasattr(os, "pidfd_open"):
            self._names = {os.pidfd_open(pid): name for pid, name in children if name in WATCHED}
            threading.Thread(target=self._watch, name="cluster-watch", daemon=True).start()

    def stop(self) -> None:
        """From now on an end is no news."""
        self._stopped.set()

    def _watch(self) -> None:
        ended, _, _ = select.select(list(self._names), [], []) if self._names else ([], [], [])
        if ended and not self._stopped.is_set():
            self._lost(self._names[ended[0]])
        for descriptor in self._names:
            os.close(descriptor)


def end_here(error: UserError, *, tell: Callable[[UserError], object], before: Callable[[str], object]) -> None:
    """Calls tell(error) and before(error.what), and ends this process at once, with its terminal as it was."""
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h")
    try:
        tell(error)
        before(error.what)
    finally:
        os._exit(1)
