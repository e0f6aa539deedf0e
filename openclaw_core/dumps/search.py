"""Samples of all steps, found by what the index says of them: no step's file is opened, so the cost is that of the index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .inspect import Filters
from .reader import DumpReader
from .schema import SampleDump


@dataclass(frozen=True, slots=True)
class FoundSample:
    """A sample and its step. hints and dropped_hints are those that hold the text that was looked for, or all."""

    step: int
    sample_id: str
    kind: str
    reward: float
    length: int
    hints: list[str]
    dropped_hints: list[str]


def find_samples(reader: DumpReader, filters: Filters) -> Iterator[FoundSample]:
    """The samples of all readable steps whose kind and hints pass, by step and in batch order."""
    for step in reader.steps():
        for sample, length in zip(reader.samples(step), reader.lengths(step), strict=True):
            if filters.by_record(sample):
                yield _found(step, sample, length, filters)


def _found(step: int, sample: SampleDump, length: int, filters: Filters) -> FoundSample:
    hints = [hint.text for hint in sample.hints if hint.text is not None and filters.in_hint(hint.text)]
    dropped = [hint.text for hint in sample.dropped_hints or () if filters.in_hint(hint.text)]
    return FoundSample(step, sample.sample_id, sample.kind, sample.reward, length, hints, dropped)
