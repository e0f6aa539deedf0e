from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_core.rollout.engines.embedded.params import BadRequestError, SamplingParams, parse_sampling_params
from openclaw_core.rollout.engines.embedded.sampling import SamplingVectors, sample, scaled_logprobs, top_pairs

PROBS = torch.tensor([0.05, 0.4, 0.25, 0.1, 0.2])
CPU = torch.device("cpu")


def shares(params: SamplingParams, draws: int = 4000) -> list[float]:
    """Share of each id over evenly spread uniforms: exact up to 1 / draws."""
    logprobs = PROBS.log().expand(draws, -1)
    uniforms = (torch.arange(draws, dtype=torch.float64) + 0.5) / draws
    ids = sample(logprobs, SamplingVectors.of([params] * draws, CPU), uniforms)
    return (torch.bincount(ids, minlength=5) / draws).tolist()


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (SamplingParams(), [0.05, 0.4, 0.25, 0.1, 0.2]),
        (SamplingParams(top_k=2), [0, 0.4 / 0.65, 0.25 / 0.65, 0, 0]),
        (SamplingParams(top_p=0.5), [0, 0.4 / 0.65, 0.25 / 0.65, 0, 0]),
        (SamplingParams(min_p=0.4), [0, 0.4 / 0.85, 0.25 / 0.85, 0, 0.2 / 0.85]),
        (SamplingParams(top_k=3, top_p=0.4001), [0, 0.4 / 0.65, 0.25 / 0.65, 0, 0]),
        (SamplingParams(top_k=1), [0, 1, 0, 0, 0]),
    ],
)
def test_filters_keep_the_right_ids_in_proportion(params: SamplingParams, expected: list[float]) -> None:
    assert shares(params) == pytest.approx(expected, abs=1e-3)


def test_rows_of_different_filters_do_not_mix() -> None:
    params = [SamplingParams(top_k=1), SamplingParams(), SamplingParams(top_p=0.3)]
    ids = sample(
        PROBS.log().expand(3, -1), SamplingVectors.of(params, CPU), torch.tensor([0.99, 0.01, 0.99], dtype=torch.float64)
    )
    assert ids.tolist() == [1, 0, 1]


def test_temperature_scales_and_greedy_ignores_the_uniform() -> None:
    logits = torch.tensor([[0.0, 1.0, 3.0], [0.0, 1.0, 3.0]])
    logprobs = scaled_logprobs(logits, torch.tensor([0.5, 2.0]))
    torch.testing.assert_close(logprobs[0], torch.log_softmax(logits[0] * 2, -1))
    torch.testing.assert_close(logprobs[1], torch.log_softmax(logits[1] / 2, -1))
    greedy = SamplingVectors.of([SamplingParams(top_k=1)] * 2, CPU)
    assert sample(logprobs, greedy, torch.zeros(2, dtype=torch.float64)).tolist() == [2, 2]


@settings(max_examples=60, deadline=None)
@given(
    logits=st.lists(st.floats(-60, 60, width=32), min_size=2, max_size=40),
    uniform=st.integers(0, 2**48 - 1),
    top_k=st.integers(0, 5),
    top_p=st.floats(0.01, 1.0),
)
def test_what_is_sampled_has_mass_and_passes_the_filters(logits: list[float], uniform: int, top_k: int, top_p: float) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p)
    logprobs = scaled_logprobs(torch.tensor([logits]), torch.ones(1))
    picked = int(sample(logprobs, SamplingVectors.of([params], CPU), torch.tensor([uniform / 2**48], dtype=torch.float64)))
    probs = logprobs[0].double().exp()
    assert probs[picked] > 0
    better = probs[probs > probs[picked]]
    assert better.sum() <= top_p + 1e-9
    assert not top_k or len(better) < top_k


def test_top_pairs_give_each_row_what_it_wants() -> None:
    rows = top_pairs(PROBS.log().expand(3, -1), [2, 0, 1])
    assert [[token for _, token in row] for row in rows] == [[1, 2], [], [1]]
    assert rows[0][0][0] == pytest.approx(math.log(0.4))


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ({"temperature": -1}, "temperature must be a non-negative finite number, got -1"),
        ({"temperature": float("nan")}, "temperature must be"),
        ({"top_p": 0}, "top_p must be in"),
        ({"top_p": 1.5}, "top_p must be in"),
        ({"min_p": 2}, "min_p must be in"),
        ({"top_k": 0}, "top_k must be -1"),
        ({"max_new_tokens": -1}, "max_new_tokens must be a whole number of at least 0"),
        ({"max_new_tokens": 2.5}, "max_new_tokens must be a whole number"),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "min_new_tokens must be in"),
        ({"stop": [1]}, "stop must be a string"),
        ({"frequency_penalty": 0.5}, "frequency_penalty=0.5 is not supported"),
        ({"json_schema": "{}"}, "json_schema='{}' is not supported"),
        ({"topp": 0.9}, "Unknown sampling parameters: topp"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids must be"),
    ],
)
def test_bad_parameters_are_refused_by_name(raw: dict[str, object], words: str) -> None:
    with pytest.raises(BadRequestError, match=words):
        parse_sampling_params(raw)


def test_none_and_neutral_values_mean_the_default() -> None:
    neutral = {"temperature": None, "top_k": -1, "repetition_penalty": 1.0, "frequency_penalty": 0.0, "stop": None, "n": 1}
    assert parse_sampling_params(neutral) == parse_sampling_params(None) == SamplingParams()
    assert parse_sampling_params({"max_new_tokens": None}).max_new_tokens is None
    assert parse_sampling_params({"temperature": 0}).greedy
