"""The engine as a process of its own: start, port, disconnects, end; and bad starts, each with one sentence."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from openclaw_core.rollout.engines.client import EngineClient
from openclaw_core.run.services import Service

MODULE = "openclaw_core.rollout.engines.embedded"


@pytest.fixture(scope="module")
def service(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    place = tmp_path_factory.mktemp("engine")
    argv = [sys.executable, "-m", MODULE, "--model", str(folder), "--port-file", str(place / "port"), "--context-length", "256"]
    env = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"}
    engine = Service("engine", argv, env, place / "engine.log", place / "port", check=_ready)
    engine.start(120.0)
    yield engine
    engine.stop()


def _ready(port: int) -> bool:
    async def ask() -> bool:
        async with EngineClient(f"http://127.0.0.1:{port}") as client:
            return await client.ready()

    return asyncio.run(ask())


async def test_concurrent_requests_over_sockets(service: Service) -> None:
    async with EngineClient(f"http://127.0.0.1:{service.port}") as client:
        params = {"temperature": 1.0, "max_new_tokens": 12, "ignore_eos": True}
        got = await asyncio.gather(*(client.generate([i + 1, i + 2], {**params, "sampling_seed": i}) for i in range(16)))
        assert {len(item.response_ids) for item in got} == {12}
        alone = await client.generate([4, 5], {**params, "sampling_seed": 3})
        assert alone.response_ids == got[3].response_ids


async def test_a_client_that_goes_away_frees_its_row(service: Service) -> None:
    url = f"http://127.0.0.1:{service.port}"
    body = {"input_ids": [1], "sampling_params": {"max_new_tokens": 255, "ignore_eos": True}, "rid": "gone"}
    async with EngineClient(url) as client, httpx.AsyncClient(base_url=url) as http:
        request = asyncio.create_task(http.post("/generate", json=body))
        async with asyncio.timeout(10):
            while (await client.server_info())["num_running_reqs"] == 0:
                assert not request.done()
                await asyncio.sleep(0.002)
            # Held, so that it can't come to an end of its own.
            await client.pause("in_place")
            assert (await client.server_info())["num_running_reqs"] == 1
            request.cancel()
            while (await client.server_info())["num_running_reqs"]:
                await asyncio.sleep(0.002)
        await client.resume()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--model", "/no/such/model"], "/no/such/model has no config.json"),
        (["--model", "{folder}", "--port", "{port}"], "Can't listen on 127.0.0.1:{port}"),
    ],
)
def test_bad_starts_end_with_a_sentence(argv: list[str], words: str, folder: Path, service: Service) -> None:
    known = {"folder": folder, "port": service.port}
    given = [sys.executable, "-m", MODULE, *(word.format(**known) for word in argv)]
    ended = subprocess.run(given, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 2
    assert words.format(**known) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_sigterm_ends_it_quickly(service: Service) -> None:
    service.stop(grace_s=8.0)
    assert service.poll() in (0, -signal.SIGTERM)
