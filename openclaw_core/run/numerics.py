"""Proof by computing: both models against Hugging Face on a text, and a student taught by itself learns nothing.

Each model is computed in a process of its own (`python -m openclaw_core.run.numerics`), Hugging Face's side first: where there
is no GPU megatron-core needs a changed torch, with which transformers would load other weights.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openclaw_core.errors import UserError
from openclaw_core.teacher.compat import Check, Report

if TYPE_CHECKING:
    import torch

    from openclaw_core.models.architecture import Architecture
    from openclaw_core.models.megatron.builder import PackedGPT
    from openclaw_core.models.megatron.packing import Pack

TEXT = (
    "The quick brown fox jumps over the lazy dog. Sort these words: pear, apple, fig. 7 x 8 = 56, and 0.1 + 0.2 is not 0.3.\n"
    "def add(a, b):\n    return a + b\nÜber den Wolken; 天地玄黄; ¿qué tal? A reply ends where the user wanted it to end."
)
MOST_IDS = 512
BOUNDS = {"fp32": 1e-4, "bf16": 0.1}
"""Largest |log-prob - Hugging Face's| that passes. Two orders of summation in bf16 differ by up to 0.05 at 36 layers."""
ZERO = 1e-5
CELLS = tuple(product(("student", "teacher", "overlap"), ("shortest", "token_optimal", "sequence_optimal")))


def not_computed(report: Report) -> Report:
    """The report, saying behind the others that nothing was computed: it has problems, and what they name can't be loaded."""
    check = Check(
        len(report.checks) + 1, "What the models compute", "skipped", "log-probs by Hugging Face; a student taught by itself",
        "-", "-", "", "Not computed: the pair has problems.", "Mend the findings above first.",
    )  # fmt: skip
    return replace(report, checks=(*report.checks, check))


def prove(report: Report, student: str, teacher: str, *, student_hf: str | None = None, teacher_hf: str | None = None,
          dtype: str | None = None) -> Report:  # fmt: skip
    """The report with the numeric checks behind the others. Loads one model at a time (and Hugging Face's beside it).

    dtype is fp32 or bf16; fp32 where left out. Raises UserError when a model can't be loaded.
    """
    kind = "bf16" if dtype == "bf16" else "fp32"
    found = {
        role: _in_its_own_process({"path": path, "hf": hf, "dtype": kind, "cells": role == "student"})
        for role, path, hf in (("student", student, student_hf), ("teacher", teacher, teacher_hf))
    }
    paths = {"student": student, "teacher": teacher}
    return replace(report, checks=(*report.checks, *_checks(found, paths, kind, len(report.checks))))


