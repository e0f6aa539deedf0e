"""Chooses each kernel's shape by measuring it at the short work's size."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from benchmarks.objective.measuring import Meter
from benchmarks.objective.problem import problem
from benchmarks.objective.works import Scale
from openclaw_core.config.schema import Loss
from openclaw_core.loss.logprobs import gather_logprobs, row_stats
from openclaw_core.loss.objective import objective

WARPS, LOADS, STAGES = (4, 8, 16, 32), (1, 2, 4, 8), (1, 3)


def candidates() -> Iterator[tuple[int, int, int]]:
    """Shapes with at least 4 KiB and at most 64 KiB of loads in flight a program; asynchronous copies only for some."""
    for warps, loads, stages in itertools.product(WARPS, LOADS, STAGES):
        if 8 <= warps * loads <= 128 and (stages == 1 or 16 <= warps * loads <= 64):
            yield warps, loads, stages


def sweep(meter: Meter, scale: Scale, say: Callable[[str], None]) -> dict[str, Any]:
    """Set SHAPES to the fastest; returns every time in milliseconds by kernel and shape."""
    from openclaw_core.loss.kernels.tiles import SHAPES, Shape

    runs = _runs(meter, scale)
    found: dict[str, Any] = {}
    for kernel, (do, before) in runs.items():
        times = {}
        for shape in [Shape(*shape) for shape in _shapes(kernel)]:
            SHAPES[kernel] = shape
            told = meter.measure(kernel, str(shape), do, before)
            times[shape] = told.seconds or float("inf")
        best = min(times, key=lambda shape: times[shape])
        SHAPES[kernel] = best
        found[kernel] = {str(shape): seconds * 1e3 for shape, seconds in times.items()}
        ranked = sorted(times.items(), key=lambda item: item[1])[:4]
        say(f"{kernel}: " + ", ".join(f"{_short(shape)} {seconds * 1e3:.3f} ms" for shape, seconds in ranked))
    return found


def warm(meter: Meter, scale: Scale, part: int, parts: int) -> None:
    """Compile one of parts shares of all shapes, for the sweep of another process to find in the cache."""
    from openclaw_core.loss.kernels.tiles import SHAPES, Shape

    runs = _runs(meter, replace(scale, short=256))
    every = [(kernel, shape) for kernel in runs for shape in _shapes(kernel)]
    for kernel, shape in every[part::parts]:
        SHAPES[kernel] = Shape(*shape)
        do, before = runs[kernel]
        try:
            if before is not None:
                before()
            do()
        except Exception as error:
            # The sweep meets it again and ranks the shape last.
            print(f"{kernel} {shape}: {type(error).__name__}")


def _shapes(kernel: str) -> list[tuple[int, int, int]]:
    return [(warps, 1, 1) for warps in (1, 2, 4, 8)] if kernel == "select" else list(candidates())


def _runs(meter: Meter, scale: Scale) -> dict[str, tuple[Callable[[], None], Callable[[], None] | None]]:
    """What runs each kernel, and what comes before it, untimed."""
    one = problem(scale.short, scale.vocab, meter.device, scale.dtype, Loss(k=4))

    def run_gather(backward: bool) -> None:
        with torch.set_grad_enabled(backward):
            out = gather_logprobs(one.scratch if backward else one.logits, one.targets.gather_ids, one.shard)
            if backward:
                out.sum().backward()

    def run_fused() -> None:
        objective(one.scratch, one.rows, one.targets, one.cfg, one.shard).loss.backward()

    def run_old(k: int) -> None:
        row_stats(one.logits, one.shard, sampled_ids=one.rows.response_ids, k=k)

    return {
        "fused": (run_fused, one.fresh),
        "groups": (lambda: run_old(4), None),
        "select": (lambda: run_old(64), None),
        "stats": (lambda: run_gather(False), None),
        "gradient": (lambda: run_gather(True), one.fresh),
    }


def _short(shape: Any) -> str:
    return f"{shape.warps}x{shape.loads}x{shape.stages}"
