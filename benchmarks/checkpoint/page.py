"""The page, made from the records alone."""

from __future__ import annotations

from typing import Any

COMMAND = "python -m benchmarks.checkpoint"
GOALS = {"qwen3-0.6b": (15.0, 1e9, None), "qwen3-4b": (90.0, 1.5e9, 1.5)}
GROWTH = 1.25
HEAD = """# Checkpoint conversion

Random bf16 weights of true shapes, converted by `openclaw convert-ckpt HF TORCH_DIST` with verification on: every tensor is
read back, compared bitwise with its source and hashed. Beside it `cp`, `sync` and `sha256sum` of the same bytes on the same
disk. Each round measures both, one after the other. Seconds are of the whole command, start of Python included; memory is the
child's peak resident set, pages mapped from files included. Other work shares the machine where the load average is above its
cores: then processor seconds say more than seconds do, and two rounds differ by what else was running.

Written by `{command} --report-only` from `results.json`; measured by `{command} --shape SHAPE`.
"""


def page(records: dict[str, Any]) -> str:
    """The page as Markdown, from records by shape."""
    parts = [HEAD.format(command=COMMAND), "## What must hold\n", _verdicts(records)]
    for shape, record in records.items():
        if "rounds" in record:
            parts.append(_rounds(shape, record))
    if "qwen3-30b-a3b" in records:
        parts.append(_plan(records["qwen3-30b-a3b"]))
    return "\n".join(parts)


def best(record: dict[str, Any], what: str) -> dict[str, float]:
    """The quickest round of convert or copy_and_hash."""
    return min((one[what] for one in record["rounds"]), key=lambda cost: cost["seconds"])


def _verdicts(records: dict[str, Any]) -> str:
    rows = []
    for shape, (seconds, peak, ratio) in GOALS.items():
        if shape not in records:
            continue
        ours, theirs = best(records[shape], "convert"), best(records[shape], "copy_and_hash")
        rows.append((f"{shape}: at most {seconds:.0f} s", f"{ours['seconds']:.1f} s", ours["seconds"] <= seconds))
        rows.append((f"{shape}: under {peak / 1e9:g} GB", f"{ours['peak_bytes'] / 1e9:.2f} GB", ours["peak_bytes"] < peak))
        if ratio is not None:
            factor = ours["seconds"] / theirs["seconds"]
            each = [one["convert"]["seconds"] / one["copy_and_hash"]["seconds"] for one in records[shape]["rounds"]]
            told = f"{factor:.2f} x, best against best; {min(each):.2f} to {max(each):.2f} round by round"
            rows.append((f"{shape}: within {ratio:g} x of cp and sha256sum", told, factor <= ratio))
    few, many = (records.get(f"a3b-{layers}-layers") for layers in (4, 12))
    if few and many:
        small, large = (best(record, "convert")["peak_bytes"] for record in (few, many))
        told = f"{small / 1e9:.2f} GB for {few['bytes'] / 1e9:.1f} GB, {large / 1e9:.2f} GB for {many['bytes'] / 1e9:.1f} GB"
        rows.append((f"experts, three times the layers: at most {GROWTH:g} x the memory", told, large <= GROWTH * small))
    plan = records.get("qwen3-30b-a3b")
    if plan is not None:
        rows.append(("30B-A3B: plan in 2 s", f"{plan['plan_seconds']:.2f} s", plan["plan_seconds"] <= 2))
    lines = [f"| {what} | {measured} | {'yes' if held else '**no**'} |" for what, measured, held in rows]
    return "\n".join(["| demand | measured, best round | holds |", "| --- | ---: | --- |", *lines, ""])


def _rounds(shape: str, record: dict[str, Any]) -> str:
    lines = [
        f"## {shape}: {record['bytes'] / 1e9:.2f} GB\n",
        f"{record['machine']}\n",
        "| round | convert, s | of processor, s | peak, GB | cp + sync + sha256sum, s | of processor, s | ratio | load average |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for number, one in enumerate(record["rounds"], 1):
        ours, theirs = one["convert"], one["copy_and_hash"]
        lines.append(
            f"| {number} | {ours['seconds']:.1f} | {ours['cpu_seconds']:.1f} | {ours['peak_bytes'] / 1e9:.2f} "
            f"| {theirs['seconds']:.1f} | {theirs['cpu_seconds']:.1f} | {ours['seconds'] / theirs['seconds']:.2f} "
            f"| {ours['load_before']:.1f} to {theirs['load_after']:.1f} |"
        )
    return "\n".join([*lines, ""])


def _plan(record: dict[str, Any]) -> str:
    return (
        "## 30B-A3B: the plan alone\n\n"
        f"Headers of {record['tensors']:,} tensors ({record['bytes'] / 1e9:.1f} GB announced, files without content): planned in "
        f"{record['plan_seconds']:.2f} s ({record['cpu_seconds']:.2f} s of processor) once Python and torch are up, "
        f"load average {record['load']:.1f}; "
        f"estimated peak memory {record['peak_estimate'] / 1e9:.2f} GB.\n"
    )
