"""The weight swap against engines that note what is asked of them and fail where told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from openclaw_core.rollout.engines.client import EngineClient
from openclaw_core.rollout.engines.errors import SwapError
from openclaw_core.rollout.engines.swap import SwapLimits, swap_weights

QUICK = SwapLimits(drain_s=0.3, pause_s=0.3, update_s=0.3, verify_s=0.3, flush_s=0.3, resume_s=0.3)


class FakeEngine:
    """Like SGLang: refuses a flush while requests run; serves unless paused."""

    def __init__(self, name: str, *, busy_flushes: int = 0, fail: dict[str, Any] | None = None, lie: bool = False) -> None:
        self.calls: list[str] = []
        self.paused, self.version = False, "1"
        self._busy, self._fail, self._lie = busy_flushes, fail or {}, lie
        self.client = EngineClient(f"http://{name}", transport=httpx.MockTransport(self._answer))

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.strip("/")
        self.calls.append(path)
        if (trouble := self._fail.get(path)) is not None:
            if trouble == "hang":
                await asyncio.sleep(60)
            return httpx.Response(trouble, text="trouble")
        if path == "flush_cache":
            self._busy -= 1
            return httpx.Response(400 if self._busy >= 0 else 200)
        if path == "pause_generation":
            self.paused = True
        elif path == "continue_generation":
            self.paused = False
        elif path == "update_weights_from_disk":
            assert self.paused
            if not self._lie:
                self.version = json.loads(request.content)["weight_version"]
            return httpx.Response(200, json={"success": True})
        return httpx.Response(200, json={"weight_version": self.version})


async def swap(*engines: FakeEngine) -> dict[Any, float]:
    return await swap_weights([engine.client for engine in engines], "/w", 2, QUICK)


async def test_the_order_is_drain_pause_update_verify_flush_resume() -> None:
    engines = [FakeEngine("a", busy_flushes=2), FakeEngine("b")]
    took = await swap(*engines)
    assert list(took) == ["drain", "pause", "update", "verify", "flush", "resume"]
    rest = ["pause_generation", "update_weights_from_disk", "model_info", "flush_cache", "continue_generation"]
    assert engines[0].calls == ["flush_cache"] * 3 + rest
    assert engines[1].calls == ["flush_cache", *rest]
    assert [engine.version for engine in engines] == ["2", "2"]


async def test_no_engine_is_touched_before_all_are_drained() -> None:
    busy, idle = FakeEngine("busy", busy_flushes=10**6), FakeEngine("idle")
    with pytest.raises(SwapError, match=r"'drain' on http://busy.*old weights") as caught:
        await swap(idle, busy)
    assert (caught.value.step, caught.value.paused) == ("drain", False)
    assert set(busy.calls) == set(idle.calls) == {"flush_cache"}


@pytest.mark.parametrize("trouble", [400, 500, "hang"])
@pytest.mark.parametrize(
    ("path", "step"),
    [("update_weights_from_disk", "update"), ("model_info", "verify"), ("pause_generation", "pause")],
)
async def test_after_a_failure_no_engine_serves(trouble: Any, path: str, step: str) -> None:
    good, bad = FakeEngine("good"), FakeEngine("bad", fail={path: trouble})
    with pytest.raises(SwapError, match=f"'{step}' on http://bad") as caught:
        await swap(good, bad)
    assert (caught.value.step, caught.value.engine, caught.value.paused) == (step, "http://bad", step != "pause")
    assert caught.value.status == (None if trouble == "hang" else trouble)
    assert good.paused
    assert "continue_generation" not in good.calls + bad.calls


async def test_an_engine_that_keeps_its_old_weights_is_found_out() -> None:
    good, liar = FakeEngine("good"), FakeEngine("liar", lie=True)
    with pytest.raises(SwapError, match="reports weight version 1 instead of 2"):
        await swap(good, liar)
    assert good.paused
    assert liar.paused


async def test_a_failed_resume_says_that_the_new_weights_are_in() -> None:
    bad = FakeEngine("bad", fail={"continue_generation": 500})
    with pytest.raises(SwapError, match=r"'resume' on http://bad.*hold the new weights") as caught:
        await swap(bad)
    assert not caught.value.paused
