"""From the tensors that the loss worked with to those of a dump, per sample. Reads them by name; imports no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from ..loss.logprobs import RowStats
    from ..loss.rows import Rows
    from ..loss.targets import OpdTargets, Targets
    from ..loss.teacher_rows import TeacherRows


def collect(
    rows: Rows, stats: RowStats, targets: Targets, teacher: TeacherRows | None = None
) -> dict[str, dict[str, np.ndarray]]:
    """Tensors by sample id for the samples of a micro-batch, as SampleDump takes them (SampleDump adds the prompt).

    Samples without an OPD term have none of the teacher's side. stats is the old pass that targets was built from.
    """
    packed: dict[str, Any] = {
        "response_ids": rows.response_ids,
        "loss_mask": rows.weight > 0,
        "sampled_logprobs": stats.sampled_logprobs,
        "sampling_logprobs": stats.sampling_logprobs,
        "engine_logprobs": rows.engine_logprobs,
        "entropy": stats.entropy,
    }
    if stats.top_ids.shape[1]:
        packed |= {"student_ids": _known(stats.top_ids, stats.top_logprobs), "student_logprobs": stats.top_logprobs}
    opd, real = {}, np.zeros((rows.count, 0), bool)
    if targets.opd is not None and teacher is not None:
        opd, real = _opd(stats, targets.opd, teacher), to_numpy(teacher.real)
    packed = {name: to_numpy(value) for name, value in packed.items()}
    has_opd = to_numpy(rows.opd)
    found, start = {}, 0
    for sample_id, length in zip(rows.sample_ids, rows.lengths, strict=True):
        part = slice(start, start + length)
        tensors = {name: value[part] for name, value in packed.items()}
        if opd and length and has_opd[start]:
            tensors |= _of_sample(opd, part, int(real[start].sum()))
        found[sample_id] = tensors
        start += length
    return found


CANDIDATE_FIRST = ("teacher_ids", "teacher_logprobs", "teacher_at_student", "student_at_teacher", "overlap")


def _of_sample(opd: dict[str, np.ndarray], part: slice, count: int) -> dict[str, np.ndarray]:
    """The rows of one sample; arrays [R, M, ...] over candidates become [C, R, ...] without fillers."""
    return {
        name: np.moveaxis(value[part][:, :count], 1, 0) if name in CANDIDATE_FIRST else value[part] for name, value in opd.items()
    }


def _opd(stats: RowStats, opd: OpdTargets, teacher: TeacherRows) -> dict[str, np.ndarray]:
    named: dict[str, Any] = {
        "teacher_ids": teacher.ids,
        "teacher_logprobs": teacher.logprobs,
        "overlap": opd.overlap,
        "k_star": opd.k_star,
        "support_ids": opd.ids,
        "support_mask": opd.mask,
        "support_student": opd.old_logprobs,
        "support_teacher": opd.teacher_logprobs,
        "weights": opd.weights,
        "differences": opd.differences,
        "advantages": opd.advantages,
    }
    if teacher.at_student is not None:
        named["teacher_at_student"] = teacher.at_student
    if stats.gathered is not None and stats.gathered.shape[1] == teacher.ids.shape[1] * teacher.ids.shape[2]:
        named["student_at_teacher"] = stats.gathered.reshape(teacher.ids.shape)
    arrays = {name: to_numpy(value) for name, value in named.items()}
    ids, counted = arrays["support_ids"], arrays["support_mask"] > 0
    tail = np.full((ids.shape[0], counted.shape[1] - ids.shape[1]), -1, ids.dtype)
    arrays["support_ids"] = np.concatenate([ids, tail], axis=1)
    for name in ("support_student", "support_teacher", "weights", "differences", "advantages"):
        arrays[name] = np.where(counted, arrays[name], 0)
    return arrays


def _known(ids: Any, logprobs: Any) -> np.ndarray:
    """ids with -1 where the log-prob is -inf: those are in no support."""
    return np.where(np.isneginf(to_numpy(logprobs)), -1, to_numpy(ids))


def to_numpy(value: Any) -> np.ndarray:
    """A tensor's values on the host; floats as float32 (float64 stays)."""
    if not hasattr(value, "detach"):
        return np.asarray(value)
    value = value.detach().cpu()
    small = value.is_floating_point() and value.element_size() < 4
    return np.asarray((value.float() if small else value).numpy())
