"""The product that stacks of linear layers are made of: many small matrices at once, narrow ones the fast way round."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

NARROW = 16
"""Outputs below which a batched product is several times as fast with rows and columns exchanged."""


def stacked_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x weight + bias`` of E linear layers: (E, B, inputs), (E, inputs, outputs), (E, 1, outputs) -> (E, B, outputs).

    >>> x, weight, bias = torch.ones(2, 3, 20), torch.ones(2, 20, 1), torch.zeros(2, 1, 1)
    >>> stacked_linear(x, weight, bias).flatten()
    tensor([20., 20., 20., 20., 20., 20.])
    """
    if weight.shape[2] < min(NARROW, weight.shape[1]):
        found: Tensor = NarrowLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return found
    return torch.baddbmm(bias, x, weight)


class NarrowLinear(torch.autograd.Function):
    """`stacked_linear` of few outputs: batched products are slow where the last axis of their result is short."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """See `stacked_linear`."""
        return torch.baddbmm(bias.mT, weight.mT, x.mT).mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Keep what the gradients need."""
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Gradients of x, if it needs one, weight and bias."""
        x, weight = ctx.saved_tensors
        grad = grads[0].to(weight.dtype)  # lower precision where the product ran under autocast
        back = None
        if ctx.needs_input_grad[0]:
            back = grad * weight.mT if weight.shape[2] == 1 else torch.bmm(grad, weight.mT)
        return back, torch.bmm(grad.mT, x).mT, grad.sum(1, keepdim=True)
