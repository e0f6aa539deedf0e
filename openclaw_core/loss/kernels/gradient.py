"""Gradient of log-probs at a few ids, and of the entropy, with respect to logits [N, V]: one reading, one writing."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from openclaw_core.loss.kernels.stats import LN_2, LOG2_E
from openclaw_core.loss.kernels.tiles import SHAPES, columns, load_tile, repeat


@dataclass(frozen=True)
class RowTerms:
    """What the gradient of a row is made of, N rows each: ell(v) = (z_v - shift) / T - log_sum, the gradient spread [N]
    = -sum of grad_ids, entropy and grad_entropy [N] (None for none), broken [N] (bool) where the gradient is 0. Gradients
    are divided by T already.
    """

    shift: Tensor
    log_sum: Tensor
    spread: Tensor
    entropy: Tensor | None
    grad_entropy: Tensor | None
    broken: Tensor


@triton.jit
def slope(x, shift, log2_sum, scale, spread, entropy, grad_entropy, ln_2, ENTROPY: tl.constexpr):
    """Gradient at logits x without the part of single ids: p (spread - grad_entropy (log p + H))."""
    log2_p = (x - shift) * scale - log2_sum
    p = tl.exp2(log2_p)
    if ENTROPY:
        # p = 0 must give 0, also where log p = -inf.
        return p * (spread - grad_entropy * (tl.maximum(log2_p, -1e30) * ln_2 + entropy))
    return p * spread


@triton.jit
def write_row(
    row, to, width, size, live, shift, log2_sum, scale, spread, entropy, grad_entropy, ln_2,
    R: tl.constexpr, L: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr, ENTROPY: tl.constexpr,
):  # fmt: skip
    """slope of a row's logits, 0 in padded columns and where the row isn't live; from its end, where caches still hold it."""
    TILE: tl.constexpr = R * L * C
    at = columns(R, L, C)
    full = width // TILE
    tiles = tl.cdiv(size, TILE)
    if live:
        for step in range(tiles - full):
            column = (tiles - 1 - step) * TILE + at
            x = load_tile(row, column, width, True, "evict_first")
            y = slope(x, shift, log2_sum, scale, spread, entropy, grad_entropy, ln_2, ENTROPY)
            tl.store(to + column, y.to(to.dtype.element_ty), mask=column < size, eviction_policy="evict_first")
        for step in tl.range(0, full, num_stages=STAGES):
            column = (full - 1 - step) * TILE + at
            x = load_tile(row, column, width, False, "evict_first")
            y = slope(x, shift, log2_sum, scale, spread, entropy, grad_entropy, ln_2, ENTROPY)
            tl.store(to + column, y.to(to.dtype.element_ty), eviction_policy="evict_first")
    else:
        for step in range(tiles):
            column = step * TILE + at
            tl.store(to + column, tl.zeros([L, R, C], to.dtype.element_ty), mask=column < size, eviction_policy="evict_first")


@triton.jit
def _gradient_kernel(
    logits, stride, to, to_stride, width, size, ids, own, grad_ids, n_ids,
    shift, log_sum, spread, entropy, grad_entropy, broken, scale, ln_2, log2_e,
    R: tl.constexpr, L: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr,
    J: tl.constexpr, PAIRS: tl.constexpr, ENTROPY: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    row, target = logits + i * stride, to + i * to_stride
    place = tl.arange(0, J)
    at = i * n_ids + place
    held = tl.load(own + at, mask=place < n_ids, other=0) > 0
    column = tl.load(ids + at, mask=held, other=-1)
    z = tl.load(row + column, mask=held, other=0.0).to(tl.float32)
    z_shift, row_spread = tl.load(shift + i), tl.load(spread + i)
    log2_sum = tl.load(log_sum + i) * log2_e
    row_entropy, row_grad_entropy = 0.0, 0.0
    if ENTROPY:
        row_entropy, row_grad_entropy = tl.load(entropy + i), tl.load(grad_entropy + i)
    live = tl.load(broken + i) == 0
    # An id that stands at several places has the sum of their gradients.
    total = tl.zeros([J], tl.float32)
    for first in range(0, n_ids, PAIRS):
        spot = first + tl.arange(0, PAIRS)
        counts = tl.load(own + i * n_ids + spot, mask=spot < n_ids, other=0) > 0
        other = tl.load(ids + i * n_ids + spot, mask=counts, other=-2)
        part = tl.load(grad_ids + i * n_ids + spot, mask=counts, other=0.0)
        total += tl.sum(tl.where(column[:, None] == other[None, :], part[None, :], 0.0), 1)
    y = total + slope(z, z_shift, log2_sum, scale, row_spread, row_entropy, row_grad_entropy, ln_2, ENTROPY)
    # All logits at single ids are read before the row is written, and all of the row is written before they are.
    tl.debug_barrier()
    write_row(
        row, target, width, size, live, z_shift, log2_sum, scale, row_spread, row_entropy, row_grad_entropy, ln_2,
        R, L, C, STAGES, ENTROPY,
    )  # fmt: skip
    tl.debug_barrier()
    tl.store(target + column, y.to(to.dtype.element_ty), mask=held & repeat(live, J))


def write_gradient(
    logits: Tensor, out: Tensor, width: int, ids: Tensor, own: Tensor, grad_ids: Tensor, rows: RowTerms, temperature: float
) -> None:
    """Fill out [N, V], which may be logits itself, of which the first width columns are real.

    ids [N, J] are columns, grad_ids [N, J] their gradients, both read where own [N, J] (bool) only.
    """
    count, n_ids = ids.shape
    shape = SHAPES["gradient"]
    unused = rows.shift
    with torch.cuda.device_of(logits):
        _gradient_kernel[(count,)](
            logits, logits.stride(0), out, out.stride(0), width, logits.shape[1],
            ids.contiguous(), own.contiguous().view(torch.uint8), grad_ids.float().contiguous(), n_ids,
            rows.shift, rows.log_sum, rows.spread.float().contiguous(),
            unused if rows.entropy is None else rows.entropy,
            unused if rows.grad_entropy is None else rows.grad_entropy.float().contiguous(),
            rows.broken.view(torch.uint8), LOG2_E / temperature, LN_2, LOG2_E,
            J=max(2, triton.next_power_of_2(n_ids)), PAIRS=8, ENTROPY=rows.entropy is not None, **shape.meta(logits),
        )  # fmt: skip


@triton.jit
def _rescale_kernel(
    x, stride, width, factor, rows, per_program,
    R: tl.constexpr, L: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    by = tl.load(factor).to(tl.float32)
    if by != 1.0:
        TILE: tl.constexpr = R * L * C
        at = columns(R, L, C)
        first = tl.program_id(0).to(tl.int64) * per_program
        for i in range(first, tl.minimum(first + per_program, rows)):
            for tile in tl.range(0, tl.cdiv(width, TILE), num_stages=STAGES):
                column = tile * TILE + at
                y = tl.load(x + i * stride + column, mask=column < width, other=0.0).to(tl.float32) * by
                tl.store(x + i * stride + column, y.to(x.dtype.element_ty), mask=column < width)


def rescale(x: Tensor, factor: Tensor) -> None:
    """Multiply x [N, V] in place by the scalar factor; a factor of 1 is seen on the device and costs one small launch."""
    shape = SHAPES["gradient"]
    programs = min(x.shape[0], 1024)
    with torch.cuda.device_of(x):
        _rescale_kernel[(programs,)](
            x, x.stride(0), x.shape[1], factor, x.shape[0], triton.cdiv(x.shape[0], programs), **shape.meta(x)
        )
