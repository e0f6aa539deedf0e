"""The plan of a run: who runs where, how a batch is cut, what is optimised, what it needs. Pure and without torch.

One plan feeds `--dry-run`, `validate` and the real run, so that it can't lie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from openclaw_core.config.checks import check
from openclaw_core.config.load import Resolved
from openclaw_core.config.schema import Config
from openclaw_core.errors import UsageFindings
from openclaw_core.models.architecture import Architecture

from . import sentences
from .layout import ROLES, Process, Shape, device_ids, idle_roles, place, shape_of
from .memory import BYTES, GIB, Memory, Split, actor_memory, engine_memory, teacher_memory
from .nearest import as_settings, nearest_partition, proposal
from .pair_checks import pair_findings
from .partition_rules import partition_findings
from .sources import architecture_findings, architectures_of, missing_sources, model_name, model_text

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
    context_parallel: int = 1
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
    violation, of rules between keys, of the pair of models and of the partition alike, and the nearest legal partition.
    """
    config = resolved.config
    archs, unread = (dict(architectures), []) if architectures is not None else architectures_of(config)
    idle = idle_roles(config)
    shapes = {role: shape_of(getattr(config.partition, role)) for role in ROLES if role not in idle}
    of_role = {role: archs.get(model_name(role, config)) for role in ROLES}
    missing, misfits = missing_sources(config), unread + architecture_findings(config, archs)
    # Of models that are missing or unfit by themselves, a comparison would only say the same again.
    problems, doubts = ([], []) if missing or misfits else pair_findings(config)
    found = check(config) + misfits + problems
    partition = partition_findings(shapes, config, of_role)
    placed = None if partition else place(shapes, config.partition.nodes, device_ids(config.partition))
    nearest = None
    if partition:
        chosen = nearest_partition(shapes, config, of_role)
        nearest = None if chosen is None else as_settings(shapes, chosen)
        partition.append(proposal(nearest))
    if found or partition or placed is None:
        raise IllegalPlan(f"The plan of profile {resolved.profile} can't be followed:", found + partition, nearest)
    processes, free = placed

    def planned(role: str, config: Config) -> RolePlan:
        return _role_plan(role, shapes.get(role), processes.get(role, ()), config, of_role[role], idle.get(role))

    roles = {role: planned(role, config) for role in ROLES}
    warnings = [
        *resolved.warnings,
        *_memory_warnings(roles, config, planned("actor", _in_chunks(config)).memory),
        *missing,
        *doubts,
    ]
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


def batch_plan(config: Config, data_parallel: int) -> BatchPlan:
    """How a batch of samples is shared by the data parallel ranks and cut by the token budget."""
    train, longest = config.train, config.rollout.context_length
    budget = train.max_tokens_per_device * config.partition.actor.context_parallel
    share = -(-train.batch_size // data_parallel)
    at_once = max(budget // longest, 1)
    return BatchPlan(
        samples=train.batch_size,
        data_parallel=data_parallel,
        samples_per_rank=train.batch_size / data_parallel,
        token_budget=budget,
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
    model = model_text(role, config)
    if shape is None or idle is not None:
        return RolePlan(role, model, 0, (), idle=idle)
    if role in ("rollout", "judge"):
        width = BYTES[config.train.dtype if role == "rollout" else "bf16"]
        is_model = role == "rollout" or config.judge.kind == "engine"
        memory = engine_memory(arch, shape.unit, config, width) if arch is not None and is_model else None
        return RolePlan(role, model, shape.devices, processes, shape.unit, engines=shape.data, memory=memory)
    sequence = getattr(config.partition, role).sequence_parallel and shape.unit > 1
    split = Split(shape.unit, shape.pipeline, shape.data, sequence, shape.context)
    estimate = actor_memory if role == "actor" else teacher_memory
    return RolePlan(
        role,
        model,
        shape.devices,
        processes,
        tensor_parallel=shape.unit,
        pipeline_parallel=shape.pipeline,
        context_parallel=shape.context,
        data_parallel=shape.data,
        sequence_parallel=sequence,
        memory=estimate(arch, split, config) if arch is not None else None,
    )


def _in_chunks(config: Config) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update={"output_layer": "chunked"})})


def _memory_warnings(roles: dict[str, RolePlan], config: Config, in_chunks: Memory | None) -> list[Finding]:
    """in_chunks is the actor's memory with train.output_layer=chunked, which takes more where micro-batches have few rows."""
    limit = config.partition.device_memory_gib
    found: list[Finding] = []
    if config.partition.device == "cuda" and limit is not None:
        for role in roles.values():
            if role.memory is not None and role.memory.least_bytes > limit * GIB:
                need = role.memory.least_bytes / GIB
                what = f"The {role.name} needs about {need:.1f} GiB on each device, more than the {limit:g} GiB it has."
                remedy = "Raise its tensor parallel size or devices, or lower train.max_tokens_per_device."
                if role.name == "actor" and in_chunks is not None and in_chunks.least_bytes < role.memory.least_bytes:
                    remedy += " train.output_layer=chunked takes less, too."
                found.append((what, remedy))
    host = config.partition.host_memory_gib
    if host is not None:
        for node, need_bytes in _host_bytes(roles, config).items():
            if need_bytes > host * GIB:
                what = f"Node {node} needs about {need_bytes / GIB:.1f} GiB of main memory, more than the {host:g} GiB it has."
                found.append((what, "Spread the roles over more machines or ranks."))
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
