from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest

from openclaw_core.rollout.engines.client import EngineClient, parse_version
from openclaw_core.rollout.engines.errors import EngineBusy, EngineError, EngineTimeout, EngineUnreachable, PromptTooLong


def answer(**meta: Any) -> dict[str, Any]:
    known = {
        "id": "r",
        "finish_reason": {"type": "stop", "matched": 9},
        "prompt_tokens": 2,
        "weight_version": "3",
        "output_token_logprobs": [[-0.5, 7, None], [-0.25, 9, None]],
        "completion_tokens": 2,
    }
    return {"text": "hi", "output_ids": [7, 9], "meta_info": {**known, **meta}}


def client(reply: Callable[[httpx.Request], httpx.Response] | httpx.Response) -> EngineClient:
    handler = reply if callable(reply) else lambda request: reply
    return EngineClient("http://engine/", transport=httpx.MockTransport(handler), timeout_s=1.0)


async def test_a_generation_is_read_whole() -> None:
    seen: dict[str, Any] = {}

    def engine(request: httpx.Request) -> httpx.Response:
        seen.update(json.loads(request.content), path=request.url.path)
        top = [[[-0.9, 4, None], [-0.5, 8, None], [-0.5, 7, None]], [[-0.25, 9, None], [-3.0, 1, None], [-4.0, 2, None]]]
        spans = [{"version": "2", "start": 0, "end": 1}, {"version": "3", "start": 1, "end": 2}]
        return httpx.Response(200, json=answer(output_top_logprobs=top, weight_versions=spans))

    async with client(engine) as engine_client:
        got = await engine_client.generate([1, 2], {"temperature": 0.6}, top_logprobs_num=3, rid="r")
    assert (seen["path"], seen["input_ids"], seen["rid"], seen["return_logprob"]) == ("/generate", [1, 2], "r", True)
    assert (got.response_ids, got.logprobs, got.finish_reason, got.matched) == ((7, 9), (-0.5, -0.25), "stop", 9)
    assert (got.weight_version, [(s.version, s.start, s.end) for s in got.versions]) == (3, [(2, 0, 1), (3, 1, 2)])
    assert got.top is not None
    assert got.top.ids.tolist() == [[7, 8, 4], [9, 1, 2]]
    assert np.all(np.diff(got.top.logprobs, axis=1) <= 0)


async def test_an_abort_is_a_result_and_no_error() -> None:
    reply = answer(
        finish_reason={"type": "abort", "message": "Aborted", "status_code": None}, output_token_logprobs=[], completion_tokens=0
    )
    async with client(httpx.Response(200, json=reply)) as engine:
        got = await engine.generate([1], {})
    assert (got.finish_reason, got.response_ids, got.abort_message) == ("abort", (), "Aborted")


@pytest.mark.parametrize(
    ("text", "prompt", "limit", "new"),
    [
        ("The input (3000 tokens) is longer than the model's context length (2048 tokens).", 3000, 2048, None),
        ("Input length (2047 tokens) exceeds the maximum allowed length (2042 tokens). Use a shorter input.", 2047, 2042, None),
        (
            "Requested token count exceeds the model's maximum context length of 2048 tokens. You requested a total of "
            "3005 tokens: 5 tokens from the input messages and 3000 tokens for the completion.",
            5,
            2048,
            3000,
        ),
    ],
)
async def test_too_long_prompts_come_with_their_numbers(text: str, prompt: int, limit: int, new: int | None) -> None:
    async with client(httpx.Response(400, json={"error": {"message": text}})) as engine:
        with pytest.raises(PromptTooLong) as caught:
            await engine.generate([1], {})
    error = caught.value
    assert (error.status, error.prompt_tokens, error.limit, error.new_tokens) == (400, prompt, limit, new)


@pytest.mark.parametrize("status", [400, 401, 404, 422, 500, 502])
async def test_other_statuses_stay_what_they_are(status: int) -> None:
    async with client(httpx.Response(status, text="no")) as engine:
        with pytest.raises(EngineError) as caught:
            await engine.generate([1], {})
    assert (type(caught.value), caught.value.status, caught.value.text) == (EngineError, status, "no")


@pytest.mark.parametrize("status", [429, 503])
async def test_busy_tells_when_to_try_again(status: int) -> None:
    async with client(httpx.Response(status, text="full", headers={"retry-after": "1.5"})) as engine:
        with pytest.raises(EngineBusy) as caught:
            await engine.generate([1], {})
    assert (caught.value.status, caught.value.retry_after) == (status, 1.5)


@pytest.mark.parametrize(
    "reply",
    [
        {"text": "hi"},
        [],
        answer(output_token_logprobs=[[None, 7, None], [-0.2, 9, None]]),
        answer(completion_tokens=3),
        answer(weight_version="v1"),
        answer(finish_reason=None),
    ],
)
async def test_an_answer_that_lacks_something_is_an_error(reply: Any) -> None:
    async with client(httpx.Response(200, json=reply)) as engine:
        with pytest.raises(EngineError):
            await engine.generate([1], {})


async def test_no_json_is_an_error() -> None:
    async with client(httpx.Response(200, text="<html>")) as engine:
        with pytest.raises(EngineError, match="JSON"):
            await engine.model_info()


async def test_nobody_there_and_no_answer_are_told_apart() -> None:
    def refused(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    def slow(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("slow")

    async with client(refused) as engine:
        with pytest.raises(EngineUnreachable):
            await engine.generate([1], {})
        assert not await engine.health()
    async with client(slow) as engine:
        with pytest.raises(EngineTimeout, match="within 1 s"):
            await engine.generate([1], {})


async def test_an_engine_that_is_healthy_but_never_generates_is_not_ready() -> None:
    def engine_alive(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/health":
            return httpx.Response(200)
        raise httpx.ReadTimeout("never")

    async with client(engine_alive) as engine:
        assert await engine.health()
        assert not await engine.ready()


async def test_a_refused_update_is_an_error_at_any_status() -> None:
    body = {"success": False, "message": "shape"}
    for status in (200, 400):
        async with client(httpx.Response(status, json=body)) as engine:
            with pytest.raises(EngineError, match="shape"):
                await engine.update_weights_from_disk("/w", 2)


async def test_an_update_never_flushes_on_its_own() -> None:
    bodies: list[Any] = []

    def engine_seen(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json={"success": True})

    async with client(engine_seen) as engine:
        await engine.update_weights_from_disk("/w", 2)
    assert bodies == [{"model_path": "/w", "weight_version": "2", "flush_cache": False}]


def test_versions() -> None:
    assert [parse_version(value) for value in ("default", "7", None, 4)] == [0, 7, 0, 4]
    with pytest.raises(EngineError, match="'v1'"):
        parse_version("v1")
