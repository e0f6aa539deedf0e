"""What the last pipeline stage makes of a micro-batch that nothing can be learned from."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from openclaw_core.errors import UserError
from openclaw_core.loss.rows import pack_rows
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
