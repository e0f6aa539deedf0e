"""What we write loads with megatron-core at TP 1, TP 2 and PP 2 and computes the model; what it saves converts back."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

from openclaw_core.checkpoint.convert import convert, plan_conversion

launch = runpy.run_path(str(Path(__file__).parents[1] / "worlds.py"))["launch"]
PROGRAM = Path(__file__).parent / "megatron_ranks.py"
KINDS = {
    "tied": {"family": "qwen3", "tie_word_embeddings": True},
    "bias": {"family": "qwen2", "tie_word_embeddings": False},
}


@pytest.fixture
def loaded(make_hf, tmp_path):
    for kind, options in KINDS.items():
        source = make_hf(kind, dtype=torch.float32, num_hidden_layers=2, **options)
        convert(plan_conversion(source, tmp_path / f"{kind}.td"))
    (tmp_path / "kinds.json").write_text(json.dumps(list(KINDS)))
    launch(PROGRAM, "load_and_save", 2, tmp_path)
    return tmp_path


def test_megatron_loads_computes_and_saves(loaded, read_hf):
    from transformers import AutoModelForCausalLM

    for kind in KINDS:
        model = AutoModelForCausalLM.from_pretrained(loaded / kind, dtype=torch.float32)
        with torch.no_grad():
            wanted = model(torch.arange(5, 25)[None]).logits[0, :-1]
        one = torch.load(loaded / f"{kind}.one.0.pt")
        two = torch.cat([torch.load(loaded / f"{kind}.tp2.{rank}.pt") for rank in range(2)], dim=-1)
        for logits in (one, two):
            assert logits.shape[1] == 256
            assert (logits[:, :200] - wanted).abs().max() < 2e-5, kind
        for layout in ("one", "tp2", "pp2"):
            for way in ("saved", "split"):
                target = loaded / f"{kind}.{layout}.{way}.hf"
                convert(plan_conversion(loaded / f"{kind}.{layout}.{way}", target, hf_config=loaded / kind))
                a, b = read_hf(loaded / kind), read_hf(target)
                assert a.keys() == b.keys()
                assert all(torch.equal(a[name], b[name]) for name in a), (kind, layout, way)
