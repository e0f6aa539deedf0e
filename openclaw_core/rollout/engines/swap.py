"""New weights for all engines: drain, pause, update, verify, flush, resume; each with a time limit and an error of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from openclaw_core.rollout.engines.client import EngineClient
from openclaw_core.rollout.engines.errors import EngineError, SwapError

Step = Literal["drain", "pause", "update", "verify", "flush", "resume"]


@dataclass(frozen=True, slots=True)
class SwapLimits:
    """Seconds that each step may take, over all engines together."""

    drain_s: float = 300.0
    pause_s: float = 60.0
    update_s: float = 600.0
    verify_s: float = 30.0
    flush_s: float = 60.0
    resume_s: float = 30.0


async def swap_weights(
    clients: Sequence[EngineClient], path: str, version: int, limits: SwapLimits | None = None
) -> dict[Step, float]:
    """Gives every engine the weights of path as version. Returns the seconds of each step.

    The caller stops sending new requests before. Running requests are waited for (drain); what comes in between drain and
    pause is aborted. SwapError names the step, the engine and the cause. After a failed drain the engines serve on with their
    old weights; after a later failure the paused ones stay paused, so that no mixture serves: mend the cause and swap again,
    or end the engines.
    """
    limits = limits or SwapLimits()
    took: dict[Step, float] = {}

    async def step(name: Step, limit_s: float, action: Callable[[EngineClient], Awaitable[None]]) -> None:
        started = time.monotonic()
        await _on_all(clients, name, limit_s, action)
        took[name] = time.monotonic() - started

    await step("drain", limits.drain_s, _drain)
    await step("pause", limits.pause_s, lambda client: client.pause("abort", timeout_s=limits.pause_s))
    await step(
        "update", limits.update_s, lambda client: client.update_weights_from_disk(path, version, timeout_s=limits.update_s)
    )
    await step("verify", limits.verify_s, lambda client: _verify(client, version))
    await step("flush", limits.flush_s, lambda client: _flush(client, limits.flush_s))
    await step("resume", limits.resume_s, lambda client: client.resume(timeout_s=limits.resume_s))
    return took


async def _on_all(
    clients: Sequence[EngineClient], name: Step, limit_s: float, action: Callable[[EngineClient], Awaitable[None]]
) -> None:
    async def one(client: EngineClient) -> None:
        try:
            async with asyncio.timeout(limit_s):
                await action(client)
        except TimeoutError as error:
            raise SwapError(name, client.base_url, f"it took more than {limit_s:g} s.") from error
        except EngineError as error:
            raise SwapError(name, client.base_url, str(error), status=error.status, text=error.text) from error

    outcomes = await asyncio.gather(*(one(client) for client in clients), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


async def _drain(client: EngineClient) -> None:
    """Waits until nothing runs or waits: engines refuse a flush as long as something does."""
    pause = 0.02
    while not await client.flush_cache():
        await asyncio.sleep(pause)
        pause = min(0.5, pause * 1.5)


async def _verify(client: EngineClient, version: int) -> None:
    reported = await client.weight_version()
    if reported != version:
        raise EngineError(f"it reports weight version {reported} instead of {version}.")


async def _flush(client: EngineClient, limit_s: float) -> None:
    if not await client.flush_cache(timeout_s=limit_s):
        raise EngineError("it refused to flush its cache although it is paused and empty.")
