"""One rank of the trained student: old pass, optimizer step, checkpoint, export. No Ray in here.

All ranks of the role call the same methods with the same arguments in the same order. What is returned is complete on
rank 0; other ranks return the same types, possibly empty.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from openclaw_core.config.schema import Loss, Optimizer, Train
from openclaw_core.errors import Findings, UserError
from openclaw_core.loss.needs import needs
from openclaw_core.loss.rows import check_batch
from openclaw_core.loss.teacher_rows import pack_teacher
from openclaw_core.models.architecture import Architecture
from openclaw_core.models.megatron import parallel
from openclaw_core.models.megatron.builder import DTYPES, PackedGPT, build_model
from openclaw_core.models.megatron.core import parallel_state
from openclaw_core.models.megatron.parallel import ParallelSizes, Rendezvous, together
from openclaw_core.models.megatron.weights import fingerprint, load_weights
from openclaw_core.run import trainer_checkpoint as checkpoint
from openclaw_core.run.results import OldPass, StepResult
from openclaw_core.run.trainer_batch import MicroBatch, split_batch
from openclaw_core.run.trainer_optimizer import distribute, make_optimizer
from openclaw_core.run.trainer_passes import UNTRAINABLE, Passes
from openclaw_core.run.trainer_report import old_passes, step_result
from openclaw_core.types import Sample, TeacherScores


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
        self.needs = needs(loss)
        self.device = parallel.start(meeting, sizes, seed=train.seed)
        dtype = DTYPES[train.dtype]
        self.model = build_model(arch, sizes, dtype, device=self.device, recompute=train.recompute)
        load_weights(self.model, source, train.loader)
        reference: PackedGPT | None = None
        if self.needs.reference:
            reference = build_model(arch, sizes, dtype, device=self.device, trainable=False)
            load_weights(reference, source, train.loader)
        self.ddp = distribute(self.model)
        self.optimizer = make_optimizer(self.ddp, optimizer, dtype)
        self.passes = Passes(self.ddp, self.model, reference, loss, sampling_temperature, train.output_layer)
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
        self.passes.old(batches)
        self._prepared = (tuple(s.sample_id for s in samples), batches)
        return old_passes(batches)

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
        self.passes.prepare(batches)
        clock.lap("prepare")
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()
        trained = self.passes.train(batches)
        clock.lap("forward_backward")
        grad_norm = self._update(samples)
        clock.lap("optimizer")
        tokens = sum(len(s.prompt_ids) + len(s.response_ids) for s in samples)
        return step_result(trained, self.loss, grad_norm=grad_norm, tokens=tokens, seconds=clock.seconds)

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
