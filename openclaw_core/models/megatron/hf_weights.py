"""Hugging Face weights into this rank's shards, and this model's shards back into whole Hugging Face tensors.

megatron packs per query group [q heads | k | v] into linear_qkv, and per tensor-parallel rank [gate | up] into
linear_fc1; tensor parallelism splits rows (vocabulary, qkv, fc1) or columns (proj, fc2). Names and kinds come from
the converter's rules; only the split over ranks is declared here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.distributed as dist

from openclaw_core.checkpoint.families import RULES
from openclaw_core.checkpoint.kinds import GatedMlp, PerGroupQkv, Replicated, Vocabulary
from openclaw_core.checkpoint.mapping import LAYER, Layout, Rule, build_mapping
from openclaw_core.errors import Findings
from openclaw_core.models.architecture import Architecture, padded_vocab
from openclaw_core.models.megatron.builder import PackedGPT
from openclaw_core.models.megatron.core import parallel_state

Kind = Literal["vocab", "whole", "qkv", "gate_up", "columns"]
EMBEDDING = "model.embed_tokens.weight"
_KINDS: dict[type, Kind] = {Vocabulary: "vocab", PerGroupQkv: "qkv", GatedMlp: "gate_up", Replicated: "whole"}
_COLUMNS = ("self_attention.linear_proj.weight", "mlp.linear_fc2.weight")


class Reader(Protocol):
    """Tensors by Hugging Face name; rows reads a half-open range of the first axis."""

    def read(self, name: str, rows: tuple[int, int] | None = None) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One parameter of a pipeline stage: its name there, how tensor parallelism splits it, the Hugging Face names."""

    name: str
    kind: Kind
    hf: tuple[str, ...]


def stage_entries(arch: Architecture, stage: int, stages: int) -> list[Entry]:
    """All parameters of a pipeline stage, from the family's rules. A tied model's last stage has the embedding as its head."""
    per_stage = arch.layers // stages
    entries: list[Entry] = []
    for rule in RULES[arch.family]:
        if not rule.when(arch):
            continue
        name = rule.aliases[0] if rule.aliases else rule.megatron
        if LAYER in name:
            layers = range(stage * per_stage, (stage + 1) * per_stage)
            entries += [_entry(name.format(layer=layer - layers.start), rule, layer) for layer in layers]
        elif name.startswith("embedding."):
            entries += [_entry(name, rule, None)] if stage == 0 else []
        elif stage == stages - 1:
            entries.append(_entry(name, rule, None))
    if arch.tied and stage == stages - 1 and stages > 1:
        entries.append(Entry("output_layer.weight", "vocab", (EMBEDDING,)))
    return entries


def _entry(name: str, rule: Rule, layer: int | None) -> Entry:
    if name.endswith(_COLUMNS):
        kind: Kind = "columns"
    else:
        kind = _KINDS[type(rule.kind)]
    return Entry(name, kind, tuple(pattern.format(layer=layer) for pattern in rule.hf))


def hf_shapes(arch: Architecture) -> dict[str, tuple[int, ...]]:
    """Every tensor of the model in Hugging Face's names, with its shape (no vocabulary padding)."""
    return build_mapping(RULES[arch.family], arch, Layout(padded_vocab(arch.vocab))).hf


@torch.no_grad()
def load_hf(model: PackedGPT, reader: Reader) -> None:
    """Fill this rank's shards; rows past the vocabulary become zero. Raises Findings for a parameter left over."""
    arch = model.arch
    pp = parallel_state.get_pipeline_model_parallel_world_size()
    entries = stage_entries(arch, parallel_state.get_pipeline_model_parallel_rank(), pp)
    parameters = dict(model.named_parameters())
    unfilled = set(parameters) ^ {entry.name for entry in entries}
    if unfilled:
        raise Findings("The model's parameters don't match its architecture.", [(name, "") for name in sorted(unfilled)])
    for entry in entries:
        _fill(parameters[entry.name], entry, reader, arch)


