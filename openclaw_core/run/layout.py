"""Which process runs where: roles cut into units that must stay on one machine, placed by first fit. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from openclaw_core.config.schema import Config, EngineRole, MegatronRole, Partition

ROLES = ("actor", "rollout", "judge", "teacher")


@dataclass(frozen=True)
class Process:
    """One process of a role: a rank (one device), or an engine (its devices). Device ids are physical."""

    index: int
    node: int
    devices: tuple[int, ...]
    tensor_rank: int = 0
    pipeline_rank: int = 0
    data_rank: int = 0
    context_rank: int = 0


@dataclass(frozen=True)
class Shape:
    """How many devices a role has and how it cuts them: unit is the tensor parallel size, or an engine's devices."""

    devices: int
    unit: int
    pipeline: int = 1
    context: int = 1

    @property
    def data(self) -> int:
        """Data parallel size, or number of engines."""
        return self.devices // (self.unit * self.pipeline * self.context)


def shape_of(role: MegatronRole | EngineRole) -> Shape:
    """The shape that the configuration asks for."""
    if isinstance(role, MegatronRole):
        return Shape(role.devices, role.tensor_parallel, role.pipeline_parallel, role.context_parallel)
    return Shape(role.devices, role.devices_per_engine)


def device_ids(partition: Partition) -> tuple[int, ...]:
    """Physical ids of one machine that may be used."""
    return partition.allowed_devices if partition.allowed_devices is not None else tuple(range(partition.devices_per_node))


def idle_roles(config: Config) -> dict[str, str]:
    """Roles that have nothing to do under this configuration, and why; they hold no devices."""
    idle = {}
    if config.loss.w_opd == 0:
        idle["teacher"] = "loss.w_opd is 0: no OPD term, so no teacher"
    if config.judge.kind == "openai":
        idle["judge"] = "judge.kind is openai: the judge runs elsewhere"
    elif config.judge.kind == "scripted" and config.partition.device == "cuda":
        idle["judge"] = "judge.kind is scripted: it runs on the CPU"
    return idle


def place(
    shapes: dict[str, Shape], nodes: int, ids: Sequence[int]
) -> tuple[dict[str, tuple[Process, ...]], dict[int, tuple[int, ...]]] | None:
    """Processes of every role and the free ids of every node, or None where a unit finds no room.

    Units (tensor parallel groups, engines) stay on one machine and take its lowest free ids. Roles are placed in their
    order; where that fails, the largest units first.
    """
    orders = [list(shapes), sorted(shapes, key=lambda role: -shapes[role].unit)]
    for order in orders:
        free = {node: list(ids) for node in range(nodes)}
        placed = {role: _place_role(role, shapes[role], free) for role in order}
        if all(processes is not None for processes in placed.values()):
            return {role: placed[role] or () for role in shapes}, {node: tuple(left) for node, left in free.items()}
    return None


def _place_role(role: str, shape: Shape, free: dict[int, list[int]]) -> tuple[Process, ...] | None:
    processes: list[Process] = []
    is_engine = role in ("rollout", "judge")
    for unit in range(shape.devices // shape.unit):
        node = next((node for node, left in free.items() if len(left) >= shape.unit), None)
        if node is None:
            return None
        taken, free[node] = free[node][: shape.unit], free[node][shape.unit :]
        if is_engine:
            processes.append(Process(unit, node, tuple(taken)))
        else:
            rest, context_rank = divmod(unit, shape.context)
            pipeline_rank, data_rank = divmod(rest, shape.data)
            processes += [
                Process(unit * shape.unit + t, node, (device,), t, pipeline_rank, data_rank, context_rank)
                for t, device in enumerate(taken)
            ]
    return tuple(processes)
