"""What `inspect-candidates` shows: the steps of a run, the samples of a step, one sample with its positions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import UsageError
from .anomalies import Anomaly, anomalies
from .position import Positions, PositionView, choose_positions
from .reader import DumpReader, ambiguous
from .schema import SampleDump, StepHeader, plain_record
from .summary import SampleSummary, mean, overlap_at_k_star, signal, summarise
from .tokens import TokenTexts


@dataclass(frozen=True, slots=True)
class Filters:
    """Which samples are listed: of a kind, with a hint that contains a text (any case), with a mean O at k* of at least.

    Hints that were dropped count, too: of them the beginning that the dump keeps.
    """

    kind: str | None = None
    hint_contains: str | None = None
    min_overlap: float | None = None

    def by_record(self, sample: SampleDump) -> bool:
        """Whether kind and hints pass."""
        hints = [hint.text or "" for hint in sample.hints] + [hint.text for hint in sample.dropped_hints or ()]
        return (not self.hint_contains or any(map(self.in_hint, hints))) and self.kind in (None, sample.kind)

    def in_hint(self, hint: str) -> bool:
        """Whether a hint contains the text; every hint does where none is looked for."""
        return (self.hint_contains or "").casefold() in hint.casefold()

    def by_overlap(self, overlap: float | None) -> bool:
        """Whether the mean overlap passes; an absent one does only without a bound."""
        return self.min_overlap is None or (overlap is not None and overlap >= self.min_overlap)


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step in the list of steps; reward is the mean over its samples."""

    step: int
    samples: int
    opd_rl: int
    opd: int
    rl: int
    reward: float | None
    response_tokens: float | None
    candidates: float | None
    weight_version: int
    objective: str


@dataclass(frozen=True, slots=True)
class SampleRow:
    """A sample in the list of a step; taught has the share of positions that each candidate teaches.

    dropped_hints counts those that became no candidate; None where the dump doesn't say.
    """

    sample_id: str
    kind: str
    reward: float
    length: int
    candidates: int
    mean_overlap: float | None
    signal: float | None
    taught: list[float]
    anomalies: int
    hints: list[str]
    dropped_hints: int | None


@dataclass(frozen=True, slots=True)
class SampleView:
    """One sample: texts of prompt and reply (None without a tokenizer), its summary, anomalies, and the chosen positions."""

    header: StepHeader
    sample: SampleDump
    prompt: str | None
    reply: str | None
    summary: SampleSummary
    anomalies: list[Anomaly]
    positions: list[PositionView]
    matching: int


def list_steps(reader: DumpReader) -> list[StepRow]:
    """All readable steps, from the index alone."""
    return [_step_row(reader, step) for step in reader.steps()]


def list_samples(reader: DumpReader, step: int, filters: Filters, last_id: int | None = None) -> list[SampleRow]:
    """The samples of a step that pass the filters, in batch order; raises UserError where the step's file is corrupt."""
    dump = reader.step(step)
    rows = [_sample_row(dump.header, sample, last_id) for sample in dump.samples if filters.by_record(sample)]
    return [row for row in rows if filters.by_overlap(row.mean_overlap)]


def show_sample(
    reader: DumpReader,
    step: int,
    sample_id: str,
    texts: TokenTexts,
    *,
    start: int = 0,
    end: int | None = None,
    sort: str = "position",
    min_overlap: float | None = None,
    limit: int | None = None,
) -> SampleView:
    """One sample with its positions start <= t < end that pass min_overlap: at most limit, by position or by signal."""
    header, sample = reader.header(step), reader.sample(step, sample_id)
    if start >= max(sample.length, 1):
        raise UsageError(
            f"Sample {sample.sample_id} has no position {start}.", f"Its reply has positions 0 to {sample.length - 1}."
        )
    chosen = choose_positions(header, sample, start=start, end=end, sort=sort, min_overlap=min_overlap)
    prompt = sample.get("prompt_ids")
    known = texts.path is not None
    all_positions = Positions(header, sample, texts)
    return SampleView(
        header=header,
        sample=sample,
        prompt=texts.many(prompt) if known and prompt is not None else None,
        reply=texts.many(sample.tensors["response_ids"]) if known else None,
        summary=summarise(header, sample),
        anomalies=anomalies(header, sample, texts.last_id),
        positions=[all_positions.at(t) for t in chosen[:limit]],
        matching=len(chosen),
    )


def step_of_sample(reader: DumpReader, sample_id: str) -> int:
    """The last step that trained the sample; raises UsageError where none did, or where several ids begin so."""
    found = reader.find(sample_id)
    if not found:
        raise UsageError(f"No readable step has a sample {sample_id!r}.", "List a step's samples with --step.")
    if len(found) > 1:
        raise ambiguous(sample_id, found)
    (steps,) = found.values()
    return steps[-1]


def dumps_folder(path: Path) -> Path:
    """The folder of dumps of a run folder, or path itself where it is one."""
    return path if not (path / "run.json").is_file() and not (path / "dumps").is_dir() else path / "dumps"


def view_record(view: SampleView) -> dict[str, Any]:
    """A sample view as JSON: the header, the sample without its arrays, summary, anomalies and positions."""
    dropped = view.sample.dropped_hints
    known = None if dropped is None else [{**asdict(hint), "why": hint.why} for hint in dropped]
    return {
        "header": asdict(view.header),
        "sample": {**plain_record(view.sample), "dropped_hints": known},
        "prompt": view.prompt,
        "reply": view.reply,
        "summary": asdict(view.summary),
        "anomalies": [asdict(anomaly) for anomaly in view.anomalies],
        "matching_positions": view.matching,
        "positions": [asdict(one) for one in view.positions],
    }


def objective_phrase(header: StepHeader) -> str:
    """Divergence, support and selection in one phrase, as the header states them."""
    if header.w_opd == 0:
        return "no OPD term (w_opd 0)"
    clip = f"diff clip {header.diff_clip:g}" if header.diff_clip > 0 else "no diff clip"
    tail = ", tail bin" if header.tail == "bin" else ""
    return f"{header.divergence}, {header.subset} / {header.selection}, K {header.k}, {clip}{tail}"


def _step_row(reader: DumpReader, step: int) -> StepRow:
    header, samples = reader.header(step), reader.samples(step)
    kinds = [sample.kind for sample in samples]
    return StepRow(
        step=step,
        samples=len(samples),
        opd_rl=kinds.count("opd+rl"),
        opd=kinds.count("opd"),
        rl=kinds.count("rl"),
        reward=mean(np.asarray([sample.reward for sample in samples])),
        response_tokens=mean(np.asarray(reader.lengths(step))),
        candidates=mean(np.asarray([sample.candidates for sample in samples])),
        weight_version=header.weight_version,
        objective=objective_phrase(header),
    )


def _sample_row(header: StepHeader, sample: SampleDump, last_id: int | None) -> SampleRow:
    k_star = sample.get("k_star")
    return SampleRow(
        sample_id=sample.sample_id,
        kind=sample.kind,
        reward=sample.reward,
        length=sample.length,
        candidates=sample.candidates,
        mean_overlap=mean(overlap_at_k_star(sample)),
        signal=mean(signal(header, sample)),
        taught=[] if k_star is None else [float((k_star == k).mean()) for k in range(sample.candidates)],
        anomalies=sum(anomaly.count for anomaly in anomalies(header, sample, last_id)),
        hints=[hint.text for hint in sample.hints if hint.text is not None],
        dropped_hints=None if sample.dropped_hints is None else len(sample.dropped_hints),
    )
