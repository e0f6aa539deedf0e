"""Gradients that were computed together with the loss, handed out in the backward pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from openclaw_core.loss import kernels


def attach(loss: Tensor, inputs: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
    """The scalar loss, whose backward pass hands grads to inputs: the very tensors, scaled in place.

    A gradient may be the storage of its input, as long as no one reads that input any more; autograd raises where an
    operation still needs it, and on a second backward pass.
    """
    result: Tensor = _Attach.apply(loss, len(inputs), *inputs, *grads)
    return result


class _Attach(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, count: int, *tensors: Tensor) -> Tensor:
        places = {grad.data_ptr() for grad in tensors[count:]}
        for written in tensors[:count]:
            if written.data_ptr() in places:
                increment_version(written)
        ctx.save_for_backward(*tensors[count:])
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, grad_loss: Tensor) -> tuple[Tensor | None, ...]:
        grads = ctx.saved_tensors
        for grad in grads:
            _scale(grad, grad_loss)
        return None, None, *(grad.detach() for grad in grads), *(None for _ in grads)


def _scale(grad: Tensor, by: Tensor) -> None:
    if kernels.usable(grad):
        from openclaw_core.loss.kernels.gradient import rescale

        rescale(grad, by)
        # The next reader of the saved tensor must not take a scaled gradient for an unscaled one.
        increment_version(grad)
    else:
        grad.mul_(by)
