"""openclaw convert-ckpt: Hugging Face folder <-> torch_dist, verified."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from openclaw_cli import ckpt_text as text
from openclaw_cli.ckpt_bars import Bars
from openclaw_cli.output import active

if TYPE_CHECKING:
    from pathlib import Path

    from openclaw_core.checkpoint.logits import LogitsReport

EPILOG = """\b
Examples:
  openclaw convert-ckpt models/Qwen3-4B ckpt/qwen3-4b              to torch_dist
  openclaw convert-ckpt ckpt/qwen3-4b out/qwen3-4b                 and back
  openclaw convert-ckpt runs/RUN out/step-100 --step 100           a run's checkpoint, ready to serve
  openclaw convert-ckpt iter_0000500 out --hf-config models/Qwen3-4B   one that another trainer wrote
  openclaw convert-ckpt models/Qwen3-4B ckpt/qwen3-4b --dry-run    plan and sizes only
  openclaw convert-ckpt models/Qwen3-4B ckpt/qwen3-4b --verify logits --tp 2
  openclaw convert-ckpt ckpt/qwen3-4b --verify-only                an existing conversion, once more
  openclaw convert-ckpt --list                                     families and what is verified
"""
LIST_HELP = "Print the families, what is verified of each and how, and those that are refused."


def convert_ckpt(
    source: Annotated[
        str | None, typer.Argument(metavar="SRC", help="Hugging Face folder, torch_dist checkpoint, or run folder.")
    ] = None,
    target: Annotated[str | None, typer.Argument(metavar="DST", help="Folder to make.")] = None,
    to: Annotated[
        Literal["hf", "torch_dist"] | None, typer.Option(help="Kind to make; the other one than SRC's when left out.")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(help="Step of the run folder SRC; when left out its newest checkpoint, or with --verify-only DST's own."),
    ] = None,
    tp: Annotated[
        int | None,
        typer.Option(
            help="Tensor-parallel size to pad the vocabulary for, and to compare logits at; 1 when left out. Any size can load "
            "the result."
        ),
    ] = None,
    dtype: Annotated[Literal["bf16", "fp16", "fp32"] | None, typer.Option(help="Cast the weights; kept when left out.")] = None,
    hf_config: Annotated[
        str | None, typer.Option(help="Folder with config and tokenizer, for a torch_dist that carries none.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Source tensors that may be left out. Repeatable.")
    ] = None,
    expect: Annotated[
        list[str] | None, typer.Option(metavar="FIELD=VALUE", help="Stop unless the config says so. Repeatable.")
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite", help="Replace DST where a conversion made it; the old one stays until the new one is complete."
        ),
    ] = False,
    verify: Annotated[
        Literal["bitwise", "logits", "none"] | None,
        typer.Option(
            help="Compare every tensor after writing and hash it (bitwise, when left out); logits also builds both sides and "
            "runs texts."
        ),
    ] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="The same as --verify none.")] = False,
    verify_only: Annotated[
        bool,
        typer.Option("--verify-only", help="Verify the existing DST against SRC, or alone against its manifest; write nothing."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and print the plan; write nothing.")] = False,
    listing: Annotated[bool, typer.Option("--list", help=LIST_HELP)] = False,
) -> None:
    """Convert a checkpoint between a Hugging Face folder and megatron's torch_dist, tensor by tensor, and verify it."""
    from openclaw_core.errors import UsageError

    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch: large boxes in huge pages, read before its first allocation
    if listing:
        _refuse_idle({"SRC": source is not None}, "with --list")
        _list()
        return
    mode = "none" if no_verify else verify or "bitwise"
    if no_verify and verify not in (None, "none"):
        raise UsageError(f"--no-verify and --verify {verify} contradict each other.", "Leave one of them out.")
    if source is None or (target is None and not verify_only):
        raise UsageError("SRC and DST are needed.", "openclaw convert-ckpt SRC DST; --verify-only takes DST alone too.")
    if verify_only:
        given = {"--to": to, "--dtype": dtype, "--expect": expect, "--overwrite": overwrite, "--dry-run": dry_run}
        given |= {"--verify none": mode == "none", "--tp": tp is not None and mode != "logits"}
        _refuse_idle(given, "with --verify-only")
    origin, made = (source, target) if target is not None or not verify_only else (None, source)
    _check_folders(origin, made if verify_only else None, step, hf_config)
    pairs = _pairs(expect or [])
    if verify_only:
        assert made is not None
        _verify_only(origin, made, step, hf_config, tp or 1, tuple(allow or ()), logits=mode == "logits")
        return
    assert target is not None
    from openclaw_core.checkpoint.atomic import check_existing, check_room, check_target, would_replace
    from openclaw_core.config.sources import packaged

    if not dry_run:  # that one shows the plan first
        check_existing(packaged(source), target, overwrite=overwrite)
    from openclaw_core.checkpoint.convert import convert, plan_conversion
    from openclaw_core.checkpoint.verify import nonfinite_notes

    out = active()
    plan = plan_conversion(
        packaged(source),
        target,
        to=to,
        step=step,
        hf_config=packaged(hf_config) if hf_config else None,
        tp=1 if tp is None else tp,
        dtype=dtype,
        allow=tuple(allow or ()),
        expect=pairs,
    )
    _refuse_idle({"--tp": plan.to == "hf" and tp is not None and mode != "logits"}, "on an export without --verify logits")
    if mode == "logits":
        from openclaw_core.checkpoint.logits import check_comparable, check_memory

        check_comparable(plan.config_folder, plan.architecture, plan.tp, plan.mapping.stored)
        check_memory(plan.architecture)
    for note in text.idle_patterns(allow or (), plan.left_out):
        out.warn(note)
    if dry_run:
        replaced = would_replace(plan.target) if overwrite else None
        shown = [text.plan_table(plan), *text.replaced_text(plan.target, replaced), "Nothing was written (--dry-run).\n"]
        out.data({**text.plan_json(plan), "replaces": replaced}, human=shown, quiet=str(plan.target))
        check_target(plan.target, overwrite=overwrite)
        check_room(plan.target, plan.room)
        return
    for note in text.notes(plan):
        out.note(note)
    report: LogitsReport | None = None

    def last_check(folder: Path) -> None:
        nonlocal report
        if mode == "logits":
            bars.close()
            report = _logits(plan.source.folder, folder, plan.to, plan.tp)
            _require(report, target)

    with Bars(out) as bars:
        done = convert(plan, overwrite=overwrite, verify=mode != "none", progress=bars.show, last_check=last_check)
    for note in nonfinite_notes(done.checks):
        out.warn(note)
    human = [*([text.checks_table(done.checks)] if done.checks else []), *_shown(report), text.summary(done)]
    out.data({**text.result_json(done), "logits": report}, human=human, quiet=str(plan.target))


