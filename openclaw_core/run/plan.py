"""The plan of a run: who runs where, how a batch is cut, what is optimised, what it needs. Pure and without torch.

One plan feeds `--dry-run`, `validate` and the real run, so that it can't lie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openclaw_core.config.checks import check
from openclaw_core.config.load import Resolved
from openclaw_core.config.schema import Config, ModelSource
from openclaw_core.errors import UsageFindings, UserError
from openclaw_core.models.architecture import Architecture, architecture_from_hf

from . import sentences
from .layout import ROLES, Process, Shape, device_ids, idle_roles, place, shape_of
from .memory import BYTES, GIB, Memory, Split, actor_memory, engine_memory, teacher_memory
from .nearest import as_settings, nearest_partition
from .partition_rules import violations

PLAN_VERSION = 1
Finding = tuple[str, str]


@dataclass(frozen=True)
class RolePlan:
    """One role. processes are its ranks (one device each) or engines; idle says why it has none."""

    name: str
    model: str
    devices: int
    processes: tuple[Process, ...]
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    data_parallel: int = 1
    sequence_parallel: bool = False
    engines: int = 0
    memory: Memory | None = None
    idle: str | None = None


@dataclass(frozen=True)
class BatchPlan:
    """Arithmetic of one optimizer step.

    Samples are shared by tokens, so samples_per_rank is a mean. Micro-batches are per rank: fewest when all samples fit
    into one, most when every sample has the longest length.
    """

    samples: int
    data_parallel: int
    samples_per_rank: float
    token_budget: int
    longest_sample: int
    fewest_micro_batches: int
    most_micro_batches: int
    steps: int
    samples_in_run: int
    epochs_per_batch: int = 1
    rest: str = "samples beyond the batch stay in the store, oldest first, for the next step"


@dataclass(frozen=True)
class Plan:
    """Everything a run will do before anything is started. origins and warnings come from the configuration and the plan."""

    profile: str
    description: str
    mode: sentences.Mode
    objective: str
    device: str
    nodes: int
    roles: dict[str, RolePlan]
    free: dict[int, tuple[int, ...]]
    batch: BatchPlan
    sampling: dict[str, Any]
    logprobs: dict[str, str]
    staleness: str
    host_bytes: dict[int, int]
    architectures: dict[str, Architecture | None]
    values: dict[str, Any]
    origins: dict[str, str]
    warnings: tuple[Finding, ...]
    notes: tuple[str, ...]
    version: int = PLAN_VERSION

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data, as plan.json and --json hold it."""
        plain = asdict(self)
        for name, role in self.roles.items():
            if role.memory is not None:
                plain["roles"][name]["memory"] |= {"device_bytes": role.memory.device_bytes, "host_bytes": role.memory.host_bytes}
        plain["configuration"] = {key: {"value": plain["values"][key], "origin": origin} for key, origin in self.origins.items()}
        plain["warnings"] = [{"what": what, "remedy": remedy} for what, remedy in self.warnings]
        for name in ("values", "origins"):
            del plain[name]
        return plain


class IllegalPlan(UsageFindings):
    """A configuration that no run can follow; nearest holds the settings of the nearest legal partition, if any."""

    def __init__(self, title: str, findings: list[Finding], nearest: dict[str, int] | None) -> None:
        super().__init__(title, findings)
        self.nearest = nearest


