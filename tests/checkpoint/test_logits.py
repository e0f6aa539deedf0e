"""Both sides built and run: equal logits at TP 1 and 2; what a bitwise round trip can't see is seen."""

from __future__ import annotations

import json

import pytest
import torch

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.logits import check_buildable, compare_logits
from openclaw_core.checkpoint.torch_dist import resolve
from openclaw_core.errors import UserError


@pytest.mark.parametrize("tp", [1, 2])
def test_logits_agree(make_hf, tmp_path, tp):
    source = make_hf(tokenizer=False, num_hidden_layers=2, family="llama" if tp == 2 else "qwen3", tie_word_embeddings=tp == 1)
    convert(plan_conversion(source, tmp_path / "td", tp=tp))
    report = compare_logits(source, resolve(tmp_path / "td"), tp)
    assert report.equal
    assert len(report.texts) == 3
    assert all(one.difference < 5e-5 and one.same_top == 1 and one.tokens == 24 for one in report.texts)


def test_another_rope_base_is_seen(make_hf, tmp_path, monkeypatch):
    """The ranks read the config that they are told: here one with another base than transformers reads."""
    from openclaw_core.checkpoint import logits

    source = make_hf(tokenizer=False, num_hidden_layers=2)
    convert(plan_conversion(source, tmp_path / "td"))
    other = make_hf("other", tokenizer=False, num_hidden_layers=2, rope_theta=5e6)
    honest = logits._transformers
    monkeypatch.setattr(logits, "_transformers", lambda hf, ids: honest(other, ids))
    report = compare_logits(source, resolve(tmp_path / "td"))
    assert not report.equal


def test_a_checkpoint_that_cannot_be_loaded(make_hf, tmp_path):
    source = make_hf(tokenizer=False, num_hidden_layers=2)
    convert(plan_conversion(make_hf("other", tokenizer=False, num_hidden_layers=3), tmp_path / "td"))
    with pytest.raises(UserError, match="couldn't load or run"):
        compare_logits(source, resolve(tmp_path / "td"))


def test_what_cannot_be_built_is_refused_by_name(make_hf, tmp_path):
    arch = plan_conversion(make_hf(), tmp_path / "td").architecture
    with pytest.raises(UserError, match="can't be split by tp=4"):
        check_buildable(arch, 4)
    moe = {**json.loads(json.dumps(arch.__dict__)), "family": "qwen3_moe", "model_type": "qwen3_moe"}
    with pytest.raises(UserError, match="It is qwen3_moe"):
        check_buildable(type(arch)(**moe), 1)
    assert torch.get_default_dtype() == torch.float32
