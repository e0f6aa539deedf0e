"""What the checkpoint says and what the trainer builds, compared field by field."""

from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path

import pytest
import torch

from openclaw_core.errors import Findings
from openclaw_core.models.architecture import architecture_from_config
from openclaw_core.models.megatron.builder import transformer_config
from openclaw_core.models.megatron.parallel import ParallelSizes
from openclaw_core.models.megatron.provider import check_provider, compare_provider

SHAPE = runpy.run_path(str(Path(__file__).parents[2] / "tiny_models.py"))["SHAPE"]
ARCH = architecture_from_config({**SHAPE, "model_type": "qwen3", "rope_theta": 1e6, "tie_word_embeddings": True}, "here")
SIZES = ParallelSizes(tensor=2, sequence_parallel=True)


def built(**changes):
    config = transformer_config(ARCH, SIZES, torch.bfloat16, recompute=True)
    for name, value in changes.items():
        setattr(config, name, value)
    return config


def test_our_own_builder_agrees():
    fields = compare_provider(built(), ARCH, SIZES, torch.bfloat16, True)
    assert all(field.same for field in fields)
    assert {field.origin for field in fields} == {"checkpoint", "config"}


@pytest.mark.parametrize(
    ("name", "value", "origin"),
    [
        ("layernorm_epsilon", 1e-5, "checkpoint"),
        ("num_query_groups", 4, "checkpoint"),
        ("qk_layernorm", False, "checkpoint"),
        ("attention_dropout", 0.1, "config"),
        ("hidden_dropout", 0.1, "config"),
        ("attention_softmax_in_fp32", False, "config"),
        ("masked_softmax_fusion", True, "config"),
        ("recompute_granularity", "selective", "config"),
        ("params_dtype", torch.float32, "config"),
        ("tensor_model_parallel_size", 1, "config"),
    ],
)
def test_a_providers_default_that_stayed_is_named_with_both_values(name, value, origin):
    with pytest.raises(Findings) as caught:
        check_provider(built(**{name: value}), ARCH, SIZES, torch.bfloat16, True)
    assert len(caught.value.findings) == 1
    assert f"{name}: the {origin} says" in str(caught.value)
    assert repr(value) in str(caught.value)


def test_another_models_architecture_is_seen():
    other = dataclasses.replace(ARCH, layers=3, ffn=64)
    with pytest.raises(Findings) as caught:
        check_provider(built(), other, SIZES, torch.bfloat16, True)
    assert [what.partition(":")[0] for what, _ in caught.value.findings] == ["num_layers", "ffn_hidden_size"]
