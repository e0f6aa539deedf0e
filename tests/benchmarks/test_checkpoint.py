"""The measuring of conversions: true shapes, a child's cost, and a page that says no where a goal is missed."""

from __future__ import annotations

import sys

import pytest

from benchmarks.checkpoint.measure import run
from benchmarks.checkpoint.page import page
from benchmarks.checkpoint.shapes import PLANNED, SHAPES
from openclaw_core.models.architecture import architecture_from_config


def test_shapes_are_the_released_ones():
    counts = {name: architecture_from_config(config, name).parameters for name, config in {**SHAPES, **PLANNED}.items()}
    assert counts == {"qwen3-0.6b": 596_049_920, "qwen3-4b": 4_022_468_096, "qwen3-30b-a3b": 30_532_122_624}


def test_a_childs_cost_is_its_own():
    cost = run([sys.executable, "-c", "x = bytearray(300 * 2**20); x[::4096] = b'1' * len(x[::4096])"])
    assert 300e6 < cost.peak_bytes < 500e6
    assert cost.seconds > 0
    with pytest.raises(RuntimeError, match="nothing to see"):
        run([sys.executable, "-c", "raise SystemExit('nothing to see')"])


def test_the_page_judges_the_best_round():
    def cost(seconds):
        return {"seconds": seconds, "cpu_seconds": 1.0, "peak_bytes": 5e8, "load_before": 1.0, "load_after": 1.0}

    rounds = [{"convert": cost(a), "copy_and_hash": cost(b)} for a, b in ((95.0, 60.0), (91.0, 50.0))]
    shown = page({"qwen3-4b": {"bytes": 8e9, "machine": "m", "rounds": rounds}})
    assert "| qwen3-4b: at most 90 s | 91.0 s | **no** |" in shown
    assert "| qwen3-4b: under 1.5 GB | 0.50 GB | yes |" in shown
    assert "1.82 x, best against best; 1.58 to 1.82 round by round | **no** |" in shown
