"""The page and the plot, made from the records alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from operator import methodcaller

from benchmarks.claims import PROTOTYPE, Results, Verdict, leads, percent, requirements, spread
from benchmarks.experiments import GRPO, HYBRID, OPD, SEEDS, TABLES, USELESS, Experiment, Table, run_of
from benchmarks.results import Record, median
from openclaw_core.track.svg import Series, line_chart

PLOT = "personalisation-objectives.svg"
COMMAND = "python -m benchmarks.personalisation"
SHOWN_STEPS = (10, 20, 30, 40)
WORDS = {True: "yes", False: "**no**", None: "not yet known"}
HEAD = """# Personalisation

A tiny model learns a user's preference from conversation alone. Every run below is the whole product on CPU, started by the
command that stands under its table: simulated users talk to the proxy, the judge reads what they answer, the teacher scores,
Megatron trains, the engine gets new weights. A reading asks 200 held-out tasks without any hint and counts the replies in the
users' style. The longest tasks have a word less than the longest that the base model was taught, in talk and in readings: a
wrong answer then tells of the training and not of the model's limits.

This page is written by `{command} --report-only` from `personalisation.json`; all runs are made again by `{command}`.

- A cell holds the median over seeds {seeds} and, in brackets, every seed; `–` is a run that isn't there or a level not reached.
- A run is done once two readings in a row (five steps apart) hold at 80 % or more, or after {steps} steps; later columns repeat
  its last reading. The runs of the first table go on to the end. OPD alone is read every second step and done at the first
  such reading: without a reward only complaints make samples, and a student that holds the preference gets few.
- *held from* is the first reading from which the rate stays at 80 % or more, *sessions* the conversations begun by then.
- *solved* is the share of the last reading's styled replies that are right.
- *training* is time in the loop without start-up and readings: until the preference held, and of the whole run.
"""


def page(results: Results) -> str:
    """The page as Markdown."""
    parts = [
        HEAD.format(command=COMMAND, seeds=", ".join(map(str, SEEDS)), steps=results.steps),
        _machines(results),
        "## What must hold\n",
        _verdicts(requirements(results), "demand", "holds"),
        f"![preference over steps for four objectives]({PLOT})\n",
        *(_table(results, one) for one in TABLES),
        _prototype(results),
        _times(results),
        _failures(results),
    ]
    return "\n".join(part for part in parts if part)


def plot(results: Results) -> str:
    """Median preference rate over steps of four objectives, as SVG."""
    series = []
    for row in (HYBRID, OPD, GRPO, USELESS):
        steps = sorted({reading[0] for record in results.of(row) if record for reading in record.readings})
        medians = [(step, median(results.rates(row, step))) for step in steps]
        series.append(Series(_short(row.name), [(step, rate) for step, rate in medians if rate is not None]))
    title = "Preference held without a hint, median of three seeds"
    return line_chart(series, title=title, x_label="optimizer steps of 16 samples", y_label="share of replies", level=0.8)


def _short(name: str) -> str:
    return name.removeprefix("hybrid, ").replace("useless hints only", "useless hints")


def _grid(head: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A Markdown table; columns after the first words ones are numbers."""
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows)) + "\n"


def _verdicts(verdicts: list[Verdict], head: str, last: str) -> str:
    return _grid([head, "measured", last], ([v.claim, v.measured, WORDS[v.holds]] for v in verdicts), words=3)


def _machines(results: Results) -> str:
    records = [record for record in results.records.values() if record.finished]
    if not records:
        return "No run has finished yet.\n"
    machines = Counter(f"{record.machine}; {record.jobs} run{'s' * (record.jobs > 1)} at a time" for record in records)
    programs = Counter(record.program for record in records)
    loads = sorted(record.load for record in records)
    lines = [f"{len(records)} finished runs."]
    lines += [f"Made on: {machine} ({count} runs)." for machine, count in machines.items()]
    lines += [f"Program: {program} ({count} runs)." for program, count in programs.items()]
    lines.append(
        f"Load average when a run ended: {loads[0]:.1f} to {loads[-1]:.1f}. Other programs shared the machine where it exceeds "
        "what a run asks for; times are then longer than on an idle machine, rates are not touched."
    )
    return "\n".join(f"- {line}" for line in lines) + "\n"


def _table(results: Results, table: Table) -> str:
    steps = [step for step in SHOWN_STEPS if step < results.steps] + [results.steps]
    head = [
        "", *(f"step {step}, %" for step in steps), "solved, %", "held from step", "sessions", "training until held, s", "all, s"
    ]  # fmt: skip
    rows = [_row(results, row, steps) for row in table.rows]
    commands = "\n".join(_command(results, row) for row in table.rows)
    how = f"Whole table: `{COMMAND} --only {table.letter}`. One run of each row:\n\n```sh\n{commands}\n```\n"
    return f"## {table.title}\n\n{table.about}\n\n{_grid(head, rows)}\n{how}"


def _row(results: Results, row: Experiment, steps: list[int]) -> list[str]:
    records = results.of(row)
    cells = [_cell(records, methodcaller("rate", step), percent) for step in steps]
    return [
        row.name,
        *cells,
        _cell(records, lambda record: record.solved, percent),
        _cell(records, lambda record: record.held[0] if record.held else None, _number),
        _cell(records, lambda record: record.held[1] if record.held else None, _number),
        _cell(records, lambda record: record.held[2] if record.held else None, _number),
        _cell(records, lambda record: record.training_seconds, _number),
    ]


def _cell(
    records: list[Record | None], value: Callable[[Record], float | None], text: Callable[[float | None], str]
) -> str:  # fmt: skip
    if not any(records):
        return "–"
    values = [None if record is None else value(record) for record in records]
    middle = median([x for record, x in zip(records, values, strict=True) if record is not None])
    return f"{text(middle)} ({', '.join(map(text, values))})"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"


def _command(results: Results, row: Experiment) -> str:
    return run_of(row, SEEDS[0], results.steps).command()


def _prototype(results: Results) -> str:
    rows = [
        [name, str(step), spread(list(rates)), spread(results.rates(row, step))]
        for name, row, by_step in PROTOTYPE
        for step, rates in by_step.items()
        if step <= results.steps
    ]
    return (
        "## Against the prototype\n\n"
        "A prototype in plain torch with 0.8 M parameters suggested what to expect. Every seed, at the same steps:\n\n"
        + _grid(["", "step", "prototype", "here"], rows)
        + "\nWhat it suggested, asked of the medians here:\n\n"
        + _verdicts(leads(results), "suggested", "confirmed")
    )


def _times(results: Results) -> str:
    records = [record for record in results.records.values() if record.finished]
    if not records:
        return ""
    stages = list(dict.fromkeys(stage for record in records for stage in record.seconds))
    rows = [[stage, f"{median([record.seconds.get(stage, 0.0) for record in records]) or 0.0:.1f}"] for stage in stages]
    whole = {"the whole run": [r.wall_seconds for r in records], "CPU, all processes": [r.cpu_seconds for r in records]}
    rows += [[name, f"{median(values) or 0.0:.1f}"] for name, values in whole.items()]
    return "## Where the time goes\n\nMedian over all finished runs:\n\n" + _grid(["", "s"], rows)


def _failures(results: Results) -> str:
    lines = []
    for run, record in sorted(results.records.items(), key=lambda item: item[0].settings):
        if not record.finished:
            lines.append(f"- not finished: `{run.command()}`: {record.error}")
        lines += [f"- an attempt before failed: `{run.command()}`: {error}" for error in record.earlier]
    return "## Runs that failed\n\n" + ("\n".join(lines) if lines else "None.") + "\n"
