"""Tiny Hugging Face models with weights large enough for errors to show."""

from __future__ import annotations

from pathlib import Path

import torch

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "attn_implementation": "eager",
}
PLAIN = {"rope_type": "default", "rope_theta": 5e6}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def make(kind: str, folder: Path, seed: int = 0) -> torch.nn.Module:
    """Save a model of a kind into folder and return it: qwen3 (tied head), qwen2 (biases), llama (scaled rope)."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    name = {"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama"}[kind]
    extra = {
        "tie_word_embeddings": kind == "qwen3",
        "rope_parameters": {"rope_theta": 1e4, **LLAMA3} if kind == "llama" else PLAIN,
    }
    config = getattr(transformers, f"{name}Config")(**SHAPE, **extra)
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            elif name.endswith("bias"):
                parameter.copy_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(3)
    model.save_pretrained(folder)
    return model.eval()
