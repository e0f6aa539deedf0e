"""The page, made from the records alone."""

from __future__ import annotations

from typing import Any

from benchmarks.teacher.workload import SHAPES

COMMAND = "python -m benchmarks.teacher"
GOAL_FACTOR, GOAL_RATE = 3.0, 0.65
HEAD = """# Scoring by the teacher

16 samples with 1, 2, 3, 1, 2, 3, ... hints, random weights and ids. Three schedules on the same model code, same packing budget:

- *published*: as many passes over the whole batch as the largest K, missing candidates filled by repetition, logits of every
  prompt token, top-K of the reply's log-probs by torch;
- *whole*: every real candidate once; output layer, and of the last layer all behind queries, keys and values, on reply rows only;
- *shared*: what the product does: besides, a prefix that several candidates begin with is forwarded once.

Seconds are the median of the rounds after a first one that doesn't count; on a CPU they are of the processor, one thread.
FLOPs are those of the forward to the final hidden states (matrices and attention), so the rate leaves the output layer's
work out and counts its time.

Written by `{command} --report-only` from `results.json`; measured by `{command} --shape SHAPE`.
"""


def page(records: dict[str, Any], beside: dict[str, Any] | None = None) -> str:
    """The page as Markdown, from records by shape and what beside.py wrote."""
    parts = [HEAD.format(command=COMMAND), *(_shape(name, record) for name, record in records.items())]
    return "\n".join([*parts, _beside(beside)] if beside else parts)


def _shape(name: str, record: dict[str, Any]) -> str:
    lengths, arch = record["lengths"], SHAPES[name].arch
    memory = f" Weights are {arch.parameters * 2 / 2**30:.1f} GiB of the peak." if record["gpu"] else ""
    lines = [
        f"## {name}\n",
        f"{record['model']}; histories of {lengths['history']:,} tokens, hints of {lengths['hint']:,}, replies of "
        f"{lengths['reply']:,}; packs of at most {lengths['budget']:,} tokens. {record['machine']}{memory}\n",
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
    return "\n".join([*lines, "", *notes, "", _verdicts(record), *_profile(record), *_precision(record)])


def _verdicts(record: dict[str, Any]) -> str:
    first = next(iter(record["scenarios"].values()))
    ours, published = first["shared"], first["published"]
    factor = published["seconds"] / ours["seconds"]
    rows = [(f"at least {GOAL_FACTOR:g} x less time than the published schedule", f"{factor:.2f} x", factor >= GOAL_FACTOR)]
    if record["gpu"]:
        share = ours["flops"] / ours["seconds"] / record["matmul_rate"]
        rate = f"{record['matmul_rate'] / 1e12:.0f} TFLOP/s, the bf16 matmul rate of this run"
        rows.append((f"forward at {GOAL_RATE:.0%} of {rate}", f"{share:.0%}", share >= GOAL_RATE))
    lines = [f"| {what} | {measured} | {'yes' if held else '**no**'} |" for what, measured, held in rows]
    share, fewer = ours["tokens"] / published["tokens"], published["flops"] / ours["flops"]
    both = [one["flops"] + one["output_flops"] for one in (published, ours)]
    bound = (
        f"Of the first scenario {share:.1%} of the published schedule's tokens have to be forwarded: a sample's candidates are "
        f"the same up to the hint, but one of them is forwarded whole. That is {fewer:.2f} x fewer FLOPs in the layers and "
        f"{both[0] / both[1]:.2f} x with the output layer, which the published schedule runs on every row. At the same rate that "
        "is what the factor can be; beyond it only a rate above that of the published schedule leads, or conversations of which "
        "several turns are scored together."
    )
    return "\n".join(["| demand, first scenario | measured | holds |", "| --- | ---: | --- |", *lines, "", bound, ""])


def _profile(record: dict[str, Any]) -> list[str]:
    """Where the time of the shared schedule goes, by the kernels of one pass."""
    found = next(iter(record["scenarios"].values())).get("profile")
    if not found:
        return []
    lines = [
        f"One pass of the first scenario, *shared*, under torch's profiler: {found['clock']:.2f} s by the clock, "
        f"{found['kernels']:.2f} s of kernels.\n",
        "| kernels | seconds | of all | TFLOP/s |",
        "| --- | ---: | ---: | ---: |",
    ]
    for group, seconds in found["groups"].items():
        rate = f"{found['flops'][group] / seconds / 1e12:.0f}" if group in found["flops"] and seconds else ""
        lines.append(f"| {group} | {seconds:.3f} | {seconds / found['kernels']:.1%} | {rate} |")
    longest = sorted(found["longest"].items(), key=lambda item: -item[1])[:6]
    told = ", ".join(f"`{name[:48]}` {seconds:.2f} s" for name, seconds in longest)
    return [*lines, "", f"The longest kernels: {told}.", ""]


def _precision(record: dict[str, Any]) -> list[str]:
    """How far results lie from each other and from float32."""
    found = record.get("precision")
    if not found:
        return []
    return [
        f"How far log-probs lie apart, for 3 candidates of a sample with a history of {found['history']:,} tokens. Random "
        "weights of this size magnify rounding: read the distance of *shared* from *whole* against that of each from float32.\n",
        "| log-probs | mean | most |",
        "| --- | ---: | ---: |",
        *(f"| {name} | {gap['mean']:.1e} | {gap['most']:.1e} |" for name, gap in found["gaps"].items()),
        "",
    ]


def _beside(record: dict[str, Any]) -> str:
    """A teacher beside a student on one device."""
    peaks, total = record["peak_bytes"], record["device_bytes"]
    last = record["steps"][-1]
    parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in last["seconds"].items())
    memory = (
        f" Memory reserved at most: student {peaks['student'] / 2**30:.1f} GiB, teacher {peaks['teacher'] / 2**30:.1f} GiB, of "
    )
    changed = "did" if record["teacher_changed"] else "did not"
    return "\n".join(
        [
            f"## {record['teacher']} teacher beside a {record['student']} student on one device\n",
            f"`{record['command']}` on {record['machine']}; {record['samples']} samples of the first scenario, "
            f"{last['tokens']:,} tokens of the student's, {len(record['steps'])} steps, recomputation, Adam in fp32.\n",
            f"The last step: {parts}; loss {last['loss']:.3f}, gradient norm {last['grad_norm']:.3g}. The student's weights "
            f"{'changed' if record['student_changed'] else 'did not change'}, the teacher's {changed}."
            + (memory + f"{total / 2**30:.0f} GiB." if total else ""),
            "",
        ]
    )
