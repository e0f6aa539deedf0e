"""Exact top-K of rows from the largest logits of parts of them: sorted by falling value, ties to the lower id.

Each thread of the first reading knows the largest logit that it saw. At least K logits reach the K-th largest of those,
so no smaller one is in the top-K, and only groups of columns whose own maximum reaches that bound can hold one: a few
more than K groups of a few dozen columns. Their logits at or above the bound are ranked by counting. Where ties make them
too many for the buffer, the program looks through its whole row instead.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from openclaw_core.loss.kernels.stats import Groups, sums_and_groups
from openclaw_core.loss.kernels.tiles import SHAPES

# Bits at the end of a float32 that a dtype leaves constant.
_SPARE_BITS = {torch.bfloat16: 16, torch.float16: 13, torch.float32: 0}
# Rows at a time: bounds the memory of the group maxima.
_ROWS = 8192


@triton.jit
def _clean(x):
    """NaN counts as -inf, -0 as 0."""
    x = x.to(tl.float32)
    x = tl.where(x == x, x, -float("inf"))
    return tl.where(x == 0.0, 0.0, x)


@triton.jit
def _key(x, SPARE: tl.constexpr):
    """int32 in the order of the clean float32 x."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> SPARE


@triton.jit
def _store_kept(keep, value, column, base, kept, values, places, CAP: tl.constexpr):
    """Append the kept of flat value and column to the row's buffer after the `kept` that it holds; how many it holds then."""
    where = kept + tl.cumsum(keep, 0) - 1
    fits = (keep > 0) & (where < CAP)
    tl.store(values + base + where, value, mask=fits)
    tl.store(places + base + where, column, mask=fits)
    return kept + tl.sum(keep, 0)


