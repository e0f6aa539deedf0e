"""A teacher that has nothing in common with the shipped student but its tokenizer."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from openclaw_core import assets

TINY = Path(assets.__path__[0]) / "tiny-qwen3"
SHAPE = {
    "vocab_size": 800,  # more rows than the student has ids
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 3e5},
    "attn_implementation": "eager",
}


def make(folder: Path) -> torch.nn.Module:
    """Save it as a Hugging Face folder and return it."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(3)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.mul_(3)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(TINY / name, folder / name)
    return model.eval()
