"""Both sides of a conversion built and run on the same texts: transformers from the Hugging Face folder, megatron-core from the
torch_dist at the tensor-parallel size of the run. Logits must agree; a wrong rope base or layout shows here and nowhere else."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from openclaw_core.errors import Findings, UserError
from openclaw_core.models.architecture import Architecture, architecture_from_hf
from openclaw_core.models.buildable import buildable

TEXTS = (
    "The quick brown fox jumps over the lazy dog, and the dog does not mind.",
    "def area(width: float, height: float) -> float:\n    return width * height\n",
    "Zürich, 東京, Москва: 3 cities, 2026-11-05, 17 °C.",
)
BOUND = 1e-3


@dataclass(frozen=True)
class TextLogits:
    """Of one text: its tokens, the largest difference of two logits (both sides in fp32) and of two log-probabilities, how
    large logits are, and the share of positions with the same most likely token."""

    text: str
    tokens: int
    difference: float
    logprob_difference: float
    scale: float
    same_top: float


@dataclass(frozen=True)
class LogitsReport:
    """Both sides compared. equal: every difference is at most BOUND times the largest logit of its text (at least 1)."""

    tp: int
    texts: tuple[TextLogits, ...]
    seconds: float

    @property
    def equal(self) -> bool:
        return all(one.difference <= BOUND * max(one.scale, 1.0) for one in self.texts)


def check_buildable(arch: Architecture, tp: int) -> None:
    """Raises UserError, by name, for what can't be built here on CPU at this tensor-parallel size."""
    reasons = buildable(arch)
    if reasons:
        raise Findings("--verify=logits can't build the model; use --verify=bitwise.", reasons)
    if arch.heads % tp or arch.kv_heads % tp or arch.ffn % tp:
        raise UserError(
            f"{arch.kv_heads} kv heads, {arch.heads} heads and MLP {arch.ffn} can't be split by tp={tp}.", "Lower --tp."
        )


def check_memory(arch: Architecture) -> None:
    """Raises UserError when the model doesn't fit in memory in fp32, once (the two sides are built one after the other)."""
    import psutil

    needed, free = int(arch.parameters * 4 * 1.3) + 2**30, psutil.virtual_memory().available
    if needed > free:
        raise UserError(
            f"--verify=logits needs {needed / 1e9:.0f} GB of memory for {arch.parameters / 1e9:.1f} B weights in fp32, "
            f"{free / 1e9:.0f} GB are free.",
            "Run it on a larger machine with --verify-only, or verify bitwise.",
        )


def compare_logits(hf: Path, torch_dist: Path, tp: int = 1, texts: Sequence[str] = TEXTS) -> LogitsReport:
    """Logits of all texts from both sides. hf holds config, tokenizer and weights; torch_dist is the folder with .metadata.

    Raises UserError for what can't be built, and when a rank ends with an error.
    """
    started = time.monotonic()
    arch = architecture_from_hf(hf)
    check_buildable(arch, tp)
    check_memory(arch)
    ids = _token_ids(hf, arch, texts)
    with tempfile.TemporaryDirectory(prefix="openclaw-logits-") as place:
        work = Path(place)
        (work / "job.json").write_text(
            json.dumps({"hf": str(hf.absolute()), "torch_dist": str(torch_dist.absolute()), "ids": ids})
        )
        _run_ranks(work, tp)
        ours = [
            torch.cat(shards, dim=-1)[:, : arch.vocab] for shards in zip(*(_load(work, rank) for rank in range(tp)), strict=True)
        ]
    theirs = _transformers(hf, ids)
    found = tuple(_compared(text, a, b) for text, a, b in zip(texts, ours, theirs, strict=True))
    return LogitsReport(tp, found, time.monotonic() - started)


def _compared(text: str, ours: torch.Tensor, theirs: torch.Tensor) -> TextLogits:
    return TextLogits(
        text,
        len(ours) + 1,
        float((ours - theirs).abs().max()),
        float((ours.log_softmax(-1) - theirs.log_softmax(-1)).abs().max()),
        float(theirs.abs().max()),
        float((ours.argmax(-1) == theirs.argmax(-1)).float().mean()),
    )


def _token_ids(hf: Path, arch: Architecture, texts: Sequence[str]) -> list[list[int]]:
    """The texts in the model's own tokens; spread over the vocabulary by a fixed rule where the folder has no tokenizer."""
    if (hf / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(hf / "tokenizer.json"))
            encoded = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
            if all(len(ids) > 1 for ids in encoded):
                return encoded
        except Exception as error:  # tokenizers raises bare Exception
            raise UserError(f"{hf / 'tokenizer.json'} can't be used: {error}.", "Fetch the tokenizer again.") from None
    return [[(7919 * index + 104729 * place) % arch.vocab for place in range(1, 25)] for index in range(len(texts))]


def _run_ranks(work: Path, tp: int) -> None:
    """Starts the ranks and waits for them; they find each other by rank 0's port in the work folder."""
    command = [sys.executable, "-m", "openclaw_core.checkpoint.logits_rank", str(work)]
    logs = [(work / f"rank{rank}.log").open("wb") for rank in range(tp)]
    children = [
        subprocess.Popen([*command, str(rank), str(tp)], stdout=log, stderr=subprocess.STDOUT) for rank, log in enumerate(logs)
    ]
    try:
        while any(child.poll() is None for child in children) and not any(child.returncode for child in children):
            time.sleep(0.05)
    finally:
        for child, log in zip(children, logs, strict=True):
            if child.poll() is None:
                child.terminate()
            child.wait()
            log.close()
    failed = next((rank for rank, child in enumerate(children) if child.returncode > 0), None)
    if failed is not None or any(child.returncode for child in children):
        lines = (work / f"rank{failed or 0}.log").read_text(errors="replace").strip().splitlines() or ["(no output)"]
        raise UserError(f"megatron-core couldn't load or run the checkpoint: {lines[-1]}", "The conversion isn't trusted.")


def _load(work: Path, rank: int) -> list[torch.Tensor]:
    return list(torch.load(work / f"logits{rank}.pt", weights_only=True))


@torch.no_grad()
def _transformers(hf: Path, ids: list[list[int]]) -> list[torch.Tensor]:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(hf, dtype=torch.float32, local_files_only=True, trust_remote_code=False).eval()
    return [model(torch.tensor([one])).logits[0, :-1] for one in ids]
