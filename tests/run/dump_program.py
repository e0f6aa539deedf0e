"""Ranks that train one step in every cell and keep its dump, as a run does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch.distributed as dist

from openclaw_core.config.load import load_profile
from openclaw_core.config.schema import Config
from openclaw_core.dumps.writer import DumpWriter
from openclaw_core.loss.needs import needs
from openclaw_core.models.architecture import architecture_from_hf
from openclaw_core.models.megatron.parallel import ParallelSizes
from openclaw_core.rollout.store import Store
from openclaw_core.run.keep import Keeper
from openclaw_core.run.runs import create_run
from openclaw_core.run.trainer import Trainer
from openclaw_core.track.sinks import Sinks
from openclaw_core.types import Candidate, Hint, Sample, SampleKind, TeacherScores, TopK

VOCAB, K, SCORING, SAMPLING = 300, 30, 0.8, 0.6
SUBSETS = ("student", "teacher", "overlap")
SELECTIONS = ("shortest", "token_optimal", "sequence_optimal", "signal_optimal")
CELLS = {f"{subset}.{rule}": (f"loss.subset={subset}", f"loss.selection={rule}") for subset in SUBSETS for rule in SELECTIONS}
CELLS |= {f"{subset}.tail": (f"loss.subset={subset}", "loss.tail=bin") for subset in SUBSETS}
CELLS |= {
    "teacher.chunked": ("loss.subset=teacher", "train.output_layer=chunked"),
    "grpo": ("loss.w_opd=0",),
    "anchor": ("loss.subset=teacher", "loss.opd_on_rl_only=anchor"),
}
SHARED = {"cp2": ParallelSizes(context=2), "tp2": ParallelSizes(tensor=2), "dp2": ParallelSizes()}


def settings(*overrides: str) -> Config:
    """The configuration of a cell: micro-batches of a sample or two, and engines that sample at another temperature."""
    common = (f"loss.k={K}", f"loss.temperature={SCORING}", f"rollout.temperature={SAMPLING}", "train.max_tokens_per_device=40")
    return load_profile("tiny-cpu", (*common, *overrides), {}, check=False).config


def make_samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    samples = []
    for i, (kind, prompt, length, count) in enumerate(
        [(SampleKind.OPD_RL, 9, 5, 3), (SampleKind.RL, 4, 7, 1), (SampleKind.OPD, 12, 4, 2), (SampleKind.OPD_RL, 6, 6, 1)]
    ):
        ids = tuple(int(x) for x in rng.integers(0, VOCAB, prompt + length))
        samples.append(
            Sample(
                sample_id=f"s{i}",
                turn_id=f"t{i}",
                kind=kind,
                reward=0.0 if kind is SampleKind.OPD else 1.0,
                prompt_ids=ids[:prompt],
                response_ids=ids[prompt:],
                response_logprobs=(-5.5,) * length,
                loss_mask=(1,) * length,
                candidates=tuple(
                    Candidate(ids[:prompt], None if kind is SampleKind.RL else Hint("In capitals, please." + "!" * n))
                    for n in range(count)
                ),
                weight_version=0,
                step_spans=((0, 2), (2, 4)),
            )
        )
    return samples


def teacher_logprobs(sample: Sample) -> np.ndarray:
    """[K_i, R, V]: what a teacher of no model in particular says of a sample."""
    shape = (len(sample.candidates), len(sample.response_ids), VOCAB)
    logits = np.random.default_rng(int(sample.sample_id[1:])).normal(size=shape) * 2
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def native(sample: Sample, config: Config) -> TeacherScores:
    told = teacher_logprobs(sample)[: 1 if needs(config.loss).candidates == "first" else None]
    ids = np.argsort(-told, axis=-1)[..., : config.loss.k]
    return TeacherScores(sample.sample_id, TopK(ids, np.take_along_axis(told, ids, -1).astype(np.float32)))


def everyones(value):
    """What rank 0 has, as the driver tells it to all ranks."""
    box = [value]
    dist.broadcast_object_list(box)
    return box[0]


def one_step(trainer: Trainer, config: Config, samples: list[Sample]):
    """The teacher's scores and the result, in the order of calls of a run's loop."""
    asked = needs(config.loss)
    scores = [native(sample, config) for sample in samples if asked.scores(sample.kind)]
    if asked.at_student:
        old = trainer.old_pass(samples, scores if asked.old_at_teacher else [])
        tops = everyones({name: found.top.ids for name, found in old.items()})
        by_id = {sample.sample_id: sample for sample in samples}
        scores = [
            replace(
                one,
                at_student=np.take_along_axis(
                    teacher_logprobs(by_id[one.sample_id])[: len(one.top.ids)],
                    np.broadcast_to(tops[one.sample_id], one.top.ids.shape), -1,
                ).astype(np.float32),
            )
            for one in scores
        ]  # fmt: skip
    return scores, trainer.train_step(samples, scores)


def keep(folder: Path, config: Config, samples: list[Sample], scores, result) -> None:
    """The step's dump and metrics, in a run folder."""
    run = create_run(folder.parent, folder.name)
    job = SimpleNamespace(
        run=run,
        resolved=SimpleNamespace(config=config),
        plan=SimpleNamespace(architectures={"student": SimpleNamespace(vocab=VOCAB)}),
        sources=SimpleNamespace(teacher="teacher"),
    )
    store = Store(run.store)
    keeper = Keeper(job, store, DumpWriter(run.dumps), Sinks())
    keeper.dump(1, samples, scores, result)
    run.update(facts={"metrics": keeper.metrics(samples, scores, result, [0] * len(samples))})
    keeper.close()
    store.close()


def steps(rank: int, ranks: int, folder: Path, meet) -> None:
    samples = make_samples()
    for name, world, sizes, overrides in (
        *((cell, 1, ParallelSizes(), overrides) for cell, overrides in CELLS.items()),
        *((layout, 2, sizes, CELLS["teacher.token_optimal"]) for layout, sizes in SHARED.items()),
    ):
        if rank >= world:
            continue
        config = settings(*overrides)
        trainer = Trainer(
            architecture_from_hf(folder / "hf"), folder / "hf", sizes, meet(name, world),
            loss=config.loss, optimizer=config.optimizer, train=config.train, sampling_temperature=config.rollout.temperature,
        )  # fmt: skip
        scores, result = one_step(trainer, config, samples)
        if rank == 0:
            keep(folder / name, config, samples, scores, result)
        trainer.close()
