"""The same logits as Hugging Face at every parallel size, from either kind of checkpoint."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.errors import Findings
from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.models.megatron.builder import transformer_config
from openclaw_core.models.megatron.parallel import ParallelSizes

TESTS = Path(__file__).parents[2]
launch = runpy.run_path(str(TESTS / "worlds.py"))["launch"]
make = runpy.run_path(str(TESTS / "tiny_models.py"))["make"]
PROGRAM = Path(__file__).with_name("program.py")
KINDS = ("qwen3", "qwen2", "llama")
LAYOUTS = ("one", "tp2", "tp2sp", "pp2", "dp2")
SEQUENCES = [([5, 7, 9, 100, 3], [1, 2, 3]), ([8] * 37, [299, 249, 4, 4, 4, 9, 1]), ([3], [2])]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "sequences.json").write_text(json.dumps(SEQUENCES))
    reference = {}
    for kind in KINDS:
        model = make(kind, folder / kind / "hf")
        convert(plan_conversion(folder / kind / "hf", folder / kind / "torch_dist"))
        with torch.no_grad():
            rows = [model(torch.tensor([p + r])).logits[0, len(p) - 1 : -1] for p, r in SEQUENCES]
        reference[kind] = torch.cat(rows), model.state_dict()
    launch(PROGRAM, "logits", 2, folder)
    return folder, reference


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_equal_hugging_face(world, layout, kind):
    folder, reference = world
    parts = [torch.load(path) for path in sorted(folder.glob(f"{layout}.{kind}.tp*.pt"))]
    assert len(parts) == (2 if layout.startswith("tp2") else 1)
    logits = torch.cat(parts, dim=1)
    assert (logits[:, :300] - reference[kind][0]).abs().max() < 1e-5
    assert logits[:, 300:].abs().max() == 0, "rows past the vocabulary must be zero"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_last_layer_of_a_frozen_model_answers_the_wanted_rows_alone(world, layout):
    every = sum(len(p) + len(r) for p, r in SEQUENCES)
    rows = every + every % 2 if layout == "tp2sp" else sum(len(r) for _, r in SEQUENCES)
    for kind in KINDS:
        assert json.loads((world[0] / f"{layout}.{kind}.rows").read_text()) == [rows]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_come_back_bit_by_bit(world, layout, kind):
    folder, reference = world
    saved = torch.load(folder / f"{layout}.{kind}.weights.pt")
    expected = {k: v for k, v in reference[kind][1].items() if k != "lm_head.weight" or kind != "qwen3"}
    assert saved["weights"].keys() == expected.keys()
    assert all(torch.equal(saved["weights"][name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_fingerprint_sees_one_bit(world, layout):
    from_hf, from_torch_dist, changed = torch.load(world[0] / f"{layout}.llama.weights.pt")["hashes"]
    assert from_hf == from_torch_dist != changed


def test_fingerprint_refuses_differing_replicas(world):
    for rank in range(2):
        assert "replicas" in (world[0] / f"replicas.{rank}").read_text()


def test_everything_that_cannot_be_built_is_said_at_once(world):
    arch = architecture_from_hf(world[0] / "qwen3" / "hf")
    with pytest.raises(Findings) as error:
        transformer_config(arch, ParallelSizes(tensor=5, pipeline=3), torch.float32, recompute=False)
    text = str(error.value)
    for part in ("heads=4", "kv_heads=2", "ffn=48", "pipeline_parallel=3"):
        assert part in text


def test_a_world_that_does_not_divide_is_refused():
    with pytest.raises(Findings, match="6 ranks can't be split into groups of 4"):
        ParallelSizes(tensor=2, pipeline=2).check(6)
