"""The legal partition that is nearest to one that isn't. Deterministic: equal distances go by the order of roles."""

from __future__ import annotations

import heapq
import math
from itertools import product

from openclaw_core.config.schema import Config
from openclaw_core.models.architecture import Architecture

from .layout import Shape, device_ids, place
from .partition_rules import violations

MOST_TRIES = 20_000
WINDOW = 128


def nearest_partition(shapes: dict[str, Shape], config: Config, archs: dict[str, Architecture | None]) -> dict[str, Shape] | None:
    """Shapes that violate nothing and fit the machines, at the least distance from shapes; None where none was found.

    Distance: one per device added or taken away, one per halving or doubling of a unit, of pipeline stages or of context
    ranks, half per role that changes.
    """
    ids, nodes = device_ids(config.partition), config.partition.nodes
    roles = list(shapes)
    options = [_options(role, shapes[role], config, archs.get(role), nodes * len(ids)) for role in roles]
    if not all(options):
        return None
    start = (0,) * len(roles)
    heap = [(sum(entry[0][0] for entry in options), start)]
    seen = {start}
    for _ in range(MOST_TRIES):
        if not heap:
            return None
        _, picks = heapq.heappop(heap)
        chosen = {role: options[i][pick][1] for i, (role, pick) in enumerate(zip(roles, picks, strict=True))}
        if sum(shape.devices for shape in chosen.values()) <= nodes * len(ids) and place(chosen, nodes, ids) is not None:
            return chosen
        for i, pick in enumerate(picks):
            longer = (*picks[:i], pick + 1, *picks[i + 1 :])
            if pick + 1 < len(options[i]) and longer not in seen:
                seen.add(longer)
                heapq.heappush(heap, (sum(options[j][p][0] for j, p in enumerate(longer)), longer))
    return None


def _options(role: str, shape: Shape, config: Config, arch: Architecture | None, most: int) -> list[tuple[float, Shape]]:
    """Legal shapes of one role by distance, one per number of devices; only numbers near the asked one, and small ones."""
    per_node = len(device_ids(config.partition))
    units = sorted({shape.unit, *(2**i for i in range(10) if 2**i <= per_node)})
    best: dict[int, tuple[float, Shape]] = {}
    near = set(range(WINDOW)) | set(range(shape.devices - WINDOW, shape.devices + WINDOW))
    for devices in sorted(entry for entry in near if 0 <= entry <= most):
        for unit in units:
            for pipeline, context in product(sorted({1, shape.pipeline}), sorted({1, shape.context})):
                option = Shape(devices, unit, pipeline, context)
                if violations(role, option, config, arch):
                    continue
                cost = _distance(shape, option)
                if devices not in best or cost < best[devices][0]:
                    best[devices] = (cost, option)
    return sorted(best.values(), key=lambda entry: (entry[0], -entry[1].devices))


def _distance(old: Shape, new: Shape) -> float:
    pairs = ((old.unit, new.unit), (old.pipeline, new.pipeline), (old.context, new.context))
    steps = sum(abs(math.log2(before / after)) for before, after in pairs)
    return abs(old.devices - new.devices) + steps + (0.5 if new != old else 0.0)


def as_settings(old: dict[str, Shape], new: dict[str, Shape]) -> dict[str, int]:
    """The configuration keys that differ, and their new values."""
    settings = {}
    for role, shape in new.items():
        megatron = role in ("actor", "teacher")
        names = {"devices": "devices", "unit": "tensor_parallel" if megatron else "devices_per_engine"}
        if megatron:
            names |= {"pipeline": "pipeline_parallel", "context": "context_parallel"}
        for attribute, key in names.items():
            value = getattr(shape, attribute)
            if value != getattr(old[role], attribute):
                settings[f"partition.{role}.{key}"] = value
    return settings


def proposal(nearest: dict[str, int] | None) -> tuple[str, str]:
    """The nearest settings as the last finding of a refusal."""
    if nearest is None:
        return (
            "No legal partition of these roles was found on these machines.",
            "Allow more devices, or set loss.w_opd=0 or judge.kind=openai.",
        )
    settings = " ".join(f"--set {key}={value}" for key, value in nearest.items())
    return ("The nearest legal partition:", settings or "the one given, once the allowed devices are corrected.")
