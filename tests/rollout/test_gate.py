from __future__ import annotations

import asyncio

import pytest

from openclaw_core.rollout.gate import Gate, GateClosed


async def pass_through(gate, order, name):
    async with gate.enter():
        order.append(name)


async def test_pause_holds_and_resume_lets_in():
    gate, order = Gate(), []
    gate.pause()
    tasks = [asyncio.create_task(pass_through(gate, order, i)) for i in range(3)]
    await asyncio.sleep(0)
    assert (gate.waiting, gate.in_flight, order) == (3, 0, [])
    gate.resume()
    await asyncio.gather(*tasks)
    assert (gate.waiting, gate.in_flight, sorted(order)) == (0, 0, [0, 1, 2])
    assert gate.status()["pauses"] == 1
    assert gate.status()["last_pause_s"] >= 0


async def test_more_than_max_waiting_and_too_long_are_refused():
    gate = Gate(max_waiting=1, max_wait_s=0.05)
    gate.pause()
    waits = asyncio.create_task(pass_through(gate, [], 0))
    await asyncio.sleep(0)
    with pytest.raises(GateClosed, match="1 requests wait already"):
        await pass_through(gate, [], 1)
    with pytest.raises(GateClosed, match=r"have not come within 0\.05 s"):
        await waits
    assert gate.waiting == 0


async def test_drain_waits_for_those_inside():
    gate, release = Gate(), asyncio.Event()

    async def work():
        async with gate.enter():
            await release.wait()

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    gate.pause()
    assert await gate.drain(0.01) == 1
    release.set()
    assert await gate.drain(1) == 0
    await task


async def test_a_second_pause_holds_who_has_not_run_yet():
    gate, order = Gate(), []
    gate.pause()
    task = asyncio.create_task(pass_through(gate, order, 0))
    await asyncio.sleep(0)
    gate.resume()
    gate.pause()
    await asyncio.sleep(0.01)
    assert order == []
    gate.resume()
    await task


async def test_stop_refuses_all():
    gate = Gate()
    gate.pause()
    waits = asyncio.create_task(pass_through(gate, [], 0))
    await asyncio.sleep(0)
    gate.stop()
    for attempt in (waits, pass_through(gate, [], 1)):
        with pytest.raises(GateClosed, match="stopping"):
            await attempt


async def test_a_cancelled_waiter_frees_its_place():
    gate = Gate()
    gate.pause()
    waits = asyncio.create_task(pass_through(gate, [], 0))
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    assert gate.waiting == 0
