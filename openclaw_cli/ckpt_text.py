"""What convert-ckpt says to people: plan, comparison, summary, families."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from openclaw_cli.output import table

if TYPE_CHECKING:
    from pathlib import Path

    from openclaw_core.checkpoint.convert import Conversion, Plan
    from openclaw_core.checkpoint.logits import LogitsReport
    from openclaw_core.checkpoint.recheck import Recheck
    from openclaw_core.checkpoint.support import Support
    from openclaw_core.checkpoint.verify import TensorCheck

_COLUMNS = (
    "loaded at: parallel sizes at which megatron-core loaded a conversion and computed transformers' logits.",
    "saved at: those at which megatron-core saved a checkpoint that converted back bit by bit.",
    "logits at: the --tp at which --verify logits was tried. Any other that divides the model's sizes can be asked for.",
    "trained here: whether `openclaw train` builds it; the others are converted for other trainers.",
    "These are no limits: a conversion loads at any parallel size that divides the model's. Every type came back bit by bit in "
    "the tests, and each conversion is compared again when it is made (--verify).",
)


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan as data."""
    from openclaw_core.checkpoint.manifest import custom_code

    mapping = plan.mapping
    return {
        "source": plan.source.folder,
        "target": plan.target,
        "to": plan.to,
        "architecture": plan.architecture,
        "vocabulary": {"real": plan.architecture.vocab, "padded": plan.layout.padded},
        "bytes": plan.nbytes,
        "peak_estimate": plan.peak_estimate,
        "tensors": {
            name: {"shape": shape, "dtype": short(plan.hf_dtypes[name]), "stored": mapping.sources[name]}
            for name, shape in mapping.hf.items()
        },
        "left_out": plan.left_out,
        "carried": list(plan.carried),
        "custom_code": custom_code(plan.config_folder),
        "not_trained": not_trained(plan),
    }


def result_json(done: Conversion) -> dict[str, Any]:
    """A finished conversion as data."""
    plan = plan_json(done.plan)
    plan["tensors"] = {check.name: check for check in done.checks} or plan["tensors"]
    cost = {"seconds": round(done.seconds, 3), "peak_bytes": done.peak_bytes, "kept_bytes": done.kept}
    return {**plan, "verified": bool(done.checks), **cost}


def not_trained(plan: Plan) -> list[str]:
    """Why `openclaw train` can't build the model: sentences, none where it can."""
    from openclaw_core.models.buildable import buildable

    return [what for what, _ in buildable(plan.architecture)]


def notes(plan: Plan) -> list[str]:
    """What a user should know of a conversion although nothing is wrong with it."""
    from openclaw_core.models.hf_config import read_config, tied_twice

    found = [f"Left out: {name} ({reason})." for name, reason in plan.left_out.items()]
    if plan.to == "torch_dist":
        found += [f"It is converted for other trainers. {reason}" for reason in not_trained(plan)]
    twice = tied_twice(read_config(plan.config_folder))
    return [*found, f"{plan.config_folder}/config.json: {twice}"] if twice else found


def idle_patterns(allow: Iterable[str], left_out: Iterable[str]) -> list[str]:
    """A warning for every pattern of --allow that leaves nothing out: it is probably misspelt."""
    names = tuple(left_out)
    idle = [pattern for pattern in allow if not any(fnmatchcase(name, pattern) for name in names)]
    return [f"--allow {one!r} leaves nothing out: no unmapped tensor matches it. Correct it, or leave it out." for one in idle]


def plan_table(plan: Plan) -> Any:
    """The plan as a table."""
    from openclaw_core.checkpoint.manifest import custom_code

    code = custom_code(plan.config_folder)
    arch = plan.architecture
    dtypes = ", ".join(sorted({short(dtype) for dtype in plan.hf_dtypes.values()}))
    heads = f"{arch.heads} heads of {arch.head_dim} ({arch.kv_heads} for k and v)"
    mlp = (
        f"MLP {arch.ffn}" if not arch.experts else f"{arch.experts} experts of {arch.moe_ffn} ({arch.experts_per_token} a token)"
    )
    rows = [
        ("source", f"{plan.source.folder} ({plan.source.kind})"),
        ("target", f"{plan.target} ({plan.to})"),
        ("model", f"{arch.model_type}: {arch.layers} layers of {arch.hidden}, {heads}, {mlp}"),
        ("rope", f"base {arch.rope_theta:g}, scaling {arch.rope_scaling or 'none'}"),
        ("norms", f"eps {arch.norm_eps:g}; on q and k: {yes(arch.qk_norm)}"),
        ("vocabulary", f"{arch.vocab:,} rows, {plan.layout.padded:,} padded in torch_dist; head tied: {yes(arch.tied)}"),
        (
            "weights",
            f"{len(plan.mapping.hf):,} tensors, {arch.parameters:,} weights, {dtypes}, {plan.nbytes / 1e9:.3g} GB on disk",
        ),
        ("memory", f"about {plan.peak_estimate / 1e9:.2f} GB at its peak, whatever the model's size"),
        *([("carried", f"{len(plan.carried)} tensors beside the text tower")] if plan.carried else []),
        *(("not trained here", reason) for reason in not_trained(plan)),
        *([("custom code", f"{', '.join(code)}: copied, never run")] if code else []),
        *(("left out", f"{name}: {reason}") for name, reason in plan.left_out.items()),
    ]
    return table(["", ""], rows, title="Conversion")


def replaced_text(target: Path, replaced: dict[str, str] | None) -> list[str]:
    """What --overwrite would take away."""
    return [f"--overwrite would replace {target}: {replaced['kind']}, converted from {replaced['source']}.\n"] if replaced else []