def _fill(parameter: torch.Tensor, entry: Entry, reader: Reader, arch: Architecture) -> None:
    tp = parallel_state.get_tensor_model_parallel_world_size()
    rank = parallel_state.get_tensor_model_parallel_rank()

    def share(count: int) -> tuple[int, int]:
        return rank * count // tp, (rank + 1) * count // tp

    if entry.kind == "whole":
        parameter.copy_(reader.read(entry.hf[0]))
    elif entry.kind == "columns":
        whole = reader.read(entry.hf[0])
        start, stop = share(whole.shape[1])
        parameter.copy_(whole[:, start:stop])
    elif entry.kind == "vocab":
        start = rank * parameter.shape[0]
        count = max(0, min(parameter.shape[0], arch.vocab - start))
        parameter.zero_()
        if count:
            parameter[:count].copy_(reader.read(entry.hf[0], rows=(start, start + count)))
    elif entry.kind == "gate_up":
        parameter.copy_(torch.cat([reader.read(name, rows=share(arch.ffn)) for name in entry.hf]))
    else:
        q, k, v = (
            reader.read(name, rows=share(heads * arch.head_dim))
            for name, heads in zip(entry.hf, (arch.heads, arch.kv_heads, arch.kv_heads), strict=True)
        )
        groups = arch.kv_heads // tp
        parameter.copy_(torch.cat([t.reshape(groups, -1, *t.shape[1:]) for t in (q, k, v)], dim=1).reshape(parameter.shape))


@torch.no_grad()
def whole_tensors(model: PackedGPT) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields (Hugging Face name, whole tensor on CPU) on global rank 0, nothing elsewhere.

    All ranks must iterate to the end. One tensor at a time is gathered, so memory stays at one tensor.
    """
    if parallel_state.get_data_parallel_rank(with_context_parallel=True):
        return
    arch = model.arch
    pp = parallel_state.get_pipeline_model_parallel_world_size()
    own = parallel_state.get_pipeline_model_parallel_rank()
    parameters = dict(model.named_parameters())
    for stage in range(pp):
        for entry in stage_entries(arch, stage, pp):
            if stage and entry.hf[0] == EMBEDDING:
                continue
            shards = _gather_shards(parameters[entry.name]) if stage == own else None
            shards = _bring_to_first(shards, entry, stage, model)
            if dist.get_rank() == 0 and shards is not None:
                yield from zip(entry.hf, _join([s.cpu() for s in shards], entry.kind, arch), strict=True)


def _gather_shards(parameter: torch.Tensor) -> list[torch.Tensor]:
    group = parallel_state.get_tensor_model_parallel_group()
    if group.size() == 1:
        return [parameter.detach()]
    shards = [torch.empty_like(parameter) for _ in range(group.size())]
    dist.all_gather(shards, parameter.detach().contiguous(), group=group)
    return shards


def _bring_to_first(shards: list[torch.Tensor] | None, entry: Entry, stage: int, model: PackedGPT) -> list[torch.Tensor] | None:
    """Send a later stage's shards to global rank 0 (tensor-parallel rank 0 of stage 0)."""
    if stage == 0 or parallel_state.get_tensor_model_parallel_rank():
        return shards
    group = parallel_state.get_pipeline_model_parallel_group()
    source = dist.get_process_group_ranks(group)[stage]
    if dist.get_rank() == source:
        assert shards is not None
        for shard in shards:
            dist.send(shard.contiguous(), dst=0, group=group)
    elif dist.get_rank() == 0:
        like = next(model.parameters())
        shards = [torch.empty(_local_shape(entry, model.arch), dtype=like.dtype, device=like.device) for _ in range(_tp())]
        for shard in shards:
            dist.recv(shard, src=source, group=group)
    return shards


def _tp() -> int:
    return int(parallel_state.get_tensor_model_parallel_world_size())


def _local_shape(entry: Entry, arch: Architecture) -> tuple[int, ...]:
    tp, shapes = _tp(), hf_shapes(arch)
    first = shapes[entry.hf[0]]
    if entry.kind == "vocab":
        return padded_vocab(arch.vocab, tp=tp) // tp, first[1]
    if entry.kind == "columns":
        return first[0], first[1] // tp
    if entry.kind == "whole":
        return first
    return sum(shapes[name][0] for name in entry.hf) // tp, *first[1:]


def _join(shards: list[torch.Tensor], kind: Kind, arch: Architecture) -> list[torch.Tensor]:
    """Shards of all tensor-parallel ranks -> the Hugging Face tensors they hold."""
    if kind == "whole":
        return [shards[0]]
    if kind == "columns":
        return [torch.cat(shards, dim=1)]
    if kind == "vocab":
        return [torch.cat(shards)[: arch.vocab]]
    if kind == "gate_up":
        return [torch.cat(list(parts)) for parts in zip(*(s.chunk(2) for s in shards), strict=True)]
    packed = torch.cat(shards)
    d, ratio = arch.head_dim, arch.heads // arch.kv_heads
    groups = packed.reshape(arch.kv_heads, (ratio + 2) * d, *packed.shape[1:])
    return [t.reshape(-1, *packed.shape[1:]) for t in groups.split([ratio * d, d, d], dim=1)]
