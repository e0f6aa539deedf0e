"""What a partition must keep to, role by role. Pure: the plan, the search for the nearest legal one and tests ask here."""

from __future__ import annotations

from openclaw_core.config.schema import Config
from openclaw_core.models.architecture import Architecture

from .layout import Shape, device_ids, place

Finding = tuple[str, str]


def violations(role: str, shape: Shape, config: Config, arch: Architecture | None) -> list[Finding]:
    """Everything that is wrong with one role's shape taken by itself."""
    return (
        _megatron_violations(role, shape, config, arch)
        if role in ("actor", "teacher")
        else _engine_violations(role, shape, config, arch)
    )


def _megatron_violations(role: str, shape: Shape, config: Config, arch: Architecture | None) -> list[Finding]:
    key, per_node = f"partition.{role}", len(device_ids(config.partition))
    found: list[Finding] = []
    if shape.devices == 0:
        return [
            (
                f"{key}.devices is 0, but the {role} has work to do.",
                "Give it at least 1." + (" Or set loss.w_opd=0." if role == "teacher" else ""),
            )
        ]
    if role == "teacher" and shape.context > 1:
        what = f"{key}.context_parallel is {shape.context}; the teacher scores whole sequences, without context parallelism."
        found.append((what, "Set it to 1, and use tensor_parallel."))
    cut = shape.unit * shape.pipeline * shape.context
    if shape.devices % cut:
        sizes = f"tensor x pipeline x context parallel = {shape.unit} x {shape.pipeline} x {shape.context} = {cut}"
        found.append(
            (f"{key}.devices is {shape.devices}, no multiple of {sizes}.", f"Use a multiple of {cut}, or smaller parallel sizes.")
        )
    elif role == "actor" and shape.data > config.train.batch_size:
        what = (
            f"The actor has {shape.data} data parallel ranks, but train.batch_size is {config.train.batch_size}: some would idle."
        )
        found.append((what, "Use fewer partition.actor.devices or a larger batch."))
    if shape.unit > per_node:
        found.append(
            (
                f"{key}.tensor_parallel is {shape.unit}, more than the {per_node} devices of a machine.",
                "Its ranks must share a machine.",
            )
        )
    if arch is not None:
        for name, value in (("heads", arch.heads), ("key-value heads", arch.kv_heads), ("MLP columns", arch.ffn)):
            if value % shape.unit:
                found.append(
                    (
                        f"{key}.tensor_parallel is {shape.unit}, which doesn't divide the {value} {name}.",
                        f"Use a divisor of {value}.",
                    )
                )
        if arch.layers % shape.pipeline:
            what = f"{key}.pipeline_parallel is {shape.pipeline}, which doesn't divide the {arch.layers} layers."
            found.append((what, f"Use a divisor of {arch.layers}."))
    return found


def _engine_violations(role: str, shape: Shape, config: Config, arch: Architecture | None) -> list[Finding]:
    key, per_node = f"partition.{role}", len(device_ids(config.partition))
    found: list[Finding] = []
    if shape.devices == 0:
        if role == "judge" and config.judge.kind == "scripted":
            return []
        remedy = "Give it at least 1." + (" Or set judge.kind=openai." if role == "judge" else "")
        return [(f"{key}.devices is 0, but the {role} has work to do.", remedy)]
    if shape.devices % shape.unit:
        what = f"{key}.devices is {shape.devices}, no multiple of devices_per_engine = {shape.unit}."
        found.append((what, f"Use a multiple of {shape.unit}, or smaller engines."))
    if shape.unit > per_node:
        what = f"{key}.devices_per_engine is {shape.unit}, more than the {per_node} devices of a machine."
        found.append((what, "An engine must stay on one machine."))
    alone = (role == "rollout" and config.rollout.engine == "embedded") or (role == "judge" and config.judge.kind == "scripted")
    if alone and shape.unit > 1:
        found.append((f"{key}.devices_per_engine is {shape.unit}, but this engine runs on one device.", "Set it to 1."))
    if arch is not None:
        copied = shape.unit > arch.kv_heads and shape.unit % arch.kv_heads == 0
        if arch.heads % shape.unit or (arch.kv_heads % shape.unit and not copied):
            what = f"{key}.devices_per_engine is {shape.unit}, but there are {arch.heads} heads, {arch.kv_heads} key-value heads."
            found.append((what, f"Use a divisor of {arch.kv_heads}."))
    return found


def partition_findings(shapes: dict[str, Shape], config: Config, archs: dict[str, Architecture | None]) -> list[Finding]:
    """Everything that is wrong with the shapes: each by itself, their sum, and whether they fit whole on single machines."""
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
