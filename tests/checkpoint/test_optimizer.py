"""Checkpoints with optimizer state, in every way megatron saves it, convert back to the weights that were trained."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import torch

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.torch_dist import TorchDistReader

launch = runpy.run_path(str(Path(__file__).parents[1] / "worlds.py"))["launch"]
PROGRAM = Path(__file__).parent / "optimizer_ranks.py"
LAYOUTS, WAYS = (runpy.run_path(str(PROGRAM))[name] for name in ("LAYOUTS", "WAYS"))


def test_weights_beside_optimizer_state(make_hf, read_hf, tmp_path):
    source = make_hf(num_hidden_layers=2)
    convert(plan_conversion(source, tmp_path / "td"))
    (tmp_path / "ways.json").write_text(json.dumps(WAYS))
    launch(PROGRAM, "step_and_save", 2, tmp_path)
    for layout in LAYOUTS:
        convert(plan_conversion(tmp_path / f"{layout}.weights", tmp_path / f"{layout}.hf", hf_config=source))
        wanted = read_hf(tmp_path / f"{layout}.hf")
        assert not any(torch.equal(wanted[name], tensor) for name, tensor in read_hf(source).items())
        for way in WAYS:
            target = tmp_path / f"{layout}.{way}.hf"
            reader = TorchDistReader(tmp_path / f"{layout}.{way}")
            names = [*reader.contents.tensors, *reader.contents.objects, *reader.common()]
            assert any(name.startswith("optimizer") for name in names), (layout, way)
            convert(plan_conversion(tmp_path / f"{layout}.{way}", target, hf_config=source))
            made = read_hf(target)
            assert made.keys() == wanted.keys()
            assert all(torch.equal(made[name], wanted[name]) for name in wanted), (layout, way)
