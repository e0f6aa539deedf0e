"""Turns SIGINT and SIGTERM into a request that the loop honours between two steps."""

from __future__ import annotations

import signal
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from types import FrameType, TracebackType
from typing import Any

PATIENT = "stopping: what is under way is finished first; a second signal ends it at once."
AT_ONCE = "stopping: everything that was started is ended."


class StopRequest:
    """While entered, the first signal sets requested; a second one raises KeyboardInterrupt at once.

    Where nothing is worth saving yet (at_once), the first one raises it, until patient() is called. tell is given a line
    as soon as a signal comes, from another thread.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, tell: Callable[[str], None], *, at_once: bool = False) -> None:
        self.reason: str | None = None
        self._at_once = at_once
        self._before: dict[int, Any] = {}
        # A handler may interrupt the main thread in the midst of a line; of all queues this one alone may be used by it.
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._teller = Thread(target=self._tell, args=(tell,), name="stopping", daemon=True)

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self.reason is not None

    def __enter__(self) -> StopRequest:
        self._teller.start()
        for number in self.SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def patient(self) -> None:
        """From now on the first signal waits for the loop."""
        self._at_once = False

    def rearm(self) -> None:
        """Takes the signals back from a library that has put its own handlers in."""
        for number in self.SIGNALS:
            signal.signal(number, self._on_signal)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._lines.put(None)
        self._teller.join()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = self.requested or self._at_once
        self.reason = signal.Signals(number).name
        self._lines.put(AT_ONCE if now else PATIENT)
        if now:
            raise KeyboardInterrupt

    def _tell(self, tell: Callable[[str], None]) -> None:
        while (line := self._lines.get()) is not None:
            tell(line)
