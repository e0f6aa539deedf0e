"""One rank of the frozen teacher: native top-K of every candidate, and log-probs at the student's ids later on.

Only real candidates are forwarded, packed within a budget of tokens, and a prefix that several of them begin with is
forwarded once (models/megatron/prefix.py); the output layer, and the last layer but for its queries, keys and values, runs on
response rows only. The final hidden states of those rows stay here, so what the student wants to know later needs no second
forward.
All ranks of the role call the same methods with the same arguments in the same order; rank 0's answers are complete.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist

from openclaw_core.errors import Findings, UserError
from openclaw_core.models.architecture import Architecture
from openclaw_core.models.megatron import parallel
from openclaw_core.models.megatron.builder import DTYPES, build_model
from openclaw_core.models.megatron.core import get_forward_backward_func, parallel_state
from openclaw_core.models.megatron.logits import logprobs_at, score_rows
from openclaw_core.models.megatron.packing import Pack, SequenceIds, make_pack, plan_packs, split_rows
from openclaw_core.models.megatron.parallel import ParallelSizes, Rendezvous
from openclaw_core.models.megatron.prefix import added_tokens, make_shared_pack, plan_shared, split_shared
from openclaw_core.models.megatron.weights import fingerprint, load_weights
from openclaw_core.types import Sample, TeacherScores, TopK


@dataclass(frozen=True, slots=True)
class Job:
    """One candidate to forward: the index-th of a sample."""

    sample_id: str
    index: int
    sequence: SequenceIds


@dataclass(frozen=True, slots=True)
class Native:
    """A sample's native top-K [K_i, R, K], and the tokens that were forwarded for it."""

    top: TopK
    tokens: int


