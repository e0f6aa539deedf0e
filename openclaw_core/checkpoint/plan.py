"""What a conversion will do, checked against headers before a byte is written."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from openclaw_core.checkpoint.agreement import disagreements
from openclaw_core.checkpoint.atomic import misplaced
from openclaw_core.checkpoint.carried import absent, find_carried, needs_carried
from openclaw_core.checkpoint.checks import check_expected, check_tokenizer
from openclaw_core.checkpoint.examine import Examined, examine_hf, examine_torch_dist
from openclaw_core.checkpoint.fp8 import open_hf
from openclaw_core.checkpoint.hf import Entry
from openclaw_core.checkpoint.manifest import check_companions
from openclaw_core.checkpoint.mapping import Layout, Mapping
from openclaw_core.checkpoint.sniff import Found, carried_config, sniff
from openclaw_core.checkpoint.torch_dist import TorchDistReader
from openclaw_core.errors import Findings, UsageError, UserError
from openclaw_core.files import expanded
from openclaw_core.models.architecture import VOCAB_DIVISOR, Architecture, architecture_from_config
from openclaw_core.models.hf_config import read_config

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_FLOATS = {torch.float64, *DTYPES.values()}
Target = Literal["hf", "torch_dist"]
WORKERS = 2
BASE_BYTES = 300 * 2**20


@dataclass(frozen=True)
class Plan:
    """A conversion that passed every check and hasn't written anything.

    stored_dtypes is by torch_dist name, hf_dtypes by Hugging Face name; left_out lists source tensors that no target
    needs, each with the reason; carried are copied as they are; nbytes is the size of the result's weights.
    """

    source: Found
    target: Path
    to: Target
    architecture: Architecture
    config_folder: Path
    mapping: Mapping
    layout: Layout
    tp: int
    stored_dtypes: dict[str, torch.dtype]
    hf_dtypes: dict[str, torch.dtype]
    nbytes: int
    left_out: dict[str, str] = field(default_factory=dict)
    carried: dict[str, Entry] = field(default_factory=dict)

    @property
    def carried_bytes(self) -> int:
        """Bytes of the tensors that are copied as they are."""
        return sum(entry.stop - entry.start for entry in self.carried.values())

    @property
    def room(self) -> int:
        """Bytes of disk that the result needs: weights, their files' headers, what is copied beside them."""
        return int((self.nbytes + self.carried_bytes) * 1.02) + 64 * 2**20

    @property
    def peak_estimate(self) -> int:
        """Bytes of memory that the conversion will hold: torch itself, and per worker a box, its sources and their union."""
        largest = max(math.prod(unit.sizes) * self.stored_dtypes[unit.stored].itemsize for unit in self.mapping.units)
        return BASE_BYTES + WORKERS * 4 * largest


def plan_conversion(
    source: str | Path,
    target: str | Path,
    *,
    to: Target | None = None,
    step: int | None = None,
    hf_config: str | Path | None = None,
    tp: int = 1,
    divisor: int = VOCAB_DIVISOR,
    dtype: str | None = None,
    allow: Iterable[str] = (),
    expect: dict[str, str] | None = None,
) -> Plan:
    """Reads headers only, and checks everything that can be known before a byte is written.

    to is the other kind than source's when None. step picks a checkpoint of a run folder. hf_config names the folder
    whose config and tokenizer belong to a torch_dist that carries none. tp and divisor set the padding of the
    vocabulary. dtype (bf16, fp16, fp32) casts. allow are globs of source tensors that may be left out. expect confirms
    architecture fields. Raises UserError, UsageError or Findings.
    """
    if not str(target):
        raise UsageError("DST is named by an empty path.", "Name a folder.")
    found = sniff(source, step)
    to = to or ("torch_dist" if found.kind == "hf" else "hf")
    place = expanded(target).absolute()
    _check_request(found, place, to, tp, divisor, dtype)
    if hf_config is not None and found.kind == "hf":
        raise UsageError(f"{found.root} has its own config.json; nothing overrides it.", "Leave --hf-config out.")
    folder = Path(hf_config) if hf_config is not None else carried_config(found)
    if folder is None:
        raise UserError(
            f"{source} carries no Hugging Face config.", "Name the folder of the model it came from with --hf-config."
        )
    arch = architecture_from_config(read_config(folder), str(folder))
    check_expected(arch, expect or {})
    check_companions(folder)
    check_tokenizer(folder, arch)
    differing = disagreements(found.folder, arch, str(folder)) if to == "hf" else []
    if differing:
        raise Findings(f"{source}: another model's config; name the one it was made from with --hf-config.", differing)
    examined, carried = _examine(found, folder, arch, to, tuple(allow), tp, divisor)
    stored_dtypes, hf_dtypes = _dtypes(examined, to, DTYPES.get(dtype or ""), str(found.root))
    mapping = examined.mapping
    shapes, dtypes = (mapping.stored, stored_dtypes) if to == "torch_dist" else (mapping.hf, hf_dtypes)
    return Plan(
        source=found,
        target=place,
        to=to,
        architecture=arch,
        config_folder=folder,
        mapping=mapping,
        layout=examined.layout,
        tp=tp,
        stored_dtypes=stored_dtypes,
        hf_dtypes=hf_dtypes,
        nbytes=sum(math.prod(shape) * dtypes[name].itemsize for name, shape in shapes.items()),
        left_out=examined.left_out,
        carried=carried,
    )


