"""The packed attention behind each generation of torch's varlen_attn, stood in for by plain SDPA."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F

from openclaw_core.models.megatron.attention import adapt_varlen, attend_each, counts_from_the_end
from openclaw_core.models.megatron.packing import SequenceIds, make_pack
from openclaw_core.models.megatron.prefix import make_shared_pack

CPU = torch.device("cpu")
SHARED = make_shared_pack([SequenceIds((1, 2, 3), (4,)), SequenceIds((1, 2), (2, 3)), SequenceIds((1,), (7,))], CPU)
PACK = make_pack([SequenceIds((1, 2, 3), (4,)), SequenceIds((1,), (2, 3)), SequenceIds((1,), ())], torch.device("cpu"))


def varlen(q, k, v, cu_q, cu_k, scale, causal, grouped, *, from_the_end=True):
    parts = []
    for (q0, q1), (k0, k1) in zip(pairwise(cu_q.tolist()), pairwise(cu_k.tolist()), strict=True):
        one = [t.transpose(0, 1)[None] for t in (q[q0:q1], k[k0:k1], v[k0:k1])]
        rows, keys = q1 - q0, k1 - k0
        mask = torch.ones(rows, keys, dtype=torch.bool).tril(keys - rows if from_the_end else 0) if causal else None
        parts.append(F.scaled_dot_product_attention(*one, attn_mask=mask, scale=scale, enable_gqa=grouped)[0].transpose(0, 1))
    return torch.cat(parts)


def newest(query, key, value, cu_q, cu_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False):
    return varlen(query, key, value, cu_q, cu_k, scale, window_size == (-1, 0), enable_gqa)


def without_flag(query, key, value, cu_q, cu_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
    return varlen(query, key, value, cu_q, cu_k, scale, window_size == (-1, 0), True)


def oldest(query, key, value, cu_q, cu_k, max_q, max_k, is_causal=False):
    return varlen(query, key, value, cu_q, cu_k, 1 / math.sqrt(query.shape[-1]), is_causal, True)


def from_the_start(query, key, value, cu_q, cu_k, max_q, max_k, *, scale=None, window_size=(-1, -1)):
    return varlen(query, key, value, cu_q, cu_k, scale, window_size == (-1, 0), True, from_the_end=False)


@pytest.mark.parametrize("pack", [PACK, SHARED], ids=["plain", "shared"])
@pytest.mark.parametrize("generation", [newest, without_flag, oldest])
@pytest.mark.parametrize("scale", [0.25, 0.1])
def test_generations_of_varlen_attn(generation, scale, pack):
    rows = len(pack.input_ids)
    q, k, v = torch.randn(rows, 4, 16), torch.randn(rows, 2, 16), torch.randn(rows, 2, 16)
    attend = adapt_varlen(generation)
    assert attend is not None
    torch.testing.assert_close(attend(q, k, v, pack, scale), attend_each(q, k, v, pack, scale))


@pytest.mark.parametrize(("generation", "right"), [(newest, True), (oldest, True), (from_the_start, False)])
def test_a_kernel_is_asked_which_keys_its_queries_see(generation, right):
    assert counts_from_the_end(adapt_varlen(generation), CPU, torch.float32) is right


def test_one_that_cannot_be_causal_is_not_used():
    assert adapt_varlen(lambda query, key, value, cu_q, cu_k, max_q, max_k: query) is None
