"""Ranks that train the same tiny model at several parallel sizes and write down what they get."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from openclaw_core.config.schema import Loss, Optimizer, Train
from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.models.megatron.parallel import ParallelSizes, Rendezvous
from openclaw_core.run.trainer import Trainer
from openclaw_core.types import Candidate, Hint, Sample, SampleKind, TeacherScores, TopK

VOCAB = 300
LAYOUTS = {
    "one": (1, ParallelSizes()),
    "tp2sp": (2, ParallelSizes(tensor=2, sequence_parallel=True)),
    "pp2": (2, ParallelSizes(pipeline=2)),
    "dp2": (2, ParallelSizes()),
}
LOSS = Loss(k=3, subset="student", selection="sequence_optimal", opd_on_rl_only="skip")
OPTIMIZER = Optimizer(lr=1e-2, weight_decay=0.1, clip_grad=0.5)
TRAIN = Train(dtype="fp32", recompute=True, max_tokens_per_device=40, seed=3)


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


def make_scores(samples: list[Sample], old: dict | None = None) -> list[TeacherScores]:
    rng = np.random.default_rng(1)
    scores = []
    for sample in samples:
        shape = (len(sample.candidates), len(sample.response_ids), LOSS.k)
        ids = np.argsort(rng.random((*shape[:2], VOCAB)), axis=-1)[..., : LOSS.k]
        logprobs = -np.sort(rng.random(shape).astype(np.float32) * 4 + 1, axis=-1)
        at_student = -(rng.random(shape).astype(np.float32) * 4 + 2)
        scores.append(TeacherScores(sample.sample_id, TopK(ids, logprobs), at_student))
    return scores


def train(rank: int, ranks: int, folder: Path, ports: list[int]) -> None:
    samples = make_samples()
    scores = make_scores(samples)
    for (name, (world, sizes)), port in zip(LAYOUTS.items(), ports, strict=False):
        if rank >= world:
            continue
        trainer = Trainer(
            architecture_from_hf(folder / "hf"),
            folder / "torch_dist",
            sizes,
            Rendezvous("127.0.0.1", port, rank, world),
            loss=LOSS,
            optimizer=OPTIMIZER,
            train=TRAIN,
        )
        results = []
        for step in (1, 2):
            trainer.old_pass(samples, scores)
            out = trainer.train_step(samples, scores)
            results.append({"grad_norm": out.grad_norm, "metrics": out.metrics})
            if step == 1:
                trainer.save(folder / f"{name}.checkpoint", step)
        trainer.export_hf(folder / f"{name}.export")
        digest = trainer.weights_hash()
        if rank == 0:
            (folder / f"{name}.json").write_text(json.dumps({"results": results, "hash": digest}))
            print(name, results, out.seconds, flush=True)
        trainer.close()
