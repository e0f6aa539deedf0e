"""How a program walks along a row of logits, and the sums that it keeps on the way.

A tile is R x L x C neighbouring columns: C of them are one 16-byte load, the L = 32 x warps threads read L loads side by
side, R times. It is held as [L, R, C], the order in which Triton deals the first axis out to threads. The sums are kept
per thread, [L], around the thread's own largest logit, so that threads wait for each other once a row, not once a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """warps of a program, 16-byte loads of a thread and tile, software-pipelining stages of its loop over tiles."""

    warps: int
    loads: int
    stages: int = 1

    def meta(self, logits: Tensor) -> dict[str, int]:
        """Launch arguments that every kernel over tiles takes."""
        return {
            "R": self.loads,
            "L": 32 * self.warps,
            "C": 16 // logits.element_size(),
            "STAGES": self.stages,
            "num_warps": self.warps,
        }

    def tile(self, logits: Tensor) -> int:
        """Columns of a tile."""
        return self.loads * 32 * self.warps * (16 // logits.element_size())


# Kernel name to its shape: of those that `python -m benchmarks.objective --sweep` measures the fastest on an H200, or within
# 1 % of it. Wide programs suit "fused": the fewer rows are in flight, the more of the second reading the caches serve.
SHAPES = {
    "stats": Shape(16, 2),
    "groups": Shape(4, 8),
    "select": Shape(4, 1),
    "gradient": Shape(32, 2),
    "fused": Shape(16, 4),
}


@triton.jit
def columns(R: tl.constexpr, L: tl.constexpr, C: tl.constexpr):
    """Columns of the first tile, [L, R, C]."""
    thread = tl.arange(0, L)[:, None, None]
    r = tl.arange(0, R)[None, :, None]
    c = tl.arange(0, C)[None, None, :]
    return r * (L * C) + thread * C + c


@triton.jit
def load_tile(row, column, width, MASKED: tl.constexpr, POLICY: tl.constexpr):
    """Logits of row at column as float32, -inf at and past width where MASKED. A mask that doesn't end at a multiple of 16
    bytes costs single loads, so only the last tile has one.
    """
    if MASKED:
        x = tl.load(row + column, mask=column < width, other=-float("inf"), eviction_policy=POLICY)
    else:
        x = tl.load(row + column, eviction_policy=POLICY)
    return x.to(tl.float32)


@triton.jit
def repeat(flag, N: tl.constexpr):
    """The outcome of a scalar comparison N times, [N]. By way of integers: Triton's interpreter would give a mask the type of
    what was compared.
    """
    return tl.zeros([N], tl.int32) + flag.to(tl.int32) > 0


@triton.jit
def empty_sums(L: tl.constexpr):
    """largest, sum e, sum e log2 e, sum e at the second temperature: [L] each."""
    zeros = tl.zeros([L], tl.float32)
    return zeros - float("inf"), zeros, zeros, zeros


@triton.jit
def add_tile(x, top, largest, e, e_log_e, second, scale, scale2, ENTROPY: tl.constexpr, SECOND: tl.constexpr):
    """Sums with tile x [L, R, C] added; top [L] is its largest per thread. e = 2^((x - largest) scale), scale = log2(e) / T."""
    new = tl.maximum(largest, top)
    # Nothing is subtracted from a row of -inf.
    shift = tl.where(new == -float("inf"), 0.0, new)
    gap = tl.where(largest == -float("inf"), 0.0, largest - shift)
    distance = x - shift[:, None, None]
    log_e = distance * scale
    tile_e = tl.exp2(log_e)
    moved = tl.exp2(gap * scale)
    if ENTROPY:
        # e = 0 must add 0, also where log e = -inf.
        inner = tile_e * tl.maximum(log_e, -1e30)
        e_log_e = moved * (e_log_e + gap * scale * e) + tl.sum(tl.sum(inner, 2), 1)
    if SECOND:
        second = second * tl.exp2(gap * scale2) + tl.sum(tl.sum(tl.exp2(distance * scale2), 2), 1)
    e = e * moved + tl.sum(tl.sum(tile_e, 2), 1)
    return new, e, e_log_e, second


@triton.jit
def join(largest, e, e_log_e, second, scale, scale2, ENTROPY: tl.constexpr, SECOND: tl.constexpr):
    """The sums of all threads around the row's largest logit (0 where that is -inf); scalars."""
    top = tl.max(largest, 0)
    shift = tl.where(top == -float("inf"), 0.0, top)
    gap = tl.where(largest == -float("inf"), 0.0, largest - shift)
    moved = tl.exp2(gap * scale)
    total = tl.sum(e * moved, 0)
    total_log, total_second = 0.0, 0.0
    if ENTROPY:
        total_log = tl.sum(moved * (e_log_e + gap * scale * e), 0)
    if SECOND:
        total_second = tl.sum(second * tl.exp2(gap * scale2), 0)
    return shift, total, total_log, total_second
