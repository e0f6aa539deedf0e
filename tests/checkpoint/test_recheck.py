"""Existing conversions verified again: against their source, against their manifest, and what changed is named."""

from __future__ import annotations

import shutil

import pytest

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.checkpoint.recheck import recheck
from openclaw_core.checkpoint.torch_dist import TorchDistReader, resolve
from openclaw_core.errors import UsageError, UserError


def flip(folder, name):
    """One bit of a stored tensor."""
    place = TorchDistReader(folder).contents.tensors[name].chunks[0]
    with (folder / place.file).open("r+b") as file:
        file.seek(place.start + place.length // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


@pytest.fixture
def both(make_hf, tmp_path):
    source = make_hf(tie_word_embeddings=False)
    convert(plan_conversion(source, tmp_path / "td", tp=4))
    convert(plan_conversion(tmp_path / "td", tmp_path / "back"))
    return source


@pytest.mark.parametrize("target", ["td", "back"])
@pytest.mark.parametrize("alone", [True, False])
def test_what_is_as_it_was_is_equal(both, tmp_path, target, alone):
    if alone:
        shutil.rmtree(both)
        if target == "back":
            shutil.rmtree(tmp_path / "td")
    found = recheck(tmp_path / target, None if alone else (both if target == "td" else tmp_path / "td"))
    assert (found.source is None) == alone
    assert found.hashed
    assert len(found.checks) == 36
    assert not found.problems


@pytest.mark.parametrize("alone", [True, False])
def test_a_flipped_bit_is_named(both, tmp_path, alone):
    flip(resolve(tmp_path / "td"), "decoder.layers.mlp.linear_fc2.weight")
    if alone:
        shutil.rmtree(both)
    assert recheck(tmp_path / "td").problems == [("model.layers.0.mlp.down_proj.weight differs.", "")]


def test_a_changed_template_is_named(both, tmp_path):
    (tmp_path / "td" / "hf" / "tokenizer_config.json").write_text("{}")
    assert [what for what, _ in recheck(tmp_path / "td").problems] == [
        "tokenizer_config.json changed since the conversion, or is gone."
    ]


def test_nothing_to_compare_with(both, tmp_path):
    (tmp_path / "td" / "openclaw.json").unlink()
    with pytest.raises(UserError, match="nothing to be compared with"):
        recheck(tmp_path / "td")
    assert not recheck(tmp_path / "td", both).problems
    with pytest.raises(UsageError, match="are both hf"):
        recheck(tmp_path / "back", both)
