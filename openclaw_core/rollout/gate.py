"""The gate in front of the engines: open, or paused while weights change. Requests wait at it up to a limit."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from openclaw_core.errors import UserError

RETRY_AFTER_S = 5


class GateClosed(UserError):
    """The request was not let in: too many wait, it waited too long, or the service stops."""

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what, f"Try again in {RETRY_AFTER_S} s.")
        self.reason = reason


class Gate:
    """Belongs to one event loop. `async with gate.enter()` around a generation; pause() holds the next ones.

    At most max_waiting requests wait, each for max_wait_s; further ones are refused with GateClosed.
    """

    def __init__(self, *, max_waiting: int = 256, max_wait_s: float = 600.0) -> None:
        self.max_waiting = max_waiting
        self.max_wait_s = max_wait_s
        self.in_flight = 0
        self.waiting = 0
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._stopping = False
        self._paused_at: float | None = None
        self._pauses = 0
        self._paused_s = 0.0
        self._last_pause_s = 0.0

    @property
    def paused(self) -> bool:
        return self._paused_at is not None

    def pause(self) -> None:
        """Lets no further request in. Those inside go on; see drain()."""
        if self._paused_at is None:
            self._paused_at = time.monotonic()
            self._open.clear()

    def resume(self) -> None:
        """Lets in who waits."""
        if self._paused_at is not None:
            self._last_pause_s = time.monotonic() - self._paused_at
            self._paused_s += self._last_pause_s
            self._pauses += 1
            self._paused_at = None
            self._open.set()

    def stop(self) -> None:
        """Refuses from now on everybody, those who wait too."""
        self._stopping = True
        self._open.set()

    async def drain(self, timeout_s: float) -> int:
        """Waits until nobody is inside; returns how many still are after timeout_s."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        return self.in_flight

    @contextlib.asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        if not self._open.is_set():
            await self._wait()
        if self._stopping:
            raise GateClosed("stopping", "The service is stopping.")
        self.in_flight += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.in_flight -= 1
            if self.in_flight == 0:
                self._idle.set()

    async def _wait(self) -> None:
        if self.waiting >= self.max_waiting:
            raise GateClosed("paused", f"New weights are being loaded and {self.waiting} requests wait already.")
        self.waiting += 1
        deadline = time.monotonic() + self.max_wait_s
        try:
            # A pause may begin again before a waiter has run, so look twice.
            while not self._open.is_set():
                await asyncio.wait_for(self._open.wait(), max(0.0, deadline - time.monotonic()))
        except TimeoutError as error:
            raise GateClosed("paused", f"New weights have not come within {self.max_wait_s:g} s.") from error
        finally:
            self.waiting -= 1

    def status(self) -> dict[str, Any]:
        """Counts, and lengths of pauses in seconds."""
        return {
            "paused": self.paused, "waiting": self.waiting, "in_flight": self.in_flight, "max_waiting": self.max_waiting,
            "pauses": self._pauses, "paused_s": round(self._paused_s, 3), "last_pause_s": round(self._last_pause_s, 3),
        }  # fmt: skip
