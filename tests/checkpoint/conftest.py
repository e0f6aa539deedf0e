"""Tiny random Hugging Face folders, made without the code under test, and torch_dist folders of any boxes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from openclaw_core.checkpoint.dist_writer import Part, Shapes, file_name, write_file, write_index

Make = Callable[..., Path]


def config(family: str = "qwen3", **changes: Any) -> dict[str, Any]:
    made = {
        "model_type": family,
        "architectures": [{"qwen3": "Qwen3ForCausalLM", "qwen2": "Qwen2ForCausalLM", "llama": "LlamaForCausalLM"}[family]],
        "vocab_size": 200,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
        "max_position_embeddings": 256,
        "torch_dtype": "bfloat16",
    }
    if family == "qwen3":
        made["head_dim"] = 16
    made.update(changes)
    return {key: value for key, value in made.items() if value is not None}


def weights(cfg: dict[str, Any], dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    h, f, heads, kv = (cfg[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"))
    d = cfg.get("head_dim", h // heads)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (cfg["vocab_size"], h), "model.norm.weight": (h,)}
    for layer in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        shapes |= {
            p + "input_layernorm.weight": (h,),
            p + "post_attention_layernorm.weight": (h,),
            p + "self_attn.q_proj.weight": (heads * d, h),
            p + "self_attn.k_proj.weight": (kv * d, h),
            p + "self_attn.v_proj.weight": (kv * d, h),
            p + "self_attn.o_proj.weight": (h, heads * d),
            p + "mlp.gate_proj.weight": (f, h),
            p + "mlp.up_proj.weight": (f, h),
            p + "mlp.down_proj.weight": (h, f),
        }
        if cfg["model_type"] == "qwen3":
            shapes |= {p + "self_attn.q_norm.weight": (d,), p + "self_attn.k_norm.weight": (d,)}
        if cfg["model_type"] == "qwen2":
            shapes |= {p + f"self_attn.{x}_proj.bias": ((heads if x == "q" else kv) * d,) for x in "qkv"}
    if not cfg["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (cfg["vocab_size"], h)
    return {name: (torch.randn(shape, generator=generator) * 0.3 + ("norm" in name)).to(dtype) for name, shape in shapes.items()}


def write_folder(
    folder: Path, cfg: dict[str, Any], tensors: dict[str, torch.Tensor], shards: int = 1, tokenizer: bool = True
) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(cfg))
    if tokenizer:
        vocab = {f"t{i}": i for i in range(190)}
        added = [{"id": 190, "content": "<|im_start|>", "special": True}, {"id": 191, "content": "<|im_end|>", "special": True}]
        (folder / "tokenizer.json").write_text(
            json.dumps({"model": {"type": "BPE", "vocab": vocab, "merges": []}, "added_tokens": added})
        )
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}", "eos_token": "<|im_end|>"}))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 191}))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    names = sorted(tensors)
    places = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in names if places[name] == file}, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


def read_folder(folder: Path) -> dict[str, torch.Tensor]:
    out: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        out |= load_file(path)
    return out


@pytest.fixture
def make_hf(tmp_path: Path) -> Make:
    """make_hf(name, family, dtype, shards, change=function of the tensors, **config changes) -> folder"""

    def make(name="hf", family="qwen3", *, dtype=torch.bfloat16, shards=1, change=None, tokenizer=True, **changes) -> Path:
        cfg = config(family, **changes)
        tensors = weights(cfg, dtype)
        if change is not None:
            change(tensors)
        return write_folder(tmp_path / name, cfg, tensors, shards, tokenizer)

    return make


@pytest.fixture
def read_hf() -> Callable[[Path], dict[str, torch.Tensor]]:
    return read_folder


@pytest.fixture
def write_dist() -> Callable[..., None]:
    """write_dist(folder, shapes, parts, objects, common): a torch_dist folder with one file of boxes."""

    def write(folder: Path, shapes: Shapes, parts: list[Part], objects: dict[str, bytes], common: dict[str, Any]) -> None:
        folder.mkdir()
        name = file_name(0)
        write_index(folder, shapes, {name: write_file(folder / name, shapes, parts)}, objects, common)

    return write


@pytest.fixture(params=[False, True], ids=["untied", "tied"])
def vision(make_hf: Make, request: pytest.FixtureRequest) -> Path:
    """A Qwen3-VL folder: nested config, the text tower under its prefix, two vision tensors."""
    source = make_hf("vl", tie_word_embeddings=request.param)
    config = json.loads((source / "config.json").read_text())
    tied = config.pop("tie_word_embeddings")
    config["rope_parameters"] = {"rope_theta": config.pop("rope_theta"), "rope_type": "default", "mrope_section": [2, 3, 3]}
    outer = {"model_type": "qwen3_vl", "tie_word_embeddings": tied, "vision_config": {"depth": 1}}
    (source / "config.json").write_text(json.dumps({**outer, "text_config": {**config, "model_type": "qwen3_vl_text"}}))
    tensors = load_file(source / "model.safetensors")
    tensors = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    tensors["model.visual.patch_embed.proj.weight"] = torch.randn(4, 3, 2, 2, 2).to(torch.bfloat16)
    tensors["model.visual.blocks.0.norm1.bias"] = torch.randn(7)
    save_file(tensors, source / "model.safetensors")
    return source
