"""Attention of a frozen model over a pack: large causal squares by cuDNN, all else in one variable-length call.

Where a sequence lies in a pack whole, its first rows see each other and nothing else: a square. On an H200 cuDNN computes
one of 9,416 rows at 598 TFLOP/s, the variable-length kernel (FlashAttention 2) at 339, but cuDNN takes some 60 ms to get ready
for each new side. So sides are multiples of STEP, and the few rows behind a square go with those that share prefixes. The two
kernels round differently: in half precision results depend on the packing as far as that (benchmarks/teacher has numbers).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from openclaw_core.models.megatron import attention
from openclaw_core.models.megatron.packing import Pack, SequenceIds, SharedKeys, make_pack, onto
from openclaw_core.models.megatron.prefix import make_shared_pack

STEP = 512
"""Sides are multiples of it: at most 80 of them up to 40,960 tokens."""
BACKEND = SDPBackend.CUDNN_ATTENTION


@dataclass(frozen=True, slots=True)
class Cut:
    """A pack's squares (first row, side), and the other rows [M] as a pack of blocks that see the keys they saw before."""

    squares: tuple[tuple[int, int], ...]
    rows: torch.Tensor
    rest: Pack


def cut(pack: Pack) -> Cut:
    """Take the squares out of a pack; there are none where keys lie on other ranks."""
    shared = pack.shared or SharedKeys(None, pack.cu_seqlens, pack.lengths)
    squares, rows, lengths = [], [], []
    first = 0
    for own, seen in zip(pack.lengths, shared.lengths, strict=True):
        side = own // STEP * STEP if own == seen and shared.group is None else 0
        if side:
            squares.append((first, side))
        rows.append(np.arange(first + side, first + own))
        lengths.append(own - side)
        first += own
    device = pack.cu_seqlens.device
    rest = replace(pack, cu_seqlens=onto(np.cumsum((0, *lengths), dtype=np.int32), device), lengths=tuple(lengths), shared=shared)
    return Cut(tuple(squares), onto(np.concatenate(rows), device), rest)


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pack: Pack, parts: Cut, scale: float) -> torch.Tensor:
    """As attention.attend, without a gradient; parts is cut(pack)."""
    if not parts.squares or not _works(q.device, q.dtype, q.shape[1], k.shape[1], q.shape[2]):
        return attention.attend(q, k, v, pack, scale)
    return _attend(q, k, v, parts, scale)


def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, parts: Cut, scale: float) -> torch.Tensor:
    out = torch.empty_like(q)
    for first, side in parts.squares:
        at = slice(first, first + side)
        out[at] = _square(q[at], k[at], v[at], scale)
    if len(parts.rows):
        flash = attention.varlen()
        assert flash is not None
        out.index_copy_(0, parts.rows, flash(q.index_select(0, parts.rows), k, v, parts.rest, scale))
    return out


def _square(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    grouped = q.shape[1] != k.shape[1]
    q, k, v = (t.transpose(0, 1)[None] for t in (q, k, v))
    with sdpa_kernel(BACKEND):
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=grouped)
    return found[0].transpose(0, 1)


@cache
def _works(device: torch.device, dtype: torch.dtype, heads: int, groups: int, dim: int) -> bool:
    """Whether all this can run here and is right; tried once a process and shape, and warned of where it fails."""
    flash = attention.varlen()
    half = dtype in (torch.bfloat16, torch.float16)
    if device.type != "cuda" or not half or flash is None or not attention.counts_from_the_end(flash, device, dtype):
        return False
    found = _disagreement(device, dtype, heads, groups, dim)
    if found is not None:
        shape = f"{heads} heads over {groups} of {dim}, {dtype}, on {device}"
        warnings.warn(f"Frozen models don't use cuDNN's attention for {shape}, for it fails there: {found}.", stacklevel=2)
    return found is None


def _disagreement(device: torch.device, dtype: torch.dtype, heads: int, groups: int, dim: int) -> str | None:
    """What differs from one sequence after the other, or what stopped, in words; None where all agrees."""
    generator = torch.Generator().manual_seed(0)
    trunk = tuple(range(STEP + 40))
    for pack in (
        make_pack([SequenceIds(trunk, (1,)), SequenceIds((2, 3), (4,))], device),
        make_shared_pack([SequenceIds((*trunk, 7), (8, 9)), SequenceIds((*trunk, 8), (9,))], device),
    ):
        rows = len(pack.input_ids)
        q, k, v = (torch.randn(rows, n, dim, generator=generator).to(device, dtype) for n in (heads, groups, groups))
        try:
            found = _attend(q, k, v, cut(pack), 0.1)
        except (torch.OutOfMemoryError, torch.AcceleratorError):
            # No word on cuDNN: the device is full, or has failed.
            raise
        except RuntimeError as error:
            # No plan for this shape, or no cuDNN at all.
            return f"{type(error).__name__}: {error}".splitlines()[0]
        gap = (found.float() - attention.attend_each(q, k, v, pack, 0.1).float()).abs().max()
        # NaN is no agreement.
        if not gap <= 0.05:
            return f"it differs by {gap:.1e}"
    return None
