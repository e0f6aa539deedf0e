"""Tensors that no trainer of text needs but an engine does (a vision tower): kept beside a torch_dist, put back on export."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from openclaw_core.checkpoint.families import CARRIED
from openclaw_core.checkpoint.hf import Entry, HfReader, HfWriter, map_entry, read_header
from openclaw_core.checkpoint.manifest import hash_file
from openclaw_core.checkpoint.names import CARRIED_FILE, HF_FOLDER
from openclaw_core.checkpoint.sniff import Found, carried_config
from openclaw_core.checkpoint.verify import TensorCheck, count_nonfinite, memory_of, same_bits
from openclaw_core.errors import UserError
from openclaw_core.models.architecture import Architecture
from openclaw_core.models.hf_config import read_config


def carried_names(names: Iterable[str], arch: Architecture) -> list[str]:
    """The names that this model's family declares as carried."""
    patterns = CARRIED.get(arch.model_type, ())
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def write_carried(reader: HfReader, names: list[str], folder: Path) -> dict[str, str]:
    """Copies tensors into one file of a folder, in place of one cut short; returns file -> sha256, nothing without tensors."""
    if not names:
        return {}
    entries = {name: reader.entries[name] for name in names}
    writer = HfWriter.one_file(folder / CARRIED_FILE, {name: (entry.shape, entry.dtype) for name, entry in entries.items()})
    copy_tensors(entries, writer)
    writer.close()
    return {CARRIED_FILE: hash_file(folder / CARRIED_FILE)}


def find_carried(arch: Architecture, config_folder: Path) -> dict[str, Entry]:
    """Where an export finds the tensors that its model's family declares as carried: beside the config, or in its release.

    Raises UserError when they are nowhere: the result couldn't be served.
    """
    if not needs_carried(arch, config_folder):
        return {}
    path = config_folder / CARRIED_FILE
    entries = read_header(path) if path.is_file() else {}
    if not entries and any(config_folder.glob("*.safetensors")):
        reader = HfReader(config_folder)
        entries = {name: reader.entries[name] for name in carried_names(reader.entries, arch)}
    if not entries:
        remedy = "Name the release's folder with --hf-config: an engine needs them beside the text tower."
        raise UserError(absent(arch, config_folder), remedy)
    return entries


def needs_carried(arch: Architecture, config_folder: Path) -> bool:
    """Whether the config is of a model with more than a text tower."""
    return arch.model_type in CARRIED and "vision_config" in read_config(config_folder)


def absent(arch: Architecture, config_folder: Path) -> str:
    """What is wrong where the tensors to carry aren't there."""
    return f"{config_folder} says {arch.model_type}, but the tensors {', '.join(CARRIED[arch.model_type])} are nowhere."


def carried_entries(found: Found, arch: Architecture) -> dict[str, Entry]:
    """The carried tensors that a checkpoint holds: among a Hugging Face folder's own, or beside a torch_dist."""
    if arch.model_type not in CARRIED:
        return {}
    if found.kind == "torch_dist":
        path = (carried_config(found) or found.root) / CARRIED_FILE
        return read_header(path) if path.is_file() else {}
    reader = HfReader(found.folder)
    return {name: reader.entries[name] for name in carried_names(reader.entries, arch)}


def compare_carried(made: dict[str, Entry], origin: dict[str, Entry]) -> list[TensorCheck]:
    """Reads carried tensors where they were put, hashes them and compares them bitwise with those that they are copies of.

    A tensor that only one side has isn't equal; its hash is empty where it wasn't made.
    """
    return [_compared(name, made.get(name), origin.get(name)) for name in {**origin, **made}]


def _compared(name: str, made: Entry | None, origin: Entry | None) -> TensorCheck:
    shown = made or origin
    assert shown is not None
    digest, equal, nonfinite = "", False, 0
    if made is not None:
        tensor = map_entry(made)
        digest = hashlib.sha256(memory_of(tensor)).hexdigest()
        equal = origin is not None and same_bits(tensor, map_entry(origin))
        nonfinite = count_nonfinite(tensor)
    dtype = str(shown.dtype).removeprefix("torch.")
    return TensorCheck(name, f"{HF_FOLDER}/{CARRIED_FILE}", shown.shape, dtype, digest, equal, nonfinite)


def copy_tensors(entries: dict[str, Entry], writer: HfWriter) -> None:
    """Writes tensors as they lie in their files."""
    for name, entry in entries.items():
        writer.write(name, map_entry(entry))
