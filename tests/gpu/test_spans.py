"""The kernel for blocks of rows against one block after the other; TRITON_INTERPRET=1 runs it on the CPU.

(Triton 3.6 interprets loops of loaded lengths with NumPy up to 2.3.)
"""

from __future__ import annotations

import os

import pytest
import torch

from openclaw_core.models.megatron import spans
from openclaw_core.models.megatron.packing import SequenceIds
from openclaw_core.models.megatron.prefix import make_shared_pack

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda", 0) if CUDA else torch.device("cpu")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not (CUDA or os.environ.get("TRITON_INTERPRET") == "1"), reason="needs a CUDA device"),
]
# The interpreter cuts digits off where a GPU rounds to bfloat16.
DTYPES = [torch.bfloat16, torch.float16] if CUDA else [torch.float16]
TRUNK = tuple(range(300))
# Prefixes of prefixes, one row alone, a sequence within another, and lengths on both sides of a tile and of a block of keys.
SEQUENCES = [
    SequenceIds((*TRUNK, 5), (1,) * 140),
    SequenceIds((*TRUNK, 5, 1), (1, 2, 3)),
    SequenceIds((*TRUNK[:128], 6), (1,) * 31),
    SequenceIds((*TRUNK[:129], 7), (2,)),
    SequenceIds(TRUNK[:40], ()),
    SequenceIds((8,), (3, 4)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("groups", "members", "dim"), [(2, 4, 128), (1, 7, 64), (3, 1, 32), (1, 128, 16), (1, 2, 256)])
def test_blocks(dtype, groups, members, dim):
    from openclaw_core.models.megatron.spans_kernel import attend_spans

    pack = make_shared_pack(SEQUENCES, DEVICE)
    rows = len(pack.input_ids)
    q = torch.randn(rows, groups * members, dim, device=DEVICE).to(dtype)
    # As in the model: values lie between other things.
    k, v = torch.randn(rows, groups, 2, dim, device=DEVICE).to(dtype).unbind(2)
    wanted = spans.wanted(pack, members)
    for part, size in ((spans.tiled(spans.blocks_of(pack), members, DEVICE), rows), (wanted.spans, len(wanted.rows))):
        found, right, true = (
            torch.full((size, *q.shape[1:]), torch.nan, device=DEVICE, dtype=d) for d in (dtype, dtype, torch.float32)
        )
        attend_spans(q, k, v, part, found, 0.2)
        spans.attend_each(q, k, v, part, right, 0.2)
        spans.attend_each(q.float(), k.float(), v.float(), part, true, 0.2)
        gap, allowed = ((x.float() - true).norm() / true.norm() for x in (found, right))
        assert gap <= 1.3 * allowed + 1e-6


def test_lanes_that_no_head_needs_write_nothing():
    """Seven heads leave two of 128 lanes. Those of the tile that ends with a block of keys, at row 1152, don't see that row."""
    from openclaw_core.models.megatron.spans_kernel import attend_spans

    q, k, v = (torch.randn(1153, heads, 16, device=DEVICE).to(DTYPES[0]) for heads in (7, 1, 1))
    k[1152, 0] = 8 * q[1152, 0]
    part = spans.tiled([spans.Block(0, 1153, (), 0)], 7, DEVICE)
    found, right = (torch.full_like(q, torch.nan) for _ in range(2))
    attend_spans(q, k, v, part, found, 0.5)
    spans.attend_each(q, k, v, part, right, 0.5)
    torch.testing.assert_close(found, right, atol=0.02, rtol=0.02)


def test_no_block():
    from openclaw_core.models.megatron.spans_kernel import attend_spans

    q = torch.randn(0, 4, 64, device=DEVICE, dtype=torch.float16)
    attend_spans(q, q[:, :1], q[:, :1], spans.tiled([], 4, DEVICE), torch.empty_like(q), 0.2)
