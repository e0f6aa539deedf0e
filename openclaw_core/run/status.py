"""What a run is doing, from its folder alone: funnel, votes, metrics, processes, and where it is stuck if it is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import yaml

from ..config.schema import Config
from ..errors import first_line
from ..rollout.store import Funnel
from ..track.metrics import constants
from ..track.sinks import read_metrics
from .legs import legs_of
from .manifest import Manifest
from .report import Reading, going_on, readings_of
from .runfolder import RunFolder
from .store_view import StoreView, Waiting, read_store, view_store

GOING = ("starting", "running", "stopping")


@dataclass(frozen=True, slots=True)
class Stall:
    """Nothing came through stage for seconds; what says what waits and what to look at."""

    stage: str
    seconds: float
    what: str


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """A process the run started; alive is None where it runs on another machine."""

    role: str
    pid: int
    alive: bool | None
    since: float


@dataclass(frozen=True, slots=True)
class Status:
    """store is None before the run has one. next_step_s estimates the seconds until a batch is full (0: it is).

    driven says whether a process drives the run (None: none ever did). proxy is the address for OpenAI clients while the run
    lives, go_on the command that goes on with one that ended early. processes are those of the last leg, past_processes those
    of the legs before it. metrics is the newest line of metrics.jsonl; constants names those that can't move in this run, with
    the reason. absent and problems tell which optional inputs are not there and what could not be read.
    """

    run: str
    folder: str
    state: str
    reason: str
    step: int
    steps: int
    saved_step: int | None
    saved_at: float | None
    weight_version: int
    updated_s: float
    store: StoreView | None
    batch_size: int | None
    next_step_s: float | None
    next_step_why: str
    stall: Stall | None
    metrics: dict[str, Any]
    constants: dict[str, str]
    reading: Reading | None
    target: float | None
    processes: tuple[ProcessStatus, ...] = ()
    past_processes: tuple[ProcessStatus, ...] = ()
    absent: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    objective: str = ""
    driven: bool | None = None
    proxy: str = ""
    go_on: str = ""

    @property
    def abandoned(self) -> bool:
        """The manifest says that the run goes on, but what drives it has gone, or all of its processes have."""
        here = [one.alive for one in self.processes]
        gone = bool(here) and not any(alive is None or alive for alive in here)
        return self.state in GOING and (self.driven is False or gone)


def read_status(run: RunFolder, *, stall_after_s: float = 300.0, now: float | None = None) -> Status:
    """The status of a run at this moment; stall_after_s is how long it may go without a step.

    Raises UserError for a broken manifest.
    """
    now = time.time() if now is None else now
    manifest = run.read()
    absent: list[str] = []
    problems: list[str] = []
    config = _config(run, absent, problems)
    view = _store(run, now, absent, problems)
    lines, unread = read_metrics(run.metrics)
    problems += map(str, unread)
    if manifest.steps and not run.metrics.exists():
        absent.append("metrics.jsonl (written at the end of the first step)")
    batch = None if config is None else config.train.batch_size
    next_step_s, why = _next_step(view, batch, manifest)
    readings = readings_of(lines)
    legs = legs_of(manifest)
    began = legs[-1].began if legs else 0.0
    driven = run.driven()
    processes = [ProcessStatus(one.role, one.pid, one.alive(), one.since) for one in manifest.processes]
    return Status(
        run=run.name,
        folder=str(run.path),
        state=manifest.state,
        reason=manifest.reason,
        step=manifest.step,
        steps=manifest.steps,
        saved_step=manifest.saved_step,
        saved_at=manifest.saved_at,
        weight_version=manifest.weight_version,
        updated_s=now - manifest.updated,
        store=view,
        batch_size=batch,
        next_step_s=next_step_s,
        next_step_why=why,
        stall=_stall(manifest, view, config, stall_after_s, now),
        metrics=lines[-1] if lines else {},
        constants={} if config is None else constants(config),
        reading=readings[-1] if readings else None,
        target=manifest.facts.get("target_rate"),
        processes=tuple(one for one in processes if one.since >= began),
        past_processes=tuple(one for one in processes if one.since < began),
        absent=tuple(absent),
        problems=tuple(problems),
        objective=str(manifest.facts.get("objective", "")),
        driven=driven,
        go_on=going_on(run, manifest.state),
        proxy=str(manifest.facts.get("proxy") or "") if manifest.state in GOING and driven is not False else "",
    )


def _config(run: RunFolder, absent: list[str], problems: list[str]) -> Config | None:
    if not run.config.exists():
        absent.append("config.yaml")
        return None
    try:
        return Config.model_validate(yaml.safe_load(run.config.read_text("utf-8")))
    except (ValueError, yaml.YAMLError) as error:
        problems.append(f"config.yaml: {first_line(error)}")
        return None


def _store(run: RunFolder, now: float, absent: list[str], problems: list[str]) -> StoreView | None:
    if not run.store.exists():
        absent.append("store.sqlite (made when the proxy starts)")
        return None
    return read_store(run, lambda store: view_store(store, now), problems)


def _next_step(view: StoreView | None, batch: int | None, manifest: Manifest) -> tuple[float | None, str]:
    """Seconds until a batch is full at the pace of the last minutes, and how that was reckoned."""
    if manifest.step >= manifest.steps > 0:
        return None, "all steps are done"
    if manifest.state not in GOING:
        waiting = f"; {view.funnel.ready} samples wait for a resume" if view is not None else ""
        return None, f"none: the run is {manifest.state}{waiting}"
    if view is None or batch is None:
        return None, "unknown: no store or no configuration"
    missing = batch - view.funnel.ready
    if missing <= 0:
        return 0.0, f"a batch of {batch} is ready"
    if not view.recent_samples:
        return None, f"{view.funnel.ready} of {batch} samples are ready and none was made in the last {view.window_s:.0f} s"
    pace = view.recent_samples / view.window_s
    return missing / pace, f"{view.funnel.ready} of {batch} samples are ready, {pace * 60:.1f} a minute"


def _stall(manifest: Manifest, view: StoreView | None, config: Config | None, after_s: float, now: float) -> Stall | None:
    """The stage that holds the run up, where no step was finished for after_s seconds."""
    if view is None or manifest.state not in ("starting", "running"):
        return None
    silent = view.last_trained_s if view.last_trained_s is not None else now - manifest.created
    if silent < after_s:
        return None
    stuck = [one for one in _blocked(view, config) if one.oldest_s >= after_s]
    if stuck:
        worst = stuck[-1]
        return Stall(worst.stage, worst.oldest_s, _WHAT[worst.stage].format(count=worst.count))
    return _starved(view, silent, after_s)


_WHAT = {
    "judged": "{count} turns wait for the judge: see its log, and whether its address answers",
    "sampled": "{count} judged turns were not made into samples: see the proxy's log",
    "scored": "{count} samples wait for the teacher: see the teacher's log",
    "trained": "{count} samples were taken for a step that doesn't end: see the trainer's log",
    "taken": "{count} samples wait and are enough for a step, but none is taken: see the driver's log",
}


def _blocked(view: StoreView, config: Config | None) -> list[Waiting]:
    """What waits inside the run, in the order of the funnel."""
    blocked = [one for one in view.waiting if one.stage in ("judged", "sampled", "trained")]
    if config is not None and config.loss.w_opd > 0 and view.funnel.scored:
        blocked += [one for one in view.waiting if one.stage == "scored" and view.funnel.ready >= config.train.batch_size]
    if config is not None and view.funnel.ready >= config.train.batch_size and view.last_trained_s is not None:
        blocked.append(Waiting("taken", view.funnel.ready, view.last_trained_s))
    order = list(_WHAT)
    return sorted(blocked, key=lambda one: order.index(one.stage))


def _starved(view: StoreView, silent: float, after_s: float) -> Stall:
    """Nothing waits inside: too little comes in, or too little of it counts."""
    funnel: Funnel = view.funnel
    if view.last_request_s is None:
        refused = sum(funnel.refused.values())
        heard = f"{funnel.received} requests came and none was answered" if funnel.received else "no request has come"
        return Stall(
            "answered" if funnel.received else "received", silent, f"{heard}{f' ({refused} refused)' if refused else ''}"
        )
    if view.last_request_s >= after_s:
        waiting = next((one for one in view.waiting if one.stage == "closed"), None)
        if waiting is not None:
            return Stall(
                "closed", view.last_request_s, f"{waiting.count} turns wait for what their users say next, and nobody speaks"
            )
        return Stall("received", view.last_request_s, "no request has come since")
    reasons = ", ".join(f"{reason} {count}" for reason, count in list(funnel.dropped.items())[:3]) or "none dropped"
    return Stall("sampled", silent, f"turns come in, but too few become samples (dropped: {reasons})")
