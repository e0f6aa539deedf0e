"""Verifies a conversion that already exists: against its source where that is at hand, and against its own manifest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from openclaw_core.checkpoint.carried import carried_entries, carried_names, compare_carried
from openclaw_core.checkpoint.examine import Examined, examine_hf, examine_torch_dist
from openclaw_core.checkpoint.fp8 import open_hf
from openclaw_core.checkpoint.manifest import Manifest, hash_file, read_manifest
from openclaw_core.checkpoint.names import HF_FOLDER, MANIFEST
from openclaw_core.checkpoint.sniff import Found, carried_config, sniff
from openclaw_core.checkpoint.torch_dist import TorchDistReader
from openclaw_core.checkpoint.verify import Progress, TensorCheck, compare_units, hash_units
from openclaw_core.errors import UsageError, UserError
from openclaw_core.models.architecture import Architecture, architecture_from_hf


@dataclass(frozen=True)
class Recheck:
    """What was found. source is None where there was none to compare with; companions maps a carried file to whether it
    still has its hash; hashed says whether a manifest's hashes were compared."""

    target: Found
    source: Found | None
    checks: tuple[TensorCheck, ...]
    companions: dict[str, bool]
    hashed: bool

    @property
    def problems(self) -> list[tuple[str, str]]:
        """Every tensor and file that isn't as it was written."""
        wrong = [(f"{check.name} differs.", "") for check in self.checks if not check.equal]
        return wrong + [
            (f"{name} changed since the conversion, or is gone.", "") for name, ok in self.companions.items() if not ok
        ]


def recheck(
    target: str | Path,
    source: str | Path | None = None,
    *,
    hf_config: str | Path | None = None,
    allow: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Recheck:
    """Reads every tensor of a finished conversion again, carried ones too. Writes nothing.

    source is what it was made from; where it is left out, what the manifest names is used if it is still there. Raises
    UserError when there is neither a source nor a manifest with hashes, and Findings when tensors are missing or unknown.
    """
    found = sniff(target)
    manifest = read_manifest(found.folder)
    origin = _source(found, manifest, source)
    if origin is None and not (manifest and manifest.sums):
        raise UserError(
            f"{target} has nothing to be compared with: no {MANIFEST} with hashes, and its source isn't there.",
            "Name what it was made from: openclaw convert-ckpt SRC DST --verify-only.",
        )
    folder = Path(hf_config) if hf_config is not None else carried_config(found) or (origin and carried_config(origin))
    if not folder:
        raise UserError(f"{target} carries no Hugging Face config.", "Name the folder of its model with --hf-config.")
    arch = architecture_from_hf(folder)
    checks = (*_compare(found, origin, arch, manifest, allow, progress), *_carried(found, origin, arch, manifest))
    place = carried_config(found) or found.root / HF_FOLDER
    kept = manifest.companions if manifest else {}
    companions = {name: (place / name).is_file() and hash_file(place / name) == digest for name, digest in kept.items()}
    return Recheck(found, origin, checks, companions, bool(manifest and manifest.sums))


def _source(found: Found, manifest: Manifest | None, named: str | Path | None) -> Found | None:
    if named is None and (manifest is None or not Path(manifest.source).exists()):
        return None
    origin = sniff(named if named is not None else manifest.source)  # type: ignore[union-attr]
    if origin.kind == found.kind:
        raise UsageError(f"{origin.root} and {found.root} are both {found.kind}.", "Name a conversion and what it was made from.")
    return origin


def _compare(
    found: Found,
    origin: Found | None,
    arch: Architecture,
    manifest: Manifest | None,
    allow: tuple[str, ...],
    progress: Progress | None,
) -> tuple[TensorCheck, ...]:
    kinds = {one.kind: one.folder for one in (found, origin) if one is not None}
    hf = open_hf(kinds["hf"]) if "hf" in kinds else None
    stored = TorchDistReader(kinds["torch_dist"]) if "torch_dist" in kinds else None
    examined: Examined | None = None
    if hf is not None:
        examined = examine_hf(hf, arch, allow=(*allow, *carried_names(hf.entries, arch)))
    if stored is not None:
        examined = examine_torch_dist(stored, arch, allow=allow)
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
    return tuple(_against(made, manifest.tensors if manifest else {}))


def _carried(found: Found, origin: Found | None, arch: Architecture, manifest: Manifest | None) -> list[TensorCheck]:
    """Of the tensors that are copied as they are. An origin that never had them is no witness against them."""
    made, listed = carried_entries(found, arch), manifest.carried if manifest else {}
    checks = compare_carried(made, (carried_entries(origin, arch) if origin else {}) or made)
    known = {check.name for check in checks}
    gone = [
        TensorCheck(name, "", tuple(facts["shape"]), facts["dtype"], "", False)
        for name, facts in listed.items()
        if name not in known
    ]
    return [*_against(checks, listed), *gone]


def _against(checks: Iterable[TensorCheck], listed: dict[str, dict[str, Any]]) -> Iterator[TensorCheck]:
    """Checks that also hold against a manifest's hashes, where it has them."""
    for check in checks:
        wanted = listed.get(check.name, {}).get("sha256") or check.sha256
        yield replace(check, equal=check.equal and wanted == check.sha256)


def _dtype(manifest: Manifest | None, name: str) -> str:
    return str(manifest.tensors.get(name, {}).get("dtype", "")) if manifest else ""
