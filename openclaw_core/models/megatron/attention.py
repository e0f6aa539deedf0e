"""Causal attention over packs: one flash-attention call where there is one, else one SDPA call per sequence."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
import torch.nn.functional as F

from openclaw_core.models.megatron.core import gather_from_sequence_parallel_region
from openclaw_core.models.megatron.packing import Pack, SharedKeys

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Pack, float], torch.Tensor]


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pack: Pack, scale: float) -> torch.Tensor:
    """q [T, H, d], k and v [T, G, d] -> [T, H, d]; every row sees its own sequence up to itself."""
    flash = varlen() if q.is_cuda and q.dtype in (torch.bfloat16, torch.float16) else None
    if flash is not None and (pack.shared is None or counts_from_the_end(flash, q.device, q.dtype)):
        return flash(q, k, v, pack, scale)
    return attend_each(q, k, v, pack, scale)


def attend_each(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pack: Pack, scale: float) -> torch.Tensor:
    """One SDPA call per sequence; lengths are known on the host, so nothing waits for the device."""
    k, v, lengths = _keys(k, v, pack)
    parts = []
    sequences = (t.transpose(0, 1)[None].split(cuts, dim=2) for t, cuts in ((q, pack.lengths), (k, lengths), (v, lengths)))
    for one_q, one_k, one_v in zip(*sequences, strict=True):
        parts.append(attend_one(one_q, one_k, one_v, scale)[0])
    return torch.cat(parts, dim=1).transpose(0, 1)


def attend_one(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Of one sequence the last n rows: q [1, H, n, d], k and v [1, G, s, d] with s >= n -> [1, H, n, d]."""
    own, seen = q.shape[2], k.shape[2]
    mask = None if own == seen else torch.ones(own, seen, dtype=torch.bool, device=q.device).tril(seen - own)
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped)


def _keys(k: torch.Tensor, v: torch.Tensor, pack: Pack) -> tuple[torch.Tensor, torch.Tensor, tuple[int, ...]]:
    if pack.shared is None:
        return k, v, pack.lengths
    if pack.shared.group is not None:
        k, v = gather_from_sequence_parallel_region(torch.stack((k, v), dim=1), group=pack.shared.group).unbind(1)
    return k.index_select(0, pack.shared.rows), v.index_select(0, pack.shared.rows), pack.shared.lengths


def adapt_varlen(varlen_attn: Callable[..., torch.Tensor]) -> Attend | None:
    """torch's varlen_attn as causal attention with grouped heads, whatever its generation calls these things.

    None where it can't be causal. Before it had enable_gqa (torch 2.11) it took grouped heads as they are.
    """
    accepted = inspect.signature(varlen_attn).parameters
    options: dict[str, object] = {}
    if "window_size" in accepted:
        options["window_size"] = (-1, 0)
    elif "is_causal" in accepted:
        options["is_causal"] = True
    else:
        return None
    if "enable_gqa" in accepted:
        options["enable_gqa"] = True

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pack: Pack, scale: float) -> torch.Tensor:
        if "scale" in accepted:
            options["scale"] = scale
        else:
            q = q * (scale * math.sqrt(q.shape[-1]))
        k, v, lengths = _keys(k, v, pack)
        ends = pack.cu_seqlens if pack.shared is None else pack.shared.cu_seqlens
        return varlen_attn(q, k, v, pack.cu_seqlens, ends, pack.max_length, max(lengths), **options)

    return attend


@cache
def counts_from_the_end(attend: Attend, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the last query sees all keys where there are more keys than queries; asked of the kernel itself, once.

    Its documentation doesn't say, and one that lets the first query see the first key alone would be wrong in silence.
    """
    whole = torch.arange(48, device=device)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(48, 1, 64, generator=generator).to(device, dtype) for _ in range(3))
    pack = Pack(
        input_ids=whole,
        positions=whole,
        cu_seqlens=torch.tensor([0, 32, 48], dtype=torch.int32, device=device),
        lengths=(32, 16),
        rows=whole[:0],
        places=np.arange(0),
        response_ids=whole[:0],
        row_counts=(0, 0),
        shared=SharedKeys.of([np.arange(32), np.arange(48)], (32, 16), device),
    )
    with torch.no_grad():
        found, right = (one(q, k, v, pack, 0.125) for one in (attend, attend_each))
    return bool(torch.allclose(found.float(), right.float(), atol=0.05))


@cache
def varlen() -> Attend | None:
    """torch's variable-length attention for half precision on a GPU, where it has one."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return adapt_varlen(varlen_attn)
