"""A run's status as people read it: the funnel first."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from .candidates_text import field, number, share, visible
from .output import table

if TYPE_CHECKING:
    from rich.console import Console

    from openclaw_core.run.status import Status
    from openclaw_core.run.store_view import StoreView

FUNNEL = ("received", "main", "answered", "closed", "judged", "hinted", "sampled", "scored", "trained")
FIRST_SCREEN = (
    "loss/total", "loss/grpo", "loss/opd", "opd/overlap", "opd/signal", "batch/reward", "batch/response_tokens",
    "batch/capped_share", "batch/entropy", "gap/engine_mean", "loss/grad_norm",
)  # fmt: skip


def status_text(status: Status, console: Console) -> None:
    """Prints the status."""
    from rich.text import Text

    line = Text(f"{status.run}  ", style="bold")
    line.append(status.state + (f": {visible(status.reason, 240)}" if status.reason else ""), style=_style(status))
    if status.steps:
        line.append(f"  step {status.step} of {status.steps}, weights v{status.weight_version}", style="")
    console.print(line)
    if status.store is None:
        field(console, "funnel", "no store yet")
    else:
        _funnel(status.store, console)
    if status.stall is not None:
        field(
            console, "STALLED", f"at {status.stall.stage} for {duration(status.stall.seconds)}: {status.stall.what}", "bold red"
        )
    if status.abandoned:
        what = f"nothing drives the run any more, though run.json says {status.state}"
        field(console, "ENDED", f"{what}; go on with openclaw train --resume {status.folder}", "bold red")
    for name, value in _facts(status):
        if value:
            field(console, name, value)
    _metrics(status, console)
    _processes(status, console)
    for what in status.absent:
        field(console, "absent", what)
    for what in status.problems:
        field(console, "not read", what, "yellow")


def duration(seconds: float) -> str:
    """Seconds as 12 s, 5 min or 3.4 h."""
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _style(status: Status) -> str:
    bad = status.state == "failed" or status.stall is not None or status.abandoned
    return "bold red" if bad else "green"


def _funnel(view: StoreView, console: Console) -> None:
    counts = [getattr(view.funnel, name) for name in FUNNEL]
    console.print(table([f">{name}" for name in FUNNEL], [counts]))
    for name, reasons in (("dropped", view.funnel.dropped), ("refused", view.funnel.refused)):
        if reasons:
            field(console, name, _counts(reasons))


def _facts(status: Status) -> list[tuple[str, str]]:
    facts = [("objective", status.objective), ("proxy", status.proxy), ("go on with", status.go_on)]
    saved = "none yet" if status.saved_step is None else f"step {status.saved_step}"
    if status.saved_at is not None:
        saved += f", {duration(max(0.0, time.time() - status.saved_at))} ago"
    if status.steps:
        facts.append(("last save", saved))
    pending = "" if status.next_step_s is None else f"about {duration(status.next_step_s)}; " if status.next_step_s else "now; "
    if status.steps and not status.abandoned:
        facts.append(("next step", f"{pending}{status.next_step_why}"))
    if (view := status.store) is not None:
        rejected = f" ({_counts(view.hints_rejected)})" if view.hints_rejected else ""
        facts.append(("hints", f"{view.hints_accepted} accepted, {sum(view.hints_rejected.values())} rejected{rejected}"))
        votes = [f"{kind} {_counts(counts)}" for kind, counts in view.votes.items() if counts]
        no_votes = f"; no vote because {_counts(view.no_votes)}" if view.no_votes else ""
        facts.append(("votes", f"{'; '.join(votes)}{no_votes}"))
        facts.append(("reward", f"mean {number(view.reward)} over samples with a verdict" if view.reward is not None else ""))
        facts.append(("waiting", ", ".join(f"{one.count} to be {one.stage} ({duration(one.oldest_s)})" for one in view.waiting)))
    spent = {name.removeprefix("seconds/"): value for name, value in status.metrics.items() if name.startswith("seconds/")}
    facts.append(("last step", ", ".join(f"{stage} {value:.1f} s" for stage, value in spent.items() if value)))
    if status.reading is not None:
        target = "" if status.target is None else f", target {share(status.target)}"
        solved = "" if status.reading.solved_rate is None else f", task solved in {share(status.reading.solved_rate)}"
        facts.append(
            ("preference", f"held in {share(status.reading.preference_rate)} at step {status.reading.step}{solved}{target}")
        )
    return facts


def _metrics(status: Status, console: Console) -> None:
    shown = [name for name in FIRST_SCREEN if name in status.metrics or name in status.constants]
    if not status.metrics:
        return
    rows = [(name, _value(status.metrics.get(name)), status.constants.get(name, "")) for name in shown]
    title = f"Metrics of step {status.metrics['step']}"
    if any(why for _, _, why in rows):
        console.print(table(("metric", ">value", "constant in this run, because"), rows, title=title))
    else:
        console.print(table(("metric", ">value"), [row[:2] for row in rows], title=title))


def _processes(status: Status, console: Console) -> None:
    ended = [f"{one.role} ({one.pid})" for one in status.processes if one.alive is False]
    living = [one for one in status.processes if one.alive is not False]
    words = {True: "alive", None: "on another machine"}
    left = [one for one in status.past_processes if one.alive]
    rows = [(one.role, one.pid, words[one.alive], _clock(one.since)) for one in living]
    rows += [(one.role, one.pid, "left over from an earlier leg", _clock(one.since)) for one in left]
    if rows:
        console.print(table(("process", ">pid", "state", "since"), rows))
    if ended:
        field(console, "processes", f"{len(ended)} ended{': ' + ', '.join(ended) if living else ', none alive'}")


def _clock(since: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(since))


def _value(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{visible(str(name))} {count}" for name, count in counts.items())
