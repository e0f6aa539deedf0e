"""Weights of a built model: loaded from torch_dist or a Hugging Face folder, fingerprinted."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist

from openclaw_core.checkpoint.hf import HfReader
from openclaw_core.checkpoint.mapping import check_names
from openclaw_core.checkpoint.sniff import sniff
from openclaw_core.errors import Findings, UserError
from openclaw_core.models.megatron.bridge import load_with_bridge
from openclaw_core.models.megatron.builder import PackedGPT
from openclaw_core.models.megatron.core import (
    SAFE_GLOBALS,
    CheckpointingException,
    GPTModel,
    StrictHandling,
    dist_checkpointing,
    parallel_state,
)
from openclaw_core.models.megatron.hf_weights import hf_shapes, load_hf


def load_weights(model: PackedGPT, source: str | Path, loader: Literal["own", "megatron_bridge"] = "own") -> None:
    """Fill a model from a torch_dist checkpoint at any parallel sizes, or from a Hugging Face folder, which loader reads.

    Vocabulary padding may differ. Raises UserError or Findings when the source is not a whole checkpoint of this
    architecture; nothing is left at its initial value.
    """
    found = sniff(source)
    if found.kind != "hf":
        load_torch_dist(model, found.folder)
        return
    reader = checked_reader(model, found.folder)
    if loader == "own":
        load_hf(model, reader)
        return
    load_with_bridge(model, found.folder)
    _zero_padding(model)


def checked_reader(model: PackedGPT, folder: str | Path) -> HfReader:
    """A reader of exactly this model's tensors: missing, unexpected or misshapen ones are Findings."""
    reader = HfReader(Path(folder))
    allow = ("*rotary_emb.inv_freq", *(("lm_head.weight",) if model.arch.tied else ()))
    check_names(str(folder), hf_shapes(model.arch), {name: entry.shape for name, entry in reader.entries.items()}, allow)
    return reader


def load_torch_dist(model: PackedGPT, folder: Path) -> None:
    """As load_weights, from the folder that holds .metadata; optimizer state in it is left alone."""
    load_state(model, folder)
    _zero_padding(model)


def load_state(model: GPTModel, folder: Path) -> None:
    """Fills any model of megatron's from the folder that holds .metadata, padding included; raises as load_weights does."""
    sharded = model.sharded_state_dict()
    try:
        # A trainer of megatron leaves its arguments in the common state, which torch reads only if told that it may.
        with torch.serialization.safe_globals(SAFE_GLOBALS):
            # In megatron's words "missing" is what was not asked for, "unexpected" what was asked for in vain.
            state, unasked, absent = dist_checkpointing.load(sharded, str(folder), strict=StrictHandling.RETURN_ALL)
    except (CheckpointingException, KeyError, ValueError, RuntimeError, pickle.UnpicklingError) as error:
        raise UserError(f"{folder} can't be loaded into this model: {error}.", "Compare the architectures.") from error
    findings = [(f"{key} is missing.", "") for key in sorted(absent) if "_extra_state" not in key]
    findings += [
        (f"{key} has no place in this architecture.", "")
        for key in sorted(unasked)
        if key.startswith(("decoder.", "embedding.", "output_layer.")) and "_extra_state" not in key
    ]
    if findings:
        raise Findings(f"{folder} isn't a checkpoint of this architecture.", findings)
    names = {name for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    model.load_state_dict({name: tensor for name, tensor in state.items() if name in names}, strict=False)


@torch.no_grad()
def _zero_padding(model: PackedGPT) -> None:
    """Rows past the vocabulary: whatever a checkpoint holds there, they take no part."""
    real = model.columns.real
    for name, parameter in model.named_parameters():
        if name in ("embedding.word_embeddings.weight", "output_layer.weight"):
            parameter[real:].zero_()


@torch.no_grad()
def fingerprint(model: torch.nn.Module) -> str:
    """A hash of all weights of all ranks, 32 hex digits; equal bits give equal hashes at the same parallel sizes.

    Computed on the device from the raw bits (a 128-bit multilinear hash, order included). All ranks must call it and
    get the same answer. Raises RuntimeError when data-parallel replicas differ: they must not.
    """
    total = [0, 0]
    for index, (_, parameter) in enumerate(sorted(model.named_parameters(), key=lambda item: item[0])):
        for lane, value in enumerate(_hash_bits(parameter, index)):
            total[lane] = (total[lane] * 0x9E3779B97F4A7C15 + value) % 2**64
    place = (parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_pipeline_model_parallel_rank())
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, (place, total))
    shards: dict[tuple[int, int], list[int]] = {}
    for where, value in everyone:
        if shards.setdefault(where, value) != value:
            raise RuntimeError(f"The data-parallel replicas of shard (tensor, pipeline) {where} hold different weights.")
    combined = [0, 0]
    for where in sorted(shards):
        for lane in range(2):
            combined[lane] = (combined[lane] * 0xC2B2AE3D27D4EB4F + shards[where][lane] + 1) % 2**64
    return f"{combined[0]:016x}{combined[1]:016x}"


def _hash_bits(tensor: torch.Tensor, seed: int) -> tuple[int, int]:
    """Two sums over bits x odd position-dependent factors, in wrapping 64-bit arithmetic."""
    flat = tensor.detach().contiguous().reshape(-1)
    bits = flat.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])
    sums = [0, 0]
    step = 1 << 24
    for start in range(0, bits.numel(), step):
        chunk = bits[start : start + step].long() + 1
        place = torch.arange(start + seed + 1, start + seed + 1 + chunk.numel(), device=chunk.device)
        for lane, factor in enumerate((-7046029254386353131, -4417276706812531889)):
            mixed = place * factor
            mixed = (mixed ^ (mixed >> 29)) * factor | 1
            sums[lane] += int((chunk * mixed).sum())
    return sums[0] % 2**64, sums[1] % 2**64
