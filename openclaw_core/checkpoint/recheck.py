"""Verifies a conversion that already exists: against its source where that is at hand, and against its own manifest."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openclaw_core.checkpoint.carried import carried_entries, carried_names, compare_carried
from openclaw_core.checkpoint.examine import Examined, examine_hf, examine_torch_dist
from openclaw_core.checkpoint.fp8 import open_hf
from openclaw_core.checkpoint.manifest import Manifest, hash_file, read_manifest
from openclaw_core.checkpoint.names import HF_FOLDER, MANIFEST
from openclaw_core.checkpoint.sniff import Found, carried_config, sniff, step_of_run
from openclaw_core.checkpoint.torch_dist import TorchDistReader
from openclaw_core.checkpoint.verify import Progress, TensorCheck, compare_units, hash_units
from openclaw_core.errors import UsageError, UserError
from openclaw_core.models.architecture import Architecture, architecture_from_hf

_SIZES = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "experts", "moe_ffn")


@dataclass(frozen=True)
class Recheck:
    """What was found. source is None where there was none to compare with; companions maps a file beside the tensors to
    whether it still has its hash; hashed says whether a manifest's hashes were compared; kept names tensors that have their
    hash there, so that where they differ from the source it is that which changed; step is the run's step that the manifest
    chose, None where nothing was to be chosen; left_out names what of both sides isn't mapped."""

    target: Found
    source: Found | None
    checks: tuple[TensorCheck, ...]
    companions: dict[str, bool]
    hashed: bool
    kept: frozenset[str] = frozenset()
    step: int | None = None
    left_out: tuple[str, ...] = ()

    @property
    def problems(self) -> list[tuple[str, str]]:
        """Every tensor and file that isn't as it was written."""
        wrong = [
            (f"{check.name} differs{' from the source, but has its hash: the source changed' * (check.name in self.kept)}.", "")
            for check in self.checks
            if not check.equal
        ]
        return wrong + [
            (f"{name} changed since the conversion, or is gone.", "") for name, ok in self.companions.items() if not ok
        ]


