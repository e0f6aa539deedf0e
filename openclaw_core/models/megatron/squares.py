"""Attention of a frozen model over a pack: large causal squares by cuDNN, all else by the kernel of spans.py.

Where a sequence lies in a pack whole, its first rows see each other and nothing else: a square. On an H200 cuDNN computes
one of 9,416 rows at 610 TFLOP/s, the kernel at 450 and torch's variable-length attention (FlashAttention 2) at 340, but cuDNN
takes some 60 ms to get ready for each new side. So sides are multiples of STEP, and the few rows behind a square go with those
that share prefixes. The kernels round differently: in half precision results depend on the packing as far as that
(benchmarks/teacher has numbers).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from openclaw_core.models.megatron import attention, spans
from openclaw_core.models.megatron.packing import Pack, SequenceIds, make_pack
from openclaw_core.models.megatron.prefix import make_shared_pack
from openclaw_core.trial import agrees

STEP = 512
"""Sides are multiples of it: at most 80 of them up to 40,960 tokens."""
BACKEND = SDPBackend.CUDNN_ATTENTION


@dataclass(frozen=True, slots=True)
class Cut:
    """A pack's squares (first row, side), and its other rows."""

    squares: tuple[tuple[int, int], ...]
    rest: spans.Spans


def cut(pack: Pack, members: int) -> Cut | None:
    """Take the squares out of a pack for queries of which so many heads share a key; None where keys lie on other ranks."""
    blocks = spans.blocks_of(pack)
    if blocks is None:
        return None
    squares, rest = [], []
    for block in blocks:
        side = 0 if block.prefix else block.rows // STEP * STEP
        if side:
            squares.append((block.row, side))
        if side < block.rows:
            rest.append(spans.part(block, side, block.rows - side))
    return Cut(tuple(squares), spans.tiled(rest, members, pack.cu_seqlens.device))


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pack: Pack, parts: Cut | None, scale: float) -> torch.Tensor:
    """As attention.attend, without a gradient; parts is cut(pack), or None where it doesn't work."""
    return attention.attend(q, k, v, pack, scale) if parts is None else _attend(q, k, v, parts, scale, _kernel())


def attend_wanted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, wanted: spans.Wanted, scale: float) -> torch.Tensor:
    """What attend says of wanted's rows, [U, H, d]."""
    out = q.new_empty(len(wanted.rows), *q.shape[1:])
    (_kernel() if works(q, k) else spans.attend_each)(q, k, v, wanted.spans, out, scale)
    return out


def _kernel() -> Callable[..., None]:
    from openclaw_core.models.megatron.spans_kernel import attend_spans

    return attend_spans


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, parts: Cut, scale: float, attend_spans: Callable[..., None]
) -> torch.Tensor:
    out = torch.empty_like(q)
    for first, side in parts.squares:
        at = slice(first, first + side)
        out[at] = _square(q[at], k[at], v[at], scale)
    attend_spans(q, k, v, parts.rest, out, scale)
    return out


def _square(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    grouped = q.shape[1] != k.shape[1]
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    with sdpa_kernel(BACKEND):
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    return found[0].transpose(0, 1)


def works(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Whether all this can run on tensors like q [T, H, d] and k [T, G, d] and is right; tried once a process and shape."""
    half = q.dtype in (torch.bfloat16, torch.float16)
    return q.is_cuda and half and _works(q.device, q.dtype, q.shape[1], k.shape[1], q.shape[2])


@cache
def _works(device: torch.device, dtype: torch.dtype, heads: int, groups: int, dim: int) -> bool:
    shape = f"{heads} heads over {groups} of {dim}, {dtype}, on {device}"
    otherwise = f"Frozen models use plain attention for {shape}, for the kernels fail there"

    def kernels(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pack: Pack) -> torch.Tensor:
        if not spans.fits(heads // groups, dim):
            raise ValueError("they are made for other shapes")
        parts = cut(pack, heads // groups)
        assert parts is not None
        return _attend(q, k, v, parts, 0.1, _kernel())

    def results(way: Callable[..., torch.Tensor]) -> Callable[[], dict[str, torch.Tensor]]:
        return lambda: _results(way, device, dtype, heads, groups, dim)

    plain = results(lambda q, k, v, pack: attention.attend_each(q, k, v, pack, 0.1))
    return agrees(results(kernels), plain, dtype, otherwise)


def _results(
    way: Callable[..., torch.Tensor], device: torch.device, dtype: torch.dtype, heads: int, groups: int, dim: int
) -> dict[str, torch.Tensor]:
    """What way(q, k, v, pack) makes of a pack with a square and a short sequence, and of one with a shared prefix."""
    generator = torch.Generator().manual_seed(0)
    trunk = tuple(range(STEP + 40))
    packs = {
        "rows of a square and others": make_pack([SequenceIds(trunk, (1,)), SequenceIds((2, 3), (4,))], device),
        "rows over a prefix": make_shared_pack([SequenceIds((*trunk, 7), (8, 9)), SequenceIds((*trunk, 8), (9,))], device),
    }
    found = {}
    for name, pack in packs.items():
        rows = len(pack.input_ids)
        q, k, v = (torch.randn(rows, n, dim, generator=generator).to(device, dtype) for n in (heads, groups, groups))
        found[name] = way(q, k, v, pack)
    return found
