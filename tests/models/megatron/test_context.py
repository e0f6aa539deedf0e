"""A pack cut over context ranks: attention over the parts is attention over the whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_core.models.megatron.attention import attend_each
from openclaw_core.models.megatron.context import context_multiple, cut
from openclaw_core.models.megatron.packing import Pack, SequenceIds, make_pack

CPU = torch.device("cpu")
sequences = st.lists(st.tuples(st.integers(1, 20), st.integers(0, 30)), min_size=1, max_size=5)


class Member:
    """Stands for one rank of a process group."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.size = (lambda: rank), (lambda: ranks)


def packed(lengths: list[tuple[int, int]], ranks: int) -> Pack:
    count = iter(range(10_000))
    made = [SequenceIds([next(count) for _ in range(p)], [next(count) for _ in range(r)]) for p, r in lengths]
    return make_pack(made, CPU, multiple=context_multiple(ranks))


@settings(max_examples=40, deadline=None)
@given(sequences, st.integers(2, 4))
def test_attention_over_the_parts_is_attention_over_the_whole(lengths, ranks):
    pack = packed(lengths, ranks)
    total = sum(pack.lengths)
    q, k, v = torch.randn(total, 4, 8), torch.randn(total, 2, 8), torch.randn(total, 2, 8)
    whole = attend_each(q, k, v, pack, 0.3)
    parts = [cut(pack, Member(rank, ranks)).pack for rank in range(ranks)]
    # Which rows of the pack a rank has; ids count up, but for the filler behind them.
    marked = replace(pack, input_ids=torch.arange(total))
    own = [cut(marked, Member(rank, ranks)).pack.input_ids for rank in range(ranks)]
    assert sorted(torch.cat(own).tolist()) == list(range(total))
    keys, values = torch.cat([k[rows] for rows in own]), torch.cat([v[rows] for rows in own])
    for part, rows in zip(parts, own, strict=True):
        assert part.shared is not None
        alone = replace(part, shared=replace(part.shared, group=None))
        torch.testing.assert_close(attend_each(q[rows], keys, values, alone, 0.3), whole[rows], atol=1e-6, rtol=1e-5)
        assert torch.equal(part.positions, pack.positions[rows])


@settings(max_examples=40, deadline=None)
@given(sequences, st.integers(2, 4))
def test_every_response_row_is_on_one_rank(lengths, ranks):
    pack = packed(lengths, ranks)
    parts = [cut(pack, Member(rank, ranks)) for rank in range(ranks)]
    held = torch.cat([part.held for part in parts])
    assert sorted(held.tolist()) == list(range(len(pack.rows)))
    for part in parts:
        assert torch.equal(part.pack.response_ids, pack.response_ids[part.held])
        assert torch.equal(part.pack.input_ids[part.pack.rows], pack.input_ids[pack.rows[part.held]])


@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_have_as_much_to_read(ranks):
    pack = packed([(8 * ranks * ranks, 0)], ranks)
    seen = [cut(pack, Member(rank, ranks)).pack for rank in range(ranks)]
    pairs = [sum(q * k - q * (q - 1) // 2 for q, k in zip(part.lengths, part.shared.lengths, strict=True)) for part in seen]
    assert len(set(pairs)) == 1
