"""The two modules of our own in the layer specification: RMSNorm and packed causal attention."""

from __future__ import annotations

import math
from typing import Any

import torch

from openclaw_core.models.megatron import spans, squares
from openclaw_core.models.megatron.attention import attend
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
        self.rows = pack.rows
        """Where the rows that predict something are in the hidden states behind the last layer."""
        self._turns: torch.Tensor | None = None
        self._cut: squares.Cut | None = None

    def turns(self, angles: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Cos, then sin, of the first half of angles [T, 1, 1, d], in dtype: [T, d]; computed once for all layers."""
        if self._turns is None:
            half = angles[:, 0, 0, : angles.shape[-1] // 2]
            self._turns = torch.cat((half.cos(), half.sin()), dim=1).to(dtype)
        return self._turns

    def cut(self, members: int) -> squares.Cut | None:
        """The pack's squares and its other rows, as squares.cut; computed once for all layers."""
        if self._cut is None:
            self._cut = squares.cut(self.pack, members)
        return self._cut

    def narrow(self, members: int) -> spans.Wanted | None:
        """What the last layer has to answer, as spans.wanted; its hidden states hold those rows alone, and rows says where."""
        wanted = spans.wanted(self.pack, members)
        if wanted is not None:
            self.rows = wanted.places
        return wanted


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x / rms(x) * weight over the last axis, in Hugging Face's order: normalised in float32, cast to x's dtype, then scaled."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


class RMSNorm(torch.nn.Module):
    """rms_norm with a weight of its own."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype, device=torch.cuda.current_device()))
        # Under sequence parallelism each rank sees other rows, so finalize_model_grads must sum this gradient.
        self.weight.sequence_parallel = config.sequence_parallel
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)


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
        out = attend(query.squeeze(1), key.squeeze(1), value.squeeze(1), pack, self.scale)
        return out.reshape(query.shape[0], 1, -1)
