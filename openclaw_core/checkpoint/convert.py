"""Hugging Face folder <-> torch_dist, streamed unit by unit: no model, no process group, no GPU."""

from __future__ import annotations

import dataclasses
import json
import math
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from openclaw_core.checkpoint.atomic import new_folder
from openclaw_core.checkpoint.checks import check_expected, check_tokenizer
from openclaw_core.checkpoint.examine import examine_hf, examine_torch_dist
from openclaw_core.checkpoint.families import EXTRA_STATES
from openclaw_core.checkpoint.hf import HfReader, HfWriter
from openclaw_core.checkpoint.manifest import Manifest, copy_companions, write_manifest, write_synced
from openclaw_core.checkpoint.mapping import Layout, Mapping, Unit
from openclaw_core.checkpoint.names import HF_FOLDER, TRACKER
from openclaw_core.checkpoint.sniff import Found, carried_config, sniff
from openclaw_core.checkpoint.torch_dist import Part, TorchDistReader, empty_extra_state, write_folder
from openclaw_core.checkpoint.verify import Progress, TensorCheck, compare
from openclaw_core.errors import Findings, UsageError, UserError
from openclaw_core.models.architecture import (
    VOCAB_DIVISOR,
    Architecture,
    architecture_from_config,
    read_config,
    text_config,
)

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
COMMON = {"checkpoint_version": 3.0, "iteration": 0}
Target = Literal["hf", "torch_dist"]