def make_plan(resolved: Resolved, architectures: Mapping[str, Architecture | None] | None = None) -> Plan:
    """The plan of a configuration.

    architectures ("student", "teacher", "judge") are read from it where they aren't given. Raises IllegalPlan with every
    violation, of rules between keys and of the partition alike, and the nearest legal partition.
    """
    config = resolved.config
    archs = dict(architectures) if architectures is not None else architectures_of(config)
    idle = idle_roles(config)
    shapes = {role: shape_of(getattr(config.partition, role)) for role in ROLES if role not in idle}
    of_role = {role: archs.get(model_name(role, config)) for role in ROLES}
    found = check(config) + _architecture_findings(config, archs)
    partition = _partition_findings(shapes, config, of_role)
    placed = None if partition else place(shapes, config.partition.nodes, device_ids(config.partition))
    nearest = None
    if partition:
        nearest = _nearest(shapes, config, of_role)
        partition.append(_proposal(nearest))
    if found or partition or placed is None:
        raise IllegalPlan(f"The plan of profile {resolved.profile} can't be followed:", found + partition, nearest)
    processes, free = placed
    roles = {
        role: _role_plan(role, shapes.get(role), processes.get(role, ()), config, of_role[role], idle.get(role)) for role in ROLES
    }
    warnings = [*resolved.warnings, *_memory_warnings(roles, config), *missing_sources(config)]
    return Plan(
        profile=resolved.profile,
        description=config.description,
        mode=sentences.mode_of(config),
        objective=sentences.objective(config),
        device=config.partition.device,
        nodes=config.partition.nodes,
        roles=roles,
        free=free,
        batch=batch_plan(config, shapes["actor"].data),
        sampling=sampling(resolved),
        logprobs=sentences.logprob_sources(config),
        staleness=sentences.staleness(config),
        host_bytes=_host_bytes(roles, config),
        architectures=archs,
        values=resolved.values(),
        origins=resolved.origins,
        warnings=tuple(warnings),
        notes=tuple(_notes(config, idle, free)),
    )


def model_name(role: str, config: Config) -> str:
    """Which model a role runs: student, teacher or judge; teacher and judge fall back to the student's."""
    if role == "teacher" and config.teacher is not None:
        return "teacher"
    if role == "judge" and (config.judge.kind != "engine" or config.judge.model is not None):
        return "judge"
    return "student"


def architectures_of(config: Config) -> dict[str, Architecture | None]:
    """The architecture of each model: from its folder where that is there, else from the facts of the configuration."""
    archs = {"student": architecture_of(config.student)}
    archs["teacher"] = architecture_of(config.teacher) if config.teacher is not None else archs["student"]
    if config.judge.kind == "engine":
        archs["judge"] = architecture_of(ModelSource(hf=config.judge.model)) if config.judge.model else archs["student"]
    return archs


def architecture_of(source: ModelSource) -> Architecture | None:
    """From config.json of source.hf where the folder is there, else from source.architecture, else None."""
    if source.hf is not None and Path(source.hf, "config.json").is_file():
        return architecture_from_hf(source.hf)
    return stated_architecture(source)


def stated_architecture(source: ModelSource) -> Architecture | None:
    """The facts that the configuration states, as an Architecture."""
    if source.architecture is None:
        return None
    facts = source.architecture.model_dump()
    return Architecture(model_type=facts["family"], dtype="bfloat16", **facts)