def recheck(
    target: str | Path,
    source: str | Path | None = None,
    *,
    step: int | None = None,
    hf_config: str | Path | None = None,
    allow: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Recheck:
    """Reads every tensor of a finished conversion again, carried ones too. Writes nothing.

    source is what it was made from (step: of a run folder; the manifest's when None); where it is left out, what the manifest
    names is used if that still holds such a checkpoint. hf_config names the model of a torch_dist that carries no config. Raises
    UsageError for flags that say nothing, UserError when there is neither a source nor a manifest with hashes or the run has the
    manifest's step no more, and Findings when tensors are missing or unknown.
    """
    found = sniff(target)
    manifest = read_manifest(found.folder)
    chosen = step_of_run(source, manifest.source) if source and manifest and step is None and found.kind == "hf" else None
    origin = _source(found, manifest, source, step if chosen is None else chosen)
    if hf_config is not None and found.kind == "hf":
        raise UsageError(f"{found.root} has its own config.json.", "Leave --hf-config out.")
    if origin is None and not (manifest and manifest.sums):
        raise UserError(
            f"{target} has nothing to be compared with: no {MANIFEST} with hashes, and its source isn't there.",
            "Name what it was made from: openclaw convert-ckpt SRC DST --verify-only.",
        )
    folder = Path(hf_config) if hf_config is not None else carried_config(found) or (origin and carried_config(origin))
    if not folder:
        raise UserError(f"{target} carries no Hugging Face config.", "Name the folder of its model with --hf-config.")
    arch = architecture_from_hf(folder)
    if origin is not None:
        _require_same_model(found, arch, manifest, origin)
    compared, left_out = _compare(found, origin, arch, manifest, allow, progress)
    checks = (*compared, *_carried(found, origin, arch, manifest))
    place = carried_config(found) or found.root / HF_FOLDER
    listed = ((place, manifest.companions), (found.folder, manifest.files)) if manifest else ()
    companions = {
        name: (folder / name).is_file() and hash_file(folder / name) == digest
        for folder, files in listed
        for name, digest in files.items()
    }
    sums = {**manifest.sums, **manifest.carried_sums} if manifest else {}
    still = frozenset(check.name for check in checks if sums.get(check.name) == check.sha256)
    return Recheck(found, origin, checks, companions, bool(manifest and manifest.sums), still, chosen, tuple(left_out))


def _source(found: Found, manifest: Manifest | None, named: str | Path | None, step: int | None) -> Found | None:
    if named is not None:
        origin = sniff(named, step)
        if origin.kind == found.kind:
            what = f"{origin.root} and {found.root} are both {found.kind}."
            raise UsageError(what, "Name a conversion and what it was made from.")
        return origin
    if step is not None:
        what = "--step picks a checkpoint of a run, and no run is named."
        raise UsageError(what, "Name it: convert-ckpt RUN DST --verify-only.")
    try:
        listed = sniff(manifest.source) if manifest else None
    except (UserError, OSError):  # it moved, or another thing is in its place: the hashes are left
        return None
    return listed if listed and listed.kind != found.kind else None


def _require_same_model(found: Found, arch: Architecture, manifest: Manifest | None, origin: Found) -> None:
    """Raises UserError where the source that was named is another model, whose tensors would only be listed as unmatched."""
    folder = carried_config(origin)
    theirs = architecture_from_hf(folder) if folder is not None else arch
    differing = {name: (getattr(arch, name), getattr(theirs, name)) for name in _SIZES}
    sizes = "; ".join(f"{name} {own}, not {other}" for name, (own, other) in differing.items() if own != other)
    if sizes or arch.model_type != theirs.model_type:
        made = f"from {manifest.source} ({arch.model_type})" if manifest else f"as {arch.model_type}"
        what = f"{found.root} was made {made}, another model than {origin.root} ({theirs.model_type})"
        remedy = "Name what it was made from, or leave SRC out to compare with the hashes in its manifest."
        raise UserError(f"{what}: {sizes}." if sizes else f"{what}.", remedy)


def _compare(
    found: Found,
    origin: Found | None,
    arch: Architecture,
    manifest: Manifest | None,
    allow: tuple[str, ...],
    progress: Progress | None,
) -> tuple[tuple[TensorCheck, ...], dict[str, str]]:
    """Of every mapped tensor; and what of both sides is left out, with the reason."""
    allow = (*allow, *manifest.left_out) if manifest else allow
    kinds = {one.kind: one.folder for one in (found, origin) if one is not None}
    hf = open_hf(kinds["hf"]) if "hf" in kinds else None
    stored = TorchDistReader(kinds["torch_dist"]) if "torch_dist" in kinds else None
    examined: Examined | None = None
    left_out: dict[str, str] = {}
    if hf is not None:
        examined = examine_hf(hf, arch, allow=(*allow, *carried_names(hf.entries, arch)))
        left_out |= examined.left_out
    if stored is not None:
        examined = examine_torch_dist(stored, arch, allow=allow)
        left_out |= examined.left_out
    assert examined is not None
    units, done = examined.mapping.units, 0
    total = sum(math.prod(unit.sizes) for unit in units) * 2

    def each(nbytes: int) -> None:
        nonlocal done
        done += nbytes
        if progress is not None:
            progress("verify", min(done, total), total)

    if hf is not None and stored is not None:
        made = compare_units(units, hf, stored, found.kind, each)
    else:
        side = hf or stored
        assert side is not None
        sums = hash_units(units, side, each)
        shapes, sources = examined.mapping.hf, examined.mapping.sources
        made = [
            TensorCheck(name, sources[name], shapes[name], _dtype(manifest, name), digest, True) for name, digest in sums.items()
        ]
    return _against(made, manifest.tensors if manifest else {}, origin is not None), left_out


def _carried(found: Found, origin: Found | None, arch: Architecture, manifest: Manifest | None) -> tuple[TensorCheck, ...]:
    """Of the tensors that are copied as they are. An origin that never had them is no witness against them."""
    made, listed = carried_entries(found, arch), manifest.carried if manifest else {}
    theirs = carried_entries(origin, arch) if origin else {}
    if not theirs and not listed:
        return ()
    return _against(compare_carried(made, theirs or made), listed, bool(theirs))


def _against(checks: Iterable[TensorCheck], listed: dict[str, dict[str, Any]], compared: bool) -> tuple[TensorCheck, ...]:
    """Checks that also hold against a manifest's hashes: each has its own there, unless it was compared with a source and the
    manifest was made without hashes; and what only the manifest has is gone."""
    found = {check.name: check for check in checks}
    bare = compared and not any(facts["sha256"] for facts in listed.values())
    held = [
        replace(check, equal=check.equal and (bare or listed.get(name, {}).get("sha256") == check.sha256))
        for name, check in found.items()
    ]
    gone = [
        TensorCheck(name, "", tuple(facts["shape"]), facts["dtype"], "", False)
        for name, facts in listed.items()
        if name not in found
    ]
    return (*held, *gone)


def _dtype(manifest: Manifest | None, name: str) -> str:
    return str(manifest.tensors.get(name, {}).get("dtype", "")) if manifest else ""
