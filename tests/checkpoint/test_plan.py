"""What is seen before a byte is written: configs, tensors, tokenizers and places that don't fit, each named."""

from __future__ import annotations

import json
import runpy
import time
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.errors import Findings, UsageError, UserError

LLAMA3 = runpy.run_path(str(Path(__file__).parents[1] / "tiny_models.py"))["LLAMA3"]


def test_a_companion_that_would_be_lost_is_an_error_before_anything_is_written(make_hf, tmp_path):
    source = make_hf()
    (source / "tokenizer.json").unlink()
    (source / "tokenizer.json").mkdir()
    (source / "chat_template.jinja").symlink_to("gone")
    with pytest.raises(UserError, match=r"chat_template\.jinja, .*tokenizer\.json: not a file, or a link to one that is gone"):
        plan_conversion(source, tmp_path / "td")


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize("cast", [None, "bf16"])
def test_numbers_that_need_scales_are_no_weights(make_hf, tmp_path, dtype, cast):
    def change(tensors):
        tensors["model.layers.1.mlp.up_proj.weight"] = tensors["model.layers.1.mlp.up_proj.weight"].to(dtype)

    with pytest.raises(Findings, match=r"stand for weights only with scales(.|\n)*model\.layers\.1\.mlp\.up_proj\.weight is"):
        plan_conversion(make_hf(change=change), tmp_path / "td", dtype=cast)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("generation_config.json", "nope", "can't be read as JSON"),
        ("tokenizer_config.json", "{", "can't be read as JSON"),
        ("tokenizer.json", '{"model": {"vocab": {"a": "x"}}}', "it has ids that are no numbers"),
    ],
)
def test_a_damaged_companion_is_an_error_before_anything_is_written(make_hf, tmp_path, name, text, said):
    source = make_hf()
    (source / name).write_text(text)
    with pytest.raises(UserError, match=rf"{name}.*{said}"):
        plan_conversion(source, tmp_path / "td")


@pytest.mark.parametrize("layers", [2, 4])
def test_a_config_with_other_layers_is_refused(make_hf, tmp_path, layers):
    source = make_hf()
    cfg = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**cfg, "num_hidden_layers": layers}))
    with pytest.raises(Findings, match=r"11 unknown" if layers == 2 else r"11 missing"):
        plan_conversion(source, tmp_path / "td")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("intermediate_size", 47, r"gate_proj.weight is \[48, 32\], the architecture says \[47, 32\]"),
        ("head_dim", 8, r"q_proj.weight is \[64, 32\], the architecture says \[32, 32\]"),
        ("vocab_size", 201, r"embed_tokens.weight is \[200, 32\], the architecture says \[201, 32\]"),
    ],
)
def test_a_config_with_other_sizes_is_refused_with_both_values(make_hf, tmp_path, key, value, said):
    source = make_hf()
    cfg = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**cfg, key: value}))
    with pytest.raises(Findings, match=said):
        plan_conversion(source, tmp_path / "td")


def test_unknown_and_missing_tensors_are_named(make_hf, tmp_path):
    def change(tensors):
        tensors["model.layers.1.self_attn.gate.weight"] = torch.zeros(3)
        del tensors["model.layers.2.mlp.up_proj.weight"]

    source = make_hf(change=change)
    with pytest.raises(Findings) as caught:
        plan_conversion(source, tmp_path / "td")
    assert "model.layers.1.self_attn.gate.weight" in str(caught.value)
    assert "model.layers.2.mlp.up_proj.weight" in str(caught.value)
    assert not (tmp_path / "td").exists()


def test_an_allow_pattern_is_the_only_way_past(make_hf, tmp_path):
    source = make_hf(change=lambda tensors: tensors.update({"mtp.norm.weight": torch.zeros(3)}))
    with pytest.raises(Findings, match=r"mtp\.norm\.weight"):
        plan_conversion(source, tmp_path / "td")
    plan = plan_conversion(source, tmp_path / "td", allow=("mtp.*",))
    assert plan.left_out == {"mtp.norm.weight": "allowed to be left out"}


