"""Command line of the benchmark; see the package's docstring."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import uuid
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from benchmarks.objective.counters import read_counters
from benchmarks.objective.measuring import Measurement, Meter, copy_bandwidth
from benchmarks.objective.problem import problem
from benchmarks.objective.sweep import sweep, warm
from benchmarks.objective.table import page, table
from benchmarks.objective.works import Scale, works
from openclaw_core.config.schema import Loss
from openclaw_core.loss import kernels
from openclaw_core.loss.logprobs import gather_logprobs, row_stats
from openclaw_core.loss.objective import objective

HERE = Path(__file__).resolve().parent
PAGE, NUMBERS = HERE / "README.md", HERE / "results.json"
GOALS = {work.name: work.goal for work in works()}


def main() -> None:
    options = _options()
    if options.take:
        record = json.loads(options.take.read_text())
        _save(record | ({"counters": read_counters(options.counters.read_text())} if options.counters else {}))
        return
    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    torch.manual_seed(0)
    meter = Meter(uuid.uuid4().hex[:8], device, options.repeats)
    scale = Scale.of(device)
    if options.once:
        _once(meter, scale)
        return
    if options.warm:
        warm(meter, scale, *map(int, options.warm.split("/")))
        return
    swept = sweep(meter, scale, print) if options.sweep and meter.cuda else None
    bandwidth = copy_bandwidth(meter)
    record = _record(meter, scale, bandwidth, swept) | {"program": options.program or _program()}
    measured: list[Measurement] = []
    for work in works():
        if options.only and options.only not in work.name:
            continue
        for one in work.sides(meter, scale, work.name, bandwidth):
            measured.append(one)
            _progress(one)
            # Kept after every side, so that a run cut short leaves what it has.
            record["measurements"] = [one.to_dict() for one in measured]
            if options.json:
                options.json.write_text(json.dumps(record, indent=1))
    print("\n" + table(measured, GOALS if meter.cuda else {}))
    if options.save:
        _save(record)


def _save(record: dict[str, Any]) -> None:
    """Put this run in the place of the device's earlier one."""
    records = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    records[record["device"]] = record
    NUMBERS.write_text(json.dumps(records, indent=1) + "\n")
    PAGE.write_text(page(records, GOALS))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.objective", description="Time and memory of the objective.")
    parser.add_argument("--device", help="cuda or cpu; default: cuda where there is one")
    parser.add_argument("--repeats", type=int, default=11, help="timed runs of each side; the median counts")
    parser.add_argument("--only", help="works whose name holds this")
    parser.add_argument("--sweep", action="store_true", help="choose the kernels' shapes first (CUDA)")
    parser.add_argument("--warm", metavar="PART/PARTS", help="compile this share of --sweep's kernels into Triton's cache")
    parser.add_argument("--program", help="what is measured, for the record; default: git's commit")
    parser.add_argument("--once", action="store_true", help="run every kernel once, for a profiler")
    parser.add_argument("--save", action="store_true", help=f"write {PAGE.name} and {NUMBERS.name}")
    parser.add_argument("--take", type=Path, metavar="JSON", help=f"write {PAGE.name} with what --json kept, here or elsewhere")
    parser.add_argument("--counters", type=Path, metavar="CSV", help="with --take: what `ncu --csv` said of --once")
    parser.add_argument("--json", type=Path, help="also keep the numbers here, after every side")
    options = parser.parse_args()
    if options.save and options.only:
        parser.error("--save keeps whole runs; leave out --only")
    return options


def _progress(one: Measurement) -> None:
    told = one.error if one.seconds is None else f"{one.seconds * 1e3:.3f} ms"
    extra = "" if one.extra_bytes is None else f", +{one.extra_bytes / (1 << 20):.0f} MiB"
    print(f"{one.work}: {one.side}: {told}{extra}", flush=True)


def _once(meter: Meter, scale: Scale) -> None:
    one = problem(scale.short, scale.vocab, meter.device, scale.dtype, Loss(k=4))
    one.fresh()
    objective(one.scratch, one.rows, one.targets, one.cfg, one.shard).loss.backward()
    one.fresh()
    gather_logprobs(one.scratch, one.targets.gather_ids, one.shard).sum().backward()
    row_stats(one.logits, one.shard, sampled_ids=one.rows.response_ids, k=64)


def _record(meter: Meter, scale: Scale, bandwidth: float, swept: dict[str, Any] | None) -> dict[str, Any]:
    shapes: dict[str, str] = {}
    if kernels.usable(torch.zeros(1, 1, device=meter.device)):
        from openclaw_core.loss.kernels.tiles import SHAPES

        shapes = {name: f"{shape.warps}/{shape.loads}/{shape.stages}" for name, shape in SHAPES.items()}
    cpu = f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    return {
        "run": meter.run,
        "command": "python -m benchmarks.objective" + (" --sweep" if swept else ""),
        "device": torch.cuda.get_device_name(meter.device) if meter.cuda else cpu,
        "cuda": meter.cuda,
        "torch": torch.__version__,
        "triton": _version("triton"),
        "repeats": meter.repeats,
        "load": round(os.getloadavg()[0], 1),
        "bandwidth": bandwidth,
        "sizes": {
            "short": scale.short,
            "long": scale.long,
            "vocabulary": scale.vocab,
            "hidden": scale.hidden,
            "logits": str(scale.dtype).removeprefix("torch."),
        },
        "shapes": shapes,
        "sweep": swept or {},
        "measurements": [],
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _program() -> str:
    try:
        told = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return told.stdout.strip() or "unknown"


main()
