"""Reading step dumps. What cannot be read is told with file and line, and the rest is read all the same."""

from __future__ import annotations

import difflib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from ..errors import UsageError, UserError
from ..track import jsonl
from ..track.jsonl import Problem
from .schema import SCHEMA_VERSION, TENSORS, SampleDump, StepDump, StepHeader, header_of, sample_of, step_file
from .writer import INDEX, METADATA_KEY, tensor_key

_STEP_FILE = re.compile(r"step-(\d{6,})\.safetensors")


class DumpReader:
    """The dumps in a folder. problems lists what could not be read, after steps() or any later call.

    Each step is read from its index line or, where that is broken or missing, from the copy inside its file. Raises UserError
    where the folder holds no dump at all.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[Problem] = []
        self._records: dict[int, dict[str, Any]] = {}
        files = self._files()
        index = folder / INDEX
        if not files and not index.is_file():
            raise UserError(f"There are no dumps in {folder}.", "A run writes its first at the end of step 1.")
        if index.is_file():
            self._read_index(index, files)
        else:
            self.problems.append(Problem(INDEX, "absent; steps are read from their own files"))
        for step in sorted(files - self._records.keys()):
            self._recover(step)

    def steps(self) -> list[int]:
        """Steps that have a readable header, rising."""
        return sorted(self._records)

    def header(self, step: int) -> StepHeader:
        """The header of a step."""
        return header_of(self._record(step))

    def samples(self, step: int) -> list[SampleDump]:
        """The samples of a step without their tensors (as the index has them), in batch order."""
        return [sample_of(entry, {}) for entry in self._record(step)["samples"]]

    def lengths(self, step: int) -> list[int]:
        """R of each sample of a step, in batch order, from the index."""
        return [int(entry.get("R", 0)) for entry in self._record(step)["samples"]]

    def step(self, step: int) -> StepDump:
        """A whole step with all tensors; raises UserError where its file is corrupt."""
        entries = self._record(step)["samples"]
        return StepDump(self.header(step), tuple(self._load(step, number) for number in range(len(entries))))

    def sample(self, step: int, sample_id: str) -> SampleDump:
        """One sample with its tensors, by its id or by an unambiguous beginning of it; raises UsageError naming near ids."""
        ids = [str(entry["sample_id"]) for entry in self._record(step)["samples"]]
        found = [number for number, name in enumerate(ids) if name == sample_id]
        found = found or [number for number, name in enumerate(ids) if name.startswith(sample_id)]
        if len(found) == 1:
            return self._load(step, found[0])
        if found:
            raise ambiguous(sample_id, {ids[number]: [step] for number in found})
        near = difflib.get_close_matches(sample_id, ids, n=3, cutoff=0.3) or ids[:3]
        raise UsageError(f"Step {step} has no sample {sample_id!r}.", f"It has {len(ids)}, for instance {', '.join(near)}.")

    def find(self, sample_id: str) -> dict[str, list[int]]:
        """The steps, rising, of each sample that has this id; where none has it, of each whose id begins so."""
        steps: dict[str, list[int]] = {}
        for step in self.steps():
            for name in dict.fromkeys(str(entry["sample_id"]) for entry in self._records[step]["samples"]):
                if name.startswith(sample_id):
                    steps.setdefault(name, []).append(step)
        return {sample_id: steps[sample_id]} if sample_id in steps else steps

    def check_files(self) -> None:
        """Open every step's file and add a problem for each that is corrupt or missing."""
        for step in self.steps():
            try:
                self._open(step)
            except UserError as error:
                self._problem(Problem(step_file(step), error.what.removeprefix(f"{step_file(step)} is ")))

    def _files(self) -> set[int]:
        if not self.folder.is_dir():
            return set()
        matches = (_STEP_FILE.fullmatch(entry.name) for entry in self.folder.iterdir())
        return {int(match[1]) for match in matches if match}

    def _read_index(self, index: Path, files: set[int]) -> None:
        lines: dict[int, int] = {}
        try:
            for item in jsonl.read(index):
                if isinstance(item, Problem):
                    self.problems.append(item)
                    continue
                try:
                    step = self._accept(item.record)
                except ValueError as error:
                    self.problems.append(Problem(index.name, str(error), item.number))
                    continue
                lines[step] = item.number
                if item.non_finite:
                    self.problems.append(
                        Problem(index.name, f"{item.non_finite} non-finite numbers, read as absent", item.number)
                    )
        except OSError as error:
            raise UserError(f"{index} cannot be read: {error.strerror}.", "Check its permissions.") from None
        for step in sorted(self._records.keys() - files):
            self.problems.append(Problem(index.name, f"step {step}: {step_file(step)} is missing", lines[step]))

    def _accept(self, record: dict[str, Any]) -> int:
        """Keep the record of a step (the last one of a step counts); raises ValueError where it cannot be used."""
        if record.get("schema") != SCHEMA_VERSION:
            raise ValueError(f"schema {record.get('schema')!r}, this program reads {SCHEMA_VERSION}")
        header = header_of(record)
        if not isinstance(record.get("samples"), list):
            raise ValueError("no list of samples")
        for entry in record["samples"]:
            sample_of(entry, {})
        self._records[header.step] = record
        return header.step

    def _recover(self, step: int) -> None:
        try:
            with self._open(step) as file:
                text = (file.metadata() or {}).get(METADATA_KEY, "")
            found = self._accept(json.loads(text))
        except (ValueError, UserError) as error:
            self._problem(
                Problem(
                    step_file(step),
                    str(getattr(error, "what", f"no usable header ({error})")).removeprefix(f"{step_file(step)} is "),
                )
            )
            return
        if found != step:
            del self._records[found]
            self._problem(Problem(step_file(step), f"its header is of step {found}"))
        elif (self.folder / INDEX).is_file():
            self._problem(Problem(step_file(step), "not in the index; read from the file itself"))

    def _record(self, step: int) -> dict[str, Any]:
        if step not in self._records:
            broken = [problem.what for problem in self.problems if problem.file == step_file(step)]
            if broken:
                raise UserError(f"The dump of step {step} can't be read: {broken[0]}.", "Look at another step.")
            steps = self.steps()
            have = f"{steps[0]} to {steps[-1]}" if steps else "none"
            raise UsageError(f"There is no dump of step {step}.", f"Readable steps: {have}.")
        return self._records[step]

    def _open(self, step: int) -> Any:
        path = self.folder / step_file(step)
        try:
            return safe_open(path, framework="np")
        except FileNotFoundError:
            raise UserError(f"{path.name} is missing.", "Only the index still knows this step.") from None
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path.name} is corrupt ({error}).", "Look at another step; this one can't be mended.") from None

    def _load(self, step: int, number: int) -> SampleDump:
        tensors: dict[str, np.ndarray] = {}
        with self._open(step) as file:
            present = set(file.keys())
            for name in TENSORS:
                if tensor_key(number, name) in present:
                    tensors[name] = file.get_tensor(tensor_key(number, name))
        entry = self._record(step)["samples"][number]
        if "response_ids" not in tensors:
            raise UserError(
                f"{step_file(step)} has no tensors of sample {entry['sample_id']}.", "Index and file are of different runs."
            )
        return sample_of(entry, tensors)

    def _problem(self, problem: Problem) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


def ambiguous(sample_id: str, steps: dict[str, list[int]]) -> UsageError:
    """The error for a beginning that several ids have; steps holds each id's steps."""
    most = 10
    named = [f"{name} (step {', '.join(map(str, trained))})" for name, trained in list(steps.items())[:most]]
    named += [f"{len(steps) - most} more"] if len(steps) > most else []
    return UsageError(f"{sample_id!r} begins the ids of {len(steps)} samples.", f"Give more of one: {', '.join(named)}.")
