"""What the last pipeline stage makes of a micro-batch: its gradient, and that of one that nothing can be learned from."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from openclaw_core.errors import UserError
from openclaw_core.loss import fused_linear
from openclaw_core.loss.fused_linear import linear_objective
from openclaw_core.loss.logprobs import row_stats
from openclaw_core.loss.rows import pack_rows
from openclaw_core.loss.targets import build_targets
from openclaw_core.loss.teacher_rows import pack_teacher
from openclaw_core.run import trainer_passes
from openclaw_core.run.trainer_batch import MicroBatch
from openclaw_core.run.trainer_passes import Passes
from openclaw_core.vocab import VocabShard

program = runpy.run_path(str(Path(__file__).with_name("program.py")))
VOCAB = program["VOCAB"]


class Made(TorchDispatchMode):
    """The tensors that operations made."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[int, int] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.places[out.untyped_storage().data_ptr()] = out.untyped_storage().nbytes()
        return out


@pytest.mark.parametrize("error", [None, UserError("The batch is bad.", "Mend it.")])
def test_nothing_learned_is_a_zero_gradient_in_the_place_of_the_logits(monkeypatch, error):
    samples = tuple(program["make_samples"]())
    rows = pack_rows(samples, program["LOSS"], real_vocab=VOCAB)
    passes = Passes(None, SimpleNamespace(columns=VocabShard.whole(VOCAB)), None, program["LOSS"], None, "whole")

    def read(batch, output):
        raise error

    monkeypatch.setattr(passes, "_read", read)
    monkeypatch.setattr(trainer_passes, "parallel_state", SimpleNamespace(get_context_parallel_rank=lambda: 0))
    batch = MicroBatch(samples, None, rows, rows) if error else MicroBatch((), None, None, None)
    output = torch.randn(rows.count if error else 0, VOCAB, requires_grad=True).clone()
    if error:
        output.data[0, 0] = torch.nan
    with Made() as made:
        loss, count, told = passes._loss_function(batch, output)
        (grad,) = torch.autograd.grad(loss, output)
    assert (float(loss.detach()), int(count), told) == (0.0, len(batch.samples), error)
    assert grad.shape == output.shape
    assert not grad.any()
    made.places.pop(output.untyped_storage().data_ptr(), None)
    assert max(made.places.values()) <= 8


def test_chunks_add_up_the_output_weights_gradient_in_float32(monkeypatch):
    samples, cfg, columns = program["make_samples"](), program["LOSS"], VocabShard.whole(VOCAB)
    rows = pack_rows(samples, cfg, real_vocab=VOCAB)
    torch.manual_seed(0)
    hidden, weight = (torch.randn(n, 32).bfloat16().requires_grad_() for n in (rows.count, VOCAB))
    stats = row_stats((hidden @ weight.t()).detach(), columns, sampled_ids=rows.response_ids, k=cfg.k)
    targets = build_targets(cfg, rows, stats, pack_teacher(rows, program["make_scores"](samples), cfg, real_vocab=VOCAB))
    monkeypatch.setattr(fused_linear, "CHUNK_BYTES", 2 * VOCAB)
    monkeypatch.setattr(trainer_passes, "copy_to_tensor_model_parallel_region", lambda x: x)
    passes = Passes(None, SimpleNamespace(columns=columns, output_weight=weight), None, cfg, None, "chunked")
    (found,) = torch.autograd.grad(passes._objective(hidden, rows, targets).loss, weight)
    wide, narrow = (
        torch.autograd.grad(linear_objective(hidden, weight, rows, targets, cfg, columns, weight_grad_dtype=dtype).loss, weight)[
            0
        ]
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert torch.equal(found, wide)
    assert not torch.equal(wide, narrow)
