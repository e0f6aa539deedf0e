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
    released = {"qwen3-0.6b": 596_049_920, "qwen3-4b": 4_022_468_096, "qwen3-30b-a3b": 30_532_122_624}
    assert {name: counts[name] for name in released} == released
    assert 2.4 < counts["a3b-12-layers"] / counts["a3b-4-layers"] < 2.7


def test_a_childs_cost_is_its_own():
    held = bytearray(600 * 2**20)
    held[::4096] = b"1" * len(held[::4096])
    cost = run([sys.executable, "-c", "x = bytearray(300 * 2**20); x[::4096] = b'1' * len(x[::4096])"])
    del held
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


def test_the_page_judges_whether_memory_grows():
    def record(peak):
        cost = {"seconds": 9.0, "cpu_seconds": 1.0, "peak_bytes": peak, "load_before": 1.0, "load_after": 1.0}
        return {"bytes": 1e9, "machine": "m", "rounds": [{"convert": cost, "copy_and_hash": cost}]}

    shown = page({"a3b-4-layers": record(4e8), "a3b-12-layers": record(6e8)})
    assert (
        "| experts, three times the layers: at most 1.25 x the memory | 0.40 GB for 1.0 GB, 0.60 GB for 1.0 GB | **no** |"
        in shown
    )
