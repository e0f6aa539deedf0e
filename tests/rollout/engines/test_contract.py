"""What EngineClient relies on, asked of the embedded engine always, and of a real SGLang whose address is in
OPENCLAW_SGLANG_URL (started with a Qwen3 model of at least 64 ids; its weights are reloaded from their own folder)."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import numpy as np
import pytest

from openclaw_core.rollout.engines.client import EngineClient, Generation
from openclaw_core.rollout.engines.errors import EngineError, PromptTooLong
from openclaw_core.rollout.engines.swap import swap_weights

PROMPT = [10, 20, 30, 40, 50]
GREEDY = {"temperature": 0.0, "max_new_tokens": 6, "ignore_eos": True}


async def limit_of(client: EngineClient) -> int:
    return int((await client.server_info())["context_length"])


async def start_long(client: EngineClient) -> asyncio.Task[Generation]:
    """A generation that runs, up to the end of the context: engines refuse to flush while one does."""
    params = {"temperature": 1.0, "max_new_tokens": await limit_of(client) - 20, "ignore_eos": True}
    task = asyncio.create_task(client.generate(PROMPT, params, rid=uuid.uuid4().hex))
    async with asyncio.timeout(10):
        while await client.flush_cache():
            await asyncio.sleep(0.001)
    return task


async def test_ready_and_told_what_it_serves(any_client: EngineClient) -> None:
    assert await any_client.ready()
    assert await any_client.health()
    assert {"model_path", "weight_version", "model_type"} <= (await any_client.model_info()).keys()
    assert isinstance(await any_client.weight_version(), int)


async def test_greedy_replies_repeat_and_lead_the_top(any_client: EngineClient) -> None:
    rids = [uuid.uuid4().hex for _ in range(2)]
    one, two = [await any_client.generate(PROMPT, GREEDY, top_logprobs_num=3, rid=rid) for rid in rids]
    assert (one.rid, two.rid) == tuple(rids)
    assert one.response_ids == two.response_ids
    assert (len(one.response_ids), one.finish_reason, one.prompt_tokens) == (6, "length", 5)
    assert one.top is not None
    assert one.top.ids.shape == (6, 3)
    assert tuple(one.top.ids[:, 0]) == one.response_ids
    assert one.logprobs == pytest.approx(tuple(one.top.logprobs[:, 0]), abs=1e-6)
    assert [(span.start, span.end) for span in one.versions] == [(0, 6)]


async def test_output_logprobs_are_scaled_by_the_temperature_and_prompt_logprobs_are_not(any_client: EngineClient) -> None:
    warm = await any_client.generate(PROMPT, {"temperature": 0.5, "max_new_tokens": 1, "ignore_eos": True}, top_logprobs_num=2)
    plain = await any_client.generate(PROMPT, {**GREEDY, "max_new_tokens": 1}, top_logprobs_num=2)
    assert warm.top is not None
    assert plain.top is not None
    gaps = [float(np.diff(item.top.logprobs[0])[0]) for item in (warm, plain)]  # type: ignore[union-attr]
    assert gaps[0] == pytest.approx(2 * gaps[1], abs=0.02)
    scored = await any_client.score([*PROMPT, *plain.response_ids])
    assert len(scored) == 5
    assert scored[-1] == pytest.approx(plain.logprobs[0], abs=0.02)


async def test_stop_tokens_are_part_of_the_reply(any_client: EngineClient) -> None:
    free = await any_client.generate(PROMPT, GREEDY)
    got = await any_client.generate(PROMPT, {"temperature": 0.0, "max_new_tokens": 6, "stop_token_ids": [free.response_ids[0]]})
    assert (got.finish_reason, got.matched, got.response_ids) == ("stop", free.response_ids[0], free.response_ids[:1])


async def test_too_long_prompts_are_told_with_numbers(any_client: EngineClient) -> None:
    limit = await limit_of(any_client)
    with pytest.raises(PromptTooLong) as caught:
        await any_client.generate([1] * (limit + 5), GREEDY)
    assert (caught.value.prompt_tokens, caught.value.limit) == (limit + 5, limit)
    with pytest.raises(PromptTooLong) as caught:
        await any_client.generate([1] * 5, {"max_new_tokens": limit})
    assert (caught.value.prompt_tokens, caught.value.limit, caught.value.new_tokens) == (5, limit, limit)


@pytest.mark.parametrize("params", [{"temperature": -1}, {"top_p": 1.5}, {"frequency_penalty": 9}])
async def test_bad_parameters_are_400(any_client: EngineClient, params: dict[str, Any]) -> None:
    with pytest.raises(EngineError) as caught:
        await any_client.generate(PROMPT, params)
    assert caught.value.status == 400


async def test_a_bad_folder_is_refused(any_client: EngineClient) -> None:
    before = await any_client.generate(PROMPT, GREEDY)
    version = await any_client.weight_version()
    with pytest.raises(EngineError) as caught:
        await any_client.update_weights_from_disk("/no/such/folder", version + 1)
    assert caught.value.status == 400
    assert await any_client.weight_version() == version
    assert (await any_client.generate(PROMPT, GREEDY)).response_ids == before.response_ids


async def test_a_swap_ends_with_the_new_version_in_service(any_client: EngineClient) -> None:
    version = await any_client.weight_version() + 1
    await swap_weights([any_client], (await any_client.model_info())["model_path"], version)
    assert (await any_client.generate(PROMPT, GREEDY)).weight_version == version


async def test_in_place_pauses_split_a_reply_by_version(any_client: EngineClient) -> None:
    version = await any_client.weight_version()
    path = (await any_client.model_info())["model_path"]
    task = await start_long(any_client)
    await any_client.pause("in_place")
    await any_client.update_weights_from_disk(path, version + 1)
    assert await any_client.weight_version() == version + 1
    await any_client.resume()
    got = await task
    assert (got.finish_reason, got.weight_version) == ("length", version + 1)
    ends = [0, *(span.end for span in got.versions)]
    assert [span.start for span in got.versions] == ends[:-1]
    assert ends[-1] == len(got.response_ids)


async def test_abort_pauses_give_back_partial_replies_and_hold_new_ones(any_client: EngineClient) -> None:
    task = await start_long(any_client)
    await any_client.pause("abort")
    got = await task
    assert got.finish_reason == "abort"
    assert len(got.response_ids) == len(got.logprobs)
    assert await any_client.flush_cache()
    held = asyncio.create_task(any_client.generate(PROMPT, GREEDY))
    await asyncio.sleep(0.3)
    assert not held.done()
    await any_client.resume()
    assert len((await held).response_ids) == 6


async def test_aborted_requests_end_at_once(any_client: EngineClient) -> None:
    task = await start_long(any_client)
    await any_client.abort()
    assert (await task).finish_reason == "abort"
    assert await any_client.ready()
