"""The two modules of our own in the layer specification: RMSNorm and packed causal attention."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from openclaw_core.models.megatron.core import MegatronModule, PackedSeqParams
from openclaw_core.models.megatron.packing import Pack


class PackedLayout(PackedSeqParams):
    """Tells the attention where sequences begin.

    qkv_format isn't "thd": megatron's own thd path splits by cu_seqlens on the host in every layer, while positions
    are known here already, so rotary embeddings come per row and only the attention itself looks at the borders.
    """

    def __init__(self, pack: Pack) -> None:
        super().__init__(qkv_format="packed")
        self.pack = pack


class RMSNorm(torch.nn.Module):
    """x / rms(x) * weight in Hugging Face's order: normalise in fp32, cast to x's dtype, then scale."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=torch.cuda.current_device()))
        # Under sequence parallelism each rank sees other rows, so finalize_model_grads must sum this gradient.
        self.weight.sequence_parallel = config.sequence_parallel
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class PackedAttention(MegatronModule):
    """Causal attention of each sequence of a pack; takes the place of megatron's core attention."""

    def __init__(self, config: Any, layer_number: int, attn_mask_type: Any, attention_type: str, **_: Any) -> None:
        super().__init__(config=config)
        self.scale = 1.0 / math.sqrt(config.kv_channels)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        packed_seq_params: PackedLayout,
        **_: Any,
    ) -> torch.Tensor:
        """query [T, 1, H, d], key and value [T, 1, G, d] -> [T, 1, H * d]."""
        pack = packed_seq_params.pack
        attend = _attend_flash if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16) else _attend_each
        out = attend(query.squeeze(1), key.squeeze(1), value.squeeze(1), pack, self.scale)
        return out.reshape(query.shape[0], 1, -1)


def _attend_each(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pack: Pack, scale: float) -> torch.Tensor:
    """One SDPA call per sequence; lengths are known on the host, so nothing waits for the device."""
    grouped = q.shape[1] != k.shape[1]
    parts = []
    sequences = (t.transpose(0, 1)[None].split(pack.lengths, dim=2) for t in (q, k, v))
    for one_q, one_k, one_v in zip(*sequences, strict=True):
        out = F.scaled_dot_product_attention(one_q, one_k, one_v, is_causal=True, scale=scale, enable_gqa=grouped)
        parts.append(out[0])
    return torch.cat(parts, dim=1).transpose(0, 1)


def _attend_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, pack: Pack, scale: float) -> torch.Tensor:
    """All sequences in one flash-attention call."""
    if _VARLEN is None:
        return _attend_each(q, k, v, pack, scale)
    return _VARLEN(q, k, v, pack, scale)


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Pack, float], torch.Tensor]


def adapt_varlen(varlen_attn: Callable[..., torch.Tensor]) -> Attend | None:
    """torch's varlen_attn as causal attention with grouped heads, whatever its generation calls these things.

    None where it can't be causal. Before it had enable_gqa (torch 2.11) it took grouped heads as they are.
    """
    accepted = inspect.signature(varlen_attn).parameters
    options: dict[str, Any] = {}
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
        return varlen_attn(q, k, v, pack.cu_seqlens, pack.cu_seqlens, pack.max_length, pack.max_length, **options)

    return attend


def _find_varlen() -> Attend | None:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return adapt_varlen(varlen_attn)


_VARLEN = _find_varlen()
