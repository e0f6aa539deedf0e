"""Which model each role runs, what it is, and whether its folders are there. Reads config.json at most, no weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path

from openclaw_core.checkpoint.sniff import carried_config, sniff
from openclaw_core.config.schema import Config, ModelSource
from openclaw_core.errors import Findings, UserError
from openclaw_core.models.architecture import (
    Architecture,
    UnknownModelType,
    architecture_from_hf,
    architecture_from_torch_dist,
)
from openclaw_core.models.bridge_checks import bridge_findings
from openclaw_core.models.buildable import TRAIN_ONE, buildable
from openclaw_core.models.hf_config import read_config

Finding = tuple[str, str]


def model_name(role: str, config: Config) -> str:
    """Which model a role runs: student, teacher or judge; teacher and judge fall back to the student's."""
    if role == "teacher" and config.teacher is not None:
        return "teacher"
    if role == "judge" and (config.judge.kind != "engine" or config.judge.model is not None):
        return "judge"
    return "student"


def architectures_of(config: Config) -> tuple[dict[str, Architecture | None], list[Finding]]:
    """The architecture of each model (from its folder where that is there, else from the facts of the configuration), and a
    finding with the model's key for each that can't be read.

    Of a judge that an engine alone has to know, it is None.
    """
    found: list[Finding] = []
    archs = {"student": _read("student", config.student, found)}
    archs["teacher"] = _read("teacher", config.teacher, found) if config.teacher is not None else archs["student"]
    judge = config.judge
    if judge.kind == "engine":
        archs["judge"] = _read("judge", ModelSource(hf=judge.model), found) if judge.model else archs["student"]
    return archs, found


def _read(name: str, source: ModelSource, found: list[Finding]) -> Architecture | None:
    key = "judge.model" if name == "judge" else f"{name}.hf" if source.hf is not None else f"{name}.load"
    try:
        return architecture_of(source)
    except UnknownModelType as error:
        if name != "judge":
            found.append((f"{key}: {error.what}", f"{error.reason} {TRAIN_ONE}".lstrip()))
    except Findings as error:
        found += [(f"{key}: {error.what.rstrip(':.')}: {what}", remedy) for what, remedy in error.findings]
    except UserError as error:
        found.append((f"{key}: {error.what}", error.remedy))
    return None


def architecture_of(source: ModelSource) -> Architecture | None:
    """From config.json of source.hf where the folder is there, else from the checkpoint itself, else from source.architecture,
    else None."""
    if source.hf is not None and Path(source.hf, "config.json").is_file():
        return architecture_from_hf(source.hf)
    if source.hf is None and source.load is not None and Path(source.load).is_dir():
        return architecture_from_torch_dist(source.load)
    return stated_architecture(source)


def teacher_architecture(config: Config) -> Architecture:
    """The teacher's, from its own folder or checkpoint; nothing comes from the student unless it is the student itself."""
    found = architecture_of(config.teacher or config.student)
    assert found is not None, "missing_sources() refuses such a run"
    return found


def stated_architecture(source: ModelSource) -> Architecture | None:
    """The facts that the configuration states, as an Architecture."""
    if source.architecture is None:
        return None
    facts = source.architecture.model_dump()
    return Architecture(model_type=facts["family"], dtype="bfloat16", **facts)


def model_text(role: str, config: Config) -> str:
    """The model of a role in words, for people."""
    if role == "judge" and config.judge.kind == "scripted":
        return "scripted rules"
    name = model_name(role, config)
    if name == "judge":
        return config.judge.model or "elsewhere"
    source = config.teacher if name == "teacher" and config.teacher is not None else config.student
    facts = source.architecture
    shown = source.load or source.hf or (f"{facts.family}, {facts.layers} layers of {facts.hidden}" if facts else "not given")
    return shown if name == role or role in ("actor", "rollout") else f"{shown} (the student's starting weights)"


