"""Values that are NaN or infinite are counted and named, and converted as they are."""

from __future__ import annotations

import json

import pytest
import torch
from typer.testing import CliRunner

from openclaw_cli.app import app
from openclaw_core.checkpoint.verify import TensorCheck, count_nonfinite, nonfinite_notes

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(
    ("values", "count"), [([], 0), ([1.0, -2.0], 0), ([NAN, 1.0, NAN], 2), ([INF, -INF, NAN, 0.0], 3), ([-INF], 1)]
)
def test_counts(dtype, values, count):
    assert count_nonfinite(torch.tensor(values, dtype=dtype)) == count


def test_a_nan_in_the_middle_of_much(make_hf):
    tensor = torch.randn(1000, 1003).to(torch.bfloat16)
    tensor[500, 501] = NAN
    assert count_nonfinite(tensor) == 1
    assert count_nonfinite(torch.tensor([2**31 - 1])) == 0


def test_many_are_summed_up():
    checks = [TensorCheck(f"t{i}", "", (1,), "bfloat16", "", True, i) for i in range(14)]
    lines = nonfinite_notes(checks)
    assert lines[0] == "t1 holds 1 value that is NaN or infinite."
    assert lines[10:] == ["So do 3 more tensors."]


@pytest.mark.parametrize("way", ["there", "back", "again"])
def test_they_are_told_whichever_way(make_hf, read_hf, tmp_path, way):
    def change(tensors):
        tensors["model.layers.1.mlp.up_proj.weight"][3, :4] = NAN
        tensors["lm_head.weight"][7, 7] = -INF

    source = make_hf(tie_word_embeddings=False, change=change)
    steps = {
        "there": [source, tmp_path / "td"],
        "back": [tmp_path / "td", tmp_path / "hf2"],
        "again": [tmp_path / "td", "--verify-only"],
    }
    for step, arguments in steps.items():
        done = CliRunner().invoke(app, ["--json", "convert-ckpt", *map(str, arguments)])
        assert done.exit_code == 0, done.stderr
        if step == way:
            break
    assert "model.layers.1.mlp.up_proj.weight holds 4 values that are NaN or infinite." in done.stderr
    assert "warning: lm_head.weight holds 1 value that is NaN or infinite." in done.stderr
    tensors = json.loads(done.stdout)["tensors"]
    named = tensors if isinstance(tensors, dict) else {one["name"]: one for one in tensors}
    counts = {name: one["nonfinite"] for name, one in named.items() if one["nonfinite"]}
    assert counts == {"model.layers.1.mlp.up_proj.weight": 4, "lm_head.weight": 1}
