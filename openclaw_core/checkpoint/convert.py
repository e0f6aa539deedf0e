"""Hugging Face folder <-> torch_dist, streamed unit by unit: no model, no process group, no GPU."""

from __future__ import annotations

import dataclasses
import json
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from openclaw_core.checkpoint.atomic import new_folder
from openclaw_core.checkpoint.carried import copy_tensors, write_carried
from openclaw_core.checkpoint.dist_writer import Part, Place, Shapes, contents_of, file_name, write_file, write_index
from openclaw_core.checkpoint.families import EXTRA_STATES
from openclaw_core.checkpoint.fp8 import open_hf
from openclaw_core.checkpoint.hf import HfReader, HfWriter
from openclaw_core.checkpoint.jobs import Done, Job, Journal, StoppedError, fingerprint, has_journal, run_jobs, split_jobs
from openclaw_core.checkpoint.manifest import Manifest, copy_companions, sync, write_manifest, write_synced
from openclaw_core.checkpoint.mapping import EXPERT, Unit
from openclaw_core.checkpoint.names import HF_FOLDER, TRACKER
from openclaw_core.checkpoint.plan import DTYPES, WORKERS, Plan, plan_conversion
from openclaw_core.checkpoint.torch_dist import TorchDistReader, empty_extra_state
from openclaw_core.checkpoint.verify import Each, Progress, TensorCheck, compare_units, hash_units
from openclaw_core.errors import Findings, UserError
from openclaw_core.models.architecture import read_config, text_config

__all__ = ["DTYPES", "Conversion", "Plan", "convert", "plan_conversion"]

COMMON = {"checkpoint_version": 3.0, "iteration": 0}
INNER = "release"


@dataclass(frozen=True)
class Conversion:
    """A finished conversion: what was planned, the comparison of every tensor (empty without verify), and its cost.

    kept counts the bytes that an interrupted run had finished, whose hashes still held.
    """

    plan: Plan
    checks: tuple[TensorCheck, ...]
    seconds: float
    peak_bytes: int
    kept: int = 0


