"""openclaw validate: is this teacher fit for this student?"""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from openclaw_cli.completion import complete_profile
from openclaw_cli.output import active, table

if TYPE_CHECKING:
    from rich.table import Table

    from openclaw_core.config.schema import Config, ModelSource
    from openclaw_core.teacher.compat import Report

EPILOG = """\b
Examples:
  openclaw validate --student models/Qwen3-4B --teacher models/Qwen3-8B
  openclaw validate --student ckpt/qwen3-4b --teacher models/Qwen3-8B --profile qwen3-4b-topk
  openclaw validate --profile tiny-cpu
  openclaw validate --student a --teacher b --json
  openclaw validate --profile tiny-cpu --numerics
\b
Exit code 0: fit (warnings allowed); 1: at least one problem; 2: wrong usage.
"""
MARKS = {"ok": "✓", "warning": "!", "problem": "✗", "skipped": "-"}


def validate(
    student: Annotated[
        str | None, typer.Option(help="Hugging Face folder, torch_dist or run folder; the profile's when left out.")
    ] = None,
    teacher: Annotated[
        str | None, typer.Option(help="The same of the teacher; the student itself where nothing names one.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="Checks lengths, dtype and parallel sizes too.", autocompletion=complete_profile)
    ] = None,
    student_hf: Annotated[
        str | None, typer.Option(help="Config and tokenizer for a student's torch_dist without its own.")
    ] = None,
    teacher_hf: Annotated[
        str | None, typer.Option(help="Config and tokenizer for a teacher's torch_dist without its own.")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also hash every tensor that convert-ckpt wrote. Reads all weights.")
    ] = False,
    numerics: Annotated[
        bool,
        typer.Option(
            "--numerics",
            help="Also load both and compute: log-probs against Hugging Face, and zero loss where the student teaches itself.",
        ),
    ] = False,
) -> None:
    """Check a student against a teacher: architecture from each checkpoint itself, tokens, template, vocabulary, context."""
    from openclaw_core.config.sources import packaged
    from openclaw_core.errors import UsageError
    from openclaw_core.files import check_path

    config = _config(profile)
    if config is not None:
        student, student_hf = _source(student, student_hf, config.student)
        teacher, teacher_hf = _source(teacher, teacher_hf, config.teacher)
    if student is None:
        raise UsageError("There is no student to check.", "Give --student FOLDER, or a --profile that names one.")
    if teacher is None:
        teacher, teacher_hf = student, student_hf
    given = {"student": student, "teacher": teacher, "folder --student-hf": student_hf, "folder --teacher-hf": teacher_hf}
    for what, path in given.items():
        if path is not None:
            check_path(packaged(path), f"The {what}")
    from openclaw_core.run.pair_checks import use_of
    from openclaw_core.teacher import compat
    from openclaw_core.teacher.pair import Use

    use = use_of(config, deep=deep) if config is not None else Use(deep=deep)
    report = compat.validate(packaged(student), packaged(teacher), use, student_hf=student_hf, teacher_hf=teacher_hf)
    if numerics:
        from openclaw_core.run.numerics import not_computed, prove

        dtype, sources = config.train.dtype if config is not None else None, (packaged(student), packaged(teacher))
        report = (
            not_computed(report)
            if report.problems
            else prove(report, *sources, student_hf=student_hf, teacher_hf=teacher_hf, dtype=dtype)
        )
    human: list[Any] = [_facts_table(report), _checks_table(report), _verdict(report)]
    active().data({"state": _state(report), **asdict(report)}, human=human, quiet=_state(report))
    if report.problems:
        raise typer.Exit(1)


def _config(profile: str | None) -> Config | None:
    if profile is None:
        return None
    from openclaw_core.config.load import load_profile

    return load_profile(profile, check=False).config


def _source(path: str | None, hf: str | None, source: ModelSource | None) -> tuple[str | None, str | None]:
    """What a flag names, else what the profile names: its torch_dist with its Hugging Face folder, or that folder alone."""
    if path is not None or source is None:
        return path, hf
    from openclaw_core.run.pair_checks import checkpoint_of

    found, own_hf = checkpoint_of(source)
    return found, hf or own_hf


def _state(report: Report) -> str:
    return "problem" if report.problems else "warning" if report.warnings else "ok"


def _facts_table(report: Report) -> Table:
    rows = [(fact.name, fact.student, fact.teacher, "differs" if fact.same is False else "") for fact in report.facts]
    return table(["", "student", "teacher", ""], rows, title="Architecture")


def _checks_table(report: Report) -> Table:
    rows = [(MARKS[check.state], check.number, check.title, check.student, check.teacher) for check in report.checks]
    return table(["", ">", "check", "student", "teacher"], rows, title="Checks")


def _verdict(report: Report) -> str:
    lines = []
    for check in report.checks:
        if check.state != "skipped" and check.finding:
            lines.append(f"{MARKS[check.state]} {check.number}. {check.title}: {check.finding} {check.remedy}".rstrip())
        if check.state in ("problem", "warning"):
            lines += [f"     compared: {check.compared}", f"     read from: {check.source or '-'}"]
    skipped = [str(check.number) for check in report.checks if check.state == "skipped" and report.problems]
    lines += [f"- Not checked: {', '.join(skipped)}."] if skipped else []
    verdict = "This pair can't be trained" if report.problems else "This pair can be trained"
    return "\n".join([*lines, f"{verdict}: {_count(report.problems, 'problem')}, {_count(report.warnings, 'warning')}."]) + "\n"


def _count(found: Sized, name: str) -> str:
    return f"{len(found)} {name}{'' if len(found) == 1 else 's'}"
