"""A step's passes over its micro-batches: megatron's schedule, and what the last pipeline stage makes of the model's answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch

from openclaw_core.config.schema import Loss
from openclaw_core.errors import UserError
from openclaw_core.loss.attach import attach
from openclaw_core.loss.fused_linear import linear_objective
from openclaw_core.loss.logprobs import RowStats, row_stats
from openclaw_core.loss.needs import needs
from openclaw_core.loss.objective import Objective, objective
from openclaw_core.loss.rows import Rows
from openclaw_core.loss.targets import Targets, build_targets
from openclaw_core.models.megatron.builder import PackedGPT
from openclaw_core.models.megatron.core import copy_to_tensor_model_parallel_region, get_forward_backward_func, parallel_state
from openclaw_core.models.megatron.logits import logprobs_at, row_chunks
from openclaw_core.models.megatron.parallel import merged, together
from openclaw_core.run.trainer_batch import MicroBatch, concat_stats

UNTRAINABLE = "The batch can't be trained on; weights are unchanged."


@dataclass(frozen=True)
class Trained:
    """A micro-batch after the training forward. objective.loss has no graph any more."""

    batch: MicroBatch
    targets: Targets
    stats: RowStats
    objective: Objective

    def check(self) -> None:
        """Findings that name rows whose log-probs aren't finite. Waits for the device."""
        assert self.batch.rows is not None
        self.objective.check(self.batch.rows)


class Passes:
    """All ranks of the role call the same methods with their own micro-batches."""

    def __init__(
        self,
        ddp: Any,
        model: PackedGPT,
        reference: PackedGPT | None,
        loss: Loss,
        sampling_temperature: float | None,
        output_layer: Literal["whole", "chunked"],
    ) -> None:
        self.ddp, self.model, self.reference, self.loss = ddp, model, reference, loss
        self.sampling_temperature, self.output_layer = sampling_temperature, output_layer
        self.needs, self.shard = needs(loss), model.columns

    @torch.no_grad()
    def old(self, batches: list[MicroBatch]) -> None:
        """Fill in stats of the batches with rows."""

        def scores(batch: MicroBatch, rows: torch.Tensor) -> None:
            if batch.rows is not None:
                batch.stats = self._stats(batch, rows)

        self.model.eval()
        self._run(batches, scores, "rows")

    @torch.no_grad()
    def prepare(self, batches: list[MicroBatch]) -> None:
        """Fill in what the training forward reads: reference log-probs, and targets where an old pass was made (otherwise they
        are built in the training forward). Raises Findings on all ranks alike.
        """
        if self.reference is not None:
            self._run(batches, self._reference_scores, "rows", model=self.reference)
        # All of them, come what may: context ranks meet in the selection of each.
        _raise_together(_errors(partial(self._build_targets, batch) for batch in batches))

    def _build_targets(self, batch: MicroBatch) -> None:
        if batch.stats is not None and batch.rows is not None:
            batch.targets = build_targets(self.loss, batch.rows, batch.stats, batch.teacher, batch.reference)

    def train(self, batches: list[MicroBatch]) -> list[Trained]:
        """Forward and backward; the batches with rows, on the last pipeline stage. Raises Findings on all ranks alike, after
        the last micro-batch: none may leave the others waiting in one.
        """
        self.model.train()
        want: Literal["logits", "rows"] = "logits" if self.output_layer == "whole" else "rows"
        outcomes = self._run(batches, self._loss_function, want, backward=True)
        trained = [one for one in outcomes if isinstance(one, Trained)]
        _raise_together([one for one in outcomes if isinstance(one, UserError)] + _errors(one.check for one in trained))
        return trained

    def _run(
        self,
        batches: list[MicroBatch],
        function: Callable[..., Any],
        want: Literal["logits", "rows"],
        *,
        backward: bool = False,
        model: Any = None,
    ) -> list[Any]:
        """megatron's schedule over the micro-batches; what function returns, on the last pipeline stage (else empty)."""

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
            forward_only=not backward,
            collect_non_loss_data=not backward,
        )
        return answer

    @torch.no_grad()
    def _stats(self, batch: MicroBatch, rows: torch.Tensor) -> RowStats:
        """Of final hidden rows [N, hidden], a chunk of logits at a time."""
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

    def _reference_scores(self, batch: MicroBatch, rows: torch.Tensor) -> None:
        if batch.rows is None:
            return
        assert self.reference is not None
        ids, vocab = batch.rows.response_ids[:, None], self.shard.real_vocab
        batch.reference = logprobs_at(self.reference, rows, ids, temperature=self.loss.temperature, vocab=vocab)[:, 0]

    def _loss_function(
        self, batch: MicroBatch, output: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, Trained | UserError | None]:
        """(sum over samples, number of samples, report); the schedule divides the gradient by all samples of the step."""
        # Ranks that share the samples add their parts of the loss, and the samples count once.
        samples = len(batch.samples) if parallel_state.get_context_parallel_rank() == 0 else 0
        count = torch.tensor(samples, dtype=torch.int, device=output.device)
        if batch.rows is None:
            return _nothing(output), count, None
        try:
            stats = batch.stats or self._read(batch, output)
            targets = batch.targets or build_targets(self.loss, batch.rows, stats, batch.teacher, batch.reference)
        except UserError as error:
            return _nothing(output), count, error
        out = self._objective(output, batch.rows, targets)
        return out.loss, count, Trained(batch, targets, stats, replace(out, loss=out.loss.detach()))

    def _read(self, batch: MicroBatch, output: torch.Tensor) -> RowStats:
        """The old policy where no old pass was made: it is the current one before the step."""
        if self.output_layer == "chunked":
            return self._stats(batch, output)
        return self._row_stats(batch, output.detach(), slice(None))

    def _objective(self, output: torch.Tensor, rows: Rows, targets: Targets) -> Objective:
        if self.output_layer == "whole":
            return objective(output, rows, targets, self.loss, self.shard)
        # What each rank gives the hidden rows as a gradient is its columns' part.
        hidden = copy_to_tensor_model_parallel_region(output)
        weight = self.model.output_weight
        return linear_objective(hidden, weight, rows, targets, self.loss, self.shard, weight_grad_dtype=torch.float32)


def _nothing(output: torch.Tensor) -> torch.Tensor:
    """A loss of 0 whose backward pass is that of any other; its gradient takes the room of output, which may fill the device."""
    return attach(torch.zeros((), device=output.device), (output,), (output.detach().zero_(),))


def _errors(works: Iterable[Callable[[], None]]) -> list[UserError]:
    """What goes wrong in works, all of which are done."""
    errors = []
    for work in works:
        try:
            work()
        except UserError as error:
            errors.append(error)
    return errors


def _raise_together(errors: Sequence[UserError]) -> None:
    """Findings with the errors of all ranks, on all of them, where there are any."""

    def tell() -> None:
        if errors:
            raise merged(errors, UNTRAINABLE)

    together(tell, UNTRAINABLE)
