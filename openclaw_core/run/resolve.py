"""The configuration of a new run, or of one that goes on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from openclaw_core.config.load import Resolved, load_profile
from openclaw_core.config.sources import profile_names
from openclaw_core.config.yaml_text import shown
from openclaw_core.errors import UsageError, UsageFindings, UserError

from .runs import open_run

FIXED = ("student", "teacher", "train.dtype", "train.seed", "users.preference", "partition.device")


def resolve_run(
    profile: str | None, overrides: Sequence[str] = (), resume: str | None = None, env: Mapping[str, str] | None = None
) -> tuple[Resolved, Path | None]:
    """The configuration and, for a run that goes on, its folder. Rules between keys are left to make_plan.

    Raises UsageError where neither or both are given, and UsageFindings where a resumed run would change what it can't.
    """
    env = os.environ if env is None else env
    if profile is not None and resume is not None:
        raise UsageError(
            "--profile and --resume exclude each other.", "A resumed run keeps its configuration; change it with --set."
        )
    if resume is not None:
        return _resumed(resume, overrides, env)
    if profile is None:
        raise UsageError("No profile is given.", f"Use --profile with one of {', '.join(profile_names())}, or a YAML file.")
    return load_profile(profile, overrides, env, check=False), None


def _resumed(resume: str, overrides: Sequence[str], env: Mapping[str, str]) -> tuple[Resolved, Path]:
    run = open_run(resume)
    if not run.config.is_file():
        raise UserError(f"The run {run.path} has no config.yaml, so it can't go on.", "Start a new run.")
    before = load_profile(run.config, (), {}, check=False).values()
    resolved = replace(load_profile(run.config, overrides, env, check=False), profile=run.name)
    changed = [key for key, value in resolved.values().items() if _fixed(key) and before.get(key) != value]
    if changed:
        findings = [
            (f"{key} was {shown(before.get(key))} and would become {shown(resolved.values()[key])}.", "") for key in changed
        ]
        raise UsageFindings(f"The run {run.name} can't go on with this configuration; start a new run to change it:", findings)
    return resolved, run.path


def _fixed(key: str) -> bool:
    """Whether a run can't change the key on its way."""
    return any(key == name or key.startswith(f"{name}.") for name in FIXED)