@triton.jit
def _topk_kernel(
    logits, stride, width, groups, groups_stride, count, lanes, k, hot, values, places, out_values, out_ids,
    R: tl.constexpr, L: tl.constexpr, C: tl.constexpr, GB: tl.constexpr, CAP: tl.constexpr, CHUNK: tl.constexpr,
    JB: tl.constexpr, SPARE: tl.constexpr,
):  # fmt: skip
    TILE: tl.constexpr = R * L * C
    E: tl.constexpr = R * C
    i = tl.program_id(0).to(tl.int64)
    row = logits + i * stride
    base = i * CAP
    one = tl.full([], 1, tl.int32)
    lowest = tl.full([], -2147483648, tl.int32) >> SPARE
    at = tl.arange(0, CHUNK)

    # The largest bound that k of the threads' largest logits reach, bit by bit.
    thread = tl.arange(0, L)
    key = _key(_clean(tl.load(lanes + i * L + thread)), SPARE)
    exists = thread * C < width
    bound = lowest
    if tl.sum((exists & (key >= 0)).to(tl.int32), 0) >= k:
        bound = lowest * 0
    for step in range(31 - SPARE):
        raised = bound | (one << (30 - SPARE - step))
        if tl.sum((exists & (key >= raised)).to(tl.int32), 0) >= k:
            bound = raised
    # Groups that reach it.
    n_hot = lowest * 0
    for first in range(0, count, CHUNK):
        group = first + at
        real = (group < count) & ((group // L) * TILE + (group % L) * C < width)
        top = _clean(tl.load(groups + i * groups_stride + group, mask=real, other=-float("inf")))
        is_hot = (real & (_key(top, SPARE) >= bound)).to(tl.int32)
        where = n_hot + tl.cumsum(is_hot, 0) - 1
        tl.store(hot + base + where, group, mask=(is_hot > 0) & (where < CAP))
        n_hot += tl.sum(is_hot, 0)
    tl.debug_barrier()

    kept = n_hot * 0
    if n_hot <= CAP:
        inside = tl.arange(0, E)
        for first in range(0, n_hot, GB):
            spot = first + tl.arange(0, GB)
            group = tl.load(hot + base + spot, mask=spot < n_hot, other=0)
            column = ((group // L) * TILE + (group % L) * C)[:, None] + ((inside // C) * (L * C) + inside % C)[None, :]
            real = (spot < n_hot)[:, None] & (column < width)
            value = _clean(tl.load(row + column, mask=real, other=-float("inf")))
            keep = (real & (_key(value, SPARE) >= bound)).to(tl.int32)
            flat: tl.constexpr = GB * E
            kept = _store_kept(
                tl.reshape(keep, [flat]), tl.reshape(value, [flat]), tl.reshape(column, [flat]), base, kept, values, places, CAP
            )

    if (n_hot > CAP) | (kept > CAP):
        # What was kept so far is dropped before other threads write in its place.
        tl.debug_barrier()
        # The K-th largest of the whole row, bit by bit.
        bound = lowest
        for step in range(32 - SPARE):
            raised = bound | (one << (31 - SPARE - step))
            if step == 0:
                raised = lowest * 0
            reach = n_hot * 0
            for first in range(0, width, CHUNK):
                real = first + at < width
                value = _clean(tl.load(row + first + at, mask=real, other=-float("inf")))
                reach += tl.sum((real & (_key(value, SPARE) >= raised)).to(tl.int32), 0)
            if reach >= k:
                bound = raised
        above = n_hot * 0
        for first in range(0, width, CHUNK):
            real = first + at < width
            value = _clean(tl.load(row + first + at, mask=real, other=-float("inf")))
            above += tl.sum((real & (_key(value, SPARE) > bound)).to(tl.int32), 0)
        kept = n_hot * 0
        equal = n_hot * 0
        for first in range(0, width, CHUNK):
            real = first + at < width
            value = _clean(tl.load(row + first + at, mask=real, other=-float("inf")))
            order = _key(value, SPARE)
            ties = (real & (order == bound)).to(tl.int32)
            lucky = (ties > 0) & (equal + tl.cumsum(ties, 0) <= k - above)
            keep = ((real & (order > bound)) | lucky).to(tl.int32)
            kept = _store_kept(keep, value, first + at, base, kept, values, places, CAP)
            equal += tl.sum(ties, 0)
    tl.debug_barrier()

    slot = tl.arange(0, CAP)
    value = tl.load(values + base + slot, mask=slot < kept, other=-float("inf"))
    column = tl.load(places + base + slot, mask=slot < kept, other=0)
    rank = tl.zeros([CAP], tl.int32)
    for first in range(0, kept, JB):
        rival = first + tl.arange(0, JB)
        other = tl.load(values + base + rival, mask=rival < kept, other=-float("inf"))[None, :]
        there = tl.load(places + base + rival, mask=rival < kept, other=0)[None, :]
        before = (other > value[:, None]) | ((other == value[:, None]) & (there < column[:, None]))
        rank += tl.sum((before & (rival < kept)[None, :]).to(tl.int32), 1)
    won = (slot < kept) & (rank < k)
    tl.store(out_values + i * k + rank, value, mask=won)
    tl.store(out_ids + i * k + rank, column.to(tl.int64), mask=won)


def sums_and_topk(
    real: Tensor, temperature: float, second_temperature: float, k: int
) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """stats.sums with entropy, and the k <= V largest values (float32) and columns [N, k] of real [N, V], in order."""
    count = real.shape[0]
    values = torch.empty(count, k, dtype=torch.float32, device=real.device)
    ids = torch.empty(count, k, dtype=torch.int64, device=real.device)
    parts = []
    for start in range(0, count, _ROWS):
        rows = slice(start, start + _ROWS)
        found, groups = sums_and_groups(real[rows], temperature, second_temperature)
        _select(real[rows], groups, k, values[rows], ids[rows])
        parts.append(found)
    if len(parts) == 1:
        return parts[0], values, ids
    return tuple(torch.cat(column) for column in zip(*parts, strict=True)), values, ids


def _select(real: Tensor, groups: Groups, k: int, values: Tensor, ids: Tensor) -> None:
    count, width = real.shape
    meta = groups.shape.meta(real)
    capacity = max(64, 4 * triton.next_power_of_2(k))
    scratch = torch.empty(3, count, capacity, dtype=torch.int32, device=real.device)
    with torch.cuda.device_of(real):
        _topk_kernel[(count,)](
            real, real.stride(0), width, groups.largest, groups.largest.stride(0), groups.largest.shape[1], groups.lanes, k,
            scratch[0], scratch[1].view(torch.float32), scratch[2], values, ids,
            R=meta["R"], L=meta["L"], C=meta["C"], GB=max(1, 512 // (meta["R"] * meta["C"])), CAP=capacity, CHUNK=1024, JB=16,
            SPARE=_SPARE_BITS[real.dtype], num_warps=SHAPES["select"].warps,
        )  # fmt: skip
