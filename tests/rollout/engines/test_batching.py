from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from openclaw_core.rollout.engines.embedded.batching import Batcher
from openclaw_core.rollout.engines.embedded.model import EngineModel
from openclaw_core.rollout.engines.embedded.params import SamplingParams
from openclaw_core.rollout.engines.embedded.request import Request

CONTEXT, REAL_VOCAB = 256, 260


def prompt(seed: int, length: int) -> list[int]:
    return [random.Random(seed).randrange(REAL_VOCAB) for _ in range(length)]


def request(seed: int, length: int, new: int, done: list[Request] | None = None, **changes: Any) -> Request:
    params = SamplingParams(max_new_tokens=new, temperature=0.8, ignore_eos=True)
    fields = {"rid": str(seed), "params": params, "max_new_tokens": new, "seed": seed, "input_ids": prompt(seed, length)}
    return Request(**{**fields, "finish": (done if done is not None else []).append, **changes})


def batcher(model: EngineModel, rows: int = 4) -> Batcher:
    return Batcher(model, max_rows=rows, context_length=CONTEXT, version="0")


def run(engine: Batcher) -> None:
    while not engine.idle:
        engine.step()


def assert_like_reference(item: Request, folder: Path, reference: Any) -> None:
    """Every sampled token's log-prob, given all before it, is what a plain forward over the whole sequence says."""
    whole = reference(folder, item.input_ids + item.output_ids, item.params.temperature)
    rows = torch.arange(len(item.input_ids) - 1, len(item.input_ids) + len(item.output_ids) - 1)
    expected = whole[rows, torch.tensor(item.output_ids)]
    torch.testing.assert_close(torch.tensor(item.output_logprobs), expected, atol=1e-4, rtol=0)


def test_rows_join_and_leave_in_mid_generation(model: EngineModel, folder: Path, reference: Any) -> None:
    engine = batcher(model)
    done: list[Request] = []
    items = [
        request(seed, length, new, done) for seed, (length, new) in enumerate([(5, 40), (30, 3), (1, 12), (90, 8), (17, 20)])
    ]
    engine.waiting.append(items[0])
    for _ in range(4):
        engine.step()
    engine.waiting.extend(items[1:3])
    engine.step()
    assert len(engine.rows) == 3
    engine.waiting.extend(items[3:])
    run(engine)
    assert {item.rid for item in done} == {item.rid for item in items}
    for item in items:
        assert len(item.output_ids) == item.max_new_tokens
        assert_like_reference(item, folder, reference)


def test_a_batch_samples_what_single_requests_sample(model: EngineModel) -> None:
    def items() -> list[Request]:
        return [request(seed, 3 + 7 * seed % 40, 10) for seed in range(9)]

    alone, together = items(), items()
    for item in alone:
        engine = batcher(model, rows=1)
        engine.waiting.append(item)
        run(engine)
    engine = batcher(model, rows=4)
    engine.waiting.extend(together)
    run(engine)
    for one, other in zip(alone, together, strict=True):
        assert one.output_ids == other.output_ids
        assert one.output_logprobs == pytest.approx(other.output_logprobs, abs=1e-4)


def test_never_more_rows_than_allowed(model: EngineModel) -> None:
    engine = batcher(model, rows=2)
    engine.waiting.extend(request(seed, 4, 5) for seed in range(5))
    seen = []
    while not engine.idle:
        engine.step()
        seen.append(len(engine.rows))
    assert max(seen) == 2


def test_the_cache_grows_to_the_whole_context(model: EngineModel, folder: Path, reference: Any) -> None:
    engine = batcher(model)
    item = request(3, 10, CONTEXT - 10)
    engine.waiting.append(item)
    run(engine)
    assert len(item.output_ids) == CONTEXT - 10
    assert_like_reference(item, folder, reference)


