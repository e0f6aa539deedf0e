"""A teacher that has nothing in common with the shipped student but its tokenizer."""

from __future__ import annotations

import shutil
from argparse import Namespace
from pathlib import Path

import torch

from openclaw_core import assets
from openclaw_core.checkpoint.torch_dist import resolve
from openclaw_core.models.architecture import architecture_from_torch_dist, padded_vocab

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


def bare(torch_dist: Path, folder: Path) -> Path:
    """A converted checkpoint as a trainer of megatron leaves one: its common state alone states the architecture."""
    arch = architecture_from_torch_dist(torch_dist)
    shutil.copytree(torch_dist, folder)
    shutil.rmtree(folder / "hf")
    (folder / "openclaw.json").unlink()
    arguments = {
        "num_layers": arch.layers, "hidden_size": arch.hidden, "num_attention_heads": arch.heads,
        "num_query_groups": arch.kv_heads, "kv_channels": arch.head_dim, "ffn_hidden_size": arch.ffn,
        "padded_vocab_size": padded_vocab(arch.vocab), "vocab_size": arch.vocab, "rotary_base": arch.rope_theta,
        "norm_epsilon": arch.norm_eps, "max_position_embeddings": arch.max_position, "swiglu": True, "normalization": "RMSNorm",
        "qk_layernorm": arch.qk_norm, "untie_embeddings_and_output_weights": not arch.tied,
    }  # fmt: skip
    torch.save({"args": Namespace(**arguments)}, resolve(folder) / "common.pt")
    return folder


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