@dataclass(frozen=True)
class Plan:
    """A conversion that passed every check and hasn't written anything.

    stored_dtypes is by torch_dist name, hf_dtypes by Hugging Face name; left_out lists source tensors that no target
    needs, each with the reason; nbytes is the size of the result's weights.
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


@dataclass(frozen=True)
class Conversion:
    """A finished conversion: what was planned, the comparison of every tensor (empty without verify), and its cost."""

    plan: Plan
    checks: tuple[TensorCheck, ...]
    seconds: float
    peak_bytes: int


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
    found = sniff(source, step)
    to = to or ("torch_dist" if found.kind == "hf" else "hf")
    place = Path(target).expanduser().absolute()
    _check_request(found, place, to, tp, divisor, dtype)
    folder = Path(hf_config) if hf_config is not None else carried_config(found)
    if folder is None:
        raise UserError(
            f"{source} carries no Hugging Face config.", "Name the folder of the model it came from with --hf-config."
        )
    arch = architecture_from_config(read_config(folder), str(folder))
    check_expected(arch, expect or {})
    check_tokenizer(folder, arch)
    build = _plan_import if to == "torch_dist" else _plan_export
    return build(found, place, folder, arch, tp, divisor, DTYPES.get(dtype or ""), tuple(allow))


def convert(plan: Plan, *, overwrite: bool = False, verify: bool = True, progress: Progress | None = None) -> Conversion:
    """Carries out a plan. The target appears whole, with its manifest, or not at all.

    verify compares every tensor bitwise after writing and hashes it. progress is called with a stage (write, verify),
    bytes done and bytes in all. Raises UserError when the target exists, the disk is full or a tensor differs.
    """
    started = time.monotonic()
    with new_folder(plan.target, overwrite=overwrite, needed_bytes=int(plan.nbytes * 1.02) + 64 * 2**20) as folder:
        if plan.to == "torch_dist":
            checks = _write_torch_dist(plan, folder, verify, progress)
        else:
            checks = _write_hf(plan, folder, verify, progress)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Conversion(plan, checks, time.monotonic() - started, peak)


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
    root = found.root.absolute()
    if target == root or target in root.parents or root in target.parents:
        problems.append((f"{target} and {root} lie in each other.", "Choose a place of its own for the result."))
    if problems:
        raise UsageError(" ".join(f"{what} {remedy}" for what, remedy in problems))


def _plan_import(
    found: Found,
    target: Path,
    folder: Path,
    arch: Architecture,
    tp: int,
    divisor: int,
    dtype: torch.dtype | None,
    allow: tuple[str, ...],
) -> Plan:
    examined = examine_hf(HfReader(found.folder), arch, allow=allow, tp=tp, divisor=divisor)
    mapping = examined.mapping
    hf_dtypes = {name: dtype or own for name, own in examined.dtypes.items()}
    stored_dtypes = _one_dtype_each(mapping, hf_dtypes, str(found.root))
    nbytes = sum(math.prod(shape) * stored_dtypes[name].itemsize for name, shape in mapping.stored.items())
    return Plan(
        found,
        target,
        "torch_dist",
        arch,
        folder,
        mapping,
        examined.layout,
        tp,
        stored_dtypes,
        hf_dtypes,
        nbytes,
        examined.left_out,
    )


def _plan_export(
    found: Found,
    target: Path,
    folder: Path,
    arch: Architecture,
    tp: int,
    divisor: int,
    dtype: torch.dtype | None,
    allow: tuple[str, ...],
) -> Plan:
    examined = examine_torch_dist(TorchDistReader(found.folder), arch, allow=allow)
    mapping = examined.mapping
    hf_dtypes = {source.name: dtype or examined.dtypes[unit.stored] for unit in mapping.units for source in unit.slices}
    nbytes = sum(math.prod(shape) * hf_dtypes[name].itemsize for name, shape in mapping.hf.items())
    return Plan(
        found, target, "hf", arch, folder, mapping, examined.layout, tp, examined.dtypes, hf_dtypes, nbytes, examined.left_out
    )


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
        (f"{name} is {next(iter(dtypes))}.", "Use a bf16, fp16 or fp32 release.")
        for name, dtypes in seen.items()
        if not dtypes <= set(DTYPES.values())
    ]
    if mixed or wrong:
        raise Findings(f"{where}: dtypes can't be kept.", mixed + wrong)
    return {name: next(iter(dtypes)) for name, dtypes in seen.items()}


def _write_torch_dist(plan: Plan, folder: Path, verify: bool, progress: Progress | None) -> tuple[TensorCheck, ...]:
    reader = HfReader(plan.source.folder)
    inner = folder / "release"
    done = 0

    def part(unit: Unit) -> Part:
        def produce() -> torch.Tensor:
            nonlocal done
            box = unit.pack([reader.read(source.name, source.rows) for source in unit.slices], plan.stored_dtypes[unit.stored])
            done += box.nbytes
            if progress is not None:
                progress("write", done, plan.nbytes)
            return box

        return Part(unit.stored, unit.offsets, unit.sizes, produce)

    shapes = {name: (shape, plan.stored_dtypes[name]) for name, shape in plan.mapping.stored.items()}
    write_folder(inner, shapes, map(part, plan.mapping.units), _extra_states(plan.architecture.layers), COMMON)
    write_synced(folder / TRACKER, "release")
    hashes = copy_companions(plan.config_folder, folder / HF_FOLDER)
    checks = compare(plan.mapping, reader, TorchDistReader(inner), "torch_dist", progress) if verify else ()
    _finish(plan, folder, checks, hashes)
    return checks


def _write_hf(plan: Plan, folder: Path, verify: bool, progress: Progress | None) -> tuple[TensorCheck, ...]:
    reader = TorchDistReader(plan.source.folder)
    writer = HfWriter(folder, {name: (shape, plan.hf_dtypes[name]) for name, shape in plan.mapping.hf.items()})
    done = 0
    try:
        for unit in plan.mapping.units:
            if not unit.slices:
                continue
            box = reader.read(unit.stored, unit.offsets, unit.sizes)
            for piece, source in zip(unit.unpack(box), unit.slices, strict=True):
                writer.write(source.name, piece.to(plan.hf_dtypes[source.name]), source.rows[0] if source.rows else 0)
                done += piece.numel() * plan.hf_dtypes[source.name].itemsize
            if progress is not None:
                progress("write", done, plan.nbytes)
    finally:
        writer.close()
    hashes = copy_companions(plan.config_folder, folder, _edited_config(plan))
    checks = compare(plan.mapping, HfReader(folder), reader, "hf", progress) if verify else ()
    _finish(plan, folder, checks, hashes)
    return checks


def _finish(plan: Plan, folder: Path, checks: tuple[TensorCheck, ...], companions: dict[str, str]) -> None:
    wrong = [(f"{check.name} differs from {check.stored}.", "") for check in checks if not check.equal]
    if wrong:
        raise Findings(f"{plan.target} wasn't written: {len(wrong)} of {len(checks)} tensors differ after the round trip.", wrong)
    sums = {check.name: check.sha256 for check in checks}
    tensors = {
        name: {"shape": list(shape), "dtype": str(plan.hf_dtypes[name]).removeprefix("torch."), "sha256": sums.get(name)}
        for name, shape in plan.mapping.hf.items()
    }
    vocabulary = {
        "real": plan.architecture.vocab,
        "padded": plan.layout.padded if plan.to == "torch_dist" else plan.architecture.vocab,
    }
    facts = dataclasses.asdict(plan.architecture)
    write_manifest(folder, Manifest(plan.to, str(plan.source.folder.absolute()), facts, vocabulary, tensors, companions))


def _extra_states(layers: int) -> dict[str, bytes]:
    """The empty extra states that megatron's layers ask for when they load, with and without Transformer Engine."""
    empty = empty_extra_state()
    return {
        f"decoder.layers.{module}._extra_state/shard_{layer}_{layers}": empty
        for module in EXTRA_STATES
        for layer in range(layers)
    }


def _edited_config(plan: Plan) -> dict[str, str]:
    """config.json with the dtype of the written weights, when it says another."""
    dtypes = set(plan.hf_dtypes.values())
    name = str(next(iter(dtypes))).removeprefix("torch.")
    if len(dtypes) > 1 or name == plan.architecture.dtype:
        return {}
    config = read_config(plan.config_folder)
    for part in (config, text_config(config) if "text_config" not in config else config["text_config"]):
        for key in ("dtype", "torch_dtype"):
            if key in part:
                part[key] = name
    if not {"dtype", "torch_dtype"} & config.keys():
        config["dtype"] = name
    return {"config.json": json.dumps(config, indent=2, ensure_ascii=False) + "\n"}
