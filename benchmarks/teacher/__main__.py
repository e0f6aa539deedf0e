"""Measures the teacher's scoring on this machine's first device and writes README.md and results.json beside this file."""

from __future__ import annotations

import argparse
import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.teacher.page import page
from benchmarks.teacher.workload import SCENARIOS, SHAPES, make_samples

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.teacher", description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, help="what to measure; only the page is written without it")
    parser.add_argument("--scenario", choices=[s.name for s in SCENARIOS], action="append", help="default: all")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each schedule (default 3)")
    parser.add_argument("--out", type=Path, default=HERE, help="folder of README.md and results.json")
    parser.add_argument("--report-only", action="store_true", help="write the page from results.json")
    chosen = parser.parse_args()
    path = chosen.out / "results.json"
    records: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    if chosen.shape and not chosen.report_only:
        records[chosen.shape] = measured(chosen.shape, chosen.scenario, chosen.rounds)
        records = {name: records[name] for name in SHAPES if name in records}
        path.write_text(json.dumps(records, indent=1) + "\n")
    (chosen.out / "README.md").write_text(page(records))


def measured(name: str, scenarios: list[str] | None, rounds: int) -> dict[str, Any]:
    """The record of one shape."""
    import torch

    from benchmarks.teacher.measure import make_scorer, matmul_rate, measure, profiled

    shape = SHAPES[name]
    scorer = make_scorer(shape)
    rate = matmul_rate() if torch.cuda.is_available() else None
    found: dict[str, Any] = {}
    for scenario in SCENARIOS:
        if scenarios is None or scenario.name in scenarios:
            found[scenario.name] = measure(scorer, make_samples(shape, scenario), rounds) | {"about": scenario.about}
            print(scenario.name, json.dumps(found[scenario.name]), flush=True)
    gpu = torch.cuda.is_available()
    if gpu:
        found["last message"]["profile"] = profiled(scorer, make_samples(shape, SCENARIOS[0]))
        print("profile", json.dumps(found["last message"]["profile"]), flush=True)
    scorer.close()
    device = torch.cuda.get_device_name(0) if gpu else f"{os.cpu_count()} cores ({platform.machine()}), one thread"
    lengths = {key: value for key, value in asdict(shape).items() if key in ("history", "hint", "reply", "budget")}
    return {
        "model": f"{shape.arch.layers} layers of {shape.arch.hidden}, vocabulary {shape.arch.vocab:,}, {shape.dtype}",
        "machine": f"On {device}, torch {torch.__version__}.",
        "gpu": gpu,
        "matmul_rate": rate,
        "lengths": lengths,
        "scenarios": found,
    }


main()
