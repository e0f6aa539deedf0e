"""What a run came to: read from its manifest and metrics, written as report.json, report.md and preference.svg."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from ..files import write_atomic
from ..rollout.store import Store
from ..track.jsonl import dumps
from ..track.sinks import read_metrics
from ..track.svg import Series, line_chart
from .legs import Leg, legs_of
from .runfolder import RunFolder
from .store_view import read_store

REPORT_VERSION = 1
FUNNEL = ("received", "main", "answered", "closed", "judged", "hinted", "sampled", "scored", "trained")
STAGES = ("start", "collect", "teacher", "pause", "old", "train", "sync", "dump", "save", "eval")


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading on held-out tasks without any hint, after step optimizer steps and sessions conversations.

    solved_rate is of the replies that hold the style, of all while none does. tasks is the number of replies that were read.
    """

    step: int
    sessions: int | None
    preference_rate: float
    solved_rate: float | None
    tasks: int | None


@dataclass(frozen=True, slots=True)
class Report:
    """held is the first reading from which the preference stayed at or above target. seconds is time per stage, of all legs.
    go_on is the command that goes on with a run that ended before its last step."""

    run: str
    folder: str
    state: str
    reason: str
    objective: str
    preference: str
    target: float | None
    steps: int
    planned_steps: int
    wall_seconds: float
    readings: tuple[Reading, ...] = ()
    held: Reading | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    legs: tuple[Leg, ...] = ()
    funnel: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    go_on: str = ""
    problems: tuple[str, ...] = ()
    report_version: int = REPORT_VERSION

    @property
    def before(self) -> Reading | None:
        """The reading of step 0."""
        return self.readings[0] if self.readings and self.readings[0].step == 0 else None

    @property
    def after(self) -> Reading | None:
        """The last reading after training."""
        return self.readings[-1] if self.readings and self.readings[-1].step > 0 else None


def build_report(run: RunFolder) -> Report:
    """The report of a run as its files tell it now; it may be called for a run that still goes on or has ended long ago.

    Times are those of all legs, and of the metrics where the manifest tells of no leg. The funnel and what was dropped are the
    store's. Of the manifest's facts it also reads objective (a sentence), preference and target_rate.
    """
    manifest = run.read()
    lines, unread = read_metrics(run.metrics)
    problems = list(map(str, unread))
    funnel = read_store(run, Store.funnel, problems)
    readings = readings_of(lines)
    target = manifest.facts.get("target_rate")
    legs = legs_of(manifest)
    stages = _total([leg.seconds for leg in legs] or [_stages(lines)])
    return Report(
        run=run.name,
        folder=str(run.path),
        state=manifest.state,
        reason=manifest.reason,
        objective=str(manifest.facts.get("objective", "")),
        preference=str(manifest.facts.get("preference", "")),
        target=target,
        steps=manifest.step,
        planned_steps=manifest.steps,
        wall_seconds=round(sum(leg.wall_seconds for leg in legs) if legs else sum(stages.values()), 1),
        readings=readings,
        held=None if target is None else held_from(readings, target),
        seconds={name: round(value, 2) for name, value in stages.items()},
        legs=legs,
        funnel={} if funnel is None else funnel.counts(),
        dropped={} if funnel is None else funnel.dropped,
        commands=commands(run, manifest.step),
        go_on=going_on(run, manifest.state),
        problems=tuple(problems),
    )


def readings_of(lines: list[dict[str, Any]]) -> tuple[Reading, ...]:
    """The readings that lines of metrics.jsonl hold."""
    return tuple(reading for line in lines if (reading := _reading(line)))


def held_from(readings: tuple[Reading, ...], target: float) -> Reading | None:
    """The first reading from which all later ones are at or above target, too; None where the last one is below it."""
    first = None
    for reading in reversed(readings):
        if reading.preference_rate < target:
            break
        first = reading
    return first


def commands(run: RunFolder, step: int) -> tuple[str, ...]:
    """What looks into a run that stands at step."""
    status, look = f"openclaw status {run.path}", f"openclaw inspect-candidates {run.path}"
    return (status, look, f"{look} --step 1 --html candidates.html") if step else (status,)


def going_on(run: RunFolder, state: str) -> str:
    """The command that goes on with a run that has ended as state; empty where it is done, goes on, or can't."""
    manifest = run.read()
    left = state in ("stopped", "failed") and manifest.step < manifest.steps
    return f"openclaw train --resume {run.path}" if left and run.config.is_file() else ""


def write_report(run: RunFolder, report: Report) -> None:
    """Write report.json, report.md and preference.svg into the run folder."""
    write_atomic(run.report, dumps(report_record(report), indent=2) + "\n")
    write_atomic(run.path / "preference.svg", preference_curve(report))
    write_atomic(run.path / "report.md", report_markdown(report))


