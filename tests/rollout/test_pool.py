from __future__ import annotations

import asyncio

import pytest

from openclaw_core.rollout.engines.errors import EngineError, EngineUnreachable, PromptTooLong
from openclaw_core.rollout.pool import EnginePool, NoEngine


async def test_the_least_busy_engine_answers(make_engine):
    slow, quick = make_engine(hold=asyncio.Event()), make_engine()
    pool = EnginePool([slow, quick])
    await pool.probe()
    first = asyncio.create_task(pool.generate([1], {}, rid="a"))
    await asyncio.sleep(0)
    for rid in "bc":
        await pool.generate([1], {}, rid=rid)
    assert (len(slow.seen), len(quick.seen), pool.in_flight) == (1, 2, 1)
    slow.hold.set()
    await first


async def test_a_dead_engine_is_left_out_and_comes_back(make_engine):
    dead, alive = make_engine(script=[EngineUnreachable("gone"), "hello"]), make_engine()
    pool = EnginePool([dead, alive], probe_every_s=0.01)
    await pool.probe()
    dead.is_ready = False
    await pool.generate([1], {}, rid="a")
    assert [m["ready"] for m in pool.status()] == [False, True]
    assert pool.status()[0]["cause"] == "gone"
    await pool.generate([1], {}, rid="b")
    assert len(dead.seen) == 1
    pool.start()
    dead.is_ready = True
    await asyncio.sleep(0.1)
    await pool.stop()
    assert [m["ready"] for m in pool.status()] == [True, True]


async def test_refused_requests_open_no_breaker(make_engine):
    engine = make_engine(script=[PromptTooLong("9 > 8", prompt_tokens=9, limit=8)] * 10 + ["hello"])
    pool = EnginePool([engine])
    await pool.probe()
    for _ in range(10):
        with pytest.raises(PromptTooLong):
            await pool.generate([1], {}, rid="a")
    assert (await pool.generate([1], {}, rid="b")).response_ids


async def test_all_dead_is_said_with_every_cause(make_engine):
    engines = [make_engine(script=[EngineError("crash", status=500)], base_url=f"http://{n}") for n in "ab"]
    pool = EnginePool(engines)
    with pytest.raises(NoEngine, match="has not generated a token yet"):
        await pool.generate([1], {}, rid="a")
    await pool.probe()
    with pytest.raises(NoEngine, match=r"http://a: crash; http://b: crash"):
        await pool.generate([1], {}, rid="a")


async def test_nobody_probes_while_weights_change(make_engine):
    engine = make_engine(is_ready=True)
    pool = EnginePool([engine], probe_every_s=0.01)
    pool.hold(True)
    pool.start()
    await asyncio.sleep(0.05)
    assert not pool.ready
    pool.hold(False)
    await asyncio.sleep(0.05)
    assert pool.ready
    await pool.stop()


async def test_a_cancelled_request_is_aborted_at_its_engine(make_engine):
    engine = make_engine(hold=asyncio.Event())
    pool = EnginePool([engine])
    await pool.probe()
    task = asyncio.create_task(pool.generate([1], {}, rid="mine"))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (engine.aborted, pool.in_flight) == (["mine"], 0)
