"""The engines behind the proxy: the least busy one that really generates answers; dead ones are left out until they do again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from openclaw_core.errors import UserError
from openclaw_core.rollout.engines.client import Generation
from openclaw_core.rollout.engines.errors import EngineError, EngineTimeout, EngineUnreachable

PROBE_EVERY_S = 1.0
PROBE_TIMEOUT_S = 60.0


class Engine(Protocol):
    """What the pool asks of an engine; EngineClient has it."""

    base_url: str

    async def generate(
        self, input_ids: Sequence[int], sampling_params: Mapping[str, Any], *, rid: str | None = None
    ) -> Generation: ...

    async def ready(self, timeout_s: float = 10.0) -> bool: ...

    async def abort(self, rid: str | None = None) -> None: ...


class NoEngine(UserError):
    """No engine generates at the moment."""


@dataclass(slots=True)
class _Member:
    engine: Engine
    ready: bool = False
    in_flight: int = 0
    failures: int = 0
    cause: str = "it has not generated a token yet"
    since: float = 0.0


class EnginePool:
    """Several engines as one. Readiness is a real generated token; only connection faults and 5xx take an engine out.

    start() begins the watch in the running loop; stop() ends it.
    """

    def __init__(self, engines: Sequence[Engine], *, probe_every_s: float = PROBE_EVERY_S) -> None:
        self._members = [_Member(engine, since=time.time()) for engine in engines]
        self._probe_every_s = probe_every_s
        self._watch: asyncio.Task[None] | None = None
        self._held = False

    def start(self) -> None:
        self._watch = asyncio.create_task(self._watch_members())

    async def stop(self) -> None:
        if self._watch:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch

    def hold(self, held: bool) -> None:
        """While held (weights change) engines aren't probed: a paused engine isn't a dead one."""
        self._held = held

    @property
    def ready(self) -> bool:
        return any(member.ready for member in self._members)

    @property
    def in_flight(self) -> int:
        return sum(member.in_flight for member in self._members)

    def status(self) -> list[dict[str, Any]]:
        """One entry per engine: address, ready, in_flight, failures, and the cause where it isn't ready."""
        return [
            {
                "url": m.engine.base_url, "ready": m.ready, "in_flight": m.in_flight, "failures": m.failures,
                "cause": None if m.ready else m.cause, "since": m.since,
            }
            for m in self._members
        ]  # fmt: skip

    async def generate(self, input_ids: Sequence[int], sampling_params: Mapping[str, Any], *, rid: str) -> Generation:
        """Samples on the least busy ready engine; after a connection fault or 5xx on another one.

        Raises NoEngine when none is ready, and the engine's own error when it refused the request (4xx).
        """
        for _ in range(len(self._members)):
            ready = [member for member in self._members if member.ready]
            if not ready:
                break
            member = min(ready, key=lambda m: m.in_flight)
            member.in_flight += 1
            try:
                return await member.engine.generate(input_ids, sampling_params, rid=rid)
            except asyncio.CancelledError:
                with contextlib.suppress(EngineError):
                    await asyncio.shield(member.engine.abort(rid))
                raise
            except EngineTimeout as error:
                # The engine may be at work on it still, and another one would take as long.
                self._take_out(member, error)
                raise
            except EngineError as error:
                if not _is_engine_fault(error):
                    raise
                self._take_out(member, error)
            finally:
                member.in_flight -= 1
        causes = "; ".join(f"{m.engine.base_url}: {m.cause}" for m in self._members) or "there are none"
        raise NoEngine(f"No engine is ready ({causes}).", "Wait until one is.")

    @staticmethod
    def _take_out(member: _Member, error: EngineError) -> None:
        member.ready, member.since, member.cause = False, time.time(), str(error)
        member.failures += 1

    async def probe(self, *, timeout_s: float = PROBE_TIMEOUT_S) -> None:
        """Asks every engine that isn't ready for one token."""

        async def ask(member: _Member) -> None:
            try:
                ready = await member.engine.ready(timeout_s)
                cause = "it answers and generates nothing"
            except EngineError as error:
                ready, cause = False, str(error)
            if ready:
                member.ready, member.since = True, time.time()
            else:
                member.cause = cause

        await asyncio.gather(*(ask(member) for member in self._members if not member.ready))

    async def _watch_members(self) -> None:
        while True:
            if not self._held:
                await self.probe()
            await asyncio.sleep(self._probe_every_s)


def _is_engine_fault(error: EngineError) -> bool:
    return isinstance(error, EngineUnreachable) or error.status is None or error.status >= 500
