"""The table, from measurements alone. A ratio is printed only where both sides were measured in the same run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.objective.counters import counter_table
from benchmarks.objective.measuring import Measurement, ratio
from benchmarks.objective.works import CELL, FLOOR, OURS, PUBLISHED

MISSING = "–"
HEAD = ("work", "side", "time, ms", "least to most", "extra memory", f"times the {FLOOR}", f"{PUBLISHED} / this side")


def table(measurements: Sequence[Measurement], goals: dict[str, float | None]) -> str:
    """Markdown; a row per side, the goal beside this package's own row."""
    lines = [" | ".join(("", *HEAD, "")).strip(), "|" + " --- |" * len(HEAD)]
    for work in dict.fromkeys(one.work for one in measurements):
        sides = [one for one in measurements if one.work == work]
        named = {one.side: one for one in sides}
        for one in sides:
            against_floor = _ratio(one, named.get(FLOOR)) if one.side != FLOOR else ""
            if (one.side == OURS or one.side.startswith(CELL)) and goals.get(work):
                against_floor += f" (goal {goals[work]:g})"
            gain = _ratio(named.get(PUBLISHED), one) if one.side not in (FLOOR, PUBLISHED) and PUBLISHED in named else ""
            cells = (work, one.side, *_numbers(one), against_floor, gain)
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


INTRODUCTION = """# The objective's time and memory

Written by `python -m benchmarks.objective --save` from `results.json`, a section per device.

- *floor* of the losses: two readings and one writing of the logits at the rate of a copy within the device's memory, read and
  written bytes counted; of the old pass: one reading; of the output layer: its three matmuls alone, measured in the same run.
- *extra memory* is the peak over what was there before; the gradients of hidden states and weight are not counted.
- *published schedule* is the published implementation's passes over the vocabulary, written again in plain torch
  (`published.py`).
- Times are medians: of the device's clock on a GPU, of the process's processor time on a CPU.
- *output layer and loss*: "this package" is `linear_objective`, which a run uses with `train.output_layer: chunked`; otherwise it
  keeps all logits of a micro-batch ("logits at once").
- A ratio stands only where both sides were measured in one run of the program.
"""
COUNTERS = """What bounds the kernels, by the hardware's counters (`counters.py` has the command; under the profiler each kernel
runs alone): bytes moved to and from memory, and of their peaks the issue slots, the unit of exponentials, and the warps in
flight.
"""
NO_GPU = "## GPU\n\nNo run on a GPU is recorded here yet; the goals are for one NVIDIA H200 at the sizes of `works.py`.\n"


def page(records: dict[str, dict[str, Any]], goals: dict[str, float | None]) -> str:
    """The whole page from what --save kept, by device."""
    sections = [_section(records[device], goals) for device in sorted(records)]
    if not any(record["cuda"] for record in records.values()):
        sections.append(NO_GPU)
    return "\n".join((INTRODUCTION, *sections))


def _section(record: dict[str, Any], goals: dict[str, float | None]) -> str:
    sizes = ", ".join(f"{name} {value}" for name, value in record["sizes"].items())
    lines = [
        f"## {record['device']}\n",
        f"`{record['command']}`, program {record['program']}, torch {record['torch']}, triton {record['triton']}; medians of "
        f"{record['repeats']} repeats.",
        f"Sizes: {sizes}. A copy moved {record['bandwidth'] / 1e9:.4g} GB/s. Load average at the start: {record['load']:g}.",
    ]
    if record["shapes"]:
        shapes = ", ".join(f"{name} {shape}" for name, shape in record["shapes"].items())
        lines.append(f"Kernel shapes (warps/loads/stages): {shapes}.")
    measurements = [Measurement(**one) for one in record["measurements"]]
    lines += ["", table(measurements, goals if record["cuda"] else {}), ""]
    if record.get("counters"):
        lines += [COUNTERS, counter_table(record["counters"]), ""]
    return "\n".join(lines)


def _numbers(one: Measurement) -> Iterable[str]:
    if one.seconds is None:
        return one.error, MISSING, MISSING
    spread = MISSING if one.spread is None else f"{one.spread[0] * 1e3:.3g} to {one.spread[1] * 1e3:.3g}"
    return f"{one.seconds * 1e3:.3g}", spread, MISSING if one.extra_bytes is None else _size(one.extra_bytes)


def _size(count: int) -> str:
    return f"{count / (1 << 30):.3g} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.3g} MiB"


def _ratio(one: Measurement | None, other: Measurement | None) -> str:
    if one is None or other is None:
        return MISSING
    try:
        return f"{ratio(one, other):.3g}"
    except ValueError:
        return MISSING