class TeacherScorer:
    """One rank of the teacher, a model of its own architecture and parallel sizes.

    source is a torch_dist checkpoint or a Hugging Face folder; None makes random weights, to measure with. vocab is the
    student's real vocabulary: log-probs are over its ids only. k ids per row, at the temperature. budget
    is the most tokens of a pack. share_prefixes=False forwards every candidate whole. Joins the process groups on
    construction: every rank constructs at the same time.
    """

    def __init__(
        self,
        arch: Architecture,
        source: str | Path | None,
        sizes: ParallelSizes,
        meeting: Rendezvous,
        *,
        vocab: int,
        k: int,
        temperature: float,
        budget: int,
        dtype: Literal["bf16", "fp16", "fp32"] = "bf16",
        context_length: int | None = None,
        share_prefixes: bool = True,
        seed: int = 0,
    ) -> None:
        if arch.vocab < vocab:
            raise UserError(f"The teacher has {arch.vocab} token ids, the student {vocab}.", "Their tokenizers must be one.")
        self.arch, self.vocab, self.k, self.temperature, self.budget = arch, vocab, min(k, vocab), temperature, budget
        self.context_length = min(context_length or arch.max_position, arch.max_position)
        self.share_prefixes = share_prefixes
        self.device = parallel.start(meeting, sizes, seed=seed)
        self.model = build_model(arch, sizes, DTYPES[dtype], device=self.device, trainable=False, random_weights=source is None)
        if source is not None:
            load_weights(self.model, source)
        self.tokens_forwarded = 0
        self._hidden: dict[str, list[torch.Tensor]] = {}
        self._owner: dict[str, int] = {}

    def score(self, samples: Sequence[Sample], *, candidates: Literal["all", "first"] = "all") -> list[TeacherScores]:
        """Native top-K [K_i, R, K] of every candidate of every sample, in the samples' order.

        With candidates="first" only each sample's first candidate is forwarded (K_i = 1). The caller leaves out samples
        that need no teacher. Raises Findings on all ranks for candidates that don't fit the teacher's context.
        """
        jobs = [
            Job(sample.sample_id, i, SequenceIds(candidate.hinted_prompt_ids, sample.response_ids))
            for sample in samples
            for i, candidate in enumerate(sample.candidates if candidates == "all" else sample.candidates[:1])
        ]
        self._check(jobs)
        owned = [[job.sequence for job in jobs if job.sample_id == s.sample_id] for s in samples]
        shares = split_shared(owned, parallel_state.get_data_parallel_world_size())
        for rank, share in enumerate(shares):
            self._owner |= {samples[i].sample_id: rank for i in share}
        own = [job for job in jobs if self._owner[job.sample_id] == parallel_state.get_data_parallel_rank()]
        scored = {key: value for part in self._from_last_stage(self._score_jobs(own)) for key, value in part.items()}
        found = [(s.sample_id, scored[s.sample_id]) for s in samples if s.sample_id in scored]
        return [TeacherScores(name, native.top, tokens=native.tokens) for name, native in found]

    def logprobs_at(self, requests: Sequence[tuple[str, np.ndarray]]) -> dict[str, np.ndarray]:
        """Log-probs [K_i, R, K] of every candidate at the student's ids [R, K], by sample id; from cached hidden states.

        Raises UserError on all ranks for a sample that isn't cached.
        """
        unknown = [name for name, _ in requests if name not in self._owner]
        if unknown:
            raise UserError(f"The teacher holds no hidden states of sample {unknown[0]}.", "Score it first.")
        own: dict[str, np.ndarray] = {}
        for name, ids in requests:
            rows = self._hidden.get(name)
            if rows is None:
                continue
            wanted = torch.from_numpy(np.ascontiguousarray(ids, dtype=np.int64)).to(self.device)
            stacked = torch.cat(rows)
            values = logprobs_at(self.model, stacked, wanted.repeat(len(rows), 1), temperature=self.temperature, vocab=self.vocab)
            own[name] = values.reshape(len(rows), *wanted.shape).cpu().numpy()
        return {key: value for part in self._from_last_stage(own) for key, value in part.items()}

    def forget(self, sample_ids: Sequence[str]) -> None:
        """Drop the cached hidden states of samples that were trained or dropped."""
        for name in sample_ids:
            self._hidden.pop(name, None)
            self._owner.pop(name, None)

    @property
    def cached_bytes(self) -> int:
        """Device memory that cached hidden states take on this rank."""
        return sum(t.numel() * t.element_size() for rows in self._hidden.values() for t in rows)

    def weights_hash(self) -> str:
        """Hash of all weights; the teacher is frozen, so it never changes."""
        return fingerprint(self.model)

    def close(self) -> None:
        """Leave the process groups."""
        parallel.stop()

    def _check(self, jobs: Sequence[Job]) -> None:
        findings = [
            (f"Candidate {j.index} of sample {j.sample_id} has {len(j.sequence)} tokens of {self.context_length};", "drop it.")
            for j in jobs
            if len(j.sequence) > self.context_length
        ]
        if findings:
            raise Findings("Candidates don't fit the teacher.", findings)

    @torch.no_grad()
    def _score_jobs(self, jobs: Sequence[Job]) -> dict[str, Native]:
        """Forward this data-parallel rank's jobs; what they are by sample on the last pipeline stage, empty elsewhere."""
        found: dict[tuple[str, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        groups, make = self._groups(jobs)

        def keep(place: int, pack: Pack, rows: torch.Tensor) -> None:
            scores = score_rows(self.model, rows, k=self.k, temperature=self.temperature, vocab=self.vocab)
            parts = zip(*(split_rows(t, pack.row_counts) for t in (rows, scores.top_ids, scores.top_logprobs)), strict=True)
            for job, (hidden, ids, logprobs) in zip(groups[place], parts, strict=True):
                # A copy: a slice would keep the whole pack alive.
                found[job.sample_id, job.index] = hidden.clone(), ids, logprobs

        # A pack is made while the device is busy with the one before, and nothing is fetched before all are under way.
        self._forward(len(groups), (make([job.sequence for job in group]) for group in groups), keep)
        tokens = dict.fromkeys((job.sample_id for job in jobs), 0)
        for group in groups:
            for job, added in zip(group, self._added([job.sequence for job in group]), strict=True):
                tokens[job.sample_id] += added
        self.tokens_forwarded += sum(tokens.values())
        scored: dict[str, Native] = {}
        for name, forwarded in tokens.items():
            parts = [found[key] for key in sorted(k for k in found if k[0] == name)]
            if parts:
                self._hidden[name] = [hidden for hidden, _, _ in parts]
                top = TopK(*(torch.stack([p[i] for p in parts]).cpu().numpy() for i in (1, 2)))
                scored[name] = Native(top, forwarded)
        return scored

    def _groups(self, jobs: Sequence[Job]) -> tuple[list[list[Job]], Callable[[Sequence[SequenceIds]], Pack]]:
        """Jobs of each pack, and what makes a pack."""
        sequences = [job.sequence for job in jobs]
        if self.share_prefixes:
            plan, make = plan_shared(sequences, self.budget), make_shared_pack
        else:
            plan, make = plan_packs([len(s) for s in sequences], self.budget), make_pack
        multiple = self.model.config.tensor_model_parallel_size if self.model.config.sequence_parallel else 1
        return [[jobs[i] for i in group] for group in plan], partial(make, device=self.device, multiple=multiple)

    def _added(self, sequences: Sequence[SequenceIds]) -> list[int]:
        return added_tokens(sequences) if self.share_prefixes else [len(s) for s in sequences]

    def _forward(self, count: int, packs: Iterable[Pack], keep: Callable[[int, Pack, torch.Tensor], None]) -> None:
        """Run count packs through the pipeline; keep(place, pack, rows) gets final hidden rows on the last stage."""
        if not count:
            return

        def step(iterator: Any, model: Any) -> tuple[torch.Tensor, Any]:
            place, pack = next(iterator)
            return model(pack, "rows"), lambda rows, **_: keep(place, pack, rows)

        get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=iter(enumerate(packs)),
            model=[self.model],
            num_microbatches=count,
            seq_length=1,
            micro_batch_size=1,
            forward_only=True,
            collect_non_loss_data=True,
        )

    def _from_last_stage(self, own: Any) -> list[Any]:
        """What tensor-parallel rank 0 of each last pipeline stage holds; complete on rank 0, empty elsewhere."""
        speaks = parallel_state.is_pipeline_last_stage() and parallel_state.get_tensor_model_parallel_rank() == 0
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.gather_object(own if speaks else None, everyone if dist.get_rank() == 0 else None, dst=0)
        return [value for value in everyone if value is not None]
