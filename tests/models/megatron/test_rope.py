from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from openclaw_core.errors import Findings
from openclaw_core.models.architecture import Architecture
from openclaw_core.models.buildable import ROPE_PARAMETERS
from openclaw_core.models.megatron.rope import inverse_frequencies

PLAIN = Architecture(
    family="llama", model_type="llama", layers=2, hidden=64, heads=2, kv_heads=1, head_dim=64, ffn=64, vocab=10,
    rope_theta=500000.0, norm_eps=1e-5, tied=False, qk_norm=False, qkv_bias=False, max_position=131072, dtype="bfloat16",
)  # fmt: skip
SCALINGS = [
    {"rope_type": "linear", "factor": 4.0},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: s["rope_type"])
def test_equal_to_hugging_face(scaling):
    config = LlamaConfig(hidden_size=64, num_attention_heads=1, head_dim=64, rope_parameters={"rope_theta": 5e5, **scaling})
    expected, factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, torch.device("cpu"))
    assert factor == 1.0
    assert torch.equal(inverse_frequencies(replace(PLAIN, rope_scaling=scaling)), expected)


def test_every_listed_kind_is_compared():
    assert {scaling["rope_type"] for scaling in SCALINGS} == set(ROPE_PARAMETERS)


def test_an_unknown_scaling_is_named():
    with pytest.raises(Findings, match="rope scaling is 'yarn', and the trainer computes none, linear, llama3"):
        inverse_frequencies(replace(PLAIN, rope_scaling={"rope_type": "yarn", "factor": 4.0}))
