"""Mixtures of experts: transformers' own tiny models, there and back, and through megatron at TP, EP and PP of 1 and 2."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.errors import UserError

launch = runpy.run_path(str(Path(__file__).parents[1] / "worlds.py"))["launch"]
PROGRAM = Path(__file__).parent / "moe_ranks.py"
GROUPED, LAYOUTS = (runpy.run_path(str(PROGRAM))[name] for name in ("GROUPED", "LAYOUTS"))
BASE = {
    "vocab_size": 200,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
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
    "vision": ("Qwen3VLMoeConfig", {"head_dim": 16, "num_experts": 4}),
}
SIGHT = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 32,
    "deepstack_visual_indexes": [0],
    "num_position_embeddings": 16,
}


def model(kind: str):
    import transformers

    name, options = KINDS[kind]
    options, auto = {**BASE, **options}, transformers.AutoModelForCausalLM
    if kind == "vision":
        options = {"text_config": options, "vision_config": SIGHT, "tie_word_embeddings": False}
        auto = transformers.AutoModelForImageTextToText
    torch.manual_seed(3)
    made = auto.from_config(getattr(transformers, name)(**options), dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            parameter.add_(torch.randn_like(parameter) * (0.1 if "norm" in name else 0.05))
    return made.eval()


@pytest.fixture
def folders(tmp_path):
    for kind in KINDS:
        model(kind).save_pretrained(tmp_path / kind)
        if kind == "vision":
            as_released(tmp_path / kind / "model.safetensors")
        convert(plan_conversion(tmp_path / kind, tmp_path / f"{kind}.td"))
    (tmp_path / "kinds.json").write_text(json.dumps(list(KINDS)))
    return tmp_path


def as_released(path: Path) -> None:
    """Releases store experts input by output; transformers reads that and saves what it made itself output by input."""
    tensors = load_file(path)
    save_file({k: t.transpose(1, 2).contiguous() if ".experts." in k else t for k, t in tensors.items()}, path, {"format": "pt"})


def test_the_tied_flag_that_transformers_saves_beside_the_outer_one(tmp_path, read_hf):
    """Its text class has tied heads by default, its outer class hasn't and decides; what is written says it once."""
    model("vision").save_pretrained(tmp_path / "hf")
    as_released(tmp_path / "hf" / "model.safetensors")
    path = tmp_path / "hf" / "config.json"
    config = json.loads(path.read_text())
    config["text_config"]["tie_word_embeddings"] = True
    path.write_text(json.dumps(config))
    done = CliRunner().invoke(app, ["convert-ckpt", str(tmp_path / "hf"), str(tmp_path / "td")])
    assert done.exit_code == 0, done.stderr
    assert "tie_word_embeddings is false outside and true in text_config; the outer one counts" in done.stderr
    convert(plan_conversion(tmp_path / "td", tmp_path / "back"))
    assert same(read_hf(tmp_path / "hf"), read_hf(tmp_path / "back"))
    assert "lm_head.weight" in read_hf(tmp_path / "back")
    for place in ("td/hf", "back"):
        written = json.loads((tmp_path / place / "config.json").read_text())
        assert (written["tie_word_embeddings"], written["text_config"]["tie_word_embeddings"]) == (False, False)


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_there_and_back_and_through_megatron(folders, read_hf):
    for kind in KINDS:
        convert(plan_conversion(folders / f"{kind}.td", folders / f"{kind}.back"))
        assert same(read_hf(folders / kind), read_hf(folders / f"{kind}.back")), kind
    launch(PROGRAM, "load_and_save", 2, folders)
    for kind, name in [*((kind, kind) for kind in KINDS), (GROUPED, "grouped")]:
        with torch.no_grad():
            wanted = model(kind)(input_ids=torch.arange(5, 25)[None]).logits[0]
        halves = [torch.load(folders / f"{name}.tp2.{rank}.pt") for rank in range(2)]
        whole = [torch.load(folders / f"{name}.{place}.pt") for place in ("one.0", "ep2.0", "ep2.1", "pp2.1")]
        for made in (*whole, torch.cat(halves, dim=-1)):
            assert (made[:, :200] - wanted).abs().max() < 5e-5, name
        for layout in LAYOUTS:
            for way in ("saved", "split"):
                source, target = folders / f"{name}.{layout}.{way}", folders / f"{name}.{layout}.{way}.hf"
                if (kind, way) == ("vision", "split"):
                    with pytest.raises(UserError, match="singleton_local_shards"):
                        plan_conversion(source, target, hf_config=folders / kind)
                    continue
                convert(plan_conversion(source, target, hf_config=folders / kind))
                assert same(read_hf(folders / kind), read_hf(target)), (name, layout, way)
