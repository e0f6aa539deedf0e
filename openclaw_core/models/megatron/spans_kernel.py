"""The Triton kernel of spans.py: importing this file needs triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from openclaw_core.models.megatron.spans import LANES, Spans

LOG2_E = 1.4426950408889634
HOPPER_SHARED_MEMORY = 227 * 1024


@triton.jit
def _see(acc, top, total, queries, k, v, k_stride, v_stride, start, end, length, i, scale,
         MASK: tl.constexpr, B: tl.constexpr, D: tl.constexpr):  # fmt: skip
    """A softmax goes on over keys start to end: top is the largest score so far, in powers of two, total and acc the sums."""
    key, at = tl.arange(0, B), tl.arange(0, D)
    for j in range(start, end, B):
        here = j + key
        ks = k + tl.cast(j, tl.int64) * k_stride + key[None, :] * k_stride + at[:, None]
        vs = v + tl.cast(j, tl.int64) * v_stride + key[:, None] * v_stride + at[None, :]
        if MASK:
            scores = tl.dot(queries, tl.load(ks, mask=here[None, :] < length, other=0.0))
            scores = tl.where((here[None, :] < length) & (here[None, :] <= i[:, None]), scores, float("-inf"))
            values = tl.load(vs, mask=here[:, None] < length, other=0.0)
        else:
            scores = tl.dot(queries, tl.load(ks))
            values = tl.load(vs)
        new = tl.maximum(top, tl.max(scores, 1) * scale)
        weights = tl.exp2(scores * scale - new[:, None])
        faded = tl.exp2(top - new)
        total = total * faded + tl.sum(weights, 1)
        acc = tl.dot(weights.to(values.dtype), values, acc * faded[:, None])
        top = new
    return acc, top, total


@triton.jit
def _attend_kernel(
    q, k, v, out, tiles, ranges, heads, groups, k_stride, v_stride, v_group, scale, step,
    MEMBERS: tl.constexpr, L: tl.constexpr, B: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    tile, group = tiles + tl.program_id(0) // groups * 6, tl.program_id(0) % groups
    row, to, first, rows = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    lane, at = tl.arange(0, L), tl.arange(0, D)
    i, head = first + lane // MEMBERS, group * MEMBERS + lane % MEMBERS
    inside = ((lane < step * MEMBERS) & (i < rows))[:, None]
    inner = head[:, None] * D + at[None, :]
    queries = tl.load(q + (row + i)[:, None].to(tl.int64) * heads * D + inner, mask=inside, other=0.0)
    acc = tl.zeros([L, D], tl.float32)
    top = tl.full([L], float("-inf"), tl.float32)
    total = tl.zeros([L], tl.float32)
    k += group * D
    v += group * v_group
    for n in range(tl.load(tile + 4), tl.load(tile + 5)):
        start, length = tl.load(ranges + 2 * n).to(tl.int64), tl.load(ranges + 2 * n + 1)
        ks, vs, whole = k + start * k_stride, v + start * v_stride, length // B * B
        acc, top, total = _see(acc, top, total, queries, ks, vs, k_stride, v_stride, 0, whole, length, i, scale, False, B, D)
        if whole < length:
            acc, top, total = _see(
                acc, top, total, queries, ks, vs, k_stride, v_stride, whole, length, length, i + length, scale, True, B, D
            )
    ks, vs, whole = k + row.to(tl.int64) * k_stride, v + row.to(tl.int64) * v_stride, first // B * B
    acc, top, total = _see(acc, top, total, queries, ks, vs, k_stride, v_stride, 0, whole, rows, i, scale, False, B, D)
    end = tl.minimum(first + step, rows)
    acc, top, total = _see(acc, top, total, queries, ks, vs, k_stride, v_stride, whole, end, rows, i, scale, True, B, D)
    answers = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + (to + i)[:, None].to(tl.int64) * heads * D + inner, answers, mask=inside)


def attend_spans(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, spans: Spans, out: torch.Tensor, scale: float) -> None:
    """As spans.attend_each; scale is positive, and the innermost axis of v lies at a stretch."""
    if not len(spans.tiles):
        return
    q, k = q.contiguous(), k.contiguous()
    heads, groups, dim = q.shape[1], k.shape[1], q.shape[2]
    block = 128 if dim <= 128 else 64
    memory = torch.cuda.get_device_properties(q.device).shared_memory_per_block_optin if q.is_cuda else 0
    stages = 3 if dim <= 128 and memory >= HOPPER_SHARED_MEMORY else 2
    with torch.cuda.device_of(q):
        _attend_kernel[(len(spans.tiles) * groups,)](
            q, k, v, out, spans.tiles, spans.ranges, heads, groups, k.stride(0), v.stride(0), v.stride(1), scale * LOG2_E,
            spans.step, MEMBERS=heads // groups, L=LANES, B=block, D=dim, num_warps=8, num_stages=stages,
        )  # fmt: skip
