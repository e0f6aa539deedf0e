"""megatron-bridge as the reader of a Hugging Face folder: its mapping fills our model, and its own view of the model's settings
must be ours. Every parameter must have been filled: what a bridge has no mapping for, it leaves as it is with a warning."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from openclaw_core.errors import Findings, UserError
from openclaw_core.models.bridge_checks import bridge_findings
from openclaw_core.models.hf_config import read_config
from openclaw_core.models.megatron.builder import PackedGPT
from openclaw_core.models.megatron.parallel import ParallelSizes, together
from openclaw_core.models.megatron.provider import check_provider, compare_provider


@torch.no_grad()
def load_with_bridge(model: PackedGPT, folder: Path) -> None:
    """Fill this rank's parameters from a Hugging Face folder through megatron-bridge; rows of padding are left undefined.

    Raises Findings when it isn't installed, for what it builds otherwise and for what it doesn't fill, and
    UserError where it can't open the folder, all of them on every rank alike; UserError on this one where it fails to load.
    """
    recompute = model.config.recompute_granularity == "full"
    problems = bridge_findings(read_config(folder), recompute=recompute, load=None)
    if problems:
        raise Findings("megatron-bridge can't read this model.", problems)
    for parameter in model.parameters():
        parameter.fill_(torch.nan)
    bridge = together(lambda: _opened(folder, model))
    # In here ranks wait for each other in ways of the bridge's own: who fails there is ended by the run, with the others.
    with _sentence(folder), _fused_names(model), _real_rows(model):
        bridge.load_hf_weights([model])
    _share_embedding(model)
    together(lambda: _check_filled(model))


def _opened(folder: Path, model: PackedGPT) -> Any:
    """The bridge of a folder, its settings ours. Nothing in it waits for other ranks."""
    from megatron.bridge import AutoBridge

    with _sentence(folder):
        bridge = AutoBridge.from_hf_pretrained(str(folder), trust_remote_code=False)
        _give_settings(bridge.to_megatron_provider(load_weights=False), model)
    return bridge


@contextmanager
def _sentence(folder: Path) -> Iterator[None]:
    """What a bridge raises, as a UserError; want of memory stays what it is."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (ValueError, LookupError, RuntimeError, TypeError, AttributeError) as error:
        raise UserError(f"megatron-bridge can't load {folder}: {error}", "Set train.loader=own.") from error


def _give_settings(provider: Any, model: PackedGPT) -> None:
    """Our settings into the provider, none left at its default; then both must agree in every field."""
    config, arch = model.config, model.arch
    sizes = ParallelSizes(
        config.tensor_model_parallel_size,
        config.pipeline_model_parallel_size,
        config.context_parallel_size,
        config.sequence_parallel,
    )
    ours = (arch, sizes, config.params_dtype, config.recompute_granularity == "full")
    for field in compare_provider(provider, *ours):
        if field.origin == "config":
            setattr(provider, field.name, field.wanted)
    provider.finalize()
    check_provider(provider, *ours)
    stated = {"rotary_base": arch.rope_theta, "share_embeddings_and_output_weights": arch.tied, "vocab_size": arch.vocab}
    wrong = [
        (f"{name}: the checkpoint says {value!r}, megatron-bridge {getattr(provider, name)!r}.", "")
        for name, value in stated.items()
        if getattr(provider, name) != value
    ]
    if wrong:
        raise Findings("megatron-bridge reads another model than the checkpoint's.", wrong)


def _share_embedding(model: PackedGPT) -> None:
    """The first stage's embedding into the last stage's head where they are tied: bridges fill the first alone."""
    if model.arch.tied and model.config.pipeline_model_parallel_size > 1 and (model.pre_process or model.post_process):
        weight = model.shared_embedding_or_output_weight()
        if not model.pre_process:
            weight.zero_()
        dist.all_reduce(weight, group=model.pg_collection.embd)


def _check_filled(model: PackedGPT) -> None:
    real = model.columns.real
    empty = []
    for name, parameter in model.named_parameters():
        rows = parameter[:real] if name in ("embedding.word_embeddings.weight", "output_layer.weight") else parameter
        if rows.isnan().any():
            empty.append((f"{name} wasn't filled.", ""))
    if empty:
        raise Findings("megatron-bridge has no mapping for all of this model; set train.loader=own.", empty)


@contextmanager
def _fused_names(model: PackedGPT) -> Iterator[None]:
    """Norms under the names that Transformer Engine's layers give them, as not every bridge maps those of plain layers.

    Bridges tell a fused layer's norm from its split weight by the class's name.
    """
    pairs = [
        pair
        for layer in model.decoder.layers
        for pair in ((layer.input_layernorm, layer.self_attention.linear_qkv), (layer.pre_mlp_layernorm, layer.mlp.linear_fc1))
    ]
    kinds = [type(linear) for _, linear in pairs]
    for (norm, linear), kind in zip(pairs, kinds, strict=True):
        linear.register_parameter("layer_norm_weight", norm._parameters.pop("weight"))
        linear.__class__ = type(f"TELayerNorm{kind.__name__}", (kind,), {})
    try:
        yield
    finally:
        for (norm, linear), kind in zip(pairs, kinds, strict=True):
            linear.__class__ = kind
            norm.register_parameter("weight", linear._parameters.pop("layer_norm_weight"))


@contextmanager
def _real_rows(model: PackedGPT) -> Iterator[None]:
    """Embedding and head without rows of padding, which bridges add for tensor-parallel ranks only."""
    modules = [getattr(model, "output_layer", None), model.embedding.word_embeddings if model.pre_process else None]
    padded = [(module, module.weight) for module in modules if module is not None and module.weight is not None]
    if model.config.tensor_model_parallel_size == 1:
        for module, weight in padded:
            module.weight = torch.nn.Parameter(weight.data[: model.arch.vocab], requires_grad=weight.requires_grad)
    try:
        yield
    finally:
        for module, weight in padded:
            module.weight = weight
