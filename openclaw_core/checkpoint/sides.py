"""The two sides of a conversion that can be written: a torch_dist folder and a Hugging Face folder, job by job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Protocol

import torch

from openclaw_core.checkpoint.carried import compare_carried, copy_tensors, write_carried
from openclaw_core.checkpoint.dist_writer import Part, Place, Shapes, contents_of, file_name, write_file, write_index
from openclaw_core.checkpoint.families import EXTRA_STATES
from openclaw_core.checkpoint.fp8 import open_hf
from openclaw_core.checkpoint.hf import HfReader, HfWriter, read_header
from openclaw_core.checkpoint.jobs import Job
from openclaw_core.checkpoint.manifest import copy_companions, hash_file, write_synced
from openclaw_core.checkpoint.mapping import EXPERT, Unit, cast
from openclaw_core.checkpoint.names import CARRIED_FILE, HF_FOLDER, TRACKER
from openclaw_core.checkpoint.plan import Plan
from openclaw_core.checkpoint.torch_dist import TorchDistReader, empty_extra_state
from openclaw_core.checkpoint.verify import Each, TensorCheck, compare_units, hash_units
from openclaw_core.errors import UserError
from openclaw_core.models.hf_config import TIED, read_config, text_config, tied_twice

COMMON = {"checkpoint_version": 3.0, "iteration": 0}
INNER = "release"


class Side(Protocol):
    """The side that is written. files holds name -> sha256 of what its format needs beside the weights, once it is finished."""

    files: dict[str, str]

    def write(self, job: Job, each: Each) -> tuple[Path, list[tuple[int, int]]]:
        """Writes a job's units; returns the file to sync and the places of the boxes in it."""

    def check(self, job: Job, places: list[tuple[int, int]], each: Each) -> list[TensorCheck]:
        """Reads a written job back and compares it with the source."""

    def hashes(self, job: Job, places: list[tuple[int, int]], each: Each) -> dict[str, str]:
        """SHA-256 of a written job's tensors as they lie on disk; empty where they aren't there."""

    def finish(self, places: dict[int, list[tuple[int, int]]]) -> dict[str, str]:
        """Writes what stands beside the weights; returns companions -> sha256."""

    def check_carried(self) -> list[TensorCheck]:
        """Reads the carried tensors back and compares them with what they are copies of."""

    def close(self) -> None:
        """Lets go of open files."""


class TorchDistSide:
    """A torch_dist folder that is being written: a file per job."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan, self._folder, self._inner = plan, folder, folder / INNER
        self._inner.mkdir(exist_ok=True)
        self._source = open_hf(plan.source.folder)
        self._shapes: Shapes = {name: (shape, plan.stored_dtypes[name]) for name, shape in plan.mapping.stored.items()}
        self._units: dict[int, tuple[Unit, ...]] = {}
        self.files: dict[str, str] = {}

    def write(self, job: Job, each: Each) -> tuple[Path, list[tuple[int, int]]]:
        path = self._inner / file_name(job.number)
        self._units[job.number] = job.units
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
        written = write_index(self._inner, self._shapes, files, extra, COMMON)
        if TorchDistReader(self._inner).contents.tensors != contents_of(self._shapes, files).tensors:
            raise AssertionError(f"{self._inner}/.metadata doesn't say what was written")
        self.files = {name: hash_file(self._inner / name) for name in written}
        write_synced(self._folder / TRACKER, INNER)
        hashes = copy_companions(self._plan.config_folder, self._folder / HF_FOLDER, _edited_config(self._plan))
        return hashes | write_carried(self._source, list(self._plan.carried), self._folder / HF_FOLDER)

    def check_carried(self) -> list[TensorCheck]:
        path = self._folder / HF_FOLDER / CARRIED_FILE
        return compare_carried(read_header(path), self._plan.carried) if self._plan.carried else []

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


class HfFolderSide:
    """A Hugging Face folder that is being written: files of their final size from the start, filled job by job."""

    def __init__(self, plan: Plan, folder: Path, resumed: bool) -> None:
        self._plan, self._folder = plan, folder
        self._source = TorchDistReader(plan.source.folder)
        shapes = {name: (shape, plan.hf_dtypes[name]) for name, shape in plan.mapping.hf.items()}
        shapes |= {name: (entry.shape, entry.dtype) for name, entry in plan.carried.items()}
        self._writer = HfWriter(folder, shapes, resumed=resumed)
        self._made = HfReader(folder)
        self.files: dict[str, str] = {}

    def write(self, job: Job, each: Each) -> tuple[Path, list[tuple[int, int]]]:
        for unit in job.units:
            box = self._source.read(unit.stored, unit.offsets, unit.sizes)
            each(box.nbytes)
            for piece, source in zip(unit.unpack(box), unit.slices, strict=True):
                piece = cast(piece, self._plan.hf_dtypes[source.name], source.name)
                self._writer.write(source.name, piece, source.rows[0] if source.rows else 0)
        return self._made.entries[job.units[0].slices[0].name].file, []

    def check(self, job: Job, places: list[tuple[int, int]], each: Each) -> list[TensorCheck]:
        return compare_units(job.units, self._made, self._source, "hf", each)

    def hashes(self, job: Job, places: list[tuple[int, int]], each: Each) -> dict[str, str]:
        return hash_units(job.units, self._made, each)

    def finish(self, places: dict[int, list[tuple[int, int]]]) -> dict[str, str]:
        copy_tensors(self._plan.carried, self._writer)
        return copy_companions(self._plan.config_folder, self._folder, _edited_config(self._plan))

    def check_carried(self) -> list[TensorCheck]:
        return compare_carried({name: self._made.entries[name] for name in self._plan.carried}, self._plan.carried)

    def close(self) -> None:
        self._writer.close()


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
    """config.json without the quantisation that a conversion undoes, with one flag for a tied head, and in an export with the
    dtype that was written."""
    config = read_config(plan.config_folder)
    dtypes = set(plan.hf_dtypes.values())
    name = str(next(iter(dtypes))).removeprefix("torch.")
    changed = config.pop("quantization_config", None) is not None
    if tied_twice(config) is not None:
        changed = True
        config["text_config"][TIED] = config[TIED]
    if plan.to == "hf" and len(dtypes) == 1 and name != plan.architecture.dtype:
        changed = True
        for part in (config, text_config(config) if "text_config" not in config else config["text_config"]):
            for key in ("dtype", "torch_dtype"):
                if key in part:
                    part[key] = name
        if not {"dtype", "torch_dtype"} & config.keys():
            config["dtype"] = name
    return {"config.json": json.dumps(config, indent=2, ensure_ascii=False) + "\n"} if changed else {}