def _check_request(found: Found, target: Path, to: Target, tp: int, divisor: int, dtype: str | None) -> None:
    problems: list[tuple[str, str]] = []
    if to == found.kind:
        kind = "a Hugging Face folder" if to == "hf" else "a torch_dist checkpoint"
        problems.append(
            (f"{found.root} already is {kind}.", f"Use it as it is, or convert to {'torch_dist' if to == 'hf' else 'hf'}.")
        )
    if tp < 1 or divisor < 1:
        problems.append((f"Tensor-parallel size {tp} and divisor {divisor} must be at least 1.", "Leave them at their defaults."))
    if dtype is not None and dtype not in DTYPES:
        problems.append((f"Dtype {dtype!r} is unknown.", f"Choose one of {', '.join(DTYPES)}."))
    problems += misplaced(found.root, target)
    if problems:
        raise UsageError(" ".join(f"{what} {remedy}" for what, remedy in problems))


def _examine(
    found: Found, folder: Path, arch: Architecture, to: Target, allow: tuple[str, ...], tp: int, divisor: int
) -> tuple[Examined, dict[str, Entry]]:
    """The source against its architecture, and the tensors that are copied as they are."""
    if to == "hf":
        return examine_torch_dist(TorchDistReader(found.folder), arch, allow=allow), find_carried(arch, folder)
    reader = open_hf(found.folder)
    examined = examine_hf(reader, arch, allow=allow, tp=tp, divisor=divisor)
    if needs_carried(arch, folder) and not examined.carried:
        raise UserError(absent(arch, folder), "Fetch the rest of the model: an engine needs them beside the text tower.")
    return examined, {name: reader.entries[name] for name in examined.carried}


def _dtypes(
    examined: Examined, to: Target, cast: torch.dtype | None, where: str
) -> tuple[dict[str, torch.dtype], dict[str, torch.dtype]]:
    """By torch_dist name and by Hugging Face name, cast on the side that is written."""
    wrong = sorted({(str(own).removeprefix("torch."), name) for name, own in examined.dtypes.items() if own not in _FLOATS})
    if wrong:
        findings = [(f"{name} is {own}.", "") for own, name in wrong[:20]]
        more = [(f"... and {len(wrong) - 20} more.", "")] if len(wrong) > 20 else []
        what = "integers and 8-bit floats stand for weights only with scales, which aren't here"
        raise Findings(f"{where}: {what}; use a bf16, fp16 or fp32 release.", findings + more)
    if to == "torch_dist":
        named = {name: cast or own for name, own in examined.dtypes.items()}
        return _one_dtype_each(examined.mapping, named, where), named
    slices = ((unit.stored, source.name) for unit in examined.mapping.units for source in unit.slices)
    return examined.dtypes, {name: cast or examined.dtypes[stored] for stored, name in slices}


def _one_dtype_each(mapping: Mapping, hf_dtypes: dict[str, torch.dtype], where: str) -> dict[str, torch.dtype]:
    """The dtype of every stored tensor; Findings where the tensors it is made of differ."""
    seen: dict[str, set[torch.dtype]] = {}
    for unit in mapping.units:
        seen.setdefault(unit.stored, set()).update(hf_dtypes[source.name] for source in unit.slices)
    mixed = [
        (f"{name} would mix {', '.join(sorted(map(str, dtypes)))}.", "Pass --dtype.")
        for name, dtypes in seen.items()
        if len(dtypes) > 1
    ]
    wrong = [
        (f"{name} is {next(iter(dtypes))}.", "Pass --dtype.")
        for name, dtypes in seen.items()
        if not dtypes <= set(DTYPES.values())
    ]
    if mixed or wrong:
        raise Findings(f"{where}: dtypes can't be kept.", mixed + wrong)
    return {name: next(iter(dtypes)) for name, dtypes in seen.items()}