def report_record(report: Report) -> dict[str, Any]:
    """The report as one JSON object, with the readings before and after beside all readings."""
    ends = {"before": report.before, "after": report.after}
    return {**asdict(report), **{name: None if reading is None else asdict(reading) for name, reading in ends.items()}}


def preference_curve(report: Report) -> str:
    """The preference and solved rates over steps, as SVG."""
    readings = report.readings
    rate = Series("preference held", [(one.step, one.preference_rate) for one in readings])
    solved = Series("task solved", [(one.step, one.solved_rate) for one in readings if one.solved_rate is not None], dashed=True)
    title = f"{report.run}: {report.preference or 'preference'} on held-out tasks, without a hint"
    return line_chart([rate, solved], title=title, x_label="optimizer steps", y_label="share of replies", level=report.target)


def summary_lines(report: Report) -> list[tuple[str, str]]:
    """The report as (what, value) lines, for a terminal."""
    before, after, held = report.before, report.after, report.held
    lines = [
        ("run", f"{report.run}: {report.state}{f' ({report.reason})' if report.reason else ''}"),
        ("objective", report.objective),
        ("preference", report.preference),
        ("held without a hint, before", _rate(before)),
        ("held without a hint, after", _rate(after)),
        ("task solved, after", _solved(after)),
        ("held from", _held(held, report.target)),
        ("steps", f"{report.steps} of {report.planned_steps}"),
        ("legs", "; ".join(map(str, report.legs)) if len(report.legs) > 1 else ""),
        ("time", f"{report.wall_seconds:.0f} s: {', '.join(f'{name} {value:.0f}' for name, value in report.seconds.items())}"),
        ("funnel", ", ".join(f"{name} {report.funnel[name]}" for name in FUNNEL if name in report.funnel)),
        ("dropped", ", ".join(f"{reason} {count}" for reason, count in report.dropped.items())),
        ("folder", report.folder),
        ("go on with", report.go_on),
    ]
    return [(what, value) for what, value in lines if value]


def report_text(report: Report) -> str:
    """The report as plain text."""
    lines = summary_lines(report)
    width = max(len(what) for what, _ in lines)
    text = [f"{what:<{width}}  {value}" for what, value in lines]
    text += ["", "Look into it with", *(f"  {command}" for command in report.commands)]
    return "\n".join(text) + "\n"


def report_markdown(report: Report) -> str:
    """The report as a page, with the curve and all readings."""
    rows = "\n".join(f"| {_cell(what)} | {_cell(value)} |" for what, value in summary_lines(report))
    cells = ((one.step, one.sessions, one.preference_rate, one.solved_rate, one.tasks) for one in report.readings)
    readings = "\n".join("| " + " | ".join(map(_number, row)) + " |" for row in cells)
    stages = "\n".join(f"| {name} | {value:.1f} |" for name, value in report.seconds.items())
    parts = [f"# Report of {report.run}\n", f"| | |\n| --- | --- |\n{rows}\n"]
    if readings:
        head = "| step | sessions | preference held | solved | replies |\n| ---: | ---: | ---: | ---: | ---: |"
        parts += [f"## Readings without a hint\n\n![preference over steps](preference.svg)\n\n{head}\n{readings}\n"]
    if stages:
        parts.append(f"## Time\n\n| stage | s |\n| --- | ---: |\n{stages}\n")
    parts.append("## Look into it\n\n```\n" + "\n".join(report.commands) + "\n```\n")
    if report.problems:
        parts.append("## What could not be read\n\n" + "\n".join(f"- {problem}" for problem in report.problems) + "\n")
    return "\n".join(parts)


def _reading(line: dict[str, Any]) -> Reading | None:
    rate = line.get("eval/preference_rate")
    if rate is None:
        return None
    return Reading(line["step"], line.get("funnel/sessions"), rate, line.get("eval/solved_rate"), line.get("eval/tasks"))


def _stages(lines: list[dict[str, Any]]) -> dict[str, float]:
    return {stage: total for stage in STAGES if (total := sum(line.get(f"seconds/{stage}") or 0.0 for line in lines))}


def _total(parts: list[dict[str, float]]) -> dict[str, float]:
    return {name: sum(part.get(name, 0.0) for part in parts) for name in dict.fromkeys(name for part in parts for name in part)}


def _rate(reading: Reading | None) -> str:
    if reading is None:
        return "no reading"
    of = f" of {reading.tasks} replies" if reading.tasks is not None else ""
    return f"{reading.preference_rate:.1%}{of} (step {reading.step})"


def _solved(reading: Reading | None) -> str:
    return "no reading" if reading is None or reading.solved_rate is None else f"{reading.solved_rate:.1%}"


def _held(held: Reading | None, target: float | None) -> str:
    if target is None:
        return ""
    if held is None:
        return f"not held (target {target:.0%})"
    after = f" after {held.sessions} sessions" if held.sessions is not None else ""
    return f"step {held.step}{after} (at least {target:.0%} from then on)"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