def missing_sources(config: Config) -> list[Finding]:
    """Models and folders that a real run needs and can't find."""
    found: list[Finding] = []
    sources = {"student": config.student} | ({"teacher": config.teacher} if config.teacher and config.loss.w_opd > 0 else {})
    for name, source in sources.items():
        if source.hf is None and (name == "student" or source.load is None):
            found.append((f"{name}.hf is not given; a real run needs it.", f"Use --set {name}.hf=FOLDER."))
        for key in ("hf", "load"):
            path = getattr(source, key)
            if path is not None:
                found += _not_a_model(f"{name}.{key}", path, "hf" if key == "hf" else "torch_dist")
    judge = config.judge
    if judge.kind == "engine" and judge.model is not None and not Path(judge.model).is_dir():
        found.append((f"judge.model is {judge.model}, which is no folder; a real run needs it.", "Correct the path."))
    return found + _bridge(config)


def _bridge(config: Config) -> list[Finding]:
    """What speaks against the chosen loader."""
    if config.train.loader == "own":
        return []
    folder = Path(config.student.hf or "")
    stated = read_config(folder) if (folder / "config.json").is_file() else {}
    return bridge_findings(stated, recompute=config.train.recompute, load=config.student.load)


def _not_a_model(key: str, path: str, kind: str) -> list[Finding]:
    """A finding where path is no folder, or holds something else than a checkpoint of this kind."""
    if not Path(path).is_dir():
        return [(f"{key} is {path}, which is no folder; a real run needs it.", "Correct the path.")]
    try:
        held = sniff(path).kind
    except UserError as error:
        return [(f"{key}: {error.what}", error.remedy)]
    if held == kind:
        return []
    fitting = f"{key.rpartition('.')[0]}.{'hf' if held == 'hf' else 'load'}"
    return [(f"{key} is {path}, which holds a {held} checkpoint.", f"Give it as {fitting}.")]


def _another_model(name: str, source: ModelSource, arch: Architecture) -> list[Finding]:
    """A finding where source.load carries the config of another model than source.hf, whose architecture arch is."""
    if source.load is None or source.hf is None or not Path(source.hf, "config.json").is_file():
        return []
    try:
        carried = carried_config(sniff(source.load))
    except UserError:  # missing_sources tells
        return []
    if carried is None:
        return []
    loaded = replace(architecture_from_hf(carried), dtype=arch.dtype)  # conversions cast
    names = [item.name for item in fields(arch) if getattr(loaded, item.name) != getattr(arch, item.name)]
    if not names:
        return []
    differ = "; ".join(f"{field} {getattr(loaded, field)}, not {getattr(arch, field)}" for field in names)
    what = f"{name}.load is {source.load}, which holds another model than {name}.hf, {source.hf}: {differ}."
    return [(what, f"Name the folder it was converted from as {name}.hf.")]


def architecture_findings(config: Config, archs: Mapping[str, Architecture | None]) -> list[Finding]:
    """Where the configuration asks for what a model isn't made for, or states facts that its folder contradicts."""
    found: list[Finding] = []
    for name in ("student", "teacher"):
        arch = archs.get(name)
        if arch is None or (name == "teacher" and config.teacher is None):
            continue
        if config.rollout.context_length > arch.max_position and arch.rope_scaling is None:
            context = config.rollout.context_length
            what = f"rollout.context_length is {context}, but the {name} was made for {arch.max_position} positions."
            found.append((what, f"Set it to at most {arch.max_position}."))
        if name == "student" or config.loss.w_opd > 0:
            found += [(f"The {name} can't be built. {what}", remedy) for what, remedy in buildable(arch)]
        source = getattr(config, name)
        found += _another_model(name, source, arch)
        stated = stated_architecture(source)
        if stated is not None and stated != arch:
            names = [field for field in type(source.architecture).model_fields if getattr(stated, field) != getattr(arch, field)]
            differ = "; ".join(f"{field} {getattr(stated, field)} stated, {getattr(arch, field)} read" for field in names)
            if differ:
                found.append(
                    (
                        f"{name}.architecture contradicts {source.hf}: {differ}.",
                        f"Set {name}.architecture=null to trust the folder.",
                    )
                )
    student, teacher = archs.get("student"), archs.get("teacher")
    if (
        student is not None
        and teacher is not None
        and config.loss.w_opd > 0
        and config.loss.k > min(student.vocab, teacher.vocab)
    ):
        found.append((f"loss.k is {config.loss.k}, more than the vocabulary holds.", "Set it lower."))
    return found
