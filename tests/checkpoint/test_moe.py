"""Mixtures of experts: transformers' own tiny models, there and back, and through megatron at EP 1 and EP 2."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

from openclaw_core.checkpoint.convert import convert, plan_conversion

launch = runpy.run_path(str(Path(__file__).parents[1] / "worlds.py"))["launch"]
PROGRAM = Path(__file__).parent / "moe_ranks.py"
BASE = {
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "moe_intermediate_size": 24,
    "num_experts_per_tok": 2,
    "tie_word_embeddings": False,
}
KINDS = {
    "qwen3": ("Qwen3MoeConfig", {"head_dim": 16, "num_experts": 8, "norm_topk_prob": True}),
    "mixed": ("Qwen3MoeConfig", {"head_dim": 16, "num_experts": 4, "norm_topk_prob": True, "mlp_only_layers": [1]}),
    "qwen2": ("Qwen2MoeConfig", {"num_experts": 4, "shared_expert_intermediate_size": 40}),
    "deepseek": (
        "DeepseekV3Config",
        {
            "num_key_value_heads": 4,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 12,
            "kv_lora_rank": 10,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 6,
        },
    ),
}


def model(kind: str):
    import transformers

    name, options = KINDS[kind]
    torch.manual_seed(3)
    made = transformers.AutoModelForCausalLM.from_config(getattr(transformers, name)(**{**BASE, **options}), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if "norm" in name else 0.05))
    return made.eval()


@pytest.fixture
def folders(tmp_path):
    for kind in KINDS:
        model(kind).save_pretrained(tmp_path / kind)
        convert(plan_conversion(tmp_path / kind, tmp_path / f"{kind}.td"))
    (tmp_path / "kinds.json").write_text(json.dumps(list(KINDS)))
    return tmp_path


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_there_and_back_and_through_megatron(folders, read_hf):
    for kind in KINDS:
        convert(plan_conversion(folders / f"{kind}.td", folders / f"{kind}.back"))
        assert same(read_hf(folders / kind), read_hf(folders / f"{kind}.back")), kind
    launch(PROGRAM, "load_and_save", 2, folders)
    for kind in KINDS:
        with torch.no_grad():
            wanted = model(kind)(torch.arange(5, 25)[None]).logits[0]
        for name in ("ep1.0", "ep2.0", "ep2.1"):
            assert (torch.load(folders / f"{kind}.{name}.pt")[:, :200] - wanted).abs().max() < 5e-5, (kind, name)
        for layout in ("ep1", "ep2"):
            for way in ("saved", "split"):
                source, target = folders / f"{kind}.{layout}.{way}", folders / f"{kind}.{layout}.{way}.hf"
                convert(plan_conversion(source, target, hf_config=folders / kind))
                assert same(read_hf(folders / kind), read_hf(target)), (kind, layout, way)
