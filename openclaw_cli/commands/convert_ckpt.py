"""openclaw convert-ckpt: Hugging Face folder <-> torch_dist, verified."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from openclaw_cli.output import Output, active, table

if TYPE_CHECKING:
    from openclaw_core.checkpoint.convert import Conversion, Plan
    from openclaw_core.checkpoint.verify import TensorCheck

EPILOG = """\b
Examples:
  openclaw convert-ckpt models/Qwen3-4B ckpt/qwen3-4b              to torch_dist
  openclaw convert-ckpt ckpt/qwen3-4b out/qwen3-4b                 and back
  openclaw convert-ckpt runs/RUN out/step-100 --step 100           a run's checkpoint, ready to serve
  openclaw convert-ckpt iter_0000500 out --hf-config models/Qwen3-4B   one that another trainer wrote
  openclaw convert-ckpt models/Qwen3-4B ckpt/qwen3-4b --dry-run    plan and sizes only
"""


def convert_ckpt(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Hugging Face folder, torch_dist checkpoint, or run folder.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="Folder to make.")],
    to: Annotated[
        Literal["hf", "torch_dist"] | None, typer.Option(help="Kind to make; the other one than SRC's when left out.")
    ] = None,
    step: Annotated[int | None, typer.Option(help="Step of a run folder; its newest checkpoint when left out.")] = None,
    tp: Annotated[
        int, typer.Option(help="Tensor-parallel size that the vocabulary is padded for. Any size can load the result.")
    ] = 1,
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
        bool, typer.Option("--overwrite", help="Replace DST; the old one stays until the new one is complete.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Compare every tensor bitwise after writing, and hash it.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything and print the plan; write nothing.")] = False,
) -> None:
    """Convert a checkpoint between a Hugging Face folder and megatron's torch_dist, tensor by tensor, and verify it."""
    from openclaw_core.checkpoint.convert import convert, plan_conversion
    from openclaw_core.config.sources import packaged

    out = active()
    plan = plan_conversion(
        packaged(source),
        target,
        to=to,
        step=step,
        hf_config=packaged(hf_config) if hf_config else None,
        tp=tp,
        dtype=dtype,
        allow=tuple(allow or ()),
        expect=_pairs(expect or []),
    )
    if dry_run:
        out.data(_plan_json(plan), human=[_plan_table(plan), "Nothing was written (--dry-run).\n"], quiet=str(plan.target))
        return
    for name, reason in plan.left_out.items():
        out.note(f"Left out: {name} ({reason}).")
    with _Bars(out, plan.nbytes) as bars:
        done = convert(plan, overwrite=overwrite, verify=verify, progress=bars.show)
    out.data(
        _result_json(done), human=[*([_checks_table(done.checks)] if done.checks else []), _summary(done)], quiet=str(plan.target)
    )


def _pairs(expect: list[str]) -> dict[str, str]:
    from openclaw_core.errors import UsageError

    wrong = [item for item in expect if "=" not in item]
    if wrong:
        raise UsageError(f"--expect {wrong[0]!r} isn't FIELD=VALUE.", "Write it as in --expect rope_theta=1000000.")
    return dict(item.split("=", 1) for item in expect)


class _Bars:
    """One progress bar per stage, told in bytes done so far."""

    def __init__(self, out: Output, total: int) -> None:
        self._out, self._total = out, total
        self._stage = ""
        self._done = 0
        self._context: Any = None
        self._bar: Any = None

    def __enter__(self) -> _Bars:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def show(self, stage: str, done: int, total: int) -> None:
        if stage != self._stage:
            self._close()
            self._stage, self._done = stage, 0
            self._context = self._out.progress({"write": "Writing", "verify": "Verifying"}[stage], total)
            self._bar = self._context.__enter__()
        self._bar.advance(done - self._done)
        self._done = done

    def _close(self) -> None:
        if self._context is not None:
            self._context.__exit__(None, None, None)
            self._context = None


