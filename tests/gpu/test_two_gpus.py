"""Tensor-parallel ranks over NCCL equal one rank, in float32 and bfloat16."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")]
PROGRAM = Path(__file__).with_name("two_ranks.py")


def test_two_ranks_equal_one(tmp_path):
    path = f"{PROGRAM.parents[2]}:{os.environ.get('PYTHONPATH', '')}"
    command = [sys.executable, str(PROGRAM)]
    ranks = []
    for rank in range(2):
        with (tmp_path / f"{rank}.log").open("w") as log:
            arguments = [*command, str(rank), str(tmp_path / "store")]
            ranks.append(subprocess.Popen(arguments, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": path}))
    try:
        codes = [rank.wait(300) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0, 0], "\n".join((tmp_path / f"{rank}.log").read_text()[-3000:] for rank in range(2))
