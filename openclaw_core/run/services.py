"""Child processes of a run: recorded in its manifest, ended by that record, never outliving the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import UserError
from .process_tree import end, tree
from .processes import ProcessRecord
from .runfolder import RunFolder

# Asks the kernel to kill this process when its parent goes, makes sure that the parent is still there, and becomes the service.
_GUARD = """
import ctypes, os, sys
parent = int(sys.argv[1])
if sys.platform == "linux":
    ctypes.CDLL(None, use_errno=True).prctl(1, 9, 0, 0, 0)
if os.getppid() != parent:
    sys.exit(1)
try:
    os.execvpe(sys.argv[2], sys.argv[2:], os.environ)
except OSError as error:
    sys.exit(f"{sys.argv[2]}: {error.strerror}")
"""


class ServiceError(UserError):
    """A service that didn't start, or died. log_tail holds the end of its log."""

    def __init__(self, what: str, remedy: str = "", *, log_tail: str = "") -> None:
        super().__init__(what, remedy)
        self.log_tail = log_tail


@dataclass
class Service:
    """One child process, leader of a session of its own.

    argv must hold no secrets: they go into env, which is the whole environment of the child. Its output is appended to
    log_file. With port_file the child writes its port there, and start() returns once check(port) is true. With run the
    child, and what it has started by the time it is ready, are recorded in the run's manifest under the service's name.
    A child that can't write a file is given its port in argv and named here as fixed_port.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log_file: Path
    port_file: Path | None = None
    check: Callable[[int], bool] | None = None
    run: RunFolder | None = None
    fixed_port: int | None = None
    port: int | None = field(default=None, init=False)
    members: list[ProcessRecord] = field(default_factory=list, init=False)
    _child: subprocess.Popen[bytes] | None = field(default=None, init=False, repr=False)
    _kills_before: int = field(default=0, init=False, repr=False)

    def start(self, timeout_s: float = 60.0) -> int | None:
        """Starts the child and waits until it is ready. Returns its port (None without port_file).

        ServiceError when it dies or isn't ready in time; it has been ended then.
        """
        if self._child is not None:
            raise RuntimeError(f"service {self.name} was started before")
        if self.port_file is not None:
            self.port_file.unlink(missing_ok=True)
        deadline = time.monotonic() + timeout_s
        self._spawn()
        try:
            self._await_ready(deadline, timeout_s)
        except BaseException:
            self.stop(grace_s=2.0)
            raise
        return self.port

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child is not None else None

    def poll(self) -> int | None:
        """The exit code (negative: the signal that ended it), or None while the child runs or before its start."""
        return self._child.poll() if self._child is not None else None

    def ensure_alive(self) -> None:
        """ServiceError with the cause when the child has died."""
        if (code := self.poll()) is not None:
            raise ServiceError(f"Service {self.name} {self._cause(code)}.", f"See {self.log_file}.", log_tail=self.log_tail())

    def stop(self, grace_s: float = 10.0) -> None:
        """Ends the child and all it started: SIGTERM, after grace_s SIGKILL. Nothing happens the second time."""
        if self._child is None:
            return
        self._note_members()
        end(self.members, grace_s=grace_s)
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=5.0)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the log, from at most its last 16 KiB."""
        try:
            with self.log_file.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - 16384))
                return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    def _spawn(self) -> None:
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self._kills_before = memory_kills()
        with self.log_file.open("ab") as log:

            def popen() -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    [sys.executable, "-S", "-E", "-c", _GUARD, str(os.getpid()), *self.argv],
                    env=dict(self.env),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

            self._child = _spawner().submit(popen).result()
        if record := ProcessRecord.of(self.name, self._child.pid):
            self.members.append(record)
        self._note_members()

    def _note_members(self) -> None:
        """Records the child and what it has started so far, so that they are known when it has ended."""
        known = {(record.pid, record.start) for record in self.members}
        for record in [process for member in self.members[:1] for process in tree(member)]:
            if (record.pid, record.start) not in known:
                self.members.append(record)
        if self.run is not None and self.members:
            self.run.add_processes(*self.members)

    def _await_ready(self, deadline: float, timeout_s: float) -> None:
        pause = 0.02
        while not self._is_ready():
            self.ensure_alive()
            if time.monotonic() > deadline:
                state = "wrote no port" if self.port_file is not None and self.port is None else "wasn't ready"
                what = f"Service {self.name} {state} within {timeout_s:g} s."
                raise ServiceError(what, f"See {self.log_file}.", log_tail=self.log_tail())
            time.sleep(pause)
            pause = min(0.25, pause * 1.3)
        self.ensure_alive()
        self._note_members()

    def _is_ready(self) -> bool:
        if self.port_file is None and self.fixed_port is None:
            return True
        if self.port is None:
            self.port = self._known_port()
        return self.port is not None and (self.check is None or self.check(self.port))

    def _known_port(self) -> int | None:
        """The port the child was given or has written, None before it has written one."""
        if self.port_file is None:
            return self.fixed_port
        try:
            return int(self.port_file.read_text())
        except (OSError, ValueError):
            return None

    def _cause(self, code: int) -> str:
        if code == -signal.SIGKILL and memory_kills() > self._kills_before:
            return "was killed for memory: the limit of this machine or container was reached"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def survivors(run: RunFolder) -> list[ProcessRecord]:
    """Processes of this machine that the run recorded, and what those started, that still live."""
    recorded = [record for record in run.survivors() if record.pid != os.getpid()]
    found = {(process.pid, process.start): process for record in recorded for process in (record, *tree(record))}
    return [process for process in found.values() if process.pid != os.getpid()]


def stop_survivors(run: RunFolder, grace_s: float = 10.0) -> list[ProcessRecord]:
    """Ends survivors(run), and only those; returns them."""
    left = survivors(run)
    end(left, grace_s=grace_s)
    return left


def memory_kills() -> int:
    """How often the kernel has killed a process of our cgroup for memory; 0 where that can't be read."""
    with suppress(OSError, ValueError, IndexError):
        group = Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition(":")[2].lstrip("/")
        for events in (Path("/sys/fs/cgroup") / group / "memory.events", Path("/sys/fs/cgroup/memory.events")):
            if events.is_file():
                counts = dict(line.split() for line in events.read_text().splitlines())
                return int(counts.get("oom_kill", 0))
    return 0


_spawners: dict[int, ThreadPoolExecutor] = {}


def _spawner() -> ThreadPoolExecutor:
    """The thread that starts all children of this process: the kernel ends a guarded child with the thread that forked it."""
    if os.getpid() not in _spawners:
        _spawners.clear()
        _spawners[os.getpid()] = ThreadPoolExecutor(1, thread_name_prefix="services")
    return _spawners[os.getpid()]
