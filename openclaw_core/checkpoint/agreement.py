"""Whether everything that states a model's architecture states the same: config, manifest, megatron's arguments. No megatron."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from openclaw_core.checkpoint.manifest import read_manifest
from openclaw_core.checkpoint.sniff import carried_config, sniff
from openclaw_core.errors import Findings, UserError
from openclaw_core.models.architecture import Architecture, architecture_from_hf
from openclaw_core.models.buildable import check_buildable
from openclaw_core.models.megatron_arguments import stated_fields


def check_trained(load: str | Path, hf: str | Path | None = None) -> Architecture:
    """The architecture that a run will build for a torch_dist checkpoint, after everything that states it was compared.

    hf is the folder the run's config names beside it. Raises Findings with what the trainer doesn't build, and with field,
    both values and both places where they differ.
    """
    found = sniff(load)
    folder = carried_config(found) or (Path(hf) if hf is not None else None)
    if folder is None:
        raise UserError(
            f"{load} carries no Hugging Face config.", "Convert it with `openclaw convert-ckpt`, or name its model (hf)."
        )
    arch = architecture_from_hf(folder)
    check_buildable(arch, load)
    findings = disagreements(found.folder, arch, str(folder), Path(hf) if hf is not None else None)
    if findings:
        raise Findings(f"{load}: what states its architecture disagrees; convert it again from the right model.", findings)
    return arch


def disagreements(folder: Path, arch: Architecture, where: str, hf: Path | None = None) -> list[tuple[str, str]]:
    """Fields in which a torch_dist folder's manifest or megatron's arguments in it say otherwise than arch, read from where.

    hf is another model folder that must agree.
    """
    return [
        (f"{key}: {where} says {_plain(getattr(arch, key))!r}, {place} says {value!r}.", "")
        for place, stated in _statements(folder, arch, hf if hf is not None and str(hf) != where else None).items()
        for key, value in stated.items()
        if _plain(getattr(arch, key)) != value
    ]


def _statements(folder: Path, arch: Architecture, hf: Path | None) -> dict[str, dict[str, Any]]:
    """Place -> what it states, in plain JSON values. A dtype is no part of an architecture: conversions cast."""
    found: dict[str, dict[str, Any]] = {}
    manifest = read_manifest(folder)
    names = {item.name for item in dataclasses.fields(Architecture)} - {"dtype"}
    if manifest is not None:
        found["the manifest"] = {key: value for key, value in manifest.architecture.items() if key in names}
    if hf is not None and (hf / "config.json").is_file():
        stated = dataclasses.asdict(architecture_from_hf(hf))
        found[str(hf)] = {key: _plain(value) for key, value in stated.items() if key in names}
    from openclaw_core.checkpoint.torch_dist import TorchDistReader

    arguments = TorchDistReader(folder).common().get("args")
    if arguments is not None:
        values = arguments if isinstance(arguments, dict) else vars(arguments)
        found["megatron's arguments"] = {key: _plain(value) for key, value in stated_fields(values, arch).items()}
    return found


def _plain(value: Any) -> Any:
    """A value as it comes back from JSON."""
    return json.loads(json.dumps(dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value))  # type: ignore[arg-type]