def _plan_json(plan: Plan) -> dict[str, Any]:
    mapping = plan.mapping
    return {
        "source": plan.source.folder,
        "target": plan.target,
        "to": plan.to,
        "architecture": plan.architecture,
        "vocabulary": {"real": plan.architecture.vocab, "padded": plan.layout.padded},
        "bytes": plan.nbytes,
        "tensors": {
            name: {"shape": shape, "dtype": _short(plan.hf_dtypes[name]), "stored": mapping.sources[name]}
            for name, shape in mapping.hf.items()
        },
        "left_out": plan.left_out,
    }


def _result_json(done: Conversion) -> dict[str, Any]:
    plan = _plan_json(done.plan)
    plan["tensors"] = {check.name: check for check in done.checks} or plan["tensors"]
    return {**plan, "verified": bool(done.checks), "seconds": round(done.seconds, 3), "peak_bytes": done.peak_bytes}


def _plan_table(plan: Plan) -> Any:
    arch = plan.architecture
    dtypes = ", ".join(sorted({_short(dtype) for dtype in plan.hf_dtypes.values()}))
    heads = f"{arch.heads} heads of {arch.head_dim} ({arch.kv_heads} for k and v)"
    rows = [
        ("source", f"{plan.source.folder} ({plan.source.kind})"),
        ("target", f"{plan.target} ({plan.to})"),
        ("model", f"{arch.model_type}: {arch.layers} layers of {arch.hidden}, {heads}, MLP {arch.ffn}"),
        ("rope", f"base {arch.rope_theta:g}, scaling {arch.rope_scaling or 'none'}"),
        ("norms", f"eps {arch.norm_eps:g}; on q and k: {_yes(arch.qk_norm)}"),
        ("vocabulary", f"{arch.vocab:,} rows, {plan.layout.padded:,} padded in torch_dist; head tied: {_yes(arch.tied)}"),
        ("weights", f"{len(plan.mapping.hf)} tensors, {arch.parameters:,} weights, {dtypes}, {plan.nbytes / 1e9:.3g} GB on disk"),
        *(("left out", f"{name}: {reason}") for name, reason in plan.left_out.items()),
    ]
    return table(["", ""], rows, title="Conversion")


def _checks_table(checks: tuple[TensorCheck, ...]) -> Any:
    """One line per tensor, those of all layers folded into one."""
    groups: dict[str, list[TensorCheck]] = {}
    for check in checks:
        groups.setdefault(re.sub(r"\.\d+\.", ".*.", check.name), []).append(check)
    rows = []
    for name, group in groups.items():
        first = group[0]
        digest = first.sha256[:12] if len(group) == 1 else f"{first.sha256[:12]} ..."
        equal = sum(check.equal for check in group)
        rows.append(
            (
                name,
                first.stored,
                " x ".join(map(str, first.shape)),
                first.dtype,
                digest,
                f"{'✓' if equal == len(group) else '✗'} {equal}/{len(group)}",
            )
        )
    return table(["Hugging Face", "torch_dist", ">shape", "dtype", "sha256", ">equal"], rows)


def _summary(done: Conversion) -> str:
    plan = done.plan
    rate = plan.nbytes / 1e6 / max(done.seconds, 1e-9)
    state = f"all {len(done.checks)} tensors bitwise equal after the round trip" if done.checks else "not verified (--no-verify)"
    lines = [
        f"{plan.target}: {state}.",
        f"{plan.nbytes / 1e9:.3g} GB in {done.seconds:.1f} s ({rate:,.0f} MB/s), peak memory {done.peak_bytes / 1e9:.2f} GB.",
    ]
    if plan.to == "hf":
        lines.append(f"Serve it: python -m sglang.launch_server --model-path {plan.target}")
    else:
        lines.append(f"Train from it: openclaw train --set student.load={plan.target} ...")
    return "\n".join(lines) + "\n"


def _short(dtype: object) -> str:
    return str(dtype).removeprefix("torch.")


def _yes(value: bool) -> str:
    return "yes" if value else "no"
