from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_core.errors import UserError
from openclaw_core.models.megatron.packing import SequenceIds, make_pack, plan_packs, split_evenly, split_rows

CPU = torch.device("cpu")
lengths = st.lists(st.integers(1, 50), min_size=0, max_size=40)


@settings(max_examples=100, deadline=None)
@given(lengths, st.integers(1, 120))
def test_packs_hold_everything_once_within_the_budget(lengths, budget):
    groups = plan_packs(lengths, budget)
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in group) <= budget or len(group) == 1 for group in groups)


@settings(max_examples=100, deadline=None)
@given(lengths, st.integers(1, 6))
def test_shares_are_even_to_within_one_sequence(lengths, parts):
    shares = split_evenly(lengths, parts)
    assert sorted(i for share in shares for i in share) == list(range(len(lengths)))
    weights = [sum(lengths[i] for i in share) for share in shares]
    assert max(weights) - min(weights) <= max(lengths, default=0)


def test_rows_predict_the_response_and_the_filler_is_a_sequence_of_its_own():
    pack = make_pack([SequenceIds((5, 6), (7, 8, 9)), SequenceIds((1,), (2,))], CPU, multiple=4)
    assert pack.input_ids.tolist() == [5, 6, 7, 8, 9, 1, 2, 0]
    assert pack.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 0]
    assert pack.cu_seqlens.tolist() == [0, 5, 7, 8]
    assert pack.rows.tolist() == [1, 2, 3, 5]
    assert pack.response_ids.tolist() == [7, 8, 9, 2]
    assert [part.tolist() for part in split_rows(pack.rows, pack.row_counts)] == [[1, 2, 3], [5]]


def test_an_empty_prompt_is_refused():
    with pytest.raises(UserError, match="empty prompt"):
        make_pack([SequenceIds((), (1,))], CPU)