def test_heads(make_hf, tmp_path):
    def copy(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    def other(tensors):
        copy(tensors)
        tensors["lm_head.weight"][199, 31] += 1

    assert "lm_head.weight" in plan_conversion(make_hf("copy", change=copy), tmp_path / "td").left_out
    with pytest.raises(UserError, match="differs from"):
        plan_conversion(make_hf("other", change=other), tmp_path / "td")
    with pytest.raises(UserError, match="there is no lm_head"):
        plan_conversion(make_hf("none", tie_word_embeddings=False, change=lambda t: t.pop("lm_head.weight")), tmp_path / "td")


@pytest.mark.parametrize(("base", "good"), [(1e6, True), (5e6, False)])
def test_stored_rope_frequencies_must_fit_the_base(make_hf, tmp_path, base, good):
    def change(tensors):
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = base ** -(torch.arange(0, 16, 2).float() / 16)

    source = make_hf(change=change)
    if good:
        assert len(plan_conversion(source, tmp_path / "td").left_out) == 1
        return
    with pytest.raises(UserError, match="rope base 1e\\+06"):
        plan_conversion(source, tmp_path / "td")


def test_expectations_confirm_and_never_override(make_hf, tmp_path):
    source = make_hf()
    plan_conversion(source, tmp_path / "td", expect={"rope_theta": "1000000", "tied": "true", "layers": "3", "family": "qwen3"})
    plan_conversion(source, tmp_path / "td", expect={"dense_layers": "[]", "mla": "null", "rope_scaling": "null"})
    with pytest.raises(Findings, match=r"rope_theta: expected 5000000, config\.json says 1000000\.0"):
        plan_conversion(source, tmp_path / "td", expect={"rope_theta": "5000000"})
    with pytest.raises(UsageError, match="Unknown architecture field ropetheta"):
        plan_conversion(source, tmp_path / "td", expect={"ropetheta": "1"})
    with pytest.raises(UsageError) as caught:
        plan_conversion(source, tmp_path / "td", expect={"layers": "7", "ropetheta": "1", "heads": "4", "tide": "1"})
    assert [what for what, _ in caught.value.findings] == [
        "Unknown architecture field ropetheta.",
        "Unknown architecture field tide.",
        "layers: expected 7, config.json says 3.",
    ]


def test_a_tokenizer_past_the_embedding_is_refused(make_hf, tmp_path):
    source = make_hf()
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["added_tokens"][1]["id"] = 200
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match="id 200, the embedding 200 rows"):
        plan_conversion(source, tmp_path / "td")


def test_places_inside_each_other_and_the_same_kind_are_refused(make_hf, tmp_path):
    source = make_hf()
    with pytest.raises(UsageError, match="lie in each other"):
        plan_conversion(source, source / "td")
    with pytest.raises(UsageError, match="already is a Hugging Face folder"):
        plan_conversion(source, tmp_path / "x", to="hf")


def test_a_torch_dist_without_a_config_asks_for_it(make_hf, tmp_path):
    source = make_hf()
    convert(plan_conversion(source, tmp_path / "td"))
    (tmp_path / "td" / "release").rename(tmp_path / "bare")
    with pytest.raises(UserError, match="--hf-config"):
        plan_conversion(tmp_path / "bare", tmp_path / "back")
    with pytest.raises(Findings, match="tensors don't match"):
        plan_conversion(tmp_path / "bare", tmp_path / "back", hf_config=make_hf("wrong", num_hidden_layers=2))
    assert convert(plan_conversion(tmp_path / "bare", tmp_path / "back", hf_config=source)).checks


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rope_theta": 5e6}, r"rope_theta: .*/other says 5000000\.0, megatron's arguments says 1000000"),
        ({"rms_norm_eps": 1e-5}, r"norm_eps: .*/other says 1e-05, megatron's arguments says 1e-06"),
        ({"rope_scaling": LLAMA3}, r"rope_scaling: .*'factor': 8\.0.*, megatron's arguments says None"),
        ({}, None),
    ],
)
def test_an_export_with_another_models_config_is_refused(make_hf, tmp_path, changes, said):
    """The tensors fit it all the same: only what megatron wrote beside them tells."""
    convert(plan_conversion(make_hf(), tmp_path / "td"))
    arguments = {"rotary_base": 1000000, "norm_epsilon": 1e-6, "use_rope_scaling": False, "num_layers": 3, "num_experts": None}
    torch.save({"args": Namespace(**arguments)}, tmp_path / "td" / "release" / "common.pt")
    (tmp_path / "td" / "release").rename(tmp_path / "bare")
    other = make_hf("other", **changes)
    if said is None:
        plan_conversion(tmp_path / "bare", tmp_path / "x", hf_config=other)
        return
    with pytest.raises(Findings, match=said):
        plan_conversion(tmp_path / "bare", tmp_path / "x", hf_config=other)


def test_a_config_that_contradicts_the_manifest_is_refused(make_hf, tmp_path):
    convert(plan_conversion(make_hf(), tmp_path / "td"))
    with pytest.raises(Findings, match=r"rope_theta: .*/other says 5000000\.0, the manifest says 1000000\.0"):
        plan_conversion(tmp_path / "td", tmp_path / "x", hf_config=make_hf("other", rope_theta=5e6))


def test_the_estimate_of_memory_does_not_grow_with_the_model(make_hf, tmp_path):
    small, large = (plan_conversion(make_hf(str(n), num_hidden_layers=n), tmp_path / "td") for n in (2, 8))
    assert large.nbytes > 2 * small.nbytes
    assert large.peak_estimate == small.peak_estimate


def test_a_dry_plan_is_quick(make_hf, tmp_path):
    started = time.monotonic()
    plan = plan_conversion(make_hf(), tmp_path / "td")
    assert plan.nbytes == sum(2 * int(torch.tensor(shape).prod()) for shape in plan.mapping.stored.values())
    assert time.monotonic() - started < 2
    assert not (tmp_path / "td").exists()
