"""Turns SIGINT and SIGTERM into a request that the loop honours between two steps."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """While entered, the first signal sets requested; a second one raises KeyboardInterrupt at once."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.reason: str | None = None
        self._before: dict[int, Any] = {}

    @property
    def requested(self) -> bool:
        """Whether a signal has come."""
        return self.reason is not None

    def __enter__(self) -> StopRequest:
        for number in self.SIGNALS:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def rearm(self) -> None:
        """Takes the signals back from a library that has put its own handlers in."""
        for number in self.SIGNALS:
            signal.signal(number, self._on_signal)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.reason = signal.Signals(number).name
