"""The table, from measurements alone. A ratio is printed only where both sides were measured in the same run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.objective.measuring import Measurement, ratio
from benchmarks.objective.works import FLOOR, OURS, PUBLISHED

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
            if one.side == OURS and goals.get(work):
                against_floor += f" (goal {goals[work]:g})"
            gain = _ratio(named.get(PUBLISHED), one) if one.side not in (FLOOR, PUBLISHED) and PUBLISHED in named else ""
            cells = (work, one.side, *_numbers(one), against_floor, gain)
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(record: dict[str, Any], goals: dict[str, float | None]) -> str:
    """The whole page from what --save wrote."""
    measurements = [Measurement(**one) for one in record["measurements"]]
    sizes = ", ".join(f"{name} {value}" for name, value in record["sizes"].items())
    shapes = ", ".join(f"{name} {shape}" for name, shape in record["shapes"].items())
    return "\n".join(
        (
            "# The objective's time and memory\n",
            f"Measured on {record['device']} with torch {record['torch']}, triton {record['triton']}, by "
            f"`{record['command']}` (program {record['program']}), all in one run; medians of {record['repeats']} repeats.",
            f"Sizes: {sizes}.",
            f"A copy within the device's memory moved {record['bandwidth'] / 1e12:.3g} TB/s, read and written bytes counted.\n",
            "- *floor* of the losses: two readings and one writing of the logits at that rate; of the old pass: one reading; of",
            "  the output layer: its three matmuls alone, measured in the same run.",
            "- *extra memory* is the peak over what was there before; the gradients of hidden states and weight are not counted.",
            "- *published schedule* is the published implementation's passes over the vocabulary written again in plain torch",
            "  (`benchmarks/objective/published.py`).",
            f"- Kernel shapes (warps, loads, stages): {shapes}.\n",
            table(measurements, goals),
            "",
        )
    )


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
