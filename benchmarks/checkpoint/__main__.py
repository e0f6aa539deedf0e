"""Measures conversions and writes README.md and results.json beside this file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.checkpoint.measure import convert_command, copy_and_hash_command, run
from benchmarks.checkpoint.page import page
from benchmarks.checkpoint.shapes import PLANNED, SHAPES, make_folder, make_headers

OUT = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__)
    parser.add_argument("--shape", choices=[*SHAPES, *PLANNED], help="what to measure; only the page is written without it")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each (default 3)")
    parser.add_argument("--work", type=Path, help="folder for the weights; needs three times their size (default: here, removed)")
    parser.add_argument("--report-only", action="store_true", help="write the page from results.json")
    chosen = parser.parse_args()
    path = OUT / "results.json"
    records: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    if chosen.shape and not chosen.report_only:
        work = Path(tempfile.mkdtemp(prefix="checkpoint-", dir=chosen.work or Path.cwd()))
        try:
            record = measure_plan(chosen.shape, work) if chosen.shape in PLANNED else measure(chosen.shape, work, chosen.rounds)
        finally:
            shutil.rmtree(work)
        records[chosen.shape] = record
        records = {name: records[name] for name in [*SHAPES, *PLANNED] if name in records}
        path.write_text(json.dumps(records, indent=1) + "\n")
    (OUT / "README.md").write_text(page(records))


def measure(shape: str, work: Path, rounds: int) -> dict[str, Any]:
    """Rounds of a conversion and of cp with sha256sum, on the same weights."""
    source = work / "source"
    nbytes = make_folder(source, shape)
    made = []
    for number in range(1, rounds + 1):
        one = {}
        for name, command in (("convert", convert_command), ("copy_and_hash", copy_and_hash_command)):
            target = work / name
            one[name] = run(command(source, target)).to_dict()
            shutil.rmtree(target)
            os.sync()
            print(f"{shape} round {number}: {name} {one[name]}", flush=True)
        made.append(one)
    return {"bytes": nbytes, "machine": machine(), "rounds": made}


def measure_plan(shape: str, work: Path) -> dict[str, Any]:
    """The plan of a model whose files hold headers only."""
    from openclaw_core.checkpoint.convert import plan_conversion

    source = work / "source"
    make_headers(source, shape)
    tries = []
    for _ in range(3):
        started, busy = time.monotonic(), time.process_time()
        plan = plan_conversion(source, work / "target")
        tries.append((time.monotonic() - started, time.process_time() - busy))
    seconds, cpu = min(tries)
    return {
        "plan_seconds": round(seconds, 3),
        "cpu_seconds": round(cpu, 3),
        "load": round(os.getloadavg()[0], 2),
        "tensors": len(plan.mapping.hf),
        "bytes": plan.nbytes,
        "peak_estimate": plan.peak_estimate,
    }


def machine() -> str:
    """What it ran on, in a sentence."""
    return f"{os.cpu_count()} cores ({platform.machine()}), other work on the machine as the load averages say."


main()