def checks_table(checks: Iterable[TensorCheck]) -> Any:
    """One line per tensor, those of all layers and experts folded into one."""
    groups: dict[str, list[TensorCheck]] = {}
    for check in checks:
        groups.setdefault(re.sub(r"\.\d+(?=\.)", ".*", check.name), []).append(check)
    rows = []
    for name, group in groups.items():
        first = group[0]
        digest = first.sha256[:12] if len(group) == 1 else f"{first.sha256[:12]} ..."
        equal = sum(check.equal for check in group)
        mark = "✓" if equal == len(group) else "✗"
        shape = " x ".join(map(str, first.shape))
        rows.append(
            (name, re.sub(r"\.\d+(?=\.)", ".*", first.stored), shape, first.dtype, digest, f"{mark} {equal}/{len(group)}")
        )
    return table(["Hugging Face", "torch_dist", ">shape", "dtype", "sha256", ">equal"], rows)


def logits_table(report: LogitsReport) -> Any:
    """One line per text."""
    rows = [
        (
            one.text if len(one.text) < 40 else f"{one.text[:37]}...",
            one.tokens,
            f"{one.difference:.2g}",
            f"{one.logprob_difference:.2g}",
            f"{one.same_top:.0%}",
        )
        for one in report.texts
    ]
    title = f"Logits at tensor-parallel size {report.tp}, both sides in fp32"
    return table(["text", ">tokens", ">largest difference", ">of log-probs", ">same top token"], rows, title=title)


def summary(done: Conversion) -> str:
    """What was made, at what cost, and what to do with it."""
    plan = done.plan
    rate = plan.nbytes / 1e6 / max(done.seconds, 1e-9)
    state = f"all {len(done.checks):,} tensors bitwise equal after the round trip" if done.checks else "not verified"
    kept = f"; {done.kept / 1e9:.3g} GB were there from an interrupted run and still had their hashes" if done.kept else ""
    lines = [
        f"{plan.target}: {state}{kept}.",
        f"{plan.nbytes / 1e9:.3g} GB in {done.seconds:.1f} s ({rate:,.0f} MB/s), peak memory {done.peak_bytes / 1e9:.2f} GB.",
        *next_steps(plan),
    ]
    return "\n".join(lines) + "\n"


def next_steps(plan: Plan) -> list[str]:
    """How to serve an export, with the length and dtype of its config; how to train from an import."""
    arch = plan.architecture
    if plan.to == "torch_dist" and not_trained(plan):
        return ["For another trainer on megatron-core; this one doesn't build the model."]
    if plan.to == "torch_dist":
        sizes = (("heads", arch.heads), ("key-value heads", arch.kv_heads), ("MLP columns", arch.ffn))
        whole = [f"{value} {name}" for name, value in sizes if value % plan.tp]
        if whole:
            return [f"Train from it at another tensor-parallel size: {plan.tp} doesn't divide its {', '.join(whole)}."]
        # Rollout engines serve student.hf until the first update, so it must be the source: hf/ of the target has no weights.
        folders = {"student.hf": plan.source.folder.absolute(), "student.load": plan.target}
        flags = " ".join(shlex.join(["--set", f"{key}={folder}"]) for key, folder in folders.items())
        return [f"Train from it: openclaw train --profile PROFILE {flags}"]
    return [
        "Serve it:",
        f"  python -m sglang.launch_server --model-path {plan.target} --context-length {arch.max_position}",
        f'  curl http://127.0.0.1:30000/v1/chat/completions -H "Content-Type: application/json" '
        f"""-d '{{"model": "{plan.target.name}", "messages": [{{"role": "user", "content": "Hello"}}]}}'""",
    ]


def recheck_text(found: Recheck) -> str:
    """The verdict on an existing conversion."""
    step = f" (step {found.step}, as its manifest says)" if found.step is not None else ""
    against = [f"its source {found.source.root}{step}"] if found.source else []
    against += ["the hashes in its manifest"] if found.hashed else []
    equal = sum(check.equal for check in found.checks)
    files = (
        f"; {sum(found.companions.values())} of {len(found.companions)} files beside them unchanged" if found.companions else ""
    )
    return f"{found.target.root}: {equal:,} of {len(found.checks):,} tensors equal to {' and '.join(against)}{files}.\n"


def families_table(families: Iterable[Support]) -> Any:
    """A line per model type: the layouts that the tests tried."""
    rows = [
        (one.model_type, one.models, ", ".join(one.loaded), ", ".join(one.saved), one.logits, yes(one.trained))
        for one in families
    ]
    columns = ["model type", "models", "loaded at", "saved at", "logits at", "trained here"]
    return table(columns, rows, title="Families that are converted, and what the tests tried")


def families_text(refused: dict[str, str]) -> str:
    """What the table's columns mean; refused model types, those with one reason together."""
    reasons: dict[str, list[str]] = {}
    for model_type, reason in refused.items():
        reasons.setdefault(reason, []).append(model_type)
    parts = [_wrapped(line) for line in _COLUMNS] + ["", "Refused by name:"]
    return "\n".join([*parts, *(_wrapped(f"{', '.join(types)}: {reason}") for reason, types in reasons.items())]) + "\n"


def _wrapped(line: str) -> str:
    return textwrap.fill(line, 100, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False, break_long_words=False)


def short(dtype: object) -> str:
    """torch.bfloat16 -> bfloat16"""
    return str(dtype).removeprefix("torch.")


def yes(value: bool) -> str:
    """yes or no"""
    return "yes" if value else "no"
