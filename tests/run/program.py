"""Ranks that train the same tiny model at several parallel sizes and write down what they get."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import torch
import torch.distributed as dist

from openclaw_core.config.schema import Loss, Optimizer, Train
from openclaw_core.errors import UserError
from openclaw_core.loss import fused_linear
from openclaw_core.models.architecture import architecture_from_hf, padded_vocab
from openclaw_core.models.megatron.parallel import ParallelSizes
from openclaw_core.models.megatron.weights import load_weights
from openclaw_core.run.trainer import Trainer
from openclaw_core.types import Candidate, Hint, Sample, SampleKind, TeacherScores, TopK

VOCAB = 300
LAYOUTS = {
    "one": (1, ParallelSizes(), 40),
    "wide": (1, ParallelSizes(), 10_000),
    "tp2sp": (2, ParallelSizes(tensor=2, sequence_parallel=True), 40),
    "pp2": (2, ParallelSizes(pipeline=2), 40),
    "dp2": (2, ParallelSizes(), 40),
    "cp2": (2, ParallelSizes(context=2), 20),
}
# Four ranks: one step each.
FOUR = {
    "cp4": ParallelSizes(context=4),
    "tp2cp2": ParallelSizes(tensor=2, context=2),
    "tp2spcp2": ParallelSizes(tensor=2, context=2, sequence_parallel=True),
    "pp2cp2": ParallelSizes(pipeline=2, context=2),
    "dp2cp2": ParallelSizes(context=2),
}
# The output layer in chunks of three rows of logits.
CHUNKED = {
    "chunked": (1, ParallelSizes()),
    "chunked.tp2": (2, ParallelSizes(tensor=2)),
    "chunked.tp2sp": (2, ParallelSizes(tensor=2, sequence_parallel=True)),
    "chunked.pp2": (2, ParallelSizes(pipeline=2)),
    "chunked.dp2": (2, ParallelSizes()),
    "chunked.cp2": (2, ParallelSizes(context=2)),
}
UNTIED = ("chunked", "chunked.tp2", "chunked.pp2")
# What is loaded at the layout of the key after the first step; the second step must then come out the same.
RESUMED = {"one": "one", "tp2sp": "one", "pp2": "tp2sp", "dp2": "dp2", "cp2": "tp2sp"}
LOSS = Loss(k=3, subset="student", selection="sequence_optimal", opd_on_rl_only="skip")
# Adam's eps is large so that updates are smooth in the gradient and layouts can be compared closely.
OPTIMIZER = Optimizer(lr=1e-2, weight_decay=0.1, clip_grad=0.5, eps=1e-2)


def make_samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    samples = []
    for i, (prompt, length) in enumerate([(9, 5), (4, 11), (17, 3), (2, 8), (6, 6)]):
        kind = (SampleKind.OPD_RL, SampleKind.OPD, SampleKind.RL)[i % 3]
        count = 1 if kind is SampleKind.RL else 1 + i % 2
        ids = tuple(int(x) for x in rng.integers(0, VOCAB, prompt + length))
        samples.append(
            Sample(
                sample_id=f"s{i}",
                turn_id=f"t{i}",
                kind=kind,
                reward=float((-1) ** i) if kind is not SampleKind.OPD else 0.0,
                prompt_ids=ids[:prompt],
                response_ids=ids[prompt:],
                response_logprobs=(-5.7,) * length,
                loss_mask=(*(int(x) for x in rng.integers(0, 2, length - 1)), 1),
                candidates=tuple(Candidate(ids[:prompt], Hint("x" * 11)) for _ in range(count)),
                weight_version=0,
            )
        )
    return samples


def make_scores(samples: list[Sample]) -> list[TeacherScores]:
    rng = np.random.default_rng(1)
    scores = []
    for sample in samples:
        shape = (len(sample.candidates), len(sample.response_ids), LOSS.k)
        ids = np.argsort(rng.random((*shape[:2], VOCAB)), axis=-1)[..., : LOSS.k]
        logprobs = -np.sort(rng.random(shape).astype(np.float32) * 4 + 1, axis=-1)
        at_student = -(rng.random(shape).astype(np.float32) * 4 + 2)
        scores.append(TeacherScores(sample.sample_id, TopK(ids, logprobs), at_student))
    return scores


def train(rank: int, ranks: int, folder: Path, meet) -> None:
    samples = make_samples()
    scores = make_scores(samples)
    arch = architecture_from_hf(folder / "hf")

    def trainer(world: int, sizes: ParallelSizes, budget: int = 40, loss: Loss = LOSS) -> Trainer:
        return Trainer(
            arch,
            folder / "torch_dist",
            sizes,
            meet(meeting, world),
            loss=loss,
            optimizer=OPTIMIZER,
            train=Train(dtype="fp32", recompute=True, max_tokens_per_device=budget, seed=3),
        )

    def starter(world: int, sizes: ParallelSizes):
        def start(name: str, loss: Loss) -> Trainer:
            nonlocal meeting
            meeting = f"{name}.{world}"
            return trainer(world, sizes, 40 // sizes.context, loss)

        return start

    for name, (world, sizes, budget) in LAYOUTS.items():
        if rank >= world:
            continue
        report: dict = {}
        meeting = name
        one = trainer(world, sizes, budget)
        if name == "one":
            one.save(folder / "one.untrained", 0)
            report["untrained"] = one.load(folder / "one.untrained")
        report["steps"] = [one_step(one, samples, scores)]
        one.save(folder / f"{name}.checkpoint", 1)
        report["saved_hash"] = one.weights_hash()
        report["steps"].append(one_step(one, samples, scores))
        one.export_hf(folder / f"{name}.export")
        report["hash"] = one.weights_hash()
        report["children"] = len(psutil.Process().children(recursive=True))
        if name != "wide":
            report["faults"] = faults(one, samples, scores)
        if name == "one":
            load_weights(one.model, folder / "one.checkpoint")
            report["reloaded_hash"] = one.weights_hash()
        one.close()
        if name == "cp2":
            report["fused"] = {again: fused(starter(world, sizes), again, samples, scores) for again in FUSED}
        if name in RESUMED:
            meeting = f"{name}.resumed"
            two = trainer(world, sizes)
            report["resumed_at"] = two.load(folder / f"{RESUMED[name]}.checkpoint")
            report["resumed"] = one_step(two, samples, scores)
            report["resumed_hash"] = two.weights_hash()
            report["adam_steps"] = sorted({float(s["step"]) for s in two.optimizer.optimizer.state.values()})
            two.close()
        if rank == 0:
            (folder / f"{name}.json").write_text(json.dumps(report))
    if rank == 0:
        for name in FUSED:
            report = fused(starter(1, ParallelSizes()), name, samples, scores)
            (folder / f"{name}.json").write_text(json.dumps(report))


def train_chunked(rank: int, ranks: int, folder: Path, meet) -> None:
    """Steps whose gradient is taken a chunk of logits at a time."""
    samples = make_samples()
    scores = make_scores(samples)
    rows = 3

    def trainer(name: str, sizes: ParallelSizes, world: int, loss: Loss, model: str = "", how: str = "chunked") -> Trainer:
        columns = padded_vocab(VOCAB, tp=sizes.tensor) // sizes.tensor
        fused_linear.CHUNK_BYTES = rows * columns * 4
        return Trainer(
            architecture_from_hf(folder / f"{model}hf"),
            folder / f"{model}torch_dist",
            sizes,
            meet(name, world),
            loss=loss,
            optimizer=OPTIMIZER,
            train=Train(dtype="fp32", recompute=True, max_tokens_per_device=40 // sizes.context, seed=3, output_layer=how),
        )

    def steps(name: str, sizes: ParallelSizes, world: int, **more) -> dict:
        one = trainer(name, sizes, world, LOSS, **more)
        report = {"steps": [one_step(one, samples, scores), one_step(one, samples, scores)], "hash": one.weights_hash()}
        one.export_hf(folder / f"{name}.export")
        if name == "chunked.tp2":
            report["faults"] = faults(one, samples, scores)
        one.close()
        return report

    reports: dict = {}
    for name, (world, sizes) in CHUNKED.items():
        if rank >= world:
            continue
        reports[name] = steps(name, sizes, world)
        if name in UNTIED:
            reports[f"untied.{name}"] = steps(f"untied.{name}", sizes, world, model="untied.")
        for again in FUSED if name in ("chunked.tp2", "chunked.cp2") else ():
            one = trainer(f"{again}.{name}", sizes, world, FUSED[again])
            taken = [one.train_step(samples, scores) for _ in range(2)]
            one_bad_row(one, samples, scores, "old", Trainer.train_step)
            reports[f"{again}.{name}"] = [{"grad_norm": out.grad_norm, **out.metrics.get("all", {})} for out in taken]
            one.close()
    if rank == 0:
        reports["untied"] = steps("untied", ParallelSizes(), 1, model="untied.", how="whole")
        for key, report in reports.items():
            (folder / f"{key}.json").write_text(json.dumps(report))


def train_four(rank: int, ranks: int, folder: Path, meet) -> None:
    samples = make_samples()
    scores = make_scores(samples)
    arch = architecture_from_hf(folder / "hf")
    for name, sizes in FOUR.items():
        one = Trainer(
            arch,
            folder / "torch_dist",
            sizes,
            meet(name, ranks),
            loss=LOSS,
            optimizer=OPTIMIZER,
            train=Train(dtype="fp32", recompute=True, max_tokens_per_device=20, seed=3),
        )
        report = {"steps": [one_step(one, samples, scores)], "hash": one.weights_hash()}
        one.export_hf(folder / f"{name}.export")
        one.close()
        if rank == 0:
            (folder / f"{name}.json").write_text(json.dumps(report))


def one_step(trainer: Trainer, samples, scores) -> dict:
    old = trainer.old_pass(samples, scores)
    out = trainer.train_step(samples, scores)
    return {
        "grad_norm": out.grad_norm,
        "loss": out.metrics["all"]["loss/total"] if out.metrics else None,
        "old": {key: [value.sampled_logprobs.tolist(), value.top.ids.tolist()] for key, value in old.items()},
        "dumps": {key: {k: v.tolist() for k, v in value.items()} for key, value in out.dumps.items()},
        "losses": out.losses,
        "tokens": out.tokens,
    }


def faults(trainer: Trainer, samples, scores) -> dict:
    """Things that go wrong leave the weights alone and are said on every rank."""
    before = trainer.weights_hash()
    said = {}

    def attempt(name: str, action) -> None:
        try:
            action()
        except UserError as error:
            said[name] = str(error)
        assert trainer.weights_hash() == before, name

    attempt("other samples", lambda: trainer.train_step(samples[:2], scores))
    attempt("missing scores", lambda: (trainer.old_pass(samples, scores), trainer.train_step(samples, scores[:1])))
    bad = [replace(samples[1], loss_mask=(2,) * len(samples[1].loss_mask)), *samples[2:]]
    attempt("bad sample", lambda: trainer.old_pass(bad, scores))
    empty = [replace(s, loss_mask=(0,) * len(s.loss_mask)) for s in samples]
    attempt("nothing to learn", lambda: trainer.old_pass(empty, scores))
    norm, trainer.optimizer.get_grad_norm = trainer.optimizer.get_grad_norm, lambda: float("nan")
    attempt("gradient", lambda: one_step(trainer, samples, scores))
    trainer.optimizer.get_grad_norm = norm
    weight = next(trainer.model.parameters())
    kept = weight.detach().clone()
    weight.data.fill_(float("nan"))
    before = trainer.weights_hash()
    attempt("weights", lambda: one_step(trainer, samples, scores))
    weight.data.copy_(kept)
    for policy in ("old", "current"):
        said[f"{policy} row"] = one_bad_row(trainer, samples, scores, policy)
    # After all that a step over one sample (fewer than data-parallel ranks) works.
    said["single"] = one_step(trainer, samples[:1], scores[:1])["loss"]
    return said


def one_bad_row(trainer: Trainer, samples, scores, policy: str, step=one_step) -> dict:
    """NaN in one row of the last rank alone, in the first of its micro-batches: all ranks say its name, none waits for another,
    and the weights stay. Of tensor-parallel ranks it is in one's columns alone.
    """
    before = trainer.weights_hash()
    passes, names, last = trainer.passes, [], dist.get_world_size() - 1
    row_stats, objective = passes._row_stats, passes._objective

    def spoilt(x, rows):
        row = int(rows.weight.argmax())
        if dist.get_rank() != last or names or row >= len(x):
            return x
        names.append(rows.name(row))
        spot = torch.zeros_like(x)
        spot[row, 0] = float("nan")
        return x + spot

    if policy == "old":
        passes._row_stats = lambda batch, logits, part: row_stats(batch, spoilt(logits, batch.rows), part)
    else:
        passes._objective = lambda output, rows, targets: objective(spoilt(output, rows), rows, targets)
    start, error = time.monotonic(), ""
    try:
        step(trainer, samples, scores)
    except UserError as found:
        error = str(found)
    passes._row_stats, passes._objective = row_stats, objective
    everyones = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, names)
    (name,) = everyones[last]
    assert f"{name}: the {policy} policy's logits" in error, (dist.get_rank(), name, error)
    assert trainer.weights_hash() == before, policy
    return {"seconds": time.monotonic() - start, "name": name, "named": error.count("response position ")}


FUSED = {
    "grpo": Loss(w_opd=0.0, k=3),
    "overlap": Loss(k=3, subset="overlap", selection="token_optimal"),
    "teacher": Loss(k=3, subset="teacher", selection="sequence_optimal"),
    "kl": Loss(w_opd=0.0, k=3, kl_coef=0.5),
}


def fused(start, name: str, samples, scores) -> list[dict]:
    """Without questions to the teacher the old pass is optional and changes nothing: explicit, then within the step."""
    reports = []
    for explicit in (True, False):
        one = start(f"{name}.{explicit}", FUSED[name])
        for _ in range(2):
            if explicit:
                one.old_pass(samples, scores)
            out = one.train_step(samples, scores)
            reports.append({"grad_norm": out.grad_norm, **out.metrics.get("all", {})})
        one_bad_row(one, samples, scores, "old", one_step if explicit else Trainer.train_step)
        one.close()
    return reports
