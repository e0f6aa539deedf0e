from __future__ import annotations

import runpy
from pathlib import Path

import pytest

launch = runpy.run_path(str(Path(__file__).parents[1] / "worlds.py"))["launch"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_tensor_parallel_ranks_agree(ranks, tmp_path):
    launch(Path(__file__).with_name("shards.py"), "main", ranks, tmp_path)
