"""run.json: what a run is doing, as a record."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from .processes import ProcessRecord

MANIFEST_VERSION = 1
STATES = ("starting", "running", "stopping", "stopped", "failed", "finished")


@dataclass(frozen=True, slots=True)
class Manifest:
    """run.json. Times are seconds since the epoch; step is the last finished optimizer step, saved_step the last checkpoint's.

    state is one of STATES, reason says why it stopped or failed. versions maps packages to versions, facts holds small
    things that readers want without the configuration (student folder, tokenizer folder, preference, target rate ...).
    """

    name: str
    state: str = "starting"
    reason: str = ""
    created: float = 0.0
    updated: float = 0.0
    step: int = 0
    steps: int = 0
    saved_step: int | None = None
    saved_at: float | None = None
    weight_version: int = 0
    processes: tuple[ProcessRecord, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    manifest_version: int = MANIFEST_VERSION


_NUMBER = (int, float)
_KINDS: dict[str, type | tuple[type, ...]] = {
    "name": str, "state": str, "reason": str, "created": _NUMBER, "updated": _NUMBER, "step": int, "steps": int,
    "saved_step": (int, type(None)), "saved_at": (*_NUMBER, type(None)), "weight_version": int, "versions": dict, "facts": dict,
}  # fmt: skip


def parse_manifest(record: Any) -> Manifest:
    """The manifest that run.json holds, fields that it doesn't know left out.

    Raises ValueError, TypeError, AttributeError or KeyError for anything else.
    """
    if not isinstance(record, dict):
        raise ValueError("it holds no object")
    version = record.get("manifest_version")
    if version != MANIFEST_VERSION:
        raise ValueError(f"it has manifest_version {version!r}, this program reads {MANIFEST_VERSION}")
    known = {item.name: record[item.name] for item in fields(Manifest) if item.name in record}
    wrong = [name for name, kinds in _KINDS.items() if name in known and not isinstance(known[name], kinds)]
    if wrong:
        raise ValueError(f"{wrong[0]} is {known[wrong[0]]!r}")
    try:
        known["processes"] = tuple(ProcessRecord(**entry) for entry in record.get("processes", ()))
    except TypeError:
        raise ValueError("an entry of processes is none") from None
    if not all(isinstance(one.pid, int) and isinstance(one.since, _NUMBER) for one in known["processes"]):
        raise ValueError("an entry of processes has no pid or no time")
    return Manifest(**known)