def _refuse_idle(given: Mapping[str, object], where: str) -> None:
    """Nothing is accepted and then ignored."""
    from openclaw_core.errors import UsageError

    idle = [flag for flag, value in given.items() if value]
    if idle:
        raise UsageError(f"{', '.join(idle)} has no effect {where}.", "Leave it out.")


def _check_folders(source: str | None, made: str | None, step: int | None, hf_config: str | None) -> None:
    """Wrong paths, and folders without a checkpoint, are told before torch is imported. made is a DST that must be there."""
    from openclaw_core.checkpoint.sniff import sniff
    from openclaw_core.config.sources import packaged
    from openclaw_core.files import check_path

    source = source and packaged(source)
    for path, what in ((source, "SRC"), (made, "DST"), (hf_config and packaged(hf_config), "--hf-config")):
        if path is not None:
            check_path(path, what)
    if source is not None:
        sniff(source, step)
    if made is not None:
        sniff(made)


def _list() -> None:
    from openclaw_core.checkpoint.support import refused, supported

    families, others = supported(), refused()
    active().data(
        {"families": families, "refused": others},
        human=[text.families_table(families), text.families_text(others)],
        quiet=[one.model_type for one in families],
    )


def _verify_only(
    origin: str | None, made: str, step: int | None, hf_config: str | None, tp: int, allow: tuple[str, ...], *, logits: bool
) -> None:
    from openclaw_core.checkpoint.atomic import replaced
    from openclaw_core.checkpoint.recheck import recheck
    from openclaw_core.checkpoint.verify import nonfinite_notes
    from openclaw_core.config.sources import packaged
    from openclaw_core.errors import Findings, UserError

    out = active()
    with Bars(out) as bars:
        found = recheck(
            made, packaged(origin) if origin else None, step=step, hf_config=hf_config, allow=allow, progress=bars.show
        )
    for note in [*text.idle_patterns(allow, found.left_out), *nonfinite_notes(found.checks)]:
        out.warn(note)
    old = replaced(found.target.root)
    if old is not None:
        out.warn(
            f"{old} is what {made} replaced, left by a conversion that was killed.", "Remove it, or leave that to --overwrite."
        )
    report = None
    if logits:
        if found.source is None:
            raise UserError(f"{made} has no source to compare logits with.", "Name it: convert-ckpt SRC DST --verify-only.")
        report = _logits(found.source.folder, found.target.folder, found.target.kind, tp)
    data = {"target": found.target.root, "source": found.source.folder if found.source else None, "tensors": found.checks}
    out.data(
        {**data, "companions": found.companions, "equal": not found.problems, "logits": report},
        human=[text.checks_table(found.checks), *_shown(report), text.recheck_text(found)],
        quiet="changed" if found.problems else "equal",
    )
    if found.problems:
        changed = all(check.equal or check.name in found.kept for check in found.checks) and all(found.companions.values())
        what = "is what was converted; its source isn't any more." if changed else "isn't what was converted. Convert it again."
        raise Findings(f"{made} {what}", found.problems)
    _require(report, made)


def _logits(source: Path, target: Path, to: Literal["hf", "torch_dist"], tp: int) -> LogitsReport:
    from openclaw_core.checkpoint.logits import compare_logits
    from openclaw_core.checkpoint.sniff import resolve

    hf, stored = (source, target) if to == "torch_dist" else (target, source)
    return compare_logits(hf, resolve(stored), tp, made=to)


def _shown(report: LogitsReport | None) -> list[Any]:
    return [text.logits_table(report)] if report is not None else []


def _require(report: LogitsReport | None, made: str) -> None:
    from openclaw_core.errors import UserError

    if report is not None and not report.equal:
        worst = max(one.difference for one in report.texts)
        raise UserError(
            f"{made}: logits differ from the source's by up to {worst:.3g} at tensor-parallel size {report.tp}.",
            "Don't use it, and report it: a tensor or setting is mapped wrongly.",
        )


def _pairs(expect: list[str]) -> dict[str, str]:
    from openclaw_core.errors import UsageError

    wrong = [repr(item) for item in expect if "=" not in item]
    if wrong:
        raise UsageError(f"--expect {', '.join(wrong)} isn't FIELD=VALUE.", "Write it as in --expect rope_theta=1000000.")
    stated = Counter(item.split("=", 1)[0] for item in expect)
    twice = [field for field, times in stated.items() if times > 1]
    if twice:
        raise UsageError(f"--expect states {', '.join(twice)} more than once.", "Leave one value.")
    return dict(item.split("=", 1) for item in expect)
