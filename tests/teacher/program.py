"""Ranks that score the same samples with the same teacher at several parallel sizes and token budgets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from openclaw_core.errors import UserError
from openclaw_core.models.architecture import architecture_from_hf, architecture_from_torch_dist
from openclaw_core.models.megatron.parallel import ParallelSizes
from openclaw_core.teacher.scoring import TeacherScorer
from openclaw_core.types import Candidate, Hint, Sample, SampleKind

STUDENT_VOCAB, K, TEMPERATURE = 290, 4, 0.7
RUNS = {
    "one": (1, ParallelSizes(), 10_000),
    "plain": (1, ParallelSizes(), 10_000),
    "alone": (1, ParallelSizes(), 1),
    "tp2sp": (2, ParallelSizes(tensor=2, sequence_parallel=True), 40),
    "pp2": (2, ParallelSizes(pipeline=2), 40),
    "dp2": (2, ParallelSizes(), 40),
}


def make_samples() -> list[Sample]:
    rng = np.random.default_rng(5)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(int(x) for x in rng.integers(0, STUDENT_VOCAB, count))

    first, second, hint, same = ids(10), ids(6), ids(3), ids(8)
    reply = ids(3)
    later = (*first, *reply, *second)
    turns = [
        (ids(4), (ids(9), ids(12))),
        (ids(7), (ids(3),)),
        (ids(2), (ids(20), ids(21), ids(25))),
        # Hints at the start, in the middle and at the end of one prompt, and none at all.
        (reply, ((*hint, *first), (*first[:5], *hint, *first[5:]), (*first, *hint), first)),
        # A later turn of that conversation; its second candidate has the first one's prompt in it.
        (ids(2), (later, (*later, *hint))),
        (ids(5), (same, same, same)),
    ]
    return [
        Sample(
            sample_id=f"s{i}",
            turn_id=f"t{i}",
            kind=SampleKind.OPD,
            reward=0.0,
            prompt_ids=ids(5),
            response_ids=response,
            response_logprobs=(-1.0,) * len(response),
            loss_mask=(1,) * len(response),
            candidates=tuple(Candidate(prompt, Hint("h" * 12)) for prompt in prompts),
            weight_version=0,
        )
        for i, (response, prompts) in enumerate(turns)
    ]


def score(rank: int, ranks: int, folder: Path, meet) -> None:
    samples = make_samples()
    wanted = questions(samples)
    for name, (world, sizes, budget) in RUNS.items():
        if rank >= world:
            continue
        scorer = TeacherScorer(
            architecture_from_hf(folder / "hf"),
            folder / "hf",
            sizes,
            meet(name, world),
            vocab=STUDENT_VOCAB,
            k=K,
            temperature=TEMPERATURE,
            budget=budget,
            dtype="fp32",
            context_length=30,
            share_prefixes=name != "plain",
        )
        before = scorer.weights_hash()
        out = {}
        with Work(scorer.model) as work:
            scores = scorer.score(samples)
        out["scoring"] = everyones([work.forwards, work.rows])
        out["tokens"] = np.array(scorer.tokens_forwarded)
        out["tokens_by_sample"] = np.array([s.tokens for s in scores])
        with Work(scorer.model) as work:
            out |= {f"{key}.at": value for key, value in scorer.logprobs_at(wanted).items()}
        out["asking"] = everyones([work.forwards, work.rows])
        out |= {f"{s.sample_id}.{part}": getattr(s.top, part) for s in scores for part in ("ids", "logprobs")}
        out |= {f"{s.sample_id}.first": s.top.logprobs for s in scorer.score(samples, candidates="first")}
        out["grads"] = np.array([p.requires_grad or p.grad is not None for p in scorer.model.parameters()])
        out["training"] = np.array([module.training for module in scorer.model.modules()])
        scorer.forget([s.sample_id for s in samples])
        out["cached"] = np.array(scorer.cached_bytes)
        out["said"] = np.array([said(scorer.logprobs_at, wanted), said(scorer.score, [too_long(samples[0])])])
        out["hashes"] = np.array([before, scorer.weights_hash()])
        if rank == 0:
            np.savez(folder / f"{name}.npz", **out)
        scorer.close()


class Work(TorchFunctionMode):
    """What a model is made to do: passes through its layers, and rows that are multiplied with its output layer's weight."""

    def __init__(self, model) -> None:
        super().__init__()
        self.forwards = self.rows = 0
        self.place = model.output_weight.data_ptr() if model.post_process else None
        self.hook = model.decoder.register_forward_pre_hook(self._count)

    def _count(self, module, arguments) -> None:
        self.forwards += 1

    def __torch_function__(self, function, types, args=(), kwargs=None):
        first, *others = [value for value in (*args, *(kwargs or {}).values()) if isinstance(value, torch.Tensor)] or [None]
        if any(other.data_ptr() == self.place for other in others):
            self.rows += first.shape[:-1].numel()
        return function(*args, **(kwargs or {}))

    def __exit__(self, *error) -> None:
        self.hook.remove()
        super().__exit__(*error)


def everyones(numbers: list[int]) -> np.ndarray:
    """The numbers of each rank [ranks, n]."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, numbers)
    return np.array(found)


def questions(samples: list[Sample]) -> list[tuple[str, np.ndarray]]:
    rng = np.random.default_rng(6)
    return [(s.sample_id, rng.integers(0, STUDENT_VOCAB, (len(s.response_ids), K))) for s in samples]


def too_long(sample: Sample) -> Sample:
    return replace(sample, sample_id="long", candidates=(Candidate((1,) * 29, Hint("h" * 12)),))


def said(action, argument) -> str:
    try:
        action(argument)
    except UserError as error:
        return str(error)
    return ""


def foreign(rank: int, ranks: int, folder: Path, meet) -> None:
    """The same scores from a Hugging Face folder and from torch_dist, the architecture read from each of them alone."""
    samples = make_samples()
    readers = {"hf": architecture_from_hf, "torch_dist": architecture_from_torch_dist, "bare": architecture_from_torch_dist}
    for kind, read in readers.items():
        scorer = TeacherScorer(
            read(folder / kind), folder / kind, ParallelSizes(tensor=2), meet(kind, ranks),
            vocab=STUDENT_VOCAB, k=K, temperature=TEMPERATURE, budget=100, dtype="fp32",
        )  # fmt: skip
        scores, hash_ = scorer.score(samples), scorer.weights_hash()
        if rank == 0:
            out = {f"{s.sample_id}.{part}": getattr(s.top, part) for s in scores for part in ("ids", "logprobs")}
            np.savez(folder / f"{kind}.npz", hash=np.array(hash_), context=np.array(scorer.context_length), **out)
        scorer.close()
