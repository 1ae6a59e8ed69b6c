"""Adversarial inputs for evaluation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from splitpoint.batches import output_tensor
from splitpoint.hooks import frozen


def fgsm(
    model: nn.Module,
    x: Tensor,
    target: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    epsilon: float | Tensor,
    valid: tuple[float, float] = (0.0, 1.0),
) -> Tensor:
    """Fast gradient sign method ``x + epsilon sign(grad_x loss(f(x), y))``, clamped to the `valid` range (E41).

    The model runs in eval mode and is left as it was, gradients of its parameters included.
    """
    with frozen(model), torch.enable_grad():
        moving = x.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(output_tensor(model(moving)), target), moving)
    return (x + epsilon * gradient.sign()).clamp(*valid).detach()
