"""The embedded engine through its HTTP bodies and the client: pauses, updates, aborts, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_core.rollout.engines.client import EngineClient, Generation
from openclaw_core.rollout.engines.errors import EngineBusy, EngineError, PromptTooLong
from openclaw_core.rollout.engines.swap import swap_weights

GREEDY = {"temperature": 0.0, "max_new_tokens": 6, "ignore_eos": True}
LONG = {"temperature": 1.0, "max_new_tokens": 200, "ignore_eos": True}
PROMPT = [10, 20, 30, 40, 50]


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.005)


async def start_long(running: Any, **params: Any) -> asyncio.Task[Generation]:
    """A generation with a few ids sampled already, and no end in sight."""
    task = asyncio.create_task(running.client.generate(PROMPT, {**LONG, **params}, rid="long"))
    await until(lambda: any(len(row.output_ids) > 2 for row in running.batcher.rows))
    return task


async def test_generation_matches_a_plain_forward(running: Any, folder: Path, reference: Any) -> None:
    params = {"temperature": 0.7, "max_new_tokens": 8, "ignore_eos": True, "sampling_seed": 3}
    got = await running.client.generate(PROMPT, params, top_logprobs_num=4)
    whole = reference(folder, PROMPT + list(got.response_ids), 0.7)[4:-1]
    own = whole[torch.arange(8), torch.tensor(got.response_ids)]
    torch.testing.assert_close(torch.tensor(got.logprobs), own, atol=1e-4, rtol=0)
    assert got.top is not None
    assert got.top.ids.tolist() == whole.topk(4).indices.tolist()
    assert (got.finish_reason, got.prompt_tokens, got.weight_version) == ("length", 5, 0)
    again = await running.client.generate(PROMPT, params)
    assert again.response_ids == got.response_ids


async def test_scores_of_a_prompt(running: Any, folder: Path, reference: Any) -> None:
    expected = reference(folder, PROMPT)[:-1][torch.arange(4), torch.tensor(PROMPT[1:])]
    assert await running.client.score(PROMPT) == pytest.approx(expected.tolist(), abs=1e-4)
    assert await running.client.score(PROMPT, start=2) == pytest.approx(expected[2:].tolist(), abs=1e-4)


async def test_stops(running: Any) -> None:
    free = await running.client.generate(PROMPT, {**GREEDY, "max_new_tokens": 12})
    third = free.response_ids[2]
    cut = free.response_ids.index(third) + 1
    params = {"temperature": 0.0, "max_new_tokens": 12, "stop_token_ids": [third]}
    got = await running.client.generate(PROMPT, params)
    assert (got.finish_reason, got.matched, got.response_ids) == ("stop", third, free.response_ids[:cut])
    assert len(got.logprobs) == cut
    blind = await running.client.generate(PROMPT, {**params, "ignore_eos": True})
    assert blind.response_ids == free.response_ids
    later = await running.client.generate(PROMPT, {**params, "min_new_tokens": cut + 1})
    assert third not in later.response_ids[: cut + 1]


async def test_stop_strings_end_in_the_text(running: Any) -> None:
    letters = running.model.tokenizer("abcdef")["input_ids"]
    # A greedy reply of known text: the first of its later ids that is whole characters by itself is the stop string.
    free = await running.client.generate(letters, {**GREEDY, "max_new_tokens": 24})
    pieces = (running.model.tokenizer.decode(free.response_ids[place : place + 1]) for place in range(1, 24))
    stop = next(piece for piece in pieces if piece and "�" not in piece)
    got = await running.client.generate(letters, {**GREEDY, "max_new_tokens": 24, "stop": [stop]})
    assert (got.finish_reason, got.matched) == ("stop", stop)
    assert stop not in got.text


async def test_pause_in_place_keeps_requests_and_tells_versions_apart(running: Any, folder: Path, other_folder: Path) -> None:
    task = await start_long(running)
    await running.client.pause("in_place")
    sampled = len(running.batcher.rows[0].output_ids)
    assert not await running.client.flush_cache()
    with pytest.raises(EngineError, match="can't be flushed"):
        await running.client.update_weights_from_disk(str(other_folder), 4, flush_cache=True)
    assert await running.client.weight_version() == 0
    await running.client.update_weights_from_disk(str(other_folder), 5)
    await asyncio.sleep(0.05)
    assert len(running.batcher.rows[0].output_ids) == sampled
    await running.client.resume()
    got = await task
    assert [(span.version, span.start, span.end) for span in got.versions] == [(0, 0, sampled), (5, sampled, 200)]
    assert (got.finish_reason, got.weight_version) == ("length", 5)


async def test_pause_by_abort_gives_back_what_there_is_and_holds_new_requests(running: Any) -> None:
    task = await start_long(running)
    await running.client.pause("abort")
    got = await task
    assert got.finish_reason == "abort"
    assert 2 < len(got.response_ids) < 200
    assert len(got.logprobs) == len(got.response_ids)
    waiting = asyncio.create_task(running.client.generate(PROMPT, GREEDY))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    assert not await running.client.ready(timeout_s=0.2)
    assert await running.client.health()
    await running.client.resume()
    assert len((await waiting).response_ids) == 6
    assert await running.client.ready()


async def test_pause_by_retraction_allows_a_flush_and_goes_on(running: Any, folder: Path, reference: Any) -> None:
    task = await start_long(running)
    await running.client.pause("retract")
    assert await running.client.flush_cache()
    await running.client.resume()
    got = await task
    whole = reference(folder, PROMPT + list(got.response_ids))[4:-1]
    own = whole[torch.arange(200), torch.tensor(got.response_ids)]
    torch.testing.assert_close(torch.tensor(got.logprobs), own, atol=1e-4, rtol=0)


async def test_an_update_waits_for_what_runs(running: Any, other_folder: Path) -> None:
    task = await start_long(running)
    update = asyncio.create_task(running.client.update_weights_from_disk(str(other_folder), 1))
    await asyncio.sleep(0)
    await update
    got = await task
    assert [span.version for span in got.versions] == [0]
    assert (await running.client.generate(PROMPT, GREEDY)).weight_version == 1


async def test_a_swap_gives_the_new_weights(running: Any, other_folder: Path, reference: Any) -> None:
    before = await running.client.score(PROMPT)
    await start_long(running, max_new_tokens=30)
    await swap_weights([running.client], str(other_folder), 2)
    after = await running.client.score(PROMPT)
    expected = reference(other_folder, PROMPT)[:-1][torch.arange(4), torch.tensor(PROMPT[1:])]
    assert after == pytest.approx(expected.tolist(), abs=1e-4)
    assert after != pytest.approx(before, abs=1e-2)
    assert (await running.client.model_info())["model_path"] == str(other_folder)


async def test_abort_ends_one_or_all(running: Any) -> None:
    task = await start_long(running)
    other = asyncio.create_task(running.client.generate(PROMPT, LONG, rid="other"))
    await until(lambda: len(running.batcher.rows) == 2)
    await running.client.abort("nobody")
    await running.client.abort("long")
    assert (await task).finish_reason == "abort"
    assert not other.done()
    await running.client.abort()
    assert (await other).finish_reason == "abort"


async def test_too_long_prompts(running: Any) -> None:
    with pytest.raises(PromptTooLong) as caught:
        await running.client.generate([1] * 256, GREEDY)
    assert (caught.value.prompt_tokens, caught.value.limit) == (256, 256)
    with pytest.raises(PromptTooLong) as caught:
        await running.client.generate([1] * 200, {"max_new_tokens": 57})
    assert (caught.value.prompt_tokens, caught.value.limit, caught.value.new_tokens) == (200, 256, 57)
    rest = await running.client.generate([1] * 250, {"max_new_tokens": None, "ignore_eos": True})
    assert (len(rest.response_ids), rest.finish_reason) == (6, "length")


@pytest.mark.parametrize("ids", [[], [1, -1], [1, 260], [1, 10**9]])
async def test_ids_that_no_token_has_are_refused(running: Any, ids: list[int]) -> None:
    with pytest.raises(EngineError) as caught:
        await running.client.generate(ids, GREEDY)
    assert caught.value.status == 400
    assert await running.client.ready()


async def test_a_model_gone_mad_answers_500(running: Any) -> None:
    running.model.module.get_input_embeddings().weight[7] = float("nan")
    with pytest.raises(EngineError, match="finite") as caught:
        await running.client.generate([7, 8], GREEDY)
    assert caught.value.status == 500


async def test_a_step_that_raises_answers_500_and_the_engine_goes_on(running: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(running.model, "hidden", broken)
        with pytest.raises(EngineError, match="out of memory") as caught:
            await running.client.generate(PROMPT, GREEDY)
    assert caught.value.status == 500
    assert await running.client.ready()


async def test_a_full_queue_answers_busy(running: Any) -> None:
    await running.client.pause("abort")
    tasks = [asyncio.create_task(running.client.generate(PROMPT, GREEDY)) for _ in range(68)]
    await until(lambda: len(running.batcher.waiting) == 68)
    with pytest.raises(EngineBusy):
        await running.client.generate(PROMPT, GREEDY)
    await running.client.resume()
    assert {len(got.response_ids) for got in await asyncio.gather(*tasks)} == {6}


async def raw(client: EngineClient, body: dict[str, Any]) -> Any:
    return await client._json("POST", "/generate", body)


async def test_batches_texts_and_several_samples(running: Any) -> None:
    both = await raw(
        running.client,
        {"input_ids": [[1, 2], [3]], "rid": ["a", "b"], "sampling_params": [GREEDY, {**GREEDY, "max_new_tokens": 1}]},
    )
    assert [(item["meta_info"]["id"], len(item["output_ids"])) for item in both] == [("a", 6), ("b", 1)]
    several = await raw(
        running.client, {"input_ids": [1, 2], "sampling_params": {**LONG, "max_new_tokens": 8, "n": 3, "sampling_seed": 1}}
    )
    assert len({tuple(item["output_ids"]) for item in several}) == 3
    text = await raw(running.client, {"text": "abc", "sampling_params": GREEDY})
    assert text["meta_info"]["prompt_tokens"] == 3
    assert "output_token_logprobs" not in text["meta_info"]
    with pytest.raises(EngineError, match="3 values was given for 2"):
        await raw(running.client, {"input_ids": [[1], [2]], "sampling_params": [GREEDY] * 3})
    with pytest.raises(EngineError, match="Either text or input_ids"):
        await raw(running.client, {"sampling_params": GREEDY})


async def test_bodies_that_cannot_be_read_are_400(running: Any) -> None:
    for body in ({"input_ids": ["x"]}, {"input_ids": [1], "sampling_params": 3}, {"input_ids": [1], "stream": True}):
        with pytest.raises(EngineError) as caught:
            await raw(running.client, body)
        assert caught.value.status == 400
    with pytest.raises(EngineError) as caught:
        await running.client.pause("sideways")  # type: ignore[arg-type]
    assert caught.value.status == 400


async def test_what_the_server_tells(running: Any) -> None:
    info = await running.client.server_info()
    assert (info["context_length"], info["vocab_size"], info["is_paused"]) == (256, 260, False)
    models = await running.client._json("GET", "/v1/models", None)
    assert models["data"][0]["max_model_len"] == 256
    await running.client._text("GET", "/health_generate", None)
