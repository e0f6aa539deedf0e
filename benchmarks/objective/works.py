"""The works and their sides: what is measured, at which size, against which floor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.objective import peers, published
from benchmarks.objective.measuring import Measurement, Meter
from benchmarks.objective.problem import Problem, problem, random_logits
from openclaw_core.config.schema import Loss
from openclaw_core.loss import kernels
from openclaw_core.loss.fused_linear import linear_objective
from openclaw_core.loss.logprobs import gather_logprobs, row_stats
from openclaw_core.loss.objective import objective, objective_of_logprobs
from openclaw_core.vocab import VocabShard

OURS, PUBLISHED, FLOOR = "this package", "published schedule", "floor"
CELL = "this package, cell "


@dataclass(frozen=True)
class Scale:
    """Sizes for a device. rows of the short and the long work, vocabulary, hidden size, dtype of logits."""

    short: int
    long: int
    vocab: int
    hidden: int
    dtype: torch.dtype

    @classmethod
    def of(cls, device: torch.device) -> Scale:
        """Real sizes on a GPU, small ones on a CPU."""
        if device.type == "cuda":
            return cls(8_192, 32_768, 151_936, 2_560, torch.bfloat16)
        return cls(256, 1_024, 16_384, 256, torch.float32)


@dataclass(frozen=True)
class Work:
    """name of a row, goal as a factor of the floor (None for none), and how to measure its sides."""

    name: str
    goal: float | None
    sides: Callable[[Meter, Scale, str, float], Iterator[Measurement]]


def _floor(meter: Meter, name: str, seconds: float) -> Measurement:
    return Measurement(meter.run, name, FLOOR, seconds)


def hybrid(rows: str, k: int, with_peers: bool) -> Callable[[Meter, Scale, str, float], Iterator[Measurement]]:
    """Loss forward and backward from logits; the floor is two readings and one writing of the logits."""

    def sides(meter: Meter, scale: Scale, name: str, bandwidth: float) -> Iterator[Measurement]:
        one = problem(getattr(scale, rows), scale.vocab, meter.device, scale.dtype, Loss(k=k))
        yield _floor(meter, name, 3 * one.logits.numel() * one.logits.element_size() / bandwidth)
        yield _train(meter, one, name, OURS, _whole(one))
        yield _train(meter, one, name, "this package, as a tensor-parallel rank", lambda x: _two_readings(one, x))
        if meter.cuda:
            with kernels.disabled():
                yield _train(meter, one, name, "this package, plain path", lambda x: _two_readings(one, x))
        yield _train(meter, one, name, PUBLISHED, lambda x: published.loss(one, x))
        if with_peers:
            yield _train(meter, one, name, "log-softmax and gather", peers.plain_loss(one))
            if meter.cuda:
                yield _train(meter, one, name, "torch.compile of log-softmax and gather", peers.compiled_loss(one))

    return sides


def cells(meter: Meter, scale: Scale, name: str, bandwidth: float) -> Iterator[Measurement]:
    """The same loss in the cells that aren't the default, and with the tail as a bin."""
    names = itertools.product(("student", "teacher", "overlap"), ("shortest", "token_optimal", "sequence_optimal"))
    configs = [(f"{subset}/{rule}", Loss(k=4, subset=subset, selection=rule)) for subset, rule in names]
    for number, (cell, cfg) in enumerate((*configs, ("student/sequence_optimal, tail: bin", Loss(k=4, tail="bin")))):
        one = problem(scale.short, scale.vocab, meter.device, scale.dtype, cfg)
        if not number:
            yield _floor(meter, name, 3 * one.logits.numel() * one.logits.element_size() / bandwidth)
        yield _train(meter, one, name, CELL + cell, _whole(one))


def _whole(one: Problem) -> Callable[[Tensor], Tensor]:
    return lambda x: objective(x, one.rows, one.targets, one.cfg, one.shard).loss


def _two_readings(one: Problem, logits: Tensor) -> Tensor:
    logprobs = gather_logprobs(logits, one.targets.gather_ids, one.shard, temperature=one.cfg.temperature)
    return objective_of_logprobs(logprobs, None, one.rows, one.targets, one.cfg).loss


def _train(meter: Meter, one: Problem, name: str, side: str, loss: Callable[[Tensor], Tensor]) -> Measurement:
    def do() -> Tensor | None:
        # As in training, the logits are the output of an operation: nothing is accumulated into a leaf.
        logits = _Output.apply(one.scratch)
        loss(logits).backward()
        return one.scratch.grad

    return meter.measure(name, side, do, one.fresh)


