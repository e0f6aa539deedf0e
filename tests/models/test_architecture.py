"""Facts from configs of several shapes and ages; what can't be used is named with every reason."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from openclaw_core.errors import Findings, UserError
from openclaw_core.models.architecture import (
    architecture_from_config,
    architecture_from_hf,
    padded_vocab,
)
from openclaw_core.models.hf_config import rope_places, tied_twice
from openclaw_core.models.megatron_arguments import architecture_from_megatron

QWEN3_4B = {
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 5000000,
    "tie_word_embeddings": True,
    "max_position_embeddings": 262144,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "attention_bias": False,
    "hidden_act": "silu",
}


def read(**changes):
    return architecture_from_config({key: v for key, v in {**QWEN3_4B, **changes}.items() if v != "drop"}, "x")


def test_qwen3_4b():
    arch = read()
    assert (arch.family, arch.layers, arch.hidden, arch.heads, arch.kv_heads, arch.head_dim) == ("qwen3", 36, 2560, 32, 8, 128)
    assert (arch.rope_theta, arch.rope_scaling, arch.tied, arch.qk_norm, arch.qkv_bias) == (5e6, None, True, True, False)
    assert arch.dtype == "bfloat16"
    assert arch.parameters == 4_022_468_096


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": "drop", "rope_parameters": {"rope_type": "default", "rope_theta": 5000000}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5e6}},
        {"rope_scaling": {"type": "default"}},
        {"rope_scaling": None, "torch_dtype": "drop", "dtype": "torch.bfloat16"},
    ],
)
def test_the_rope_base_in_every_place(changes):
    assert read(**changes) == read()


def test_two_rope_bases_are_an_error_with_both_values():
    with pytest.raises(Findings, match=r"rope_theta=5e\+06, rope_parameters\.rope_theta=1e\+06"):
        read(rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    assert rope_places({"rope_theta": 1, "rope_parameters": {"rope_theta": 2}}) == {
        "rope_theta": 1,
        "rope_parameters.rope_theta": 2,
    }


def test_rope_scaling_is_carried():
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
    assert read(rope_scaling=yarn).rope_scaling == yarn
    assert read(rope_theta="drop", rope_parameters={**yarn, "rope_theta": 5e6}).rope_scaling == yarn


def test_a_nested_text_config_is_read():
    inner = {key: value for key, value in QWEN3_4B.items() if key not in ("tie_word_embeddings", "torch_dtype")}
    outer = {"model_type": "some_vl", "text_config": inner, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
    assert architecture_from_config(outer, "x") == read()


@pytest.mark.parametrize(("outer", "inner"), [(True, False), (False, True), (True, True), (False, False)])
def test_the_outer_flag_of_a_tied_head_counts(outer, inner):
    config = {"model_type": "some_vl", "text_config": {**QWEN3_4B, "tie_word_embeddings": inner}, "tie_word_embeddings": outer}
    assert architecture_from_config(config, "x").tied is outer
    stated = f"is {json.dumps(outer)} outside and {json.dumps(inner)} in text_config"
    said = f"tie_word_embeddings {stated}; the outer one counts and is written in both."
    assert tied_twice(config) == (None if outer == inner else said)
    del config["tie_word_embeddings"]
    assert (architecture_from_config(config, "x").tied, tied_twice(config)) == (inner, None)


def test_an_unknown_type_is_one_line_with_the_supported_list():
    with pytest.raises(UserError) as caught:
        read(model_type="something_new")
    supported = "deepseek_v3, llama, qwen2, qwen2_moe, qwen3, qwen3_moe, qwen3_vl, qwen3_vl_moe"
    assert str(caught.value) == f"x: model type 'something_new' isn't supported. Supported: {supported}."


def test_sizes_that_no_model_has_are_refused_before_they_fill_the_memory():
    with pytest.raises(Findings) as caught:
        read(num_hidden_layers=10**9, hidden_size=10**12, vocab_size=10**9)
    assert "num_hidden_layers=1000000000 is more than 1000." in str(caught.value)
    assert "hidden_size=1000000000000 is more than 1000000." in str(caught.value)
    assert "vocab_size=1000000000 is more than 10000000." in str(caught.value)


@pytest.mark.parametrize("base", [float("nan"), float("inf"), -5.0, 0.0])
def test_a_rope_base_that_is_no_positive_number(base):
    with pytest.raises(Findings, match="isn't a positive number"):
        read(rope_theta=base)


@pytest.mark.parametrize(("key", "value"), [("factor", float("nan")), ("short_factor", [1.0, float("inf")])])
def test_a_rope_scaling_that_is_not_finite(key, value):
    with pytest.raises(Findings, match=rf"rope scaling .*{key}.* isn't finite"):
        read(rope_scaling={"rope_type": "longrope", key: value})


MOE = {"model_type": "qwen2_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
MOE["shared_expert_intermediate_size"] = 8


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": 5}, "layer_types=5 isn't a list of texts"),
        ({"head_dim": 127}, "head_dim=127 isn't positive and even"),
        ({"head_dim": None, "hidden_size": 3}, "head_dim=0 isn't positive and even"),
        ({"rope_scaling": {"rope_type": ["yarn"]}}, r"rope_type=\['yarn'\] is no text"),
        ({**MOE, "qkv_bias": "yes"}, "qkv_bias='yes' isn't true or false"),
        ({**MOE, "mlp_only_layers": 3}, "mlp_only_layers=3 isn't a list of integers"),
        ({**MOE, "mlp_only_layers": ["3"]}, r"mlp_only_layers=\['3'\] isn't a list of integers"),
        ({**MOE, "decoder_sparse_step": None}, "decoder_sparse_step=None isn't a positive integer"),
        ({**MOE, "decoder_sparse_step": 1.5}, "decoder_sparse_step=1.5 isn't a positive integer"),
    ],
)
def test_a_field_of_another_kind_is_named(changes, said):
    with pytest.raises(Findings, match=said):
        read(**changes)


def test_which_layers_have_experts():
    assert read(**MOE).dense_layers == ()
    assert read(**MOE, mlp_only_layers=None, decoder_sparse_step=18).dense_layers == (*range(17), *range(18, 35))
    assert read(**MOE, mlp_only_layers=[2, 40]).dense_layers == (2,)


def test_every_bad_field_at_once():
    with pytest.raises(Findings) as caught:
        read(hidden_size="big", num_hidden_layers=-1, rms_norm_eps="drop", rope_theta="drop", num_key_value_heads=5)
    text = str(caught.value)
    for said in ("hidden_size='big'", "num_hidden_layers=-1", "rms_norm_eps=None", "No rope base", "num_key_value_heads=5"):
        assert said in text


@pytest.mark.parametrize(
    "changes",
    [
        {"use_sliding_window": True},
        {"hidden_act": "gelu"},
        {"attention_bias": True},
        {"quantization_config": {"quant_method": "fp8"}},
        {"partial_rotary_factor": 0.5},
        {"rope_theta": "drop", "rope_parameters": {"rope_theta": 5e6, "rope_type": "default", "partial_rotary_factor": 0.5}},
        {"rope_parameters": [1]},
        {"rope_scaling": "linear"},
        {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"rope_parameters": {"full_attention": {"rope_theta": 5e6}}, "rope_theta": "drop"},
    ],
)
def test_what_would_be_silently_wrong_is_refused(changes):
    with pytest.raises(Findings):
        read(**changes)


def test_defaults_of_older_families():
    arch = read(model_type="qwen2", head_dim="drop", num_key_value_heads="drop")
    assert (arch.qkv_bias, arch.qk_norm, arch.head_dim, arch.kv_heads) == (True, False, 80, 32)
    assert read(model_type="llama").qk_norm is False


@pytest.mark.parametrize(("tp", "rows"), [(1, 151936), (2, 152064), (4, 152064), (8, 152576)])
def test_padded_vocabulary(tp, rows):
    assert padded_vocab(151936, 128, tp) == rows


def test_megatrons_arguments():
    arguments = {
        "num_layers": 36,
        "hidden_size": 2560,
        "num_attention_heads": 32,
        "num_query_groups": 8,
        "kv_channels": 128,
        "swiglu": True,
        "ffn_hidden_size": 9728,
        "vocab_size": 151936,
        "padded_vocab_size": 152064,
        "rotary_base": 5000000,
        "norm_epsilon": 1e-06,
        "normalization": "RMSNorm",
        "qk_layernorm": True,
        "add_qkv_bias": False,
        "add_bias_linear": False,
        "group_query_attention": True,
        "untie_embeddings_and_output_weights": False,
        "max_position_embeddings": 262144,
        "params_dtype": "torch.bfloat16",
        "num_experts": None,
    }
    assert architecture_from_megatron(arguments, "x") == read()
    with pytest.raises(Findings, match=r"rotary_base isn't stated(.|\n)*num_experts=8"):
        architecture_from_megatron({**arguments, "rotary_base": None, "num_experts": 8}, "x")


def test_unreadable_configs(tmp_path):
    with pytest.raises(UserError, match=r"no config\.json"):
        architecture_from_hf(tmp_path)
    for text in ("{", "[]"):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UserError, match=r"config\.json"):
            architecture_from_hf(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_4B))
    assert architecture_from_hf(tmp_path) == read()


def test_reading_a_config_imports_no_torch():
    program = "import sys, openclaw_core.models.architecture as a; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
