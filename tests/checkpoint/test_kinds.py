"""Every kind's unpack is the inverse of its pack, for any shape; pieces tile the stored tensor."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openclaw_core.checkpoint import kinds
from openclaw_core.checkpoint.kinds import GatedMlp, PerGroupQkv, Replicated, Turned, Vocabulary

small = st.integers(1, 4)


@given(groups=small, per_group=small, d=small, width=st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_qkv_by_group(groups, per_group, d, width):
    arch = SimpleNamespace(kv_heads=groups, heads=groups * per_group, head_dim=d)
    rest = (width,) if width else ()
    rows = [groups * per_group * d, groups * d, groups * d]
    total = torch.arange(float(sum(rows) * max(width, 1))).reshape(sum(rows), *rest)
    q, k, v = total.split(rows)
    box = PerGroupQkv().pack([q, k, v], arch)
    for group in range(groups):
        part = box.reshape(groups, per_group + 2, d, *rest)[group]
        assert torch.equal(part[:per_group].reshape(-1, *rest), q.reshape(groups, per_group * d, *rest)[group])
        assert torch.equal(part[per_group], k.reshape(groups, d, *rest)[group])
        assert torch.equal(part[per_group + 1], v.reshape(groups, d, *rest)[group])
    assert all(torch.equal(a, b) for a, b in zip(PerGroupQkv().unpack(box, arch), (q, k, v), strict=True))


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize(
    ("kind", "rows", "padded"),
    [
        (Replicated(), [7], 0),
        (PerGroupQkv(), [8, 2, 2], 0),
        (GatedMlp(), [5, 5], 0),
        (Vocabulary(), [9], 16),
        (Turned(), [1], 0),
    ],
)
def test_pieces_tile(kind, rows, padded, split, monkeypatch):
    monkeypatch.setattr(kinds, "PIECE_BYTES", 8)
    seen: dict[str, list[int]] = {}
    sources: dict[int, list[int]] = {}
    shapes = [(count, 3) for count in rows]
    for piece in kind.pieces(shapes, 2, padded, split):
        seen.setdefault(piece.suffix, []).extend(range(piece.start, piece.start + piece.rows))
        for index, span in piece.sources:
            sources.setdefault(index, []).extend(range(*(span or (0, rows[index]))))
    assert sum(map(len, seen.values())) == kind.stored_shape(shapes, padded)[0]
    assert all(sorted(covered) == list(range(len(covered))) for covered in seen.values())
    assert {index: sorted(covered) for index, covered in sources.items()} == {i: list(range(n)) for i, n in enumerate(rows)}


def test_experts_are_turned_and_turned_back():
    expert = torch.arange(6.0).reshape(1, 2, 3)
    stored = Turned().pack([expert], SimpleNamespace())
    assert torch.equal(stored, expert[0].t())
    assert stored.is_contiguous()
    assert torch.equal(Turned().unpack(stored, SimpleNamespace())[0], expert)
