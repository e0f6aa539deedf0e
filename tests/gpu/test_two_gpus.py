"""Two ranks over NCCL against one: the loss in float32 and bfloat16, and steps of the trainer."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")]
PROGRAM = Path(__file__).with_name("two_ranks.py")
make = runpy.run_path(str(PROGRAM.parents[1] / "tiny_models.py"))["make"]


def test_two_ranks_equal_one(tmp_path):
    path = f"{PROGRAM.parents[2]}:{os.environ.get('PYTHONPATH', '')}"
    make("qwen3", tmp_path / "hf")
    command = [sys.executable, str(PROGRAM)]
    devices = (os.environ.get("CUDA_VISIBLE_DEVICES") or "0,1").split(",")
    ranks = []
    for rank in range(2):
        with (tmp_path / f"{rank}.log").open("w") as log:
            arguments = [*command, str(rank), str(tmp_path)]
            env = {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": devices[rank]}
            ranks.append(subprocess.Popen(arguments, stdout=log, stderr=log, env=env))
    try:
        codes = [rank.wait(500) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0, 0], "\n".join((tmp_path / f"{rank}.log").read_text()[-3000:] for rank in range(2))