class _Output(torch.autograd.Function):
    """An operation whose output shares its input's storage and whose backward pass keeps the gradient as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.detach()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


def grpo(meter: Meter, scale: Scale, name: str, bandwidth: float) -> Iterator[Measurement]:
    """The GRPO term alone, which Liger computes too."""
    one = problem(scale.short, scale.vocab, meter.device, scale.dtype, Loss(w_opd=0))
    yield _floor(meter, name, 3 * one.logits.numel() * one.logits.element_size() / bandwidth)
    yield _train(meter, one, name, OURS, _whole(one))
    yield _train(meter, one, name, PUBLISHED, lambda x: published.loss(one, x))
    if meter.cuda and peers.liger_installed():
        yield _train(meter, one, name, "Liger's GRPO loss", peers.liger_grpo(one))


def old_pass(k: int) -> Callable[[Meter, Scale, str, float], Iterator[Measurement]]:
    """Everything the old pass reads off the logits; the floor is one reading."""

    def sides(meter: Meter, scale: Scale, name: str, bandwidth: float) -> Iterator[Measurement]:
        logits = random_logits(scale.short, scale.vocab, meter.device, scale.dtype)
        shard = VocabShard.whole(scale.vocab)
        ids = torch.randint(0, scale.vocab, (scale.short, 3 * k), device=meter.device)
        yield _floor(meter, name, logits.numel() * logits.element_size() / bandwidth)

        def ours(second: float = 1.0) -> Any:
            return row_stats(logits, shard, sampled_ids=ids[:, 0], k=k, gather_ids=ids, sampling_temperature=second)

        yield meter.measure(name, OURS, ours)
        yield meter.measure(name, "this package, sampled at another temperature", lambda: ours(0.6))
        yield meter.measure(name, PUBLISHED, lambda: published.old_pass(logits, ids[:, 0], ids, k))
        yield meter.measure(name, "torch.topk alone", lambda: logits.topk(k, dim=1))

    return sides


def linear(meter: Meter, scale: Scale, name: str, bandwidth: float) -> Iterator[Measurement]:
    """Output layer and loss; the floor is the three matmuls of the layer alone, measured here."""
    count, vocab, width = scale.long, scale.vocab, scale.hidden
    make = {"device": meter.device, "dtype": scale.dtype}
    small = problem(count, 1_024, meter.device, torch.float32, Loss())
    rows, targets, shard = small.rows, small.targets, VocabShard.whole(vocab)
    hidden = torch.randn(count, width, **make).requires_grad_(True)
    weight = torch.randn(vocab, width, **make).mul_(0.02).requires_grad_(True)
    owed = (hidden.numel() + weight.numel()) * hidden.element_size()

    def forget() -> None:
        hidden.grad = weight.grad = None

    def ours(dtype: torch.dtype | None = None) -> None:
        linear_objective(hidden, weight, rows, targets, small.cfg, shard, weight_grad_dtype=dtype).loss.backward()

    def unfused() -> None:
        objective(hidden @ weight.t(), rows, targets, small.cfg, shard).loss.backward()

    def matmuls() -> Any:
        h, w = hidden.detach(), weight.detach()
        logits = h @ w.t()
        return logits @ w, logits.t() @ h

    bare = meter.measure(name, FLOOR, matmuls, owed_bytes=owed)
    yield bare
    yield meter.measure(name, OURS, ours, forget, owed)
    yield meter.measure(name, "this package, d weight in float32", lambda: ours(torch.float32), forget, owed)
    yield meter.measure(name, "this package, logits at once", unfused, forget, owed)
    if meter.cuda and peers.liger_installed():
        layer = peers.liger_linear(rows.response_ids)
        yield meter.measure(name, "Liger's linear cross entropy", lambda: layer(hidden, weight).backward(), forget, owed)


def works() -> tuple[Work, ...]:
    """In the order of the table."""
    return (
        Work("hybrid loss, short, K=4", 1.5, hybrid("short", 4, True)),
        Work("hybrid loss, short, K=4, by cell", 1.5, cells),
        Work("old pass, short, K=4", 2.0, old_pass(4)),
        Work("old pass, short, K=64", 3.45, old_pass(64)),
        Work("hybrid loss, long, K=20", 1.5, hybrid("long", 20, False)),
        Work("output layer and loss, long", 1.15, linear),
        Work("GRPO alone, short", None, grpo),
    )
