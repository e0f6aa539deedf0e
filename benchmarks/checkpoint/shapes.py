"""Configs of the measured shapes, and folders of random weights made from them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch

from openclaw_core.checkpoint.families import RULES
from openclaw_core.checkpoint.hf import HfWriter
from openclaw_core.checkpoint.mapping import Layout, build_mapping
from openclaw_core.models.architecture import architecture_from_config, padded_vocab

_QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        **_QWEN3,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
    "qwen3-4b": {**_QWEN3, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}
_30B_A3B = {
    **_QWEN3,
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
}
PLANNED: dict[str, dict[str, Any]] = {"qwen3-30b-a3b": _30B_A3B}
# Fewer and narrower experts and a smaller vocabulary, 1.0 and 2.6 GB: does memory grow with the layers?
_SCALED_DOWN = {**_30B_A3B, "vocab_size": 32768, "num_experts": 32, "moe_intermediate_size": 384}
SHAPES |= {f"a3b-{layers}-layers": {**_SCALED_DOWN, "num_hidden_layers": layers} for layers in (4, 12)}
_BLOCK = 4 * 2**20


def make_folder(folder: Path, shape: str, seed: int = 0) -> int:
    """A Hugging Face folder of random bf16 weights, written tensor by tensor; returns the bytes of its weights.

    Values are drawn once and shifted from tensor to tensor: no two tensors are alike, and no file is compressible enough
    for a file system to cheat.
    """
    shapes, writer = _begin(folder, SHAPES[shape], shape)
    values = (torch.randn(2 * _BLOCK, generator=torch.Generator().manual_seed(seed)) * 0.02).to(torch.bfloat16)
    start = 0
    for name, size in shapes.items():
        width = math.prod(size[1:])
        step = max(1, _BLOCK // width)
        for row in range(0, size[0], step):
            count = min(step, size[0] - row) * width
            start = (start + 104729) % (_BLOCK - 1)
            writer.write(name, values[start : start + count].reshape(-1, *size[1:]), row)
    writer.close()
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def make_headers(folder: Path, shape: str) -> None:
    """The same without weights: files of the right length that hold nothing but their headers."""
    _, writer = _begin(folder, PLANNED[shape], shape, allocated=False)
    writer.close()


def _begin(
    folder: Path, config: dict[str, Any], shape: str, *, allocated: bool = True
) -> tuple[dict[str, tuple[int, ...]], HfWriter]:
    arch = architecture_from_config(config, shape)
    shapes = build_mapping(RULES[arch.family], arch, Layout(padded_vocab(arch.vocab))).hf
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    return shapes, HfWriter(folder, {name: (size, torch.bfloat16) for name, size in shapes.items()}, allocated=allocated)
