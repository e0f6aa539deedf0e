"""One rank of the trained student: old pass, optimizer step, checkpoint, export. No Ray in here.

All ranks of the role call the same methods with the same arguments in the same order. What is returned is complete on
rank 0; other ranks return the same types, possibly empty.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist

from openclaw_core.config.schema import Loss, Optimizer, Train
from openclaw_core.errors import Findings, UserError
from openclaw_core.loss.logprobs import RowStats, row_stats
from openclaw_core.loss.metrics import Metrics
from openclaw_core.loss.needs import needs
from openclaw_core.loss.objective import objective
from openclaw_core.loss.rows import check_batch
from openclaw_core.loss.targets import build_targets
from openclaw_core.loss.teacher_rows import pack_teacher
from openclaw_core.models.architecture import Architecture
from openclaw_core.models.megatron import parallel
from openclaw_core.models.megatron.builder import DTYPES, PackedGPT, build_model
from openclaw_core.models.megatron.core import get_forward_backward_func, parallel_state
from openclaw_core.models.megatron.logits import logprobs_at, row_chunks
from openclaw_core.models.megatron.parallel import ParallelSizes, Rendezvous, merged, together
from openclaw_core.models.megatron.weights import fingerprint, load_weights
from openclaw_core.run import trainer_checkpoint as checkpoint
from openclaw_core.run.results import OldPass, StepResult
from openclaw_core.run.trainer_batch import MicroBatch, concat_stats, dump_arrays, sample_losses, split_batch, summed
from openclaw_core.run.trainer_optimizer import distribute, make_optimizer
from openclaw_core.types import Sample, TeacherScores, TopK

UNTRAINABLE = "The batch can't be trained on; weights are unchanged."


class Trainer:
    """One rank of the student.

    source is a torch_dist checkpoint or a Hugging Face folder. sampling_temperature is the engines', for the gap
    between engine and trainer. Joins the process groups on construction: every rank must construct at the same time.
    """

    def __init__(
        self,
        arch: Architecture,
        source: str | Path,
        sizes: ParallelSizes,
        meeting: Rendezvous,
        *,
        loss: Loss,
        optimizer: Optimizer,
        train: Train,
        sampling_temperature: float | None = None,
    ) -> None:
        if train.dtype == "fp16":
            raise UserError("Training in fp16 isn't supported: its loss scaling skips steps in silence.", "Set train.dtype=bf16.")
        self.arch, self.source, self.sizes = arch, Path(source), sizes
        self.loss, self.train, self.optimizer_settings = loss, train, optimizer
        self.sampling_temperature = sampling_temperature
        self.needs = needs(loss)
        self.device = parallel.start(meeting, sizes, seed=train.seed)
        dtype = DTYPES[train.dtype]
        self.model = build_model(arch, sizes, dtype, device=self.device, recompute=train.recompute)
        load_weights(self.model, source, train.loader)
        self.reference: PackedGPT | None = None
        if self.needs.reference:
            self.reference = build_model(arch, sizes, dtype, device=self.device, trainable=False)
            load_weights(self.reference, source, train.loader)
        self.ddp = distribute(self.model)
        self.optimizer = make_optimizer(self.ddp, optimizer, dtype)
        self.shard = self.model.columns
        self._first_of_context = parallel_state.get_context_parallel_rank() == 0
        self._prepared: tuple[tuple[str, ...], list[MicroBatch]] | None = None

    def old_pass(self, samples: Sequence[Sample], scores: Sequence[TeacherScores] = ()) -> dict[str, OldPass]:
        """Score every response row under the current weights, once per step; train_step() uses what is kept here.

        scores are the teacher's native top-K of samples with an OPD term; they are read only where the objective asks
        for old log-probs at the teacher's ids. Raises Findings on all ranks alike.
        """
        check_batch(samples)
        batches = self._split(samples)
        # Without scores only the student's own top-K can be read, unless no sample needs any.
        if scores or not any(self.needs.scores(s.kind) for s in samples):
            self._attach(batches, scores)
        self.model.eval()
        self._run_stats(batches)
        self._prepared = (tuple(s.sample_id for s in samples), batches)
        own: dict[str, OldPass] = {}
        for batch in batches:
            if batch.stats is not None:
                own |= _per_sample(batch, batch.stats)
        return _merge(self._from_last_stage(own if self._first_of_context else {}))

    def train_step(self, samples: Sequence[Sample], scores: Sequence[TeacherScores] = ()) -> StepResult:
        """One optimizer step over the whole batch: loss = sum over samples / number of samples.

        Needs old_pass() of the same samples first where the teacher is asked for log-probs at the student's ids (scores
        then hold at_student); otherwise the old policy is read in the training forward itself, which saves a pass.
        Raises Findings naming the samples when anything isn't finite: then the weights are as before.
        """
        check_batch(samples)
        clock = _Clock(self.device)
        batches = self._take_prepared(samples)
        self._attach(batches, scores)
        if self.reference is not None:
            self._run_reference(batches)
        self._build_targets(batches)
        clock.lap("prepare")
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()
        self.model.train()
        outputs = self._run(batches, self._loss_function, forward_only=False)
        clock.lap("forward_backward")
        try:
            together(lambda: _raise([error for output in outputs if (error := _error(output))]), UNTRAINABLE)
            grad_norm = self._update(samples)
        finally:
            self.ddp.zero_grad_buffer()
        clock.lap("optimizer")
        metrics = [o["metrics"] for o in outputs if o["metrics"] is not None]
        seen = [o["seen"] for o in outputs if o["seen"] is not None]
        dumps = _merge([dump_arrays(batch, targets, stats, self.loss) for batch, targets, stats, _ in seen])
        own = {
            "names": metrics[0].names if metrics else None,
            "values": sum((m.values for m in metrics[1:]), start=metrics[0].values).cpu().numpy() if metrics else None,
            "dumps": dumps if self._first_of_context else {},
            "losses": _merge([sample_losses(batch, out.sample_losses) for batch, _, _, out in seen]),
        }
        parts = [p for p in self._from_last_stage(own) if p["names"]]
        tokens = sum(len(s.prompt_ids) + len(s.response_ids) for s in samples)
        if not parts:
            return StepResult(grad_norm, tokens)
        total = Metrics(parts[0]["names"], torch.from_numpy(np.sum([p["values"] for p in parts], axis=0)))
        dumps, losses = _merge([p["dumps"] for p in parts]), summed([p["losses"] for p in parts])
        return StepResult(grad_norm, tokens, total.read(), dumps, losses, clock.seconds)

    def save(self, folder: str | Path, step: int) -> None:
        """Write weights, optimizer and random state as torch_dist; folder appears whole or not at all."""
        checkpoint.save(self, Path(folder), step)

    def load(self, folder: str | Path) -> int:
        """Continue from a checkpoint that save() wrote, at these or other parallel sizes; returns its step."""
        self._prepared = None
        return checkpoint.load(self, Path(folder))

    def export_hf(self, folder: str | Path) -> None:
        """Write the current weights with config and tokenizer as a Hugging Face folder; it appears whole or not at all."""
        checkpoint.export_hf(self, Path(folder))

    def weights_hash(self) -> str:
        """Hash of all weights; the same on every rank."""
        return fingerprint(self.model)

    def close(self) -> None:
        """Leave the process groups."""
        parallel.stop()

    def _split(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        return together(
            lambda: split_batch(
                samples,
                rank=parallel_state.get_data_parallel_rank(),
                ranks=parallel_state.get_data_parallel_world_size(),
                context_ranks=self.sizes.context,
                budget=self.train.max_tokens_per_device,
                multiple=self.sizes.tensor if self.model.config.sequence_parallel else 1,
                cfg=self.loss,
                real_vocab=self.arch.vocab,
                device=self.device,
            ),
            UNTRAINABLE,
        )

    def _attach(self, batches: list[MicroBatch], scores: Sequence[TeacherScores]) -> None:
        def attach() -> None:
            for batch in batches:
                if batch.whole is not None and self.needs.teacher:
                    batch.teacher = batch.own(pack_teacher(batch.whole, scores, self.loss, real_vocab=self.arch.vocab))

        together(attach, UNTRAINABLE)

    def _take_prepared(self, samples: Sequence[Sample]) -> list[MicroBatch]:
        prepared, self._prepared = self._prepared, None
        if prepared is not None and prepared[0] == tuple(s.sample_id for s in samples):
            return prepared[1]
        if self.needs.at_student:
            raise UserError("train_step() got other samples than old_pass().", "Call old_pass() with this batch first.")
        return self._split(samples)

    def _build_targets(self, batches: list[MicroBatch]) -> None:
        """Where an old pass was made; otherwise they are built in the training forward."""
        errors: list[UserError] = []
        for batch in batches:
            if batch.stats is None or batch.rows is None:
                continue
            # One micro-batch after the other, come what may: context ranks meet in the selection of each.
            try:
                batch.targets = build_targets(self.loss, batch.rows, batch.stats, batch.teacher, batch.reference)
            except UserError as error:
                errors.append(error)
        together(lambda: _raise(errors), UNTRAINABLE)

    def _run(
        self, batches: list[MicroBatch], function: Callable[..., Any], *, forward_only: bool, model: Any = None
    ) -> list[Any]:
        """megatron's schedule over the micro-batches; what function returns, on the last pipeline stage (else empty)."""
        want: Literal["logits", "rows"] = "rows" if forward_only else "logits"

        def step(iterator: Iterator[MicroBatch], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
            batch = next(iterator)
            return model(batch.pack, want), lambda output, **_: function(batch, output)

        answer: list[Any] = get_forward_backward_func()(
            forward_step_func=step,
            data_iterator=iter(batches),
            model=[model or self.ddp],
            num_microbatches=len(batches),
            seq_length=1,
            micro_batch_size=1,
            forward_only=forward_only,
            collect_non_loss_data=forward_only,
        )
        return answer

    @torch.no_grad()
    def _run_stats(self, batches: list[MicroBatch]) -> None:
        def scores(batch: MicroBatch, rows: torch.Tensor) -> None:
            if batch.rows is not None:
                batch.stats = self._stats(batch, rows)

        self._run(batches, scores, forward_only=True)

    def _stats(self, batch: MicroBatch, rows: torch.Tensor) -> RowStats:
        chunks = row_chunks(rows, self.shard)
        return concat_stats([self._row_stats(batch, self.model.logits(rows[part]), part) for part in chunks])

    def _row_stats(self, batch: MicroBatch, logits: torch.Tensor, part: slice) -> RowStats:
        assert batch.rows is not None
        gather = batch.teacher.gather_ids()[part] if self.needs.old_at_teacher and batch.teacher is not None else None
        return row_stats(
            logits,
            self.shard,
            sampled_ids=batch.rows.response_ids[part],
            temperature=self.loss.temperature,
            k=self.needs.student_k,
            gather_ids=gather,
            sampling_temperature=self.sampling_temperature,
        )

    @torch.no_grad()
    def _run_reference(self, batches: list[MicroBatch]) -> None:
        reference = self.reference
        assert reference is not None

        def scores(batch: MicroBatch, rows: torch.Tensor) -> None:
            if batch.rows is None:
                return
            ids = batch.rows.response_ids[:, None]
            batch.reference = logprobs_at(reference, rows, ids, temperature=self.loss.temperature, vocab=self.arch.vocab)[:, 0]

        self._run(batches, scores, forward_only=True, model=reference)

    def _loss_function(self, batch: MicroBatch, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        """(sum over samples, number of samples, report); the schedule divides the gradient by all samples of the step."""
        # Ranks that share the samples add their parts of the loss, and the samples count once.
        samples = len(batch.samples) if self._first_of_context else 0
        count = torch.tensor(samples, dtype=torch.int, device=logits.device)
        report: dict[str, Any] = {"metrics": None, "seen": None, "error": None}
        if batch.rows is None:
            return logits.float().sum() * 0, count, report
        try:
            stats = batch.stats or self._row_stats(batch, logits.detach(), slice(None))
            targets = batch.targets or build_targets(self.loss, batch.rows, stats, batch.teacher, batch.reference)
        except UserError as error:
            return logits.float().sum() * 0, count, {**report, "error": error}
        out = objective(logits, batch.rows, targets, self.loss, self.shard)
        # Bad rows add nothing and are named after the last micro-batch: looking at them here would wait for the device.
        report |= {"metrics": out.metrics, "seen": (batch, targets, stats, replace(out, loss=out.loss.detach()))}
        return out.loss, count, report

    def _update(self, samples: Sequence[Sample]) -> float:
        """Clip and step; refuses a gradient that isn't finite before anything changed."""
        self.optimizer.prepare_grads()
        grad_norm = float(self.optimizer.get_grad_norm())
        if not math.isfinite(grad_norm):
            remedy = "lower optimizer.lr or go back to the last checkpoint."
            names = [(f"sample {s.sample_id} was in it;", remedy) for s in samples]
            raise Findings(f"The gradient's norm is {grad_norm}; nothing was learned from this batch.", names)
        self.optimizer.step()
        return grad_norm

    def _from_last_stage(self, own: Any) -> list[Any]:
        """What tensor-parallel rank 0 of each last pipeline stage has, one entry per data- and context-parallel rank."""
        speaks = parallel_state.is_pipeline_last_stage() and parallel_state.get_tensor_model_parallel_rank() == 0
        place = (parallel_state.get_data_parallel_rank(), parallel_state.get_context_parallel_rank())
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.gather_object((place, own) if speaks else None, everyone if dist.get_rank() == 0 else None, dst=0)
        return [value for _, value in sorted((e for e in everyone if e is not None), key=lambda e: e[0])]


class _Clock:
    """Seconds per stage of a step; waits for the device at each lap."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}
        self.start = time.monotonic()

    def lap(self, name: str) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.monotonic()
        self.seconds[name], self.start = now - self.start, now


def _per_sample(batch: MicroBatch, stats: RowStats) -> dict[str, OldPass]:
    values = (stats.sampled_logprobs, stats.entropy, stats.lse, stats.top_ids, stats.top_logprobs)
    columns = [[part.cpu() for part in batch.per_sample(x)] for x in values]
    out = {}
    for sample, sampled, entropy, lse, ids, logprobs in zip(batch.samples, *columns, strict=True):
        top = TopK(ids.numpy(), logprobs.numpy())
        out[sample.sample_id] = OldPass(sampled.numpy(), entropy.numpy(), lse.numpy(), top)
    return out


def _merge(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {key: value for part in parts for key, value in part.items()}


def _error(output: Mapping[str, Any]) -> UserError | None:
    """What was wrong in a micro-batch: told there, or a row whose log-probs aren't finite."""
    if output["seen"] is not None:
        batch, _, _, out = output["seen"]
        try:
            out.check(batch.rows)
        except UserError as error:
            return error
    found: UserError | None = output["error"]
    return found


def _raise(errors: Sequence[UserError]) -> None:
    if errors:
        raise merged(errors, UNTRAINABLE)
