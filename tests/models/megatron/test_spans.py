"""Blocks of a pack, tiles of blocks, and the rows that are wanted, by counting who sees what."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openclaw_core.models.megatron import attention, context, spans
from openclaw_core.models.megatron.packing import SequenceIds, make_pack, ranges
from openclaw_core.models.megatron.prefix import make_shared_pack

CPU = torch.device("cpu")
IDS = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)
SEQUENCES = st.lists(st.builds(SequenceIds, IDS, st.lists(st.integers(0, 1), max_size=4).map(tuple)), min_size=1, max_size=6)


def seen(block):
    """Of each row of a block the pack's rows it sees, in order."""
    before = [row for first, count in block.prefix for row in range(first, first + count)]
    return {block.row + i: (*before, *range(block.row, block.row + i + 1)) for i in range(block.rows)}


def seen_by_pack(pack):
    ends = np.cumsum(pack.shared.lengths if pack.shared else pack.lengths)
    rows = pack.shared.rows.tolist() if pack.shared else list(range(len(pack.input_ids)))
    out, first = {}, 0
    for own, end, length in zip(pack.lengths, ends, pack.shared.lengths if pack.shared else pack.lengths, strict=True):
        keys = rows[end - length : end]
        out |= {first + i: tuple(keys[: length - own + i + 1]) for i in range(own)}
        first += own
    return out


@given(SEQUENCES, st.sampled_from([make_pack, make_shared_pack]), st.integers(1, 3))
def test_blocks_see_what_the_pack_says(sequences, make, multiple):
    pack = make(sequences, CPU, multiple=multiple)
    assert {row: keys for block in spans.blocks_of(pack) for row, keys in seen(block).items()} == seen_by_pack(pack)


@given(SEQUENCES, st.sampled_from([make_pack, make_shared_pack]))
def test_wanted_rows_see_what_the_pack_says(sequences, make):
    pack = make(sequences, CPU, multiple=4)
    wanted = spans.wanted(pack, 2)
    if not len(pack.rows):
        assert wanted is None
        return
    assert wanted.rows[wanted.places].tolist() == pack.rows.tolist()
    assert len(set(wanted.rows.tolist())) == len(wanted.rows)
    everything = seen_by_pack(pack)
    found = {}
    for block in wanted.spans.blocks:
        for i, (row, keys) in enumerate(seen(block).items()):
            assert wanted.rows[block.to + i] == row
            found[row] = keys
    assert found == {row: everything[row] for row in wanted.rows.tolist()}


@given(SEQUENCES, st.sampled_from([1, 3, 64, 100]))
def test_tiles_hold_every_row_once_and_the_longest_come_first(sequences, members):
    blocks = spans.blocks_of(make_shared_pack(sequences, CPU))
    tiled = spans.tiled(blocks, members, CPU)
    listed, rows, lengths = tiled.ranges.tolist(), [], []
    for row, to, first, count, begin, end in tiled.tiles.tolist():
        block = next(b for b in blocks if b.row == row)
        assert (to, count, tuple(map(tuple, listed[begin:end]))) == (block.to, block.rows, block.prefix)
        rows += range(row + first, row + min(first + tiled.step, count))
        lengths.append(first + sum(n for _, n in block.prefix))
    assert sorted(rows) == list(range(sum(b.rows for b in blocks)))
    assert lengths == sorted(lengths, reverse=True)
    assert tiled.step * members <= spans.LANES


def test_no_block_makes_no_tile():
    tiled = spans.tiled([], 4, CPU)
    assert (tiled.tiles.shape, tiled.ranges.shape) == ((0, 6), (0, 2))


@given(SEQUENCES)
def test_one_block_after_the_other_is_the_whole(sequences):
    pack = make_shared_pack(sequences, CPU)
    rows = len(pack.input_ids)
    q, k, v = torch.randn(rows, 4, 8), torch.randn(rows, 2, 8), torch.randn(rows, 2, 8)
    out = torch.full_like(q, torch.nan)
    spans.attend_each(q, k, v, spans.tiled(spans.blocks_of(pack), 2, CPU), out, 0.3)
    torch.testing.assert_close(out, attention.attend_each(q, k, v, pack, 0.3))


def test_keys_on_other_ranks_are_not_known_here():
    class Group:
        def size(self):
            return 2

        def rank(self):
            return 1

    pack = context.cut(make_pack([SequenceIds((1, 2), (3, 4))], CPU, multiple=4), Group()).pack
    assert spans.blocks_of(pack) is None
    assert spans.wanted(pack, 2) is None


@pytest.mark.parametrize(
    ("rows", "found"), [([], ()), ([3], ((3, 1),)), ([3, 4, 6, 7, 8], ((3, 2), (6, 3))), ([5, 4], ((5, 1), (4, 1)))]
)
def test_ranges(rows, found):
    assert ranges(np.array(rows, dtype=np.int64)) == found
