from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.objective import peers, published
from benchmarks.objective.counters import counter_table, read_counters
from benchmarks.objective.measuring import Measurement, Meter, ratio
from benchmarks.objective.problem import problem
from benchmarks.objective.sweep import candidates
from benchmarks.objective.table import page, table
from benchmarks.objective.works import FLOOR, OURS, PUBLISHED, works
from openclaw_core.config.schema import Loss
from openclaw_core.loss.logprobs import row_stats
from openclaw_core.loss.objective import objective

CPU = torch.device("cpu")
GOALS = {"loss": 1.5}


def measured(side, seconds, run="a", work="loss", **keys):
    return Measurement(run, work, side, seconds, (seconds, seconds), 1 << 20, 3, **keys)


def test_a_ratio_needs_one_run_of_one_work():
    floor, ours = measured(FLOOR, 1.0), measured(OURS, 2.0)
    assert ratio(ours, floor) == 2.0
    for other in (replace(floor, run="b"), replace(floor, work="old pass"), replace(floor, seconds=None, error="no memory")):
        with pytest.raises(ValueError, match=r"same run|has no time"):
            ratio(ours, other)


def test_the_table_prints_no_ratio_of_two_runs():
    rows = [measured(FLOOR, 1e-3), measured(OURS, 2e-3), measured(PUBLISHED, 8e-3)]
    text = table(rows, GOALS)
    assert "2 (goal 1.5)" in text
    assert "| 4 |" in text
    text = table([replace(rows[0], run="b"), rows[1], replace(rows[2], run="b")], GOALS)
    assert "– (goal 1.5)" in text
    assert "| 4 |" not in text


def test_a_failed_side_says_why():
    meter = Meter("a", CPU, 2)
    told = meter.measure("loss", "peer", lambda: 1 / 0)
    assert told.seconds is None
    assert "ZeroDivisionError: division by zero" in table([told], GOALS)


@pytest.fixture(params=[Loss(k=3), Loss(k=3, w_opd=0)])
def small(request):
    torch.manual_seed(0)
    return problem(32, 61, CPU, torch.float32, request.param)


def gradient(small, loss):
    small.fresh()
    value = loss(small.scratch * 1)
    value.backward()
    return value.detach(), small.scratch.grad


def test_all_sides_compute_the_same(small):
    want = gradient(small, lambda x: objective(x, small.rows, small.targets, small.cfg, small.shard).loss)
    for side in (lambda x: published.loss(small, x), peers.plain_loss(small)):
        for found, expected in zip(gradient(small, side), want, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_the_published_old_pass_is_the_same_pass(small):
    ids = torch.randint(0, 61, (32, 4))
    stats = row_stats(small.logits, small.shard, sampled_ids=ids[:, 0], k=5, gather_ids=ids)
    sampled, gathered, entropy, values, top = published.old_pass(small.logits, ids[:, 0], ids, 5)
    assert torch.equal(top, stats.top_ids)
    for found, expected in (
        (sampled[:, 0], stats.sampled_logprobs),
        (gathered, stats.gathered),
        (entropy, stats.entropy),
        (values, stats.top_logprobs),
    ):
        torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


def test_the_sweep_has_shapes_to_try():
    assert 8 <= len(set(candidates())) <= 40


def test_the_program_prints_its_table_and_keeps_the_numbers(tmp_path):
    numbers = tmp_path / "numbers.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.objective",
        "--device",
        "cpu",
        "--repeats",
        "1",
        "--only",
        "K=4",
        "--json",
        numbers,
    ]
    root = Path(__file__).parents[2]
    told = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=300).stdout
    assert "| hybrid loss, short, K=4 | this package |" in told
    assert "Error" not in told
    text = page({"a CPU": json.loads(numbers.read_text())}, {work.name: work.goal for work in works()})
    assert "`python -m benchmarks.objective`" in text
    assert "No run on a GPU is recorded" in text
    assert "goal 1.5" not in text
    assert "| old pass, short, K=4 | published schedule |" in text


def test_counters_are_read_from_the_profiler_and_checks_left_out():
    head = '"ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"'
    values = {
        "gpu__time_duration.sum": ("us", "500"),
        "dram__bytes_read.sum": ("Gbyte", "1.5"),
        "dram__bytes_write.sum": ("Mbyte", "500"),
        "lts__t_sector_hit_rate.pct": ("%", "50"),
        "smsp__issue_active.avg.pct_of_peak_sustained_active": ("%", "60.4"),
        "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active": ("%", "41"),
        "sm__warps_active.avg.pct_of_peak_sustained_active": ("%", "25"),
        "another.sum": ("%", "1"),
    }
    lines = ["==PROF== Connected", head]
    for launch, rows in (("0", "6"), ("1", "8192")):
        lines += [f'"{launch}","_fused_kernel","({rows}, 1, 1)","{name}","{unit}","{n}"' for name, (unit, n) in values.items()]
    (one,) = read_counters("\n".join(lines))
    assert one["rows"] == 8192
    assert one["seconds"] == pytest.approx(5e-4)
    assert "| `_fused_kernel` | 8,192 | 0.5 | 1.5 | 0.5 | 4 | 50 % | 60 % | 41 % | 25 % |" in counter_table([one])
