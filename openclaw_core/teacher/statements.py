"""Checks of what states a model: one rope base in all its places, and every other fact of its architecture alike."""

from __future__ import annotations

from openclaw_core.checkpoint.agreement import disagreements
from openclaw_core.checkpoint.sniff import carried_config
from openclaw_core.errors import UserError
from openclaw_core.models.architecture import architecture_from_config, read_config, rope_places
from openclaw_core.teacher.pair import Outcome, Pair, Side, ok, skipped


def rope_base(pair: Pair) -> Outcome:
    """A model must state one rope base in all its places; the two models may differ."""
    bases = [_rope_bases(side) for side in pair.sides]
    student, teacher = (", ".join(f"{value:g} ({place})" for place, value in found.items()) or "-" for found in bases)
    source = pair.source("config.json")
    texts = ((side.role, found, text) for side, found, text in zip(pair.sides, bases, (student, teacher), strict=True))
    wrong = [f"The {role} states {text}." for role, found, text in texts if len(set(found.values())) > 1]
    if wrong:
        remedy = "Convert again from the original folder; if its config.json is wrong, correct rope_theta first."
        return Outcome("problem", (student, teacher), source, " ".join(wrong), remedy)
    if not all(bases):
        return skipped("a rope base couldn't be read")
    scaled = [side.role for side in pair.sides if side.architecture and side.architecture.rope_scaling]
    return ok((student, teacher), source, f"Rope scaling is on for the {' and the '.join(scaled)}." if scaled else "")


def _rope_bases(side: Side) -> dict[str, float]:
    """place -> rope base: the config's own places, the manifest, a torch_dist's carried config and megatron's arguments."""
    places: dict[str, float] = {}
    try:
        if side.config_folder is not None:
            places |= rope_places(read_config(side.config_folder))
        if side.manifest is not None and isinstance(stated := side.manifest.architecture.get("rope_theta"), int | float):
            places["manifest"] = float(stated)
        if side.found is not None and side.found.kind == "torch_dist":
            carried = carried_config(side.found)
            if carried is not None and carried != side.config_folder:
                places["carried config"] = architecture_from_config(read_config(carried), str(carried)).rope_theta
            base = side.arguments.get("rotary_base")
            if isinstance(base, int | float):
                places["megatron's arguments"] = float(base)
    except UserError:  # told by the check of the whole checkpoint, or the next one
        return {}
    return places


def stated_alike(pair: Pair) -> Outcome:
    """A run refuses a torch_dist whose config, manifest and megatron's arguments say different things of its architecture."""
    if any(side.architecture is None or side.errors.keys() & {"arguments", "manifest"} for side in pair.sides):
        return skipped("what states an architecture couldn't be read")
    source = pair.source("config.json")
    try:
        found = [_disagreements(side) for side in pair.sides]
    except UserError as error:
        return Outcome("problem", source=source, finding=error.what, remedy=error.remedy)
    student, teacher = (_shown(differ) for differ in found)
    if any(found):
        told = [f"The {side.role}'s {what}" for side, differ in zip(pair.sides, found, strict=True) for what in differ or ()]
        remedy = "Convert it again from the right model, or name that model's folder."
        return Outcome("problem", (student, teacher), source, " ".join(told), remedy)
    return ok((student, teacher), source)


def _disagreements(side: Side) -> list[str] | None:
    """What the places that state a torch_dist's architecture differ in, but for the rope base; None where there is only one.

    Raises UserError for a carried config that can't be read.
    """
    if side.architecture is None or side.found is None or side.found.kind == "hf" or side.bare:
        return None
    found = disagreements(side.found.folder, side.architecture, str(side.config_folder), carried_config(side.found))
    return [what for what, _ in found if not what.startswith("rope_theta:")]


def _shown(differ: list[str] | None) -> str:
    return "stated once" if differ is None else f"{len(differ)} differences" if differ else "alike"
