"""The packed attention behind each generation of torch's varlen_attn, stood in for by plain SDPA."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from openclaw_core.models.megatron.layers import _attend_each, adapt_varlen
from openclaw_core.models.megatron.packing import SequenceIds, make_pack

PACK = make_pack([SequenceIds((1, 2, 3), (4,)), SequenceIds((1,), (2, 3)), SequenceIds((1,), ())], torch.device("cpu"))


def varlen(q, k, v, cu, scale, causal, grouped):
    ends = cu.tolist()
    parts = []
    for start, stop in pairwise(ends):
        one = [t[start:stop].transpose(0, 1)[None] for t in (q, k, v)]
        parts.append(F.scaled_dot_product_attention(*one, is_causal=causal, scale=scale, enable_gqa=grouped)[0].transpose(0, 1))
    return torch.cat(parts)


def newest(query, key, value, cu_q, cu_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False):
    return varlen(query, key, value, cu_q, scale, window_size == (-1, 0), enable_gqa)


def without_flag(query, key, value, cu_q, cu_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
    return varlen(query, key, value, cu_q, scale, window_size == (-1, 0), True)


def oldest(query, key, value, cu_q, cu_k, max_q, max_k, is_causal=False):
    return varlen(query, key, value, cu_q, 1 / math.sqrt(query.shape[-1]), is_causal, True)


@pytest.mark.parametrize("generation", [newest, without_flag, oldest])
@pytest.mark.parametrize("scale", [0.25, 0.1])
def test_generations_of_varlen_attn(generation, scale):
    q, k, v = torch.randn(8, 4, 16), torch.randn(8, 2, 16), torch.randn(8, 2, 16)
    attend = adapt_varlen(generation)
    assert attend is not None
    torch.testing.assert_close(attend(q, k, v, PACK, scale), _attend_each(q, k, v, PACK, scale))


def test_one_that_cannot_be_causal_is_not_used():
    assert adapt_varlen(lambda query, key, value, cu_q, cu_k, max_q, max_k: query) is None
