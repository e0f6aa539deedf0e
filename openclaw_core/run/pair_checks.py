"""Student against teacher, as `validate` checks them, for the configuration of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from openclaw_core.config.schema import Config, ModelSource

if TYPE_CHECKING:
    from openclaw_core.teacher.pair import Use

Finding = tuple[str, str]


def checkpoint_of(source: ModelSource) -> tuple[str | None, str | None]:
    """What is checked of a model, and the folder with its config and tokenizer: its torch_dist with its Hugging Face folder,
    or that folder alone."""
    return (source.load, source.hf) if source.load else (source.hf, None)


def use_of(config: Config, *, deep: bool = False) -> Use:
    """What a run of this configuration asks of its two models."""
    from openclaw_core.teacher.pair import Use

    actor, teacher = config.partition.actor, config.partition.teacher
    return Use(
        prompt_and_reply=config.rollout.context_length,
        hint=config.judge.max_tokens,
        dtype=config.train.dtype,
        student_tp=actor.tensor_parallel,
        student_pp=actor.pipeline_parallel,
        teacher_tp=teacher.tensor_parallel,
        teacher_pp=teacher.pipeline_parallel,
        deep=deep,
    )


def pair_findings(config: Config) -> tuple[list[Finding], list[Finding]]:
    """Problems and warnings of the checks of `validate`: of headers and JSON, no weights are read.

    None where the student teaches itself, or no teacher is used. All folders must be there (missing_sources). Sizes of the
    partition are left to its own rules.
    """
    if config.teacher is None or config.loss.w_opd == 0:
        return [], []
    (student, student_hf), (teacher, teacher_hf) = checkpoint_of(config.student), checkpoint_of(config.teacher)
    assert student is not None, "missing_sources() refuses such a run"
    assert teacher is not None, "missing_sources() refuses such a run"
    if Path(student).resolve() == Path(teacher).resolve() and student_hf == teacher_hf:
        return [], []
    from openclaw_core.teacher.compat import validate

    use = replace(use_of(config), student_tp=1, student_pp=1, teacher_tp=1, teacher_pp=1)
    report = validate(student, teacher, use, student_hf=student_hf, teacher_hf=teacher_hf)
    pair = f"{_key('teacher', config.teacher)} against {_key('student', config.student)}"
    problems, warnings = (
        [(f"{pair}: {check.number}. {check.title}: {check.finding}", check.remedy) for check in checks]
        for checks in (report.problems, report.warnings)
    )
    return problems, warnings


def _key(name: str, source: ModelSource) -> str:
    return f"{name}.{'load' if source.load else 'hf'}"
