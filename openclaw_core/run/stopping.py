"""Turns SIGINT and SIGTERM into a request that the loop honours between two steps."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """While entered, the first signal sets requested; a second one raises KeyboardInterrupt at once.

    Where nothing is worth saving yet (at_once), the first one raises it, until patient() is called.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, *, at_once: bool = False) -> None:
        self.reason: str | None = None
        self._at_once = at_once
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self.reason is not None

    def __enter__(self) -> StopRequest:
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

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        again = self.requested
        self.reason = signal.Signals(number).name
        if again or self._at_once:
            raise KeyboardInterrupt
