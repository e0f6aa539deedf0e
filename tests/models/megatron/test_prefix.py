"""Packs that forward shared prefixes once: what is shared, what is forwarded, and who reads which keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_core.errors import UserError
from openclaw_core.models.megatron.packing import SequenceIds, make_pack
from openclaw_core.models.megatron.prefix import added_tokens, make_shared_pack, plan_shared, split_shared

CPU = torch.device("cpu")
# Few ids, so that prefixes are shared by chance at every depth.
SEQUENCES = st.lists(
    st.tuples(st.lists(st.integers(0, 1), min_size=1, max_size=9), st.lists(st.integers(0, 1), max_size=5)),
    min_size=1,
    max_size=8,
).map(lambda pairs: [SequenceIds(tuple(p), tuple(r)) for p, r in pairs])


def ids(sequence: SequenceIds) -> tuple[int, ...]:
    return (*sequence.prompt_ids, *sequence.response_ids)


def prefixes(sequences) -> int:
    """Distinct non-empty prefixes: the fewest tokens that any schedule can forward."""
    return len({ids(s)[:n] for s in sequences for n in range(1, len(s) + 1)})


@settings(deadline=None, max_examples=200)
@given(SEQUENCES, st.integers(1, 4))
def test_every_row_sees_its_own_sequence_and_nothing_else(sequences, multiple):
    pack = make_shared_pack(sequences, CPU, multiple=multiple)
    total = len(pack.input_ids)
    assert total % multiple == 0
    assert sum(pack.lengths) == total == int(pack.cu_seqlens[-1])
    assert pack.row_counts == tuple(len(s.response_ids) for s in sequences)
    assert pack.response_ids.tolist() == [i for s in sequences for i in s.response_ids]
    keys = pack.shared.rows.split(pack.shared.lengths) if pack.shared else torch.arange(total).split(pack.lengths)
    seen: dict[int, tuple[tuple[int, int], ...]] = {}
    for start, length, rows in zip(pack.cu_seqlens.tolist(), pack.lengths, keys, strict=False):
        read = list(zip(pack.positions[rows].tolist(), pack.input_ids[rows].tolist(), strict=True))
        assert rows[len(rows) - length :].tolist() == list(range(start, start + length)), "a block ends with its own rows"
        for own in range(length):
            seen[start + own] = tuple(read[: len(read) - length + own + 1])
    wanted = iter(pack.rows.tolist())
    for sequence in sequences:
        for place in range(len(sequence.response_ids)):
            context = ids(sequence)[: len(sequence.prompt_ids) + place]
            assert seen[next(wanted)] == tuple(enumerate(context))


@settings(deadline=None, max_examples=200)
@given(SEQUENCES)
def test_each_distinct_prefix_is_forwarded_once(sequences):
    added = added_tokens(sequences)
    assert sum(added) == prefixes(sequences) == len(make_shared_pack(sequences, CPU).input_ids)
    assert all(0 <= n <= len(s) for n, s in zip(added, sequences, strict=True))


@settings(deadline=None, max_examples=200)
@given(SEQUENCES, st.integers(1, 40))
def test_groups_hold_everything_once_within_the_budget(sequences, budget):
    groups = plan_shared(sequences, budget)
    assert sorted(i for group in groups for i in group) == list(range(len(sequences)))
    for group in groups:
        chosen = [sequences[i] for i in group]
        assert sum(added_tokens(chosen)) <= max(budget, max(map(len, chosen)))


def test_what_shares_a_prefix_stays_together():
    trunk = tuple(range(100, 150))
    sequences = [SequenceIds((*trunk, i), (1, 2)) for i in range(4)] + [
        SequenceIds((7,) * 50, (1,)),
        SequenceIds((8,) * 50, (1,)),
    ]
    order = [0, 4, 1, 5, 2, 3]
    groups = plan_shared([sequences[i] for i in order], 65)
    assert sorted(sorted(order[i] for i in group) for group in groups) == [[0, 1, 2, 3], [4], [5]]


def test_a_tree_larger_than_the_budget_is_cut_and_its_trunk_forwarded_again():
    sequences = [SequenceIds((*range(40), 100 + i), (1,) * 10) for i in range(6)]
    groups = plan_shared(sequences, 80)
    assert [len(group) for group in groups] == [3, 3]
    assert sum(sum(added_tokens([sequences[i] for i in group])) for group in groups) == 2 * 40 + 6 * 11


def test_a_prefix_that_saves_less_than_it_costs_is_not_shared():
    sequences = [SequenceIds((1, *np.full(400, i)), (2,)) for i in range(2, 4)]
    assert make_shared_pack(sequences, CPU).shared is None
    assert added_tokens(sequences) == [402, 402]


def test_identical_sequences_cost_one():
    pack = make_shared_pack([SequenceIds((1, 2), (3, 4))] * 3, CPU)
    assert pack.input_ids.tolist() == [1, 2, 3, 4]
    assert pack.rows.tolist() == [1, 2] * 3


def test_nothing_shared_is_a_plain_pack():
    sequences = [SequenceIds((1, 2), (3,)), SequenceIds((4,), (5, 6))]
    plain, shared = make_pack(sequences, CPU, multiple=4), make_shared_pack(sequences, CPU, multiple=4)
    assert shared.shared is None
    assert all(
        torch.equal(getattr(plain, name), getattr(shared, name)) for name in ("input_ids", "positions", "rows", "cu_seqlens")
    )


def test_owners_that_share_a_prefix_go_to_one_part():
    def owner(trunk: int, i: int) -> list[SequenceIds]:
        return [SequenceIds((*(trunk,) * 100, i), (k,)) for k in range(2)]

    owned = [owner(1, 0), owner(2, 0), owner(1, 1), owner(2, 1), owner(1, 2), owner(2, 2)]
    assert sorted(split_shared(owned, 2)) == [[0, 2, 4], [1, 3, 5]]


def test_owners_that_share_nothing_are_spread_evenly():
    owned = [[SequenceIds((i,) * n, (1,))] for i, n in enumerate((90, 10, 10, 10, 90, 10, 10, 10))]
    shares = split_shared(owned, 2)
    weights = [sum(len(s) for i in share for s in owned[i]) for share in shares]
    assert sorted(i for share in shares for i in share) == list(range(8))
    assert max(weights) - min(weights) == 0
    assert sorted(i for share in split_shared(owned, 3) for i in share) == list(range(8))


def test_an_empty_prompt_is_refused():
    with pytest.raises(UserError, match="empty prompt"):
        make_shared_pack([SequenceIds((), (1, 2)), SequenceIds((1, 2), (3,))], CPU)
