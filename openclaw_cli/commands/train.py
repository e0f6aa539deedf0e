"""Train a student from live conversations, or show what such a run would do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from openclaw_cli.completion import complete_key, complete_profile, complete_run
from openclaw_cli.output import active

if TYPE_CHECKING:
    from openclaw_core.config.load import Resolved
    from openclaw_core.run.plan import Plan

EPILOG = """\b
Examples:
  openclaw train --profile tiny-cpu
      the demonstration: a tiny model learns a preference in minutes on two CPU cores
  openclaw train --profile tiny-cpu --set loss.w_opd=0
      the same with GRPO alone
  openclaw train --profile qwen3-4b-topk --dry-run
      the plan of the published 8-GPU run, on any machine
  openclaw train --profile qwen3-4b-topk --set partition.actor.devices=6 --dry-run
      why this can't work, and the nearest partition that can
  openclaw --json train --profile my.yaml --dry-run > plan.json
  openclaw train --resume runs/RUN --set train.steps=120
\b
A value comes from, first wins: --set, the environment (OPENCLAW__LOSS__K=8), the profile, the profiles it extends, the default.
"""


def train(
    profile: Annotated[
        str | None,
        typer.Option("--profile", "-p", help="Name of a profile, or path of a YAML file.", autocompletion=complete_profile),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set one value; may be repeated.", autocompletion=complete_key),
    ] = None,
    run_folder: Annotated[
        Path | None, typer.Option("--run-folder", help="Folder of the new run; default: one below runs/.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with a run that stopped.", autocompletion=complete_run)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print and write the plan; start nothing.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="With --dry-run: file the plan is written to; default: one in runs/.")
    ] = None,
) -> None:
    """Train a student from live conversations, or show what such a run would do."""
    from openclaw_core.run.resolve import resolve_run

    resolved, folder = resolve_run(profile, overrides or [], resume)
    _check_flags(dry_run, output, run_folder, resume)
    from openclaw_core.run.plan import make_plan

    plan = make_plan(resolved)
    if dry_run:
        _show(plan, output)
        return
    _launch(resolved, plan, run_folder, folder)


def _check_flags(dry_run: bool, output: Path | None, run_folder: Path | None, resume: str | None) -> None:
    from openclaw_core.errors import UsageError

    if output is not None and not dry_run:
        raise UsageError("--output goes with --dry-run.", "A real run writes plan.json into its run folder.")
    if run_folder is not None and resume is not None:
        raise UsageError("--run-folder and --resume exclude each other.", "A resumed run stays in its folder.")


def _show(plan: Plan, output: Path | None) -> None:
    from openclaw_cli.output import to_json
    from openclaw_cli.plan_text import plan_text
    from openclaw_core.files import write_atomic

    out = active()
    body = plan.to_dict()
    path = output or (Path("runs") / f"plan-{plan.profile}.json" if out.human else None)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, to_json(body))
    for what, remedy in plan.warnings:
        out.warn(what, remedy)
    out.data(body, lambda console: plan_text(plan, console), quiet=plan.objective)
    if path is not None:
        out.note(f"Plan written to {path}.")


def _launch(resolved: Resolved, plan: Plan, run_folder: Path | None, resume: Path | None) -> None:
    from openclaw_core.run.preflight import preflight

    preflight(resolved.config, plan)
    out = active()
    for what, remedy in plan.warnings:
        out.warn(what, remedy)
    from openclaw_cli.live import watching
    from openclaw_core.run import driver
    from openclaw_core.run.report import report_record, report_text

    with watching(out) as watcher:
        report = driver.launch(resolved, plan, run_folder=run_folder, resume=resume, watcher=watcher)
    out.data(report_record(report), report_text(report), quiet=report.folder)
