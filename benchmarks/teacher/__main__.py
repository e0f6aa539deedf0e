"""Measures the teacher's scoring on this machine's first device and writes README.md and results.json beside this file."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, replace
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
    parser.add_argument("--take", type=Path, metavar="JSON", help="add the records of this file, written elsewhere")
    parser.add_argument("--precision", action="store_true", help="measure how far apart results lie, and only that")
    parser.add_argument("--report-only", action="store_true", help="write the page from results.json")
    chosen = parser.parse_args()
    path = chosen.out / "results.json"
    records: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    if chosen.precision and chosen.shape not in records:
        parser.error("--precision adds to what --shape has measured before")
    if chosen.take:
        taken = json.loads(chosen.take.read_text())
        _keep(chosen.out, records | {name: records.get(name, {}) | record for name, record in taken.items()})
    elif chosen.shape and chosen.precision:
        _keep(chosen.out, records | {chosen.shape: records.get(chosen.shape, {}) | {"precision": compared(chosen.shape)}})
    elif chosen.shape and not chosen.report_only:
        # Kept after every scenario, so that a run cut short leaves what it has.
        for record in measured(chosen.shape, chosen.scenario, chosen.rounds):
            _keep(chosen.out, records | {chosen.shape: record})
    else:
        _keep(chosen.out, records)


def _keep(folder: Path, records: dict[str, Any]) -> None:
    if records:
        ordered = {name: records[name] for name in SHAPES if name in records}
        (folder / "results.json").write_text(json.dumps(ordered, indent=1) + "\n")
        records = ordered
    (folder / "README.md").write_text(page(records, beside(folder)))


def beside(folder: Path) -> dict[str, Any] | None:
    """What beside.py wrote there, if it did."""
    path = folder / "beside.json"
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.is_file() else None
    return found


def measured(name: str, scenarios: list[str] | None, rounds: int) -> Iterator[dict[str, Any]]:
    """The record of one shape, after each scenario."""
    import torch

    from benchmarks.teacher.measure import make_scorer, matmul_rate, measure, profiled

    shape = SHAPES[name]
    scorer = make_scorer(shape)
    gpu = torch.cuda.is_available()
    device = torch.cuda.get_device_name(0) if gpu else f"{os.cpu_count()} cores ({platform.machine()}), one thread"
    found: dict[str, Any] = {}
    record = {
        "model": f"{shape.arch.layers} layers of {shape.arch.hidden}, vocabulary {shape.arch.vocab:,}, {shape.dtype}",
        "machine": f"On {device}, torch {torch.__version__}.",
        "gpu": gpu,
        "matmul_rate": matmul_rate() if gpu else None,
        "lengths": {key: value for key, value in asdict(shape).items() if key in ("history", "hint", "reply", "budget")},
        "scenarios": found,
    }
    for scenario in SCENARIOS:
        if scenarios is None or scenario.name in scenarios:
            samples = make_samples(shape, scenario)
            found[scenario.name] = measure(scorer, samples, rounds) | {"about": scenario.about}
            if gpu and len(found) == 1:
                found[scenario.name]["profile"] = profiled(scorer, samples)
            print(scenario.name, json.dumps(found[scenario.name]), flush=True)
            yield record
    scorer.close()


def compared(name: str) -> dict[str, Any]:
    """The precision of one shape: a sample with 3 hints, history of a quarter."""
    from benchmarks.teacher.measure import make_scorer, precision

    shape = replace(SHAPES[name], history=SHAPES[name].history // 4)
    scorer = make_scorer(shape)
    found = precision(scorer, make_samples(shape, SCENARIOS[0])[2])
    scorer.close()
    print(json.dumps(found), flush=True)
    return {"history": shape.history, "gaps": found}


main()
