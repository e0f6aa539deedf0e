"""The same step at every layout as Hugging Face with torch's AdamW, and the same again after a resume."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from openclaw_core.checkpoint.convert import convert, plan_conversion
from openclaw_core.config.schema import Loss
from openclaw_core.errors import UserError
from openclaw_core.loss.logprobs import row_stats
from openclaw_core.loss.objective import Objective, objective
from openclaw_core.loss.rows import pack_rows
from openclaw_core.loss.targets import build_targets
from openclaw_core.loss.teacher_rows import pack_teacher
from openclaw_core.run.saved import check_complete
from openclaw_core.vocab import VocabShard

TESTS = Path(__file__).parents[1]
launch = runpy.run_path(str(TESTS / "worlds.py"))["launch"]
make = runpy.run_path(str(TESTS / "tiny_models.py"))["make"]
PROGRAM = Path(__file__).with_name("program.py")
program = runpy.run_path(str(PROGRAM))
LAYOUTS = tuple(program["LAYOUTS"])
FOUR = tuple(program["FOUR"])
CHUNKED = tuple(program["CHUNKED"])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainer")
    make("qwen3", folder / "hf")
    convert(plan_conversion(folder / "hf", folder / "torch_dist"))
    launch(PROGRAM, "train", 2, folder)
    launch(PROGRAM, "train_four", 4, folder)
    make("qwen2", folder / "untied.hf")
    convert(plan_conversion(folder / "untied.hf", folder / "untied.torch_dist"))
    launch(PROGRAM, "train_chunked", 2, folder)
    return folder


@pytest.fixture(scope="module")
def reference(world):
    """Two steps in plain torch: losses, gradient norms and the weights after each."""
    model = AutoModelForCausalLM.from_pretrained(world / "hf", attn_implementation="eager")
    samples, cfg, settings = program["make_samples"](), program["LOSS"], program["OPTIMIZER"]
    scores = program["make_scores"](samples)
    rows = pack_rows(samples, cfg, real_vocab=300)
    shard = VocabShard.whole(300)
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=settings.lr, betas=(settings.beta1, settings.beta2), eps=settings.eps)
    steps, weights = [], []
    for _ in range(2):
        inputs = [torch.tensor([s.prompt_ids + s.response_ids]) for s in samples]
        logits = torch.cat([model(ids).logits[0, len(s.prompt_ids) - 1 : -1] for ids, s in zip(inputs, samples, strict=True)])
        stats = row_stats(logits.detach(), shard, sampled_ids=rows.response_ids, k=cfg.k)
        targets = build_targets(cfg, rows, stats, pack_teacher(rows, scores, cfg, real_vocab=300))
        out = objective(logits, rows, targets, cfg, shard, inplace=False)
        adam.zero_grad()
        (out.loss / len(samples)).backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_grad))
        adam.step()
        steps.append({"loss": float(out.loss.detach()) / len(samples), "grad_norm": norm})
        weights.append({k: v.clone() for k, v in model.state_dict().items() if k != "lm_head.weight"})
    return steps, weights


def report(folder: Path, name: str) -> dict:
    return json.loads((folder / f"{name}.json").read_text())


@pytest.mark.parametrize("layout", LAYOUTS + FOUR + CHUNKED)
def test_steps_equal_plain_torch(world, reference, layout):
    steps, after = reference
    taken = report(world, layout)["steps"]
    weights = after[len(taken) - 1]
    for got, expected in zip(taken, steps, strict=layout not in FOUR):
        assert got["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert got["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    exported = load_file(world / f"{layout}.export" / "model.safetensors")
    assert exported.keys() == weights.keys()
    assert max((exported[name] - tensor).abs().max() for name, tensor in weights.items()) < 1e-5


def test_the_step_moved_the_weights(world):
    start, end = load_file(world / "hf" / "model.safetensors"), load_file(world / "one.export" / "model.safetensors")
    assert min((end[name] - start[name]).abs().max() for name in start) > 1e-5


@pytest.mark.parametrize("layout", LAYOUTS + FOUR + CHUNKED)
def test_what_is_reported_of_each_sample_is_the_same(world, layout):
    one, other = report(world, "one")["steps"][0], report(world, layout)["steps"][0]
    assert other["old"].keys() == {f"s{i}" for i in range(5)}
    for sample in program["make_samples"]():
        dumps, expected = other["dumps"][sample.sample_id], one["dumps"][sample.sample_id]
        assert dumps.keys() == expected.keys()
        assert len(dumps["overlap"]) == len(sample.candidates)
        for name in dumps:
            torch.testing.assert_close(torch.tensor(dumps[name]), torch.tensor(expected[name]), atol=1e-4, rtol=1e-4)
        assert other["old"][sample.sample_id][1] == dumps["student_ids"]
        assert other["losses"][sample.sample_id] == pytest.approx(one["losses"][sample.sample_id], abs=1e-5)
        assert other["losses"][sample.sample_id].keys() == {"total", "grpo", "opd"}
    assert sum(losses["total"] for losses in other["losses"].values()) / 5 == pytest.approx(other["loss"], abs=1e-5)
    assert other["tokens"] == sum(len(s.prompt_ids) + len(s.response_ids) for s in program["make_samples"]())


@pytest.mark.parametrize("layout", ["one", "dp2"])
def test_a_resume_goes_on_bit_by_bit(world, layout):
    run = report(world, layout)
    assert run["resumed_at"] == 1
    assert run["resumed_hash"] == run["hash"]
    assert run["resumed"]["grad_norm"] == run["steps"][1]["grad_norm"]


@pytest.mark.parametrize("layout", tuple(program["RESUMED"]))
def test_a_resume_at_other_parallel_sizes_goes_on_and_counts_steps(world, layout):
    run, one = report(world, layout), report(world, "one")
    assert run["adam_steps"] == [2.0]
    assert run["resumed"]["loss"] == pytest.approx(one["steps"][1]["loss"], abs=1e-5)
    assert run["resumed"]["grad_norm"] == pytest.approx(one["steps"][1]["grad_norm"], rel=1e-5)


def test_a_training_checkpoint_is_a_source_of_weights_too(world):
    run = report(world, "one")
    assert run["reloaded_hash"] == run["saved_hash"] != run["hash"]


def test_a_checkpoint_before_the_first_step_can_be_loaded(world):
    assert report(world, "one")["untrained"] == 0


@pytest.mark.parametrize("layout", [*(name for name in LAYOUTS if name != "wide"), "chunked.tp2"])
def test_faults_are_said_and_leave_the_weights_alone(world, layout):
    said = report(world, layout)["faults"]
    assert "Call old_pass()" in said["other samples"]
    assert "sample s1" in said["missing scores"]
    assert "sample s1" in said["bad sample"]
    assert "no sample of the batch has a trainable token" in said["nothing to learn"]
    assert "nan" in said["gradient"]
    assert "s0" in said["gradient"]
    assert "NaN" in said["weights"]
    for policy in ("old", "current"):
        assert said[f"{policy} row"]["named"] == 1
        assert said[f"{policy} row"]["seconds"] < 60
    assert said["single"] == pytest.approx(report(world, "one")["faults"]["single"], abs=1e-5)


@pytest.mark.parametrize("divergence", ["reverse_kl", "jensen_shannon"])
def test_a_dump_holds_weights_and_advantages_where_they_were_trained_on(divergence):
    from openclaw_core.run.trainer_batch import MicroBatch
    from openclaw_core.run.trainer_report import dump_arrays

    samples, cfg = program["make_samples"](), Loss(k=3, divergence=divergence)
    rows = pack_rows(samples, cfg, real_vocab=300)
    torch.manual_seed(0)
    stats = row_stats(torch.randn(rows.count, 300), VocabShard.whole(300), sampled_ids=rows.response_ids, k=3)
    targets = build_targets(cfg, rows, stats, pack_teacher(rows, program["make_scores"](samples), cfg, real_vocab=300))
    dumps = dump_arrays(MicroBatch(tuple(samples), None, rows, rows), targets, stats, cfg)["s1"]
    surrogate = {"weights", "differences", "advantages"}
    assert dumps.keys() & surrogate == (surrogate if divergence == "reverse_kl" else set())
    assert {"support_ids", "support_mask", "support_student", "support_teacher", "k_star", "overlap"} < dumps.keys()
    if divergence == "reverse_kl":
        clipped = (dumps["support_teacher"] - dumps["support_student"]).clip(-cfg.diff_clip, cfg.diff_clip)
        assert dumps["differences"] == pytest.approx(clipped * (dumps["support_mask"] > 0))


def test_a_bad_row_of_the_training_forward_is_named_once_all_micro_batches_are_done():
    from openclaw_core.run.trainer_passes import Trained, _errors

    rows = pack_rows(program["make_samples"](), program["LOSS"], real_vocab=300)
    bad, checked = torch.zeros(rows.count, dtype=torch.bool), []
    one = Trained(SimpleNamespace(rows=rows), None, None, Objective(torch.zeros(()), None, {}, bad))
    assert _errors([one.check]) == []
    bad[6] = True
    (error,) = _errors([one.check, lambda: checked.append("the next one")])
    assert "sample s1, response position 1: the current policy's logits" in str(error)
    assert checked


@pytest.mark.parametrize("name", tuple(program["FUSED"]))
def test_the_old_pass_may_be_left_out_where_nothing_is_asked_of_the_teacher(world, name):
    steps = report(world, name)
    assert steps[:2] == [pytest.approx(step, abs=1e-5) for step in steps[2:]]
    # Where ranks share the samples' rows, they meet in the selection, in the training forward too.
    for got, expected in zip(report(world, "cp2")["fused"][name], steps, strict=True):
        assert got == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize("layout", program["UNTIED"])
def test_chunks_of_an_output_weight_that_is_not_the_embedding(world, layout):
    for got, expected in zip(report(world, f"untied.{layout}")["steps"], report(world, "untied")["steps"], strict=True):
        assert got["loss"] == pytest.approx(expected["loss"], abs=1e-5)
        assert got["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-5)
    chunked, whole = (load_file(world / f"{name}.export" / "model.safetensors") for name in (f"untied.{layout}", "untied"))
    assert "lm_head.weight" in whole
    assert max((chunked[name] - whole[name]).abs().max() for name in whole) < 1e-5


@pytest.mark.parametrize("name", tuple(program["FUSED"]))
@pytest.mark.parametrize("layout", ["chunked.tp2", "chunked.cp2"])
def test_chunks_without_an_old_pass(world, layout, name):
    for got, expected in zip(report(world, f"{name}.{layout}"), report(world, name)[:2], strict=True):
        assert got == pytest.approx(expected, abs=2e-5)


def test_kl_is_to_the_start(world):
    first, second, *_ = report(world, "kl")
    assert abs(first["loss/kl"]) < 1e-6
    assert second["loss/kl"] > 1e-6


def test_checkpoint_converts_back_and_knows_when_it_is_damaged(world, tmp_path):
    checkpoint = world / "tp2sp.checkpoint"
    check_complete(checkpoint)
    convert(plan_conversion(checkpoint, tmp_path / "hf"))
    assert load_file(tmp_path / "hf" / "model.safetensors").keys() == load_file(world / "hf" / "model.safetensors").keys()
    part = next(checkpoint.glob("*.distcp"))
    whole = part.read_bytes()
    part.write_bytes(whole[:-1])
    with pytest.raises(UserError, match="damaged"):
        check_complete(checkpoint)
    part.write_bytes(whole)
    with pytest.raises(UserError, match="isn't a complete checkpoint"):
        check_complete(world / "hf")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_saving_leaves_no_process_behind(world, layout):
    assert report(world, layout)["children"] == 0


def test_the_export_is_a_model_of_its_own(world):
    files = {path.name for path in (world / "dp2.export").iterdir()}
    assert {"config.json", "generation_config.json", "model.safetensors"} <= files
    assert json.loads((world / "dp2.export" / "config.json").read_text())["dtype"] == "float32"