def _in_its_own_process(task: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="openclaw-numerics-") as folder:
        answer = Path(folder, "answer.json")
        command = [sys.executable, "-m", "openclaw_core.run.numerics", json.dumps(task), str(answer)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if not answer.exists():
            raise UserError(
                f"{task['path']} couldn't be computed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}",
                "Mend what the other checks found, or leave --numerics out.",
            )
        found: dict[str, Any] = json.loads(answer.read_text())
        return found


def _checks(found: dict[str, Any], paths: dict[str, str], dtype: str, number: int) -> Iterator[Check]:
    bound = BOUNDS[dtype]
    for column, role in enumerate(("student", "teacher")):
        worst = found[role]["difference"]
        shown = f"{worst:.1e} nats in {dtype}"
        number += 1
        yield Check(
            number, f"The {role} computes what Hugging Face does", "ok" if worst <= bound else "problem",
            f"log-probs of {found[role]['rows']} tokens and of the most probable ids at each, over the real vocabulary",
            *((shown, "") if column == 0 else ("", shown)), paths[role],
            "" if worst <= bound else f"The {role}'s log-probs differ by up to {worst:.3g} nats; at most {bound:g} is rounding.",
            "" if worst <= bound else "Convert it again from the original folder; if that doesn't help, report the model.",
        )  # fmt: skip
    cells = found["student"]["cells"]
    bad = {name: value for name, value in cells.items() if value > ZERO}
    yield Check(
        number + 1, "Taught by itself, the student learns nothing", "problem" if bad else "ok",
        "loss and largest gradient of the OPD term in all nine cells, teacher = student",
        f"at most {max(cells.values()):.1e}", "", paths["student"],
        f"Not zero in {', '.join(f'{name} ({value:.1e})' for name, value in bad.items())}." if bad else "",
        "Report it: the scores of teacher and student are computed differently." if bad else "",
    )  # fmt: skip


def measure(path: str, hf: str | None, dtype: str, *, cells: bool) -> dict[str, Any]:
    """One model on one device: rows, the largest difference from Hugging Face and, with cells, what each of the nine leaves."""
    import torch

    from openclaw_core.models.megatron.builder import DTYPES
    from openclaw_core.teacher.pair import read_side

    side = read_side("model", path, hf)
    if side.found is None or side.architecture is None or side.config_folder is None:
        raise next(iter(side.errors.values()), UserError(f"{path} has no config and tokenizer beside it."))
    vocab = side.architecture.vocab
    ids = _text_ids(side.config_folder, vocab)
    with _as_hf(side.found, side.config_folder) as folder:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        theirs = _hugging_face(folder, ids, DTYPES[dtype], device, vocab).cpu()
    return _ours(side.architecture, side.found.folder, ids, theirs, DTYPES[dtype], cells=cells)


def _ours(
    arch: Architecture, source: Path, ids: tuple[int, ...], theirs: torch.Tensor, dtype: torch.dtype, *, cells: bool
) -> dict[str, Any]:
    import torch

    from openclaw_core.models.megatron import parallel
    from openclaw_core.models.megatron.builder import build_model
    from openclaw_core.models.megatron.logits import logprobs_at, score_rows
    from openclaw_core.models.megatron.packing import SequenceIds, make_pack
    from openclaw_core.models.megatron.parallel import ParallelSizes
    from openclaw_core.models.megatron.weights import load_weights

    device = parallel.start(parallel.host(1), ParallelSizes(), seed=0)
    try:
        model = build_model(arch, ParallelSizes(), dtype, device=device, trainable=False)
        load_weights(model, source)
        pack = make_pack([SequenceIds(ids[: len(ids) // 2], ids[len(ids) // 2 :])], device)
        with torch.no_grad():
            rows = model(pack, "rows")
        top = score_rows(model, rows, k=8, temperature=1.0, vocab=arch.vocab)
        wanted = torch.cat((pack.response_ids[:, None], top.top_ids), dim=1)
        ours = logprobs_at(model, rows, wanted, temperature=1.0, vocab=arch.vocab).cpu()
        out: dict[str, Any] = {
            "rows": len(wanted),
            "difference": float((theirs.gather(1, wanted.cpu()) - ours).abs().max()),
        }
        if cells:
            out["cells"] = {"/".join(cell): _taught_by_itself(model, pack, rows, arch.vocab, *cell) for cell in CELLS}
        return out
    finally:
        parallel.stop()


def _text_ids(folder: Path, vocab: int) -> tuple[int, ...]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    ids = tuple(i for i in tokenizer(TEXT, add_special_tokens=False)["input_ids"] if i < vocab)[:MOST_IDS]
    if len(ids) < 4:
        raise UserError(f"The tokenizer of {folder} makes only {len(ids)} ids of the text.", "Give a complete folder.")
    return ids


def _hugging_face(folder: Path, ids: tuple[int, ...], dtype: torch.dtype, device: torch.device, vocab: int) -> torch.Tensor:
    """Log-probs [N, vocab] in float32 of the rows that predict the second half of ids."""
    import torch
    from transformers import AutoModelForCausalLM

    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False, "attn_implementation": "eager"}
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype, **options).to(device).eval()
    with torch.no_grad():
        logits = model(torch.tensor([ids], device=device)).logits[0, len(ids) // 2 - 1 : -1, :vocab]
    return logits.float().log_softmax(-1)


@contextmanager
def _as_hf(found: Any, config_folder: Path) -> Iterator[Path]:
    """The folder itself, or a conversion that is deleted afterwards."""
    if found.kind == "hf":
        yield found.folder
        return
    from openclaw_core.checkpoint.convert import convert, plan_conversion

    with tempfile.TemporaryDirectory(prefix="openclaw-numerics-") as temporary:
        target = Path(temporary, "hf")
        convert(plan_conversion(str(found.folder), target, to="hf", hf_config=config_folder))
        yield target


def _taught_by_itself(model: PackedGPT, pack: Pack, rows: torch.Tensor, vocab: int, subset: str, selection: str) -> float:
    """The larger of |loss| and the largest |gradient| of the OPD term where the teacher is the student."""
    import numpy as np
    import torch

    from openclaw_core.config.schema import Loss
    from openclaw_core.loss.logprobs import row_stats
    from openclaw_core.loss.needs import needs
    from openclaw_core.loss.objective import objective
    from openclaw_core.loss.rows import pack_rows
    from openclaw_core.loss.targets import build_targets
    from openclaw_core.loss.teacher_rows import pack_teacher
    from openclaw_core.models.megatron.logits import logprobs_at, score_rows
    from openclaw_core.types import Candidate, Hint, Sample, SampleKind, TeacherScores, TopK

    cfg = Loss(w_rl=0, w_opd=1, subset=subset, selection=selection)
    response = tuple(pack.response_ids.tolist())
    prompt = tuple(pack.input_ids[: pack.lengths[0] - len(response)].tolist())
    hints = (Candidate(prompt, Hint("none at all")),) * 2
    sample = Sample("s", "t", SampleKind.OPD, 0.0, prompt, response, (0.0,) * len(response), (1,) * len(response), hints, 0)
    batch = pack_rows([sample], cfg, real_vocab=vocab, device=rows.device)
    shard = model.columns
    logits = model.logits(rows).detach()
    own = row_stats(logits, shard, sampled_ids=batch.response_ids, temperature=cfg.temperature, k=cfg.k)
    native = score_rows(model, rows, k=cfg.k, temperature=cfg.temperature, vocab=vocab)
    at = logprobs_at(model, rows, own.top_ids, temperature=cfg.temperature, vocab=vocab).cpu().numpy()
    top = TopK(*(np.stack([t.cpu().numpy()] * 2) for t in (native.top_ids, native.top_logprobs)))
    teacher = pack_teacher(batch, [TeacherScores("s", top, np.stack([at] * 2))], cfg, real_vocab=vocab)
    stats = row_stats(
        logits, shard, sampled_ids=batch.response_ids, temperature=cfg.temperature, k=needs(cfg).student_k,
        gather_ids=teacher.gather_ids() if needs(cfg).old_at_teacher else None,
    )  # fmt: skip
    targets = build_targets(cfg, batch, stats, teacher)
    with torch.enable_grad():
        leaf = logits.float().requires_grad_()
        out = objective(leaf, batch, targets, cfg, shard, inplace=False)
        (gradient,) = torch.autograd.grad(out.loss, leaf)
    return max(abs(float(out.loss.detach())), float(gradient.abs().max()))


if __name__ == "__main__":
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    try:
        Path(sys.argv[2]).write_text(json.dumps(measure(**json.loads(sys.argv[1]))))
    except UserError as error:
        sys.exit(" ".join(str(error).split()))