def batch_plan(config: Config, data_parallel: int) -> BatchPlan:
    """How a batch of samples is shared by the data parallel ranks and cut by the token budget."""
    train, longest = config.train, config.rollout.context_length
    share = -(-train.batch_size // data_parallel)
    at_once = max(train.max_tokens_per_device // longest, 1)
    return BatchPlan(
        samples=train.batch_size,
        data_parallel=data_parallel,
        samples_per_rank=train.batch_size / data_parallel,
        token_budget=train.max_tokens_per_device,
        longest_sample=longest,
        fewest_micro_batches=1,
        most_micro_batches=math.ceil(share / at_once),
        steps=train.steps,
        samples_in_run=train.steps * train.batch_size,
    )


def sampling(resolved: Resolved) -> dict[str, Any]:
    """The effective sampling parameters of replies and where each comes from; a model folder's defaults are not read."""
    rollout = resolved.config.rollout
    names = ("temperature", "top_p", "top_k", "max_response_tokens", "context_length", "thinking")
    parameters = {name: {"value": getattr(rollout, name), "origin": resolved.origins[f"rollout.{name}"]} for name in names}
    neutral = rollout.top_p == 1 and rollout.top_k == -1
    return {"parameters": parameters, "filters": "none" if neutral else "log-probs of the engine follow top_p and top_k"}


def _role_plan(
    role: str, shape: Shape | None, processes: tuple[Process, ...], config: Config, arch: Architecture | None, idle: str | None
) -> RolePlan:
    model = _model_text(role, config)
    if shape is None or idle is not None:
        return RolePlan(role, model, 0, (), idle=idle)
    if role in ("rollout", "judge"):
        width = BYTES[config.train.dtype if role == "rollout" else "bf16"]
        is_model = role == "rollout" or config.judge.kind == "engine"
        memory = engine_memory(arch, shape.unit, config, width) if arch is not None and is_model else None
        return RolePlan(role, model, shape.devices, processes, shape.unit, engines=shape.data, memory=memory)
    sequence = getattr(config.partition, role).sequence_parallel and shape.unit > 1
    split = Split(shape.unit, shape.pipeline, shape.data, sequence)
    estimate = actor_memory if role == "actor" else teacher_memory
    return RolePlan(
        role,
        model,
        shape.devices,
        processes,
        tensor_parallel=shape.unit,
        pipeline_parallel=shape.pipeline,
        data_parallel=shape.data,
        sequence_parallel=sequence,
        memory=estimate(arch, split, config) if arch is not None else None,
    )


def _model_text(role: str, config: Config) -> str:
    if role == "judge" and config.judge.kind == "scripted":
        return "scripted rules"
    name = model_name(role, config)
    if name == "judge":
        return config.judge.model or "elsewhere"
    source = config.teacher if name == "teacher" and config.teacher is not None else config.student
    facts = source.architecture
    shown = source.load or source.hf or (f"{facts.family}, {facts.layers} layers of {facts.hidden}" if facts else "not given")
    return shown if name == role or role in ("actor", "rollout") else f"{shown} (the student's starting weights)"


def _partition_findings(shapes: dict[str, Shape], config: Config, archs: dict[str, Architecture | None]) -> list[Finding]:
    partition, ids = config.partition, device_ids(config.partition)
    found = [entry for role, shape in shapes.items() for entry in violations(role, shape, config, archs[role])]
    beyond = [device for device in ids if not 0 <= device < partition.devices_per_node]
    if beyond:
        names, last = ", ".join(map(str, beyond)), partition.devices_per_node - 1
        what = f"partition.allowed_devices names {names}, but a machine has devices 0 to {last}."
        found.append((what, "Correct it, or partition.devices_per_node."))
    total, room = sum(shape.devices for shape in shapes.values()), partition.nodes * len(ids)
    if total > room:
        parts = " + ".join(f"{role} {shape.devices}" for role, shape in shapes.items())
        machines = f"{partition.nodes} machine{'s' if partition.nodes > 1 else ''} x {len(ids)} allowed devices"
        found.append(
            (
                f"The roles ask for {total} devices ({parts}), but there are {room} ({machines}).",
                f"Take some away, or {_allow_more(config, total)}.",
            )
        )
    elif not found and place(shapes, partition.nodes, ids) is None:
        units = ", ".join(f"{role} in units of {shape.unit}" for role, shape in shapes.items())
        found.append((f"The devices suffice, but not whole on single machines: {units}.", "Use smaller units."))
    return found


def _allow_more(config: Config, total: int) -> str:
    if config.partition.device == "cpu":
        return f"set partition.devices_per_node={-(-total // config.partition.nodes)}"
    return "allow more"


def _nearest(shapes: dict[str, Shape], config: Config, archs: dict[str, Architecture | None]) -> dict[str, int] | None:
    chosen = nearest_partition(shapes, config, archs)
    return None if chosen is None else as_settings(shapes, chosen)


def _proposal(nearest: dict[str, int] | None) -> Finding:
    if nearest is None:
        return (
            "No legal partition of these roles was found on these machines.",
            "Allow more devices, or set loss.w_opd=0 or judge.kind=openai.",
        )
    settings = " ".join(f"--set {key}={value}" for key, value in nearest.items())
    return ("The nearest legal partition:", settings or "the one given, once the allowed devices are corrected.")


def _architecture_findings(config: Config, archs: Mapping[str, Architecture | None]) -> list[Finding]:
    found: list[Finding] = []
    for name in ("student", "teacher"):
        arch = archs.get(name)
        if arch is None or (name == "teacher" and config.teacher is None):
            continue
        if config.rollout.context_length > arch.max_position and arch.rope_scaling is None:
            context = config.rollout.context_length
            what = f"rollout.context_length is {context}, but the {name} was made for {arch.max_position} positions."
            found.append((what, f"Set it to at most {arch.max_position}."))
        source = getattr(config, name)
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


def _memory_warnings(roles: dict[str, RolePlan], config: Config) -> list[Finding]:
    limit = config.partition.device_memory_gib
    found: list[Finding] = []
    if config.partition.device == "cuda" and limit is not None:
        for role in roles.values():
            if role.memory is not None and role.memory.least_bytes > limit * GIB:
                need = role.memory.least_bytes / GIB
                what = f"The {role.name} needs about {need:.1f} GiB on each device, more than the {limit:g} GiB it has."
                found.append((what, "Raise its tensor parallel size or devices, or lower train.max_tokens_per_device."))
    host = config.partition.host_memory_gib
    if host is not None:
        for node, need_bytes in _host_bytes(roles, config).items():
            if need_bytes > host * GIB:
                what = f"Node {node} needs about {need_bytes / GIB:.1f} GiB of main memory, more than the {host:g} GiB it has."
                found.append((what, "Spread the roles over more machines or ranks."))
    return found


def missing_sources(config: Config) -> list[Finding]:
    """Models and folders that a real run needs and can't find."""
    found: list[Finding] = []
    sources = {"student": config.student} | ({"teacher": config.teacher} if config.teacher and config.loss.w_opd > 0 else {})
    for name, source in sources.items():
        if source.hf is None:
            found.append((f"{name}.hf is not given; a real run needs it.", f"Use --set {name}.hf=FOLDER."))
        for key in ("hf", "load"):
            path = getattr(source, key)
            if path is not None and not Path(path).is_dir():
                found.append((f"{name}.{key} is {path}, which is no folder; a real run needs it.", "Correct the path."))
    judge = config.judge
    if judge.kind == "engine" and judge.model is not None and not Path(judge.model).is_dir():
        found.append((f"judge.model is {judge.model}, which is no folder; a real run needs it.", "Correct the path."))
    return found


def _host_bytes(roles: dict[str, RolePlan], config: Config) -> dict[int, int]:
    """Main memory per machine; on the CPU a device's memory is main memory too."""
    total, on_cpu = dict.fromkeys(range(config.partition.nodes), 0), config.partition.device == "cpu"
    for role in roles.values():
        for process in role.processes:
            if role.memory is not None:
                total[process.node] += role.memory.host_bytes + (role.memory.device_bytes if on_cpu else 0)
    return total


def _notes(config: Config, idle: dict[str, str], free: dict[int, tuple[int, ...]]) -> list[str]:
    notes = []
    for role, reason in idle.items():
        held = getattr(config.partition, role).devices
        given = f"; its {held} device{'s are' if held > 1 else ' is'} given back" if held else ""
        notes.append(f"No {role}: {reason}{given}.")
    left = [f"node {node}: {', '.join(map(str, ids))}" for node, ids in free.items() if ids]
    if left and config.partition.device == "cuda":
        notes.append(f"Devices without a role: {'; '.join(left)}.")
    if config.teacher is None and "teacher" not in idle:
        notes.append("The teacher is the student's starting weights.")
    return notes


def read_plan(path: Path) -> dict[str, Any]:
    """A plan that was written, as plain data; raises UserError where it can't be read."""
    import json

    try:
        plan = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} can't be read as a plan: {error}.", "Write it again with --dry-run --output.") from None
    if not isinstance(plan, dict) or plan.get("version") != PLAN_VERSION:
        raise UserError(f"{path} is no plan of version {PLAN_VERSION}.", "Write it again with --dry-run --output.")
    return plan
