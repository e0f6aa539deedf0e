"""A plan as people read it: the objective first, then who runs where, then numbers, then origins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .output import scalar_text, size_text, table

if TYPE_CHECKING:
    from rich.console import Console

    from openclaw_core.run.plan import Plan, RolePlan


def plan_text(plan: Plan, console: Console) -> None:
    """Prints the plan."""
    _lines(console, plan.profile, [plan.description] if plan.description else [])
    _lines(console, "Objective", [plan.objective])
    console.print(
        table(("role", "model", ">devices", "sizes", "node: devices"), [_role_row(role) for role in plan.roles.values()])
    )
    console.print(table(("role", ">per device", "of which", ">host per process"), _memory_rows(plan), title="Memory, estimated"))
    host = ", ".join(f"node {node} {size_text(need)}" for node, need in plan.host_bytes.items())
    batch = plan.batch
    _lines(
        console,
        "Batch",
        [
            f"{batch.samples} samples = {batch.data_parallel} data parallel x {batch.samples_per_rank:g} each, shared by tokens",
            f"{_range(batch.fewest_micro_batches, batch.most_micro_batches)} each, at most {batch.token_budget} tokens",
            f"{batch.steps} steps, {batch.samples_in_run} samples; {batch.rest}",
            plan.staleness,
        ],
    )
    parameters = plan.sampling["parameters"]
    _lines(console, "Sampling", [", ".join(f"{name} {entry['value']} ({entry['origin']})" for name, entry in parameters.items())])
    _lines(console, "Log-probs", [f"{name}: {source}" for name, source in plan.logprobs.items()])
    _lines(console, "Main memory", [host, *plan.notes])
    rows = [(key, scalar_text(plan.values[key]), origin) for key, origin in plan.origins.items()]
    console.print(table(("key", "value", "origin"), rows, title="Configuration"))


def _range(fewest: int, most: int) -> str:
    return f"{fewest} to {most} micro-batches" if most > fewest else f"{fewest} micro-batch{'es' if fewest > 1 else ''}"


def _lines(console: Console, title: str, lines: list[str]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    console.print(Text(title, style="bold"))
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))


def _role_row(role: RolePlan) -> tuple[object, ...]:
    if role.idle is not None or not role.processes:
        return (role.name, "none", 0, "", role.idle or "")
    places: dict[int, list[str]] = {}
    for process in role.processes:
        shown = "+".join(map(str, process.devices))
        places.setdefault(process.node, []).append(shown)
    where = "; ".join(f"node {node}: {', '.join(devices)}" for node, devices in places.items())
    return (role.name, role.model, role.devices, _sizes(role), where)


def _sizes(role: RolePlan) -> str:
    if role.engines:
        return f"{role.engines} engine{'s' if role.engines > 1 else ''} of {role.tensor_parallel}"
    sequence = " + sequence" if role.sequence_parallel else ""
    pipeline = f" x pipeline {role.pipeline_parallel}" if role.pipeline_parallel > 1 else ""
    context = f" x context {role.context_parallel}" if role.context_parallel > 1 else ""
    return f"tensor {role.tensor_parallel}{sequence}{pipeline}{context} x data {role.data_parallel}"


def _memory_rows(plan: Plan) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for role in plan.roles.values():
        if role.memory is None:
            continue
        parts = ", ".join(f"{part.name} {size_text(part.bytes)}" for part in role.memory.device)
        if role.memory.kv_tokens is not None:
            parts += f" ({role.memory.kv_tokens} tokens)"
        rows.append((role.name, size_text(role.memory.device_bytes), parts, size_text(role.memory.host_bytes)))
    return rows
