"""A checkpoint that megatron-core 0.19.2 wrote is read wherever these tests run, whichever megatron-core is installed."""

from __future__ import annotations

import json
import runpy
import tarfile
from pathlib import Path

import pytest
import torch

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.torch_dist import TorchDistReader

HERE = Path(__file__).parent
CONFIG, weights = (runpy.run_path(str(HERE / "fixture_ranks.py"))[name] for name in ("CONFIG", "weights"))


@pytest.mark.parametrize("version", ["0.19.2"])
def test_stored_checkpoints_convert_back(read_hf, tmp_path, version):
    stored = tmp_path / "stored"
    with tarfile.open(HERE / "stored_checkpoints" / f"megatron-core-{version}.tar.gz") as archive:
        archive.extractall(stored, filter="data")
    assert json.loads((stored / "made_by.json").read_text())["megatron-core"] == version
    reader = TorchDistReader(stored)
    assert reader.common()["iteration"] == 3
    assert any(name.startswith("optimizer.") for name in reader.contents.tensors)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    done = convert(plan_conversion(stored, tmp_path / "hf", hf_config=tmp_path))
    made, wanted = read_hf(tmp_path / "hf"), weights()
    assert made.keys() == wanted.keys()
    assert all(torch.equal(made[name], wanted[name]) for name in wanted)
    assert any("optimizer" in name for name in done.plan.left_out)
