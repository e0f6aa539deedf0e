"""The page, made from the records alone."""

from __future__ import annotations

from typing import Any

COMMAND = "python -m benchmarks.teacher"
GOAL_FACTOR, GOAL_RATE, GPU_RATE = 3.0, 0.65, 783e12
HEAD = """# Scoring by the teacher

16 samples with 1, 2, 3, 1, 2, 3, ... hints, random weights and ids. Three schedules on the same model code, same packing budget:

- *published*: as many passes over the whole batch as the largest K, missing candidates filled by repetition, logits of every
  prompt token;
- *whole*: every real candidate once, output layer on reply rows only;
- *shared*: what the product does: besides, a prefix that several candidates begin with is forwarded once.

Seconds are the median of the rounds after a first one that doesn't count; on a CPU they are of the processor, one thread.
FLOPs are those of the forward to the final hidden states (matrices and attention), so the rate leaves the output layer's
work out and counts its time.

Written by `{command} --report-only` from `results.json`; measured by `{command} --shape SHAPE`.
"""


def page(records: dict[str, Any]) -> str:
    """The page as Markdown, from records by shape."""
    return "\n".join([HEAD.format(command=COMMAND), *(_shape(name, record) for name, record in records.items())])


def _shape(name: str, record: dict[str, Any]) -> str:
    lengths = record["lengths"]
    lines = [
        f"## {name}\n",
        f"{record['model']}; histories of {lengths['history']:,} tokens, hints of {lengths['hint']:,}, replies of "
        f"{lengths['reply']:,}; packs of at most {lengths['budget']:,} tokens. {record['machine']}\n",
        "| scenario | schedule | tokens | of published | seconds | published / this | TFLOP/s | peak, GiB |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    notes = []
    for scenario, found in record["scenarios"].items():
        base = found["published"]
        for schedule in ("published", "whole", "shared"):
            one = found[schedule]
            peak = f"{one['peak_bytes'] / 2**30:.1f}" if one["peak_bytes"] else "–"
            lines.append(
                f"| {scenario} | {schedule} | {one['tokens']:,} | {one['tokens'] / base['tokens']:.0%} | {one['seconds']:.2f} "
                f"| {base['seconds'] / one['seconds']:.2f} | {one['flops'] / one['seconds'] / 1e12:.3g} | {peak} |"
            )
        apart = found["difference"]
        notes.append(
            f"- {scenario}: {found['about']}. Shared and whole name the same id at {apart['same_ids']:.2%} of the places; there "
            f"their log-probs differ by at most {apart['logprob']:.1e}."
        )
    return "\n".join([*lines, "", *notes, "", _verdicts(record)])


def _verdicts(record: dict[str, Any]) -> str:
    first = next(iter(record["scenarios"].values()))
    ours = first["shared"]
    factor = first["published"]["seconds"] / ours["seconds"]
    rows = [(f"at least {GOAL_FACTOR:g} x less time than the published schedule", f"{factor:.2f} x", factor >= GOAL_FACTOR)]
    if record["gpu"]:
        share = ours["flops"] / ours["seconds"] / GPU_RATE
        rows.append((f"forward at {GOAL_RATE:.0%} of {GPU_RATE / 1e12:.0f} TFLOP/s", f"{share:.0%}", share >= GOAL_RATE))
    lines = [f"| {what} | {measured} | {'yes' if held else '**no**'} |" for what, measured, held in rows]
    return "\n".join(["| demand, first scenario | measured | holds |", "| --- | ---: | --- |", *lines, ""])