def test_prompt_logprobs_are_unscaled_and_start_where_asked(model: EngineModel, folder: Path, reference: Any) -> None:
    engine = batcher(model)
    item = request(5, 20, 0, input_start=8, top=3, watched_ids=(7, 9))
    engine.waiting.append(item)
    run(engine)
    expected = reference(folder, item.input_ids)
    assert item.output_ids == []
    assert item.input_logprobs[0] is None
    own = expected[torch.arange(8, 19), torch.tensor(item.input_ids[9:])]
    torch.testing.assert_close(torch.tensor(item.input_logprobs[1:]), own, atol=1e-4, rtol=0)
    assert [[i for _, i in row] for row in item.input_top[1:]] == expected[8:19].topk(3).indices.tolist()
    watched = torch.tensor([[logprob for logprob, _ in row] for row in item.input_watched[1:]])
    torch.testing.assert_close(watched, expected[8:19][:, [7, 9]], atol=1e-4, rtol=0)


def test_top_logprobs_are_of_the_scaled_distribution(model: EngineModel, folder: Path, reference: Any) -> None:
    engine = batcher(model)
    items = [request(1, 6, 5, top=4), request(2, 9, 5, top=2, watched_ids=(3,)), request(3, 7, 5)]
    engine.waiting.extend(items)
    run(engine)
    for item in items:
        whole = reference(folder, item.tokens, 0.8)[len(item.input_ids) - 1 : -1]
        assert [len(row) for row in item.output_top] == [item.top] * (5 if item.top else 0)
        for row, pairs in zip(whole, item.output_top, strict=bool(item.top)):
            assert [i for _, i in pairs] == row.topk(item.top).indices.tolist()
            assert [logprob for logprob, _ in pairs] == pytest.approx(row.topk(item.top).values.tolist(), abs=1e-4)
    assert [row[0][1] for row in items[1].output_watched] == [3] * 5


def test_retracted_rows_go_on_where_they_were(model: EngineModel, folder: Path, reference: Any) -> None:
    engine = batcher(model)
    items = [request(seed, 5 + seed, 12) for seed in range(3)]
    engine.waiting.extend(items)
    for _ in range(5):
        engine.step()
    engine.retract()
    assert engine.flush()
    assert [item.rid for item in engine.waiting] == ["0", "1", "2"]
    run(engine)
    for item in items:
        assert item.retractions == 1
        assert len(item.output_ids) == 12
        assert_like_reference(item, folder, reference)


def test_ids_without_a_token_are_never_sampled(model: EngineModel) -> None:
    model.module.get_input_embeddings().weight[REAL_VOCAB:] *= 100.0
    engine = batcher(model)
    items = [request(seed, 5, 30) for seed in range(4)]
    engine.waiting.extend(items)
    run(engine)
    assert max(max(item.output_ids) for item in items) < REAL_VOCAB


def test_logits_that_are_not_finite_end_only_their_request(model: EngineModel, folder: Path, reference: Any) -> None:
    model.module.get_input_embeddings().weight[200] = float("nan")
    model.module.lm_head.weight = torch.nn.Parameter(model.module.lm_head.weight.nan_to_num(0.0), requires_grad=False)
    engine = batcher(model)
    bad, good = request(1, 5, 8, input_ids=[3, 200, 4]), request(2, 5, 1)
    engine.waiting.extend([bad, good])
    run(engine)
    assert bad.error is not None
    assert "finite" in bad.error
    assert bad.output_ids == []
    assert good.error is None
    assert len(good.output_ids) == 1


def test_a_step_that_fails_ends_its_requests_and_the_engine_goes_on(model: EngineModel) -> None:
    engine = batcher(model)
    done: list[Request] = []
    engine.waiting.append(request(1, 5, 8, done))
    engine.step()
    engine.fail_all("broken")
    assert [item.error for item in done] == ["broken"]
    engine.waiting.append(request(2, 5, 8, done))
    run(engine)
    assert len(done[1].output_ids) == 8


def test_versions_are_told_by_span(model: EngineModel) -> None:
    engine = batcher(model)
    item = request(1, 5, 8)
    engine.waiting.append(item)
    engine.step()
    engine.step()
    sampled = len(item.output_ids)
    engine.new_version("1")
    run(engine)
    assert item.spans() == [{"version": "0", "start": 0, "end": sampled}, {"version": "1", "start": sampled, "end": 8}]
    assert item.version == "1"
