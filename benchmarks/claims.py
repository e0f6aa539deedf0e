"""What must hold, and what a prototype of the method showed: both against the records, as lines of a table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.experiments import (
    GRPO,
    HALF,
    HYBRID,
    OPD,
    OPD_ANCHOR,
    PREFERENCES,
    SEEDS,
    USELESS,
    USELESS_OPD,
    Experiment,
    Run,
    run_of,
)
from benchmarks.results import Record, median

MANNER_BEFORE, MANNER_AFTER, SOLVED_AFTER, TRAINING_S = 0.01, 0.80, 0.90, 300.0
GRPO_BOUND, USELESS_BOUND = 0.20, 0.10


@dataclass(frozen=True, slots=True)
class Results:
    """All records of runs of so many steps."""

    steps: int
    records: dict[Run, Record]

    def of(self, row: Experiment) -> list[Record | None]:
        """The row's records by seed; None where a seed hasn't finished."""
        found = [self.records.get(run_of(row, seed, self.steps)) for seed in SEEDS]
        return [record if record and record.finished else None for record in found]

    def rates(self, row: Experiment, step: int) -> list[float]:
        """The row's rates at a step, of the seeds that have one."""
        return [rate for record in self.of(row) if record and (rate := record.rate(step)) is not None]


@dataclass(frozen=True, slots=True)
class Verdict:
    """holds is None where runs are missing."""

    claim: str
    measured: str
    holds: bool | None


def percent(value: float | None) -> str:
    """A rate for a table."""
    return "–" if value is None else f"{value * 100:.0f}"


def spread(values: list[float]) -> str:
    """All seeds of a row."""
    return ", ".join(percent(value) for value in values) + " %" if values else "no runs"


def requirements(results: Results) -> list[Verdict]:
    """The product's own demands."""
    rows = PREFERENCES.rows
    return [
        _every(results, rows, "Under 1 % hold the preference before training", lambda r: r.first, lambda x: x < MANNER_BEFORE),
        _every(results, rows, "At least 80 % hold it after training", lambda r: r.last, lambda x: x >= MANNER_AFTER),
        _every(
            results, rows, "At least 90 % of the styled replies solve the task", lambda r: r.solved, lambda x: x >= SOLVED_AFTER
        ),
        _time(results),
        _grpo(results),
        *(_useless(results, row) for row in (USELESS, USELESS_OPD)),
    ]


def _every(
    results: Results,
    rows: tuple[Experiment, ...],
    claim: str,
    value: Callable[[Record], float | None],
    good: Callable[[float], bool],
) -> Verdict:
    records = [record for row in rows for record in results.of(row)]
    values = [None if record is None else value(record) for record in records]
    there = [x for x in values if x is not None]
    ends = f"{percent(min(there))} to {percent(max(there))} %" if there else "no runs"
    failed = any(not good(x) for x in there) or any(r is not None and x is None for r, x in zip(records, values, strict=True))
    holds = False if failed else None if None in records else True
    return Verdict(claim, f"{ends} ({len(there)} of {len(records)} runs)", holds)


def _time(results: Results) -> Verdict:
    records = [record for row in PREFERENCES.rows for record in results.of(row)]
    until = [record.held[2] if record and record.held else None for record in records]
    there = [seconds for seconds in until if seconds is not None]
    slow = any(seconds > TRAINING_S for seconds in there)
    ends = f"{min(there):.0f} to {max(there):.0f} s" if there else "no runs"
    holds = False if slow else True if len(there) == len(records) else None
    return Verdict(
        "At most 5 minutes of training until the preference holds", f"{ends} ({len(there)} of {len(records)} runs)", holds
    )


def _grpo(results: Results) -> Verdict:
    """GRPO's rate at the step where the hybrid of the same seed first reads 80 %."""
    rates: list[float | None] = []
    for hybrid, alone in zip(results.of(HYBRID), results.of(GRPO), strict=True):
        step = hybrid.passed(MANNER_AFTER) if hybrid else None
        rates.append(alone.rate(step) if alone and step is not None else None)
    return _bounded("GRPO only is under 20 % when the hybrid passes 80 %", rates, GRPO_BOUND)


