"""A frozen model's attention on a GPU, in squares and other rows and of wanted rows alone, against float32 one by one."""

from __future__ import annotations

import pytest
import torch

from openclaw_core.models.megatron import attention, spans, squares
from openclaw_core.models.megatron.packing import SequenceIds, make_pack
from openclaw_core.models.megatron.prefix import make_shared_pack

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
DEVICE = torch.device("cuda", 0)
TRUNK = tuple(range(1100))
SEQUENCES = [
    SequenceIds((*TRUNK, 5), (1,) * 300),
    SequenceIds((*TRUNK, 6, 7), (1,) * 10),
    SequenceIds((9, *TRUNK[:500]), (2,) * 11),
    SequenceIds((8,), (3, 4)),
]


@pytest.mark.parametrize("make", [make_pack, make_shared_pack])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_squares_and_the_rest_are_the_whole(make, dtype):
    assert squares._works(DEVICE, dtype, 32, 8, 128), "the kernels are not used here"
    pack = make(SEQUENCES, DEVICE)
    parts = squares.cut(pack, 4)
    assert parts.squares
    rows = len(pack.input_ids)
    q, mixed = (torch.randn(rows, n, 128, device=DEVICE).to(dtype) for n in (32, 8 * 6))
    # As in the model: values lie between other things.
    k, v = mixed.view(rows, 8, 6, 128)[:, :, 4].contiguous(), mixed.view(rows, 8, 6, 128)[:, :, 5]
    found = squares.attend(q, k, v, pack, parts, 0.09)
    want = attention.attend_each(q.float(), k.float(), v.float(), pack, 0.09)
    plain = attention.attend(q, k, v, pack, 0.09)
    gap, allowed = ((x.float() - want).norm() / want.norm() for x in (found, plain))
    assert gap <= 1.2 * allowed
    wanted = spans.wanted(pack, 4)
    few = squares.attend_wanted(q, k, v, wanted, 0.09)[wanted.places]
    gap, allowed = ((x.float() - want[pack.rows]).norm() / want[pack.rows].norm() for x in (few, plain[pack.rows]))
    assert gap <= 1.2 * allowed


def test_the_variable_length_kernel_counts_from_the_end():
    flash = attention.varlen()
    assert flash is not None
    assert attention.counts_from_the_end(flash, DEVICE, torch.bfloat16)


@pytest.mark.parametrize("make", [make_pack, make_shared_pack])
def test_a_pack_is_made_without_waiting_for_the_device(make):
    torch.cuda.set_sync_debug_mode("error")
    try:
        pack = make([*SEQUENCES, SequenceIds((1, 2), ())], DEVICE, multiple=8)
        parts = squares.cut(pack, 4)
        wanted = spans.wanted(pack, 4)
        nothing = make([SequenceIds((1, 2), ())], DEVICE)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    same = make([*SEQUENCES, SequenceIds((1, 2), ())], torch.device("cpu"), multiple=8)
    for name in ("input_ids", "positions", "cu_seqlens", "rows", "response_ids"):
        assert torch.equal(getattr(pack, name).cpu(), getattr(same, name))
    assert torch.equal(parts.rest.tiles.cpu(), squares.cut(same, 4).rest.tiles)
    assert torch.equal(wanted.rows.cpu(), spans.wanted(same, 4).rows)
    assert nothing.response_ids.numel() == 0