def convert(
    plan: Plan,
    *,
    overwrite: bool = False,
    verify: bool = True,
    progress: Progress | None = None,
    last_check: Callable[[Path], None] = lambda folder: None,
) -> Conversion:
    """Carries out a plan. The target appears whole, with its manifest, or not at all.

    verify compares every tensor bitwise after writing and hashes it; with it, a conversion that was killed or interrupted
    goes on where it was: finished parts are hashed again and kept. progress is called with a stage (write, verify), bytes
    done and bytes in all. last_check sees the complete folder before it takes the target's place, and may raise. Raises
    UserError when the target exists, the disk is full or a tensor differs.
    """
    started = time.monotonic()
    identity = _fingerprint(plan)
    with new_folder(
        plan.target,
        overwrite=overwrite,
        needed_bytes=int(plan.nbytes * 1.02) + 64 * 2**20,
        resumable=lambda partial: verify and has_journal(partial, identity),
    ) as folder:
        journal = Journal(folder, identity)
        side: _Side = _TorchDistSide(plan, folder) if plan.to == "torch_dist" else _HfFolderSide(plan, folder, bool(journal.done))
        try:
            run = _Run(plan, side, journal, verify, progress)
            run.all()
            companions = side.finish(run.places)
        finally:
            side.close()
        checks = run.checks()
        _finish(plan, folder, checks, companions)
        journal.close()
        seconds = time.monotonic() - started
        last_check(folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Conversion(plan, checks, seconds, peak, run.kept)


class _Side(Protocol):
    """The side that is written. made names its kind."""

    def write(self, job: Job, each: Each) -> tuple[Path, list[tuple[int, int]]]:
        """Writes a job's units; returns the file to sync and the places of the boxes in it."""

    def check(self, job: Job, places: list[tuple[int, int]], each: Each) -> list[TensorCheck]:
        """Reads a written job back and compares it with the source."""

    def hashes(self, job: Job, places: list[tuple[int, int]], each: Each) -> dict[str, str]:
        """SHA-256 of a written job's tensors as they lie on disk; empty where they aren't there."""

    def finish(self, places: dict[int, list[tuple[int, int]]]) -> dict[str, str]:
        """Writes what stands beside the weights; returns companions -> sha256."""

    def close(self) -> None:
        """Lets go of open files."""


class _Run:
    """All jobs of a conversion: written, read back, synced in the background."""

    def __init__(self, plan: Plan, side: _Side, journal: Journal, verify: bool, progress: Progress | None) -> None:
        self._side, self._journal, self._verify, self._progress = side, journal, verify, progress
        self._jobs = split_jobs(plan.mapping.units, plan.stored_dtypes)
        self._target, self._order = plan.target, plan.mapping.hf
        self._total = sum(job.nbytes for job in self._jobs)
        self._counts = {"write": 0, "verify": 0}
        self._lock = threading.Lock()
        self._found: dict[int, Done] = {}
        self._syncing = ThreadPoolExecutor(1, thread_name_prefix="sync")
        self.kept = 0

    def all(self) -> None:
        """Runs every job to its end. Raises Findings with every tensor that differs."""
        with self._syncing:
            run_jobs(self._jobs, self._one, WORKERS)
        wrong = [check for done in self._found.values() for check in done.checks if not check.equal]
        if wrong:
            findings = [(f"{check.name} differs from {check.stored}.", "") for check in wrong]
            count = sum(len(done.checks) for done in self._found.values())
            raise Findings(
                f"{self._target} wasn't written: {len(wrong)} of {count} tensors differ after the round trip.", findings
            )

    @property
    def places(self) -> dict[int, list[tuple[int, int]]]:
        return {number: done.places for number, done in self._found.items()}

    def checks(self) -> tuple[TensorCheck, ...]:
        """Of every tensor, in the mapping's order."""
        found = {check.name: check for done in self._found.values() for check in done.checks}
        return tuple(found[name] for name in self._order if name in found)

    def _one(self, job: Job, stop: threading.Event) -> None:
        def counting(stage: str) -> Each:
            def each(nbytes: int) -> None:
                if stop.is_set():
                    raise StoppedError
                self._count(stage, nbytes)

            return each

        earlier = self._journal.done.get(job.number)
        if earlier is not None:
            sums = self._side.hashes(job, earlier.places, counting("verify"))
            if sums == {check.name: check.sha256 for check in earlier.checks}:
                self._count("write", job.nbytes)
                with self._lock:
                    self._found[job.number] = earlier
                    self.kept += job.nbytes
                return
        path, places = self._side.write(job, counting("write"))
        self._syncing.submit(sync, path)
        checks = self._side.check(job, places, counting("verify")) if self._verify else []
        done = Done(places, checks)
        if self._verify and all(check.equal for check in checks):
            self._journal.add(job, done)
        with self._lock:
            self._found[job.number] = done

    def _count(self, stage: str, nbytes: int) -> None:
        with self._lock:
            self._counts[stage] += nbytes
            if self._progress is not None:
                self._progress(stage, min(self._counts[stage], self._total), self._total)


class _TorchDistSide:
    """A torch_dist folder that is being written: a file per job."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._folder, self._inner = plan, folder, folder / INNER
        self._inner.mkdir(exist_ok=True)
        self._source = open_hf(plan.source.folder)
        self._shapes: Shapes = {name: (shape, plan.stored_dtypes[name]) for name, shape in plan.mapping.stored.items()}
        self._units: dict[int, tuple[Unit, ...]] = {}

    def write(self, job: Job, each: Each) -> tuple[Path, list[tuple[int, int]]]:
        path = self._inner / file_name(job.number)
        places = write_file(path, self._shapes, (self._part(unit, each) for unit in job.units), job.nbytes)
        return path, [(place.start, place.length) for place in places]

    def check(self, job: Job, places: list[tuple[int, int]], each: Each) -> list[TensorCheck]:
        return compare_units(job.units, self._source, self._reader(job, places), "torch_dist", each)

    def hashes(self, job: Job, places: list[tuple[int, int]], each: Each) -> dict[str, str]:
        path = self._inner / file_name(job.number)
        if not path.is_file() or path.stat().st_size < max(start + length for start, length in places):
            return {}
        try:
            return hash_units(job.units, self._reader(job, places), each)
        except UserError:
            return {}

    def finish(self, places: dict[int, list[tuple[int, int]]]) -> dict[str, str]:
        files = {file_name(number): self._named(number, places[number]) for number in sorted(places)}
        extra = _extra_states(self._plan)
        write_index(self._inner, self._shapes, files, extra, COMMON)
        if TorchDistReader(self._inner).contents.tensors != contents_of(self._shapes, files).tensors:
            raise AssertionError(f"{self._inner}/.metadata doesn't say what was written")
        write_synced(self._folder / TRACKER, INNER)
        hashes = copy_companions(self._plan.config_folder, self._folder / HF_FOLDER, _edited_config(self._plan))
        return hashes | write_carried(self._source, list(self._plan.carried), self._folder / HF_FOLDER)

    def close(self) -> None:
        """Nothing stays open."""

    def _part(self, unit: Unit, each: Each) -> Part:
        dtype = self._plan.stored_dtypes[unit.stored]

        def produce() -> torch.Tensor:
            box = unit.pack([self._source.read(source.name, source.rows) for source in unit.slices], dtype)
            each(box.nbytes)
            return box

        return Part(unit.stored, unit.offsets, unit.sizes, produce)

    def _reader(self, job: Job, places: list[tuple[int, int]]) -> TorchDistReader:
        self._units[job.number] = job.units
        return TorchDistReader(self._inner, contents_of(self._shapes, {file_name(job.number): self._named(job.number, places)}))

    def _named(self, number: int, places: list[tuple[int, int]]) -> list[Place]:
        pairs = zip(self._units[number], places, strict=True)
        return [Place(unit.stored, unit.offsets, unit.sizes, start, length) for unit, (start, length) in pairs]


class _HfFolderSide:
    """A Hugging Face folder that is being written: files of their final size from the start, filled job by job."""

    def __init__(self, plan: Plan, folder: Path, resumed: bool) -> None:
        self._plan, self._folder = plan, folder
        self._source = TorchDistReader(plan.source.folder)
        shapes = {name: (shape, plan.hf_dtypes[name]) for name, shape in plan.mapping.hf.items()}
        shapes |= {name: (entry.shape, entry.dtype) for name, entry in plan.carried.items()}
        self._writer = HfWriter(folder, shapes, resumed=resumed)
        self._made = HfReader(folder)

    def write(self, job: Job, each: Each) -> tuple[Path, list[tuple[int, int]]]:
        for unit in job.units:
            box = self._source.read(unit.stored, unit.offsets, unit.sizes)
            each(box.nbytes)
            for piece, source in zip(unit.unpack(box), unit.slices, strict=True):
                self._writer.write(source.name, piece.to(self._plan.hf_dtypes[source.name]), source.rows[0] if source.rows else 0)
        return self._made.entries[job.units[0].slices[0].name].file, []

    def check(self, job: Job, places: list[tuple[int, int]], each: Each) -> list[TensorCheck]:
        return compare_units(job.units, self._made, self._source, "hf", each)

    def hashes(self, job: Job, places: list[tuple[int, int]], each: Each) -> dict[str, str]:
        return hash_units(job.units, self._made, each)

    def finish(self, places: dict[int, list[tuple[int, int]]]) -> dict[str, str]:
        copy_tensors(self._plan.carried, self._writer)
        return copy_companions(self._plan.config_folder, self._folder, _edited_config(self._plan))

    def close(self) -> None:
        self._writer.close()


def _fingerprint(plan: Plan) -> str:
    facts: dict[str, Any] = {
        "target": plan.to,
        "stored": {name: (shape, str(plan.stored_dtypes[name])) for name, shape in plan.mapping.stored.items()},
        "hf": {name: (shape, str(plan.hf_dtypes[name])) for name, shape in plan.mapping.hf.items()},
        "units": len(plan.mapping.units),
    }
    files = [path for path in plan.source.folder.iterdir() if path.is_file()]
    return fingerprint(facts, files)


def _finish(plan: Plan, folder: Path, checks: tuple[TensorCheck, ...], companions: dict[str, str]) -> None:
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


def _extra_states(plan: Plan) -> dict[str, bytes]:
    """The empty extra states that megatron's layers ask for when they load, with and without Transformer Engine."""
    empty, arch, stacked = empty_extra_state(), plan.architecture, plan.layout.stacked
    states = {}
    for module in EXTRA_STATES[arch.family]:
        layers = arch.sparse_layers if ".experts." in module or ".shared_experts." in module else range(arch.layers)
        name = module.replace(EXPERT, "")
        plain = name.replace("experts.experts.", "") if EXPERT in module else None
        for layer in layers:
            place = "decoder.layers." if stacked else f"decoder.layers.{layer}."
            for expert in range(arch.experts) if EXPERT in module else (None,):
                axes = [(layer, arch.layers)] * stacked + ([(expert, arch.experts)] if expert is not None else [])
                offsets, sizes = zip(*(axes or [(0, 1)]), strict=True)
                key = f"{place}{name}._extra_state/shard_{'.'.join(map(str, offsets))}_{'.'.join(map(str, sizes))}"
                states[key] = empty
        for layer in arch.dense_layers if plain else ():
            states[f"decoder.layers.{layer}.{plain}._extra_state/shard_0_1"] = empty
    return states


def _edited_config(plan: Plan) -> dict[str, str]:
    """config.json without the quantisation that a conversion undoes, and in an export with the dtype that was written."""
    config = read_config(plan.config_folder)
    dtypes = set(plan.hf_dtypes.values())
    name = str(next(iter(dtypes))).removeprefix("torch.")
    changed = config.pop("quantization_config", None) is not None
    if plan.to == "hf" and len(dtypes) == 1 and name != plan.architecture.dtype:
        changed = True
        for part in (config, text_config(config) if "text_config" not in config else config["text_config"]):
            for key in ("dtype", "torch_dtype"):
                if key in part:
                    part[key] = name
        if not {"dtype", "torch_dtype"} & config.keys():
            config["dtype"] = name
    return {"config.json": json.dumps(config, indent=2, ensure_ascii=False) + "\n"} if changed else {}