def _useless(results: Results, row: Experiment) -> Verdict:
    highest = [
        max(reading[2] for reading in record.readings) if record and record.readings else None for record in results.of(row)
    ]
    return _bounded(f"{row.name[0].upper()}{row.name[1:]}: always under 10 %", highest, USELESS_BOUND)


def _bounded(claim: str, rates: list[float | None], bound: float) -> Verdict:
    there = [rate for rate in rates if rate is not None]
    holds = False if any(rate >= bound for rate in there) else True if len(there) == len(rates) else None
    return Verdict(claim, spread(there), holds)


# Rates by step that a prototype in plain torch showed, by seed: 16 samples a step, K = 4, c = 1, lr 1e-4, 100 held-out tasks.
PROTOTYPE: tuple[tuple[str, Experiment, dict[int, tuple[float, ...]]], ...] = (
    ("hybrid", HYBRID, {20: (0.16, 0.01), 30: (0.82, 0.28), 40: (0.89, 0.74), 60: (0.98, 0.95)}),
    ("OPD only", OPD, {20: (0.54, 0.42), 30: (0.87, 0.84), 40: (0.88, 0.89), 60: (0.92, 0.98)}),
    ("GRPO only", GRPO, {20: (0.0, 0.0), 30: (0.0, 0.01), 40: (0.0, 0.0), 60: (0.43, 0.10)}),
    ("half useless, `shortest`", HALF["shortest"], {30: (0.86, 0.87, 0.64), 50: (0.94, 0.92, 0.94)}),
    ("half useless, `sequence_optimal`", HALF["sequence_optimal"], {30: (0.0, 0.64, 0.05), 50: (0.0, 0.89, 0.90)}),
    ("half useless, `signal_optimal`", HALF["signal_optimal"], {30: (0.71, 0.88, 0.75), 50: (0.89, 0.94, 0.90)}),
)


def leads(results: Results) -> list[Verdict]:
    """What the prototype suggested, each as a statement that these runs confirm or don't."""
    last = results.steps
    return [
        _compared(
            "OPD only with `anchor` stalls near 50 %",
            results,
            (OPD_ANCHOR, last),
            (OPD, last),
            lambda anchor, skip: 0.35 <= anchor <= 0.65 and anchor < skip,
        ),
        _compared(
            "OPD only holds with `skip`, which ends its run, and doesn't with `anchor`",
            results,
            (OPD, last),
            (OPD_ANCHOR, last),
            lambda skip, anchor: skip >= MANNER_AFTER > anchor,
        ),
        _compared("OPD only is ahead of the hybrid at first", results, (OPD, 10), (HYBRID, 10), lambda opd, hybrid: opd > hybrid),
        _compared(
            "With half of the hint sets spoilt, `sequence_optimal` falls far behind `shortest`",
            results,
            (HALF["sequence_optimal"], 20),
            (HALF["shortest"], 20),
            lambda sequence, shortest: sequence < shortest - 0.2,
        ),
        _compared(
            "`signal_optimal` repairs that: it ends within 10 points of `shortest`",
            results,
            (HALF["signal_optimal"], last),
            (HALF["shortest"], last),
            lambda signal, shortest: signal >= shortest - 0.1,
        ),
    ]


def _compared(
    claim: str,
    results: Results,
    one: tuple[Experiment, int],
    other: tuple[Experiment, int],
    good: Callable[[float, float], bool],
) -> Verdict:
    """good is asked of the medians of two rows at a step each."""
    found = [results.rates(*which) for which in (one, other)]
    measured = " against ".join(
        f"{spread(rates)} ({row.name}, step {step})" for rates, (row, step) in zip(found, (one, other), strict=True)
    )
    first, second = (median(rates) for rates in found)
    complete = all(len(rates) == len(SEEDS) for rates in found)
    return Verdict(claim, measured, good(first, second) if complete and first is not None and second is not None else None)
