"""Both sides of a conversion built and run on the same texts: transformers from the Hugging Face folder, megatron-core from the
torch_dist at the tensor-parallel size of the run. Logits must agree; a wrong rope base or layout shows here and nowhere else."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from openclaw_core.checkpoint.carried import carried_names
from openclaw_core.checkpoint.families import RULES
from openclaw_core.checkpoint.fp8 import open_hf
from openclaw_core.checkpoint.hf import HfReader
from openclaw_core.checkpoint.mapping import Layout, build_mapping, model_tensors
from openclaw_core.checkpoint.torch_dist import TorchDistReader
from openclaw_core.errors import Findings, UserError
from openclaw_core.models.architecture import Architecture, architecture_from_hf, padded_vocab
from openclaw_core.models.buildable import buildable
from openclaw_core.models.hf_config import read_config, text_config
from openclaw_core.models.routing import routing_findings

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


def check_comparable(config_folder: Path, arch: Architecture, tp: int, stored: Container[str] | None = None) -> None:
    """Raises Findings, by name, for what can't be built here on CPU at this tensor-parallel size.

    stored are the names of a torch_dist's tensors where another trainer may have chosen them.
    """
    config = read_config(config_folder)
    reasons = routing_findings(arch, text_config(config)) if arch.experts else buildable(arch.text_alone())
    if arch.prefix != "model." and "vision_config" not in config:
        reasons.append((f"{arch.model_type} without its vision_config: transformers can't load it.", ""))
    if config.get("quantization_config") and importlib.util.find_spec("accelerate") is None:
        reasons.append(("transformers reads FP8 with accelerate, which isn't installed.", "`pip install accelerate`."))
    sizes = {"heads": arch.heads, "kv heads": arch.kv_heads, "experts' width": arch.moe_ffn, "shared width": arch.shared_ffn}
    if arch.dense_layers or not arch.experts:
        sizes["MLP width"] = arch.ffn
    split = [f"{size} {name}" for name, size in sizes.items() if size % tp]
    if split:
        reasons.append((f"{', '.join(split)} can't be split by tp={tp}.", "Lower --tp."))
    if stored is not None:
        asked = build_mapping(RULES[arch.family], arch, Layout(padded_vocab(arch.vocab), stacked=not arch.dense_layers)).stored
        absent = [name for name in asked if name not in stored]
        if absent:
            reasons.append((f"It is stored in another layout than is loaded here: there is no {absent[0]}.", ""))
    if reasons:
        raise Findings(f"--verify=logits can't compare {arch.model_type} here; --verify=bitwise can.", reasons)


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


def compare_logits(
    hf: Path, torch_dist: Path, tp: int = 1, *, made: Literal["hf", "torch_dist"], texts: Sequence[str] = TEXTS
) -> LogitsReport:
    """Logits of all texts from both sides. hf holds config, tokenizer and weights; torch_dist is the folder with .metadata.

    made is the side that a conversion wrote: where it wrote one dtype, both sides' weights are rounded to it first. Raises
    UserError for what can't be built, and when a rank ends with an error.
    """
    started = time.monotonic()
    arch = architecture_from_hf(hf)
    reader = TorchDistReader(torch_dist)
    check_comparable(hf, arch, tp, reader.contents.tensors)
    check_memory(arch)
    dtype = _written(reader, open_hf(hf), arch, made)
    ids = _token_ids(hf, arch, texts)
    with tempfile.TemporaryDirectory(prefix="openclaw-logits-") as place:
        work = Path(place)
        (work / "job.json").write_text(
            json.dumps({"hf": str(hf.absolute()), "torch_dist": str(torch_dist.absolute()), "ids": ids, "dtype": dtype})
        )
        _run_ranks(work, tp)
        ours = [
            torch.cat(shards, dim=-1)[:, : arch.vocab] for shards in zip(*(_load(work, rank) for rank in range(tp)), strict=True)
        ]
    theirs = _transformers(hf, ids, dtype)
    found = tuple(_compared(text, a, b) for text, a, b in zip(texts, ours, theirs, strict=True))
    return LogitsReport(tp, found, time.monotonic() - started)


def _written(stored: TorchDistReader, hf: HfReader, arch: Architecture, made: str) -> str | None:
    """The dtype of all weights that were written; None where there are several: then none was cast."""
    if made == "torch_dist":
        found = {stored.contents.tensors[name].dtype for name in model_tensors(stored.contents.tensors)}
    else:
        carried = set(carried_names(hf.entries, arch))
        found = {entry.dtype for name, entry in hf.entries.items() if name not in carried}
    return str(found.pop()).removeprefix("torch.") if len(found) == 1 else None


@torch.no_grad()
def round_to(model: torch.nn.Module, dtype: str | None) -> None:
    """Rounds all that a checkpoint of the model holds to what dtype can hold, in place; None leaves it."""
    if dtype is None:
        return
    for value in model.state_dict().values():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            value.copy_(value.to(getattr(torch, dtype)))


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
def _transformers(hf: Path, ids: list[list[int]], dtype: str | None) -> list[torch.Tensor]:
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.utils import logging

    logging.disable_progress_bar()
    loader = AutoModelForImageTextToText if "vision_config" in read_config(hf) else AutoModelForCausalLM
    model = loader.from_pretrained(hf, dtype=torch.float32, local_files_only=True, trust_remote_code=False).eval()
    round_to(model, dtype)
    return [model(input_ids=torch.tensor([one])).logits[0, :-1] for one in ids]
