"""What we write loads with megatron-core at TP 1, TP 2 and PP 2 and computes the model; what it saves converts back."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

from openclaw_core.checkpoint.convert import convert, plan_conversion

TESTS = Path(__file__).parents[1]
launch = runpy.run_path(str(TESTS / "worlds.py"))["launch"]
MODELS = runpy.run_path(str(TESTS / "tiny_models.py"))
SHAPE, LLAMA3 = MODELS["SHAPE"], MODELS["LLAMA3"]
PROGRAM = Path(__file__).parent / "megatron_ranks.py"
KINDS = {
    "tied": {"family": "qwen3", "tie_word_embeddings": True},
    "bias": {"family": "qwen2", "tie_word_embeddings": False},
    "llama": {"family": "llama", "tie_word_embeddings": False, "rope_scaling": LLAMA3},
    "vision": {"family": "qwen3_vl"},
}


def vision(folder: Path) -> None:
    """A whole Qwen3-VL, made by transformers: the text tower at its place, a vision tower beside it."""
    import transformers

    text = {
        **SHAPE,
        "vocab_size": 200,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 2, 2], "mrope_interleaved": True},
    }
    sight = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 32}
    config = transformers.Qwen3VLConfig(
        text_config=text, vision_config={**sight, "deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    )
    torch.manual_seed(4)
    model = transformers.Qwen3VLForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)


@pytest.fixture
def loaded(make_hf, tmp_path):
    vision(tmp_path / "vision")
    for kind, options in KINDS.items():
        if kind != "vision":
            make_hf(kind, dtype=torch.float32, num_hidden_layers=2, **options)
        convert(plan_conversion(tmp_path / kind, tmp_path / f"{kind}.td"))
    (tmp_path / "kinds.json").write_text(json.dumps(list(KINDS)))
    launch(PROGRAM, "load_and_save", 2, tmp_path)
    return tmp_path


def test_megatron_loads_computes_and_saves(loaded, read_hf):
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

    for kind in KINDS:
        loader = AutoModelForImageTextToText if kind == "vision" else AutoModelForCausalLM
        model = loader.from_pretrained(loaded / kind, dtype=torch.float32)
        with torch.no_grad():
            wanted = model(input_ids=torch.arange(5, 25)[None]).logits[0, :-1]
        one = torch.load(loaded / f"{kind}.one.0.pt")
        two = torch.cat([torch.load(loaded / f"{kind}.tp2.{rank}.pt") for rank in range(2)], dim=-1)
        stages = torch.load(loaded / f"{kind}.pp2.1.pt")
        for logits in (one, two, stages):
            assert logits.shape[1] == 256
            assert (logits[:, :200] - wanted).abs().max() < 2e-5 * max(1, wanted.abs().max()), kind
        for layout in ("one", "tp2", "pp2"):
            for way in ("saved", "split"):
                target = loaded / f"{kind}.{layout}.{way}.hf"
                convert(plan_conversion(loaded / f"{kind}.{layout}.{way}", target, hf_config=loaded / kind))
                a, b = read_hf(loaded / kind), read_hf(target)
                assert a.keys() == b.keys()
                assert all(torch.equal(a[name], b[name]) for name in a), (kind, layout, way)
