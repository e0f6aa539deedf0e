"""Writing step dumps: first the file, then its index line, so that the index never names a file that isn't whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import save

from ..files import write_atomic
from ..track import jsonl
from .schema import OPD_TENSORS, REQUIRED_TENSORS, TENSORS, SampleDump, StepDump, index_record, step_file

INDEX = "index.jsonl"
METADATA_KEY = "openclaw_dump"


class DumpWriter:
    """Writes the dumps of one run into a folder, which is made if need be. A step written again replaces the old one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, dump: StepDump) -> Path:
        """Write one step; returns its file. Raises ValueError where tensors don't fit each other or the table of the schema."""
        tensors: dict[str, np.ndarray] = {}
        for number, sample in enumerate(dump.samples):
            for name, value in checked_tensors(sample).items():
                tensors[tensor_key(number, name)] = value
        record = index_record(dump)
        path = self.folder / step_file(dump.header.step)
        write_atomic(path, save(tensors, metadata={METADATA_KEY: jsonl.dumps(record)}))
        jsonl.append(self.folder / INDEX, record)
        return path


def tensor_key(sample_number: int, name: str) -> str:
    """Key of a sample's tensor in the file of its step: by place in the batch, ids stay in the index."""
    return f"s{sample_number}.{name}"


def checked_tensors(sample: SampleDump) -> dict[str, np.ndarray]:
    """A sample's tensors as numpy arrays of the schema's dtypes.

    What stands for the OPD term of a sample without one is left out. Raises ValueError on misfits.
    """
    absent = [name for name in REQUIRED_TENSORS if name not in sample.tensors]
    unknown = [name for name in sample.tensors if name not in TENSORS]
    if absent or unknown:
        raise ValueError(f"sample {sample.sample_id}: missing tensors {absent}, unknown tensors {unknown}")
    sizes: dict[str, int] = {}
    result = {}
    for name, value in sample.tensors.items():
        if value is None or (name in OPD_TENSORS and sample.get("teacher_ids") is None):
            continue
        axes, dtype, _ = TENSORS[name]
        array = np.ascontiguousarray(value, dtype=dtype)
        if array.ndim != len(axes.split()):
            raise ValueError(f"sample {sample.sample_id}: {name} has shape {array.shape}, expected axes [{axes}]")
        for axis, size in zip(axes.split(), array.shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                raise ValueError(f"sample {sample.sample_id}: {name} {array.shape} has {axis} = {size}, expected {sizes[axis]}")
        result[name] = array
    if sizes.get("C", 0) > sample.candidates:
        raise ValueError(f"sample {sample.sample_id}: {sizes['C']} candidates have scores, {sample.candidates} have hints")
    return result
