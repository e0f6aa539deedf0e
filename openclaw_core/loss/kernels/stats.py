"""One reading of logits [N, V]: what log-sum-exp, entropy and top-K are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from openclaw_core.loss.kernels.tiles import SHAPES, Shape, add_tile, columns, empty_sums, join, load_tile

LOG2_E = math.log2(math.e)
LN_2 = math.log(2.0)


@triton.jit
def _store_groups(groups, at, top):
    tl.store(groups + at, tl.where(top == top, top, -float("inf")).to(groups.dtype.element_ty))


@triton.jit
def row_sums(
    row, width, groups, scale, scale2,
    R: tl.constexpr, L: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr, ENTROPY: tl.constexpr, SECOND: tl.constexpr,
    GROUPS: tl.constexpr, POLICY: tl.constexpr,
):  # fmt: skip
    """Each thread's sums over a row, and with GROUPS the largest logit of each group stored at groups."""
    TILE: tl.constexpr = R * L * C
    at = columns(R, L, C)
    thread = tl.arange(0, L)
    largest, e, e_log_e, second = empty_sums(L)
    full = width // TILE
    for tile in tl.range(0, full, num_stages=STAGES):
        x = load_tile(row, tile * TILE + at, width, False, POLICY)
        top = tl.max(tl.max(x, 2), 1)
        if GROUPS:
            _store_groups(groups, tile * L + thread, top)
        largest, e, e_log_e, second = add_tile(x, top, largest, e, e_log_e, second, scale, scale2, ENTROPY, SECOND)
    if full * TILE < width:
        x = load_tile(row, full * TILE + at, width, True, POLICY)
        top = tl.max(tl.max(x, 2), 1)
        if GROUPS:
            _store_groups(groups, full * L + thread, top)
        largest, e, e_log_e, second = add_tile(x, top, largest, e, e_log_e, second, scale, scale2, ENTROPY, SECOND)
    return largest, e, e_log_e, second


@triton.jit
def _stats_kernel(
    logits, stride, width, out, rows, groups, groups_stride, lanes, scale, scale2, ln_2,
    R: tl.constexpr, L: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr,
    ENTROPY: tl.constexpr, SECOND: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    largest, e, e_log_e, second = row_sums(
        logits + i * stride, width, groups + i * groups_stride, scale, scale2,
        R, L, C, STAGES, ENTROPY, SECOND, GROUPS, "evict_first",
    )  # fmt: skip
    if GROUPS:
        _store_groups(lanes, i * L + tl.arange(0, L), largest)
    shift, total, total_log, total_second = join(largest, e, e_log_e, second, scale, scale2, ENTROPY, SECOND)
    tl.store(out + i, shift)
    tl.store(out + rows + i, total)
    tl.store(out + 2 * rows + i, total_log * ln_2)
    if SECOND:
        tl.store(out + 3 * rows + i, total_second)
    else:
        tl.store(out + 3 * rows + i, total)


def sums(real: Tensor, temperature: float, second_temperature: float, with_entropy: bool) -> tuple[Tensor, ...]:
    """shift, e, e_log_e and e at the second temperature, float32 [N] each, of real [N, V] (see logprobs._Sums)."""
    return _launch(real, temperature, second_temperature, with_entropy, SHAPES["stats"], None)


@dataclass(frozen=True)
class Groups:
    """Largest logits of real [N, V], NaN left out: of the R x C columns that a thread reads in a tile, [N, tiles x L] in
    the dtype of real, and of all columns that it reads, [N, L] float32. shape says which columns those are.
    """

    largest: Tensor
    lanes: Tensor
    shape: Shape


def sums_and_groups(real: Tensor, temperature: float, second_temperature: float) -> tuple[tuple[Tensor, ...], Groups]:
    """The same sums, with entropy, and the largest logits from the same reading."""
    shape = SHAPES["groups"]
    lanes = 32 * shape.warps
    tiles = triton.cdiv(real.shape[1], shape.tile(real))
    groups = Groups(
        torch.empty(real.shape[0], tiles * lanes, dtype=real.dtype, device=real.device),
        torch.empty(real.shape[0], lanes, dtype=torch.float32, device=real.device),
        shape,
    )
    return _launch(real, temperature, second_temperature, True, shape, groups), groups


def _launch(
    real: Tensor, temperature: float, second_temperature: float, with_entropy: bool, shape: Shape, groups: Groups | None
) -> tuple[Tensor, ...]:
    count, width = real.shape
    out = torch.empty(4, count, dtype=torch.float32, device=real.device)
    with torch.cuda.device_of(real):
        _stats_kernel[(count,)](
            real, real.stride(0), width, out, count,
            real if groups is None else groups.largest, 0 if groups is None else groups.largest.stride(0),
            out if groups is None else groups.lanes,
            LOG2_E / temperature, LOG2_E / second_temperature, LN_2,
            ENTROPY=with_entropy, SECOND=second_temperature != temperature, GROUPS=groups is not None, **shape.meta(real),
        )  # fmt: skip
    return tuple(out.unbind())
