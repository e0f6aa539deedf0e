"""Which processes a run started. A pid alone may come to belong to somebody else; with its start it names one process."""

from __future__ import annotations

import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process of a run: start is an exact mark of when it started (see start_of), since the same as seconds since the epoch."""

    role: str
    pid: int
    start: str
    since: float
    host: str = ""

    @classmethod
    def of(cls, role: str, pid: int) -> ProcessRecord | None:
        """The record of a living process of this machine, or None where it has ended."""
        start = start_of(pid)
        return None if start is None else cls(role, pid, start, time.time(), socket.gethostname())

    def alive(self) -> bool | None:
        """Whether this very process still runs; None where it belongs to another machine."""
        if self.host and self.host != socket.gethostname():
            return None
        return start_of(self.pid) == self.start


def start_of(pid: int) -> str | None:
    """When the process started, as text that no other process of this pid shares; None where it has ended (zombies too).

    On Linux boot id and clock ticks since boot, which a change of the clock leaves alone.
    """
    if sys.platform != "linux":
        return _start_by_psutil(pid)
    try:
        text = Path(f"/proc/{int(pid)}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    values = text[text.rindex(")") + 2 :].split()
    return None if values[0] in "ZX" else f"{boot}:{values[19]}"


def _start_by_psutil(pid: int) -> str | None:
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.Error:
        return None
