"""From a plan to a run that is ready to start: its folder, its checkpoints, and what is left of a run that goes on."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from openclaw_core.config.load import Resolved
from openclaw_core.config.schema import Config, ModelSource
from openclaw_core.files import write_atomic
from openclaw_core.models.architecture import architecture_from_hf, architecture_from_torch_dist
from openclaw_core.models.buildable import check_buildable
from openclaw_core.rollout.store import Store
from openclaw_core.run.fleet import Sources
from openclaw_core.run.plan import Plan
from openclaw_core.run.progress import Watcher
from openclaw_core.run.runfolder import RunFolder
from openclaw_core.run.runs import create_run, new_run_name
from openclaw_core.run.services import stop_survivors
from openclaw_core.track.jsonl import dumps

RUNS = Path("runs")
PACKAGES = ("openclaw-rl", "torch", "megatron-core", "ray", "transformers", "sglang")


@dataclass(frozen=True)
class Job:
    """A run that can start. first_step is the one after the checkpoint it goes on from."""

    run: RunFolder
    resolved: Resolved
    plan: Plan
    sources: Sources
    first_step: int


def open_folder(resolved: Resolved, run_folder: Path | None, resume: Path | None) -> RunFolder:
    """The folder of a new run, or of the one that goes on."""
    if resume is not None:
        return RunFolder(resume)
    name = run_folder.name if run_folder is not None else new_run_name(resolved.profile)
    return create_run(run_folder.parent if run_folder is not None else RUNS, name, steps=resolved.config.train.steps)


def end_survivors(run: RunFolder, watcher: Watcher) -> None:
    """Ends what a killed driver left behind, and nothing else."""
    for record in stop_survivors(run):
        watcher.note(f"Ended {record.role} (pid {record.pid}), left over from before.")


def prepare(resolved: Resolved, plan: Plan, run: RunFolder, saved: int | None, watcher: Watcher) -> Job:
    """Writes configuration and plan, converts checkpoints that are missing, and rolls the store back to the last save.

    saved is the step of that save (0: none) of a run that goes on, None for a new run.
    """
    config = resolved.config
    write_atomic(run.config, resolved.to_yaml())
    write_atomic(run.plan, dumps(plan.to_dict(), indent=2) + "\n")
    run.update(state="starting", reason="", steps=config.train.steps, versions=_versions(), facts=_facts(resolved, plan))
    student = _student(run, config, watcher)
    needs_own_teacher = config.teacher is not None and config.loss.w_opd > 0
    teacher = _as_it_is(config.teacher) if needs_own_teacher and config.teacher else student
    _check_architectures({student: config.student, teacher: config.teacher if teacher != student else config.student})
    checkpoint = run.checkpoint(saved) if saved else None
    if saved is not None:
        _roll_back(run, saved, watcher)
    return Job(run, resolved, plan, Sources(student, teacher, checkpoint), (saved or 0) + 1)


def _student(run: RunFolder, config: Config, watcher: Watcher) -> Path:
    """student.load, else the conversion of student.hf, made once per run; student.hf itself where another loader reads that."""
    source = config.student
    if source.load is not None:
        return Path(source.load)
    assert source.hf is not None
    if config.train.loader != "own":
        return Path(source.hf)
    from openclaw_core.checkpoint.convert import convert, plan_conversion
    from openclaw_core.checkpoint.verify import nonfinite_notes

    target = run.path / "models" / "student"
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        result = convert(plan_conversion(source.hf, target, to="torch_dist"))
        for said in nonfinite_notes(result.checks):
            watcher.note(said)
        watcher.note(f"Converted {source.hf} to torch_dist: {len(result.checks)} tensors verified in {result.seconds:.1f} s.")
    return target


def _as_it_is(source: ModelSource) -> Path:
    """The teacher is only read, at any parallel size, so its Hugging Face folder needs no conversion."""
    path = source.load or source.hf
    assert path is not None
    return Path(path)


def _check_architectures(sources: dict[Path, ModelSource | None]) -> None:
    """What a checkpoint says of itself in its several places must agree, and be something that the trainer builds."""
    from openclaw_core.checkpoint.agreement import check_trained
    from openclaw_core.checkpoint.sniff import carried_config, sniff

    for folder, source in sources.items():
        found, hf = sniff(folder), source.hf if source is not None else None
        if found.kind == "hf":
            check_buildable(architecture_from_hf(folder), folder)
        elif hf is None and carried_config(found) is None:
            # megatron's arguments are then the only place that states it.
            check_buildable(architecture_from_torch_dist(folder), folder)
        else:
            check_trained(folder, hf)


def _roll_back(run: RunFolder, step: int, watcher: Watcher) -> None:
    store = Store(run.store)
    try:
        back = store.rollback(step)
    finally:
        store.close()
    run.update(step=step, saved_step=step or None)
    watcher.note(
        f"Going on after step {step}: {back.untrained} samples trained later and {back.untaken} that were taken are ready again."
    )


def _facts(resolved: Resolved, plan: Plan) -> dict[str, object]:
    config = resolved.config
    facts: dict[str, object] = {"profile": resolved.profile, "objective": plan.objective, "student": config.student.hf}
    facts["proxy"] = None  # that of an earlier leg
    if config.users is not None:
        facts |= {"preference": config.users.preference, "target_rate": config.users.target_rate}
    return facts


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
