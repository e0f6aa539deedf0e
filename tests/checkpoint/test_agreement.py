"""Everything that states a checkpoint's architecture must agree before it is trained."""

from __future__ import annotations

import json
from argparse import Namespace

import pytest
import torch

from openclaw_core.checkpoint.agreement import check_trained
from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.errors import Findings, UserError

ARGUMENTS = {
    "num_layers": 3,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_query_groups": 2,
    "kv_channels": 16,
    "ffn_hidden_size": 48,
    "padded_vocab_size": 256,
    "rotary_base": 1000000,
    "norm_epsilon": 1e-6,
    "max_position_embeddings": 256,
    "swiglu": True,
    "normalization": "RMSNorm",
    "qk_layernorm": True,
    "untie_embeddings_and_output_weights": False,
}


@pytest.fixture
def converted(make_hf, tmp_path):
    source = make_hf()
    convert(plan_conversion(source, tmp_path / "td"))
    return tmp_path / "td", source


def test_what_agrees_is_trained(converted):
    folder, source = converted
    torch.save({"args": Namespace(**ARGUMENTS)}, folder / "release" / "common.pt")
    assert check_trained(folder, source).layers == 3


@pytest.mark.parametrize(("key", "value", "said"), [("rotary_base", 10000, "rope_theta"), ("norm_epsilon", 1e-5, "norm_eps")])
def test_megatrons_arguments_that_say_otherwise(converted, key, value, said):
    folder, _ = converted
    torch.save({"args": Namespace(**ARGUMENTS | {key: value})}, folder / "release" / "common.pt")
    with pytest.raises(Findings, match=rf"{said}: (.|\n)*megatron's arguments says"):
        check_trained(folder)


def test_a_config_that_was_edited_after_the_conversion(converted):
    folder, source = converted
    config = json.loads((folder / "hf" / "config.json").read_text())
    (folder / "hf" / "config.json").write_text(json.dumps(config | {"rope_theta": 5e6}))
    with pytest.raises(Findings) as caught:
        check_trained(folder, source)
    assert "rope_theta" in str(caught.value)
    assert "the manifest says 1000000.0" in str(caught.value)
    assert str(source) in str(caught.value)


def test_families_that_are_only_converted(converted):
    folder, _ = converted
    config = json.loads((folder / "hf" / "config.json").read_text())
    moe = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "model_type": "qwen3_moe"}
    (folder / "hf" / "config.json").write_text(json.dumps(config | moe))
    with pytest.raises(UserError, match="It is qwen3_moe, and the trainer builds dense"):
        check_trained(folder)
