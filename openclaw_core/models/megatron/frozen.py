"""The forward pass of a model that is never trained: megatron's matrices, with few passes over memory between them.

In megatron's plain specification norms, rotation, activation and copies took 75 of 200 ms for 8,192 tokens of Qwen3-4B's shape
on an H200. Here norm with residual sum, rotation of normed queries and keys, and activation are one kernel each on a GPU. The
functions of this file say what those compute, and run wherever the kernels can't.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F

from openclaw_core.models.megatron import squares
from openclaw_core.models.megatron.layers import PackedLayout, rms_norm
from openclaw_core.trial import agrees


def freeze(model: Any) -> None:
    """Turn off gradients of a GPTModel and give its layers this forward pass."""
    model.requires_grad_(False)
    model.eval()
    for layer in model.decoder.layers:
        layer.forward = partial(_forward, layer)
    # Where ranks hold slices of the rows, those that are wanted aren't spread evenly.
    if model.post_process and not model.config.sequence_parallel:
        layer.forward = partial(_forward, layer, last=True)


def _forward(
    layer: Any,
    hidden_states: torch.Tensor,
    *,
    rotary_pos_emb: torch.Tensor,
    packed_seq_params: PackedLayout,
    last: bool = False,
    **rest: Any,
) -> tuple[torch.Tensor, None]:
    """hidden_states [T or T / tp, 1, hidden] -> the same after the layer; last: of the rows alone that predict something.

    What else a layer can be given isn't known here.
    """
    given = [name for name, value in rest.items() if value is not None]
    assert not given, f"frozen layers take no {', '.join(given)}"
    attention, mlp = layer.self_attention, layer.mlp
    ops = _ops(hidden_states)
    normed = ops.rms_norm(hidden_states, layer.input_layernorm.weight, layer.input_layernorm.eps)
    mixed, _ = attention.linear_qkv(normed)
    groups, dim = attention.num_query_groups_per_partition, attention.hidden_size_per_attention_head
    mixed = mixed.view(mixed.shape[0], groups, -1, dim)
    q_norm, k_norm = (getattr(norm, "weight", None) for norm in (attention.q_layernorm, attention.k_layernorm))
    turn = packed_seq_params.turns(rotary_pos_emb, mixed.dtype)
    q, k = ops.rotate(mixed, turn, q_norm, k_norm, layer.config.layernorm_epsilon)
    v, scale, members = mixed[:, :, -1], attention.core_attention.scale, q.shape[1] // groups
    wanted = packed_seq_params.narrow(members) if last else None
    if wanted is not None:
        attended = squares.attend_wanted(q, k, v, wanted, scale)
        hidden_states = hidden_states.index_select(0, wanted.rows)
    else:
        parts = packed_seq_params.cut(members) if squares.works(q, k) else None
        attended = squares.attend(q, k, v, packed_seq_params.pack, parts, scale)
    projected, _ = attention.linear_proj(attended.reshape(attended.shape[0], 1, -1))
    hidden, normed = ops.add_norm(hidden_states, projected, layer.pre_mlp_layernorm.weight, layer.pre_mlp_layernorm.eps)
    wide, _ = mlp.linear_fc1(normed)
    narrow, _ = mlp.linear_fc2(ops.swiglu(wide))
    return hidden + narrow, None


def add_norm(x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    """x + added, and its rms_norm."""
    total = x + added
    return total, rms_norm(total, weight, eps)


def rotate(
    mixed: torch.Tensor, turn: torch.Tensor, q_weight: torch.Tensor | None, k_weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries [T, H, d] and keys [T, G, d] of mixed [T, G, H / G + 2, d], normed where there are weights [d], and rotated.

    Of each of G groups mixed holds the queries, the key and the value; turn [T, d] is cos, then sin, of each row's d / 2 angles.
    """
    q, k = mixed[:, :, :-2].reshape(mixed.shape[0], -1, mixed.shape[-1]), mixed[:, :, -2]
    if q_weight is not None and k_weight is not None:
        q, k = rms_norm(q, q_weight, eps), rms_norm(k, k_weight, eps)
    cos, sin = turn[:, None].chunk(2, dim=-1)

    def turned(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    return turned(q), turned(k)


def swiglu(x: torch.Tensor) -> torch.Tensor:
    """silu of the first half of the last axis, times the second half."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


_KERNELS = "openclaw_core.models.megatron.frozen_kernels"
_PLAIN = SimpleNamespace(rms_norm=rms_norm, add_norm=add_norm, rotate=rotate, swiglu=swiglu)


def _ops(x: torch.Tensor) -> Any:
    """What computes on tensors like x: the kernels where they are right, else this file."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1" and not x.is_cuda
    return _kernels(x.device, x.dtype) if x.is_cuda or interpreted else _PLAIN


@functools.cache
def _kernels(device: torch.device, dtype: torch.dtype) -> Any:
    """The kernels if they agree with the functions of this file on a small problem, tried once a process."""
    if importlib.util.find_spec("triton") is None:
        return _PLAIN
    otherwise = f"Frozen models use plain functions for {dtype} on {device}, for the kernels fail there"

    def fast() -> dict[str, torch.Tensor]:
        return _results(importlib.import_module(_KERNELS), device, dtype)

    agreed = agrees(fast, lambda: _results(_PLAIN, device, dtype), dtype, otherwise)
    return importlib.import_module(_KERNELS) if agreed else _PLAIN


def _results(ops: Any, device: torch.device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device, dtype)

    x, added, weight, mixed = some(3, 1, 320), some(3, 1, 320), some(320), some(3, 2, 5, 64)
    turn, q_weight, k_weight = some(3, 64), some(64), some(64)
    total, normed = ops.add_norm(x, added, weight, 1e-6)
    q, k = ops.rotate(mixed, turn, q_weight, k_weight, 1e-6)
    plain_q, plain_k = ops.rotate(mixed, turn, None, None, 1e-6)
    return {
        "norms": ops.rms_norm(x, weight, 1e-6),
        "sums": total,
        "norms of sums": normed,
        "normed queries": q,
        "normed keys": k,
        "queries": plain_q,
        "keys": plain_k,
        "activations": ops.swiglu(x),
    }
