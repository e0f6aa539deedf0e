"""Triton kernels of frozen.py, rounded as the plain functions there round: importing this file needs triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _norm_kernel(
    x, added, weight, total, out, width, eps, ADD: tl.constexpr, B: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * width
    at = tl.arange(0, B)
    inside = at < width
    value = tl.load(x + row + at, mask=inside, other=0.0)
    if ADD:
        more = tl.load(added + row + at, mask=inside, other=0.0)
        value = (value.to(tl.float32) + more.to(tl.float32)).to(value.dtype)
        tl.store(total + row + at, value, mask=inside)
    wide = value.to(tl.float32)
    wide = wide * tl.rsqrt(tl.sum(wide * wide, 0) / width + eps)
    scale = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row + at, (wide.to(value.dtype).to(tl.float32) * scale).to(value.dtype), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """As frozen.rms_norm."""
    x, out = x.contiguous(), torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _norm(x, x, weight, x, out, eps, add=False)
    return out


def add_norm(x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """As frozen.add_norm."""
    x, added = x.contiguous(), added.contiguous()
    total, out = torch.empty_like(x), torch.empty_like(x)
    _norm(x, added, weight, total, out, eps, add=True)
    return total, out


def _norm(
    x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, total: torch.Tensor, out: torch.Tensor, eps: float, *, add: bool
) -> None:
    width = x.shape[-1]
    if x.numel():
        with torch.cuda.device_of(x):
            _norm_kernel[(x.numel() // width,)](
                x, added, weight, total, out, width, eps, ADD=add, B=triton.next_power_of_2(width), num_warps=8
            )


@triton.jit
def _rotate_kernel(
    mixed, stride, q, k, turn, q_weight, k_weight, members, heads, half, eps,
    NORM: tl.constexpr, H: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0).to(tl.int64)
    # Of each group its members - 1 queries, then its key; its value comes after them and stays where it is.
    head = tl.arange(0, H)[:, None]
    at = tl.arange(0, D)[None, :]
    group, member = head // members, head % members
    inside = (head < heads) & (at < half)
    first = mixed + i * stride + (group * (members + 1) + member) * (2 * half) + at
    x = tl.load(first, mask=inside, other=0.0)
    y = tl.load(first + half, mask=inside, other=0.0)
    kind = x.dtype
    is_key = member == members - 1
    if NORM:
        wide_x, wide_y = x.to(tl.float32), y.to(tl.float32)
        mean = tl.sum(wide_x * wide_x + wide_y * wide_y, 1) / (2 * half)
        by = tl.rsqrt(mean + eps)[:, None]
        here = at < half
        for_x = tl.where(is_key, tl.load(k_weight + at, mask=here, other=0.0), tl.load(q_weight + at, mask=here, other=0.0))
        for_y = tl.where(
            is_key, tl.load(k_weight + half + at, mask=here, other=0.0), tl.load(q_weight + half + at, mask=here, other=0.0)
        )
        x = ((wide_x * by).to(kind).to(tl.float32) * for_x.to(tl.float32)).to(kind)
        y = ((wide_y * by).to(kind).to(tl.float32) * for_y.to(tl.float32)).to(kind)
    cos = tl.load(turn + i * (2 * half) + at, mask=at < half, other=0.0).to(tl.float32)
    sin = tl.load(turn + i * (2 * half) + half + at, mask=at < half, other=0.0).to(tl.float32)
    x, y = x.to(tl.float32), y.to(tl.float32)
    new_x = ((x * cos).to(kind).to(tl.float32) - (y * sin).to(kind).to(tl.float32)).to(kind)
    new_y = ((y * cos).to(kind).to(tl.float32) + (x * sin).to(kind).to(tl.float32)).to(kind)
    groups = heads // members
    to_q = q + (i * (heads - groups) + group * (members - 1) + member) * (2 * half) + at
    to_k = k + (i * groups + group) * (2 * half) + at
    tl.store(to_q, new_x, mask=inside & (member < members - 1))
    tl.store(to_q + half, new_y, mask=inside & (member < members - 1))
    tl.store(to_k, new_x, mask=inside & is_key)
    tl.store(to_k + half, new_y, mask=inside & is_key)


def rotate(
    mixed: torch.Tensor, turn: torch.Tensor, q_weight: torch.Tensor | None, k_weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """As frozen.rotate."""
    rows, groups, wide, dim = mixed.shape
    members = wide - 1
    mixed = mixed.contiguous()
    q, k = mixed.new_empty(rows, groups * (members - 1), dim), mixed.new_empty(rows, groups, dim)
    heads = groups * members
    if rows:
        with torch.cuda.device_of(mixed):
            _rotate_kernel[(rows,)](
                mixed, mixed.stride(0), q, k, turn.contiguous(), turn if q_weight is None else q_weight,
                turn if k_weight is None else k_weight, members, heads, dim // 2, eps,
                NORM=q_weight is not None, H=triton.next_power_of_2(heads), D=triton.next_power_of_2(dim // 2), num_warps=8,
            )  # fmt: skip
    return q, k


@triton.jit
def _swiglu_kernel(x, out, width, B: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * B + tl.arange(0, B)
    inside = at < width
    gate = tl.load(x + i * 2 * width + at, mask=inside, other=0.0)
    up = tl.load(x + i * 2 * width + width + at, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    tl.store(out + i * width + at, (silu.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=inside)


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """As frozen.swiglu."""
    width = x.shape[-1] // 2
    out = x.new_empty(*x.shape[:-1], width)
    block = min(2048, triton.next_power_of_2(width))
    if out.numel():
        with torch.cuda.device_of(x):
            _swiglu_kernel[(out.numel() // width, triton.cdiv(width, block))](x.contiguous(), out, width, B=block, num_warps=4)
    return out
