"""megatron-bridge as loader: the same weights and settings as ours, and what it leaves out or can't do is told by name."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

from openclaw_core.config.load import load_profile
from openclaw_core.models.bridge_checks import bridge_findings, installed
from openclaw_core.run.sources import missing_sources

TESTS = Path(__file__).parents[2]
launch = runpy.run_path(str(TESTS / "worlds.py"))["launch"]
make = runpy.run_path(str(TESTS / "tiny_models.py"))["make"]


def test_the_same_weights_and_settings(tmp_path):
    make("qwen3", tmp_path / "hf")
    launch(Path(__file__).with_name("bridge_program.py"), "load", 2, tmp_path)
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["given"] == {
        "hidden_dropout": "0.0",
        "attention_softmax_in_fp32": "True",
        "masked_softmax_fusion": "False",
        "apply_rope_fusion": "False",
        "recompute_granularity": "full",
    }
    assert "decoder.layers.0.mlp.linear_fc2.weight wasn't filled" in told["forgotten"]
    assert "linear_proj" not in told["forgotten"]
    assert "recompute_granularity: the config says 'full', the trainer builds None" in told["default"]
    assert "rotary_base: the checkpoint says 5000000.0, megatron-bridge 10000" in told["other"]
    assert "megatron-bridge isn't installed" in told["absent"]


def test_combinations_that_break_are_refused_by_name():
    config = {"model_type": "qwen3_vl", "vision_config": {"deepstack_visual_indexes": [8, 16, 24]}}
    absent = [] if installed() else ["train.loader is megatron_bridge, but megatron-bridge isn't installed."]

    def told(config, **options):
        return [what for what, _ in bridge_findings(config, **options) if what not in absent]

    (what,) = told(config, recompute=True, load=None)
    assert what.startswith("qwen3_vl feeds deepstack vision features into its layers")
    assert told(config, recompute=False, load=None) == []
    assert told({"model_type": "qwen3"}, recompute=True, load=None) == []
    (what,) = told({}, recompute=True, load="ckpt/x")
    assert "student.load is ckpt/x" in what
    assert [what for what, _ in bridge_findings({}, recompute=True, load=None)] == absent


def test_a_run_that_chooses_it_is_told_before_it_starts(tmp_path):
    config = load_profile("tiny-cpu", ["train.loader=megatron_bridge", f"student.load={tmp_path}"], {}).config
    told = [what for what, _ in missing_sources(config)]
    assert f"train.loader is megatron_bridge, which reads student.hf, but student.load is {tmp_path}." in told
    config = load_profile("tiny-cpu", [f"student.load={tmp_path}"], {}).config
    assert not any("train.loader" in what for what, _ in missing_sources(config))
