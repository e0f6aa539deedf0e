"""The processes that a recorded process has started, and their end. Nothing is signalled whose pid and start don't both match."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil

from .processes import ProcessRecord


def tree(root: ProcessRecord) -> list[ProcessRecord]:
    """root, its descendants and the members of the session it leads, root first; empty once root has ended.

    What root leaves behind at its end can't be told from strangers any more, so record trees while their roots live.
    """
    if not root.alive():
        return []
    pids = [pid for pid in psutil.pids() if _session(pid) == root.pid]
    with suppress(psutil.Error):
        pids += [child.pid for child in psutil.Process(root.pid).children(recursive=True)]
    others = (ProcessRecord.of(root.role, pid) for pid in dict.fromkeys(pids) if pid != root.pid)
    found = [record for record in others if record is not None]
    # Had root ended meanwhile, its pid and session might be a stranger's.
    return [root, *found] if root.alive() else []


def end(records: Iterable[ProcessRecord], *, grace_s: float) -> list[ProcessRecord]:
    """SIGTERM, at most grace_s to leave, then SIGKILL. Returns what had to be killed."""
    left = _wait([record for record in records if _signal(record, signal.SIGTERM)], grace_s)
    killed = [record for record in left if _signal(record, signal.SIGKILL)]
    _wait(killed, 5.0)
    return killed


def _signal(record: ProcessRecord, number: signal.Signals) -> bool:
    if not record.alive():
        return False
    try:
        os.kill(record.pid, number)
    except ProcessLookupError:
        return False
    return True


def _wait(records: list[ProcessRecord], limit_s: float) -> list[ProcessRecord]:
    """What still lives after at most limit_s."""
    deadline = time.monotonic() + limit_s
    pause = 0.01
    while (left := [record for record in records if record.alive()]) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = min(0.2, pause * 1.5)
    return left


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None
