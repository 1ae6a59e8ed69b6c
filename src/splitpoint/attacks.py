"""Adversarial inputs for evaluation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitpoint.batches import output_tensor
from splitpoint.errors import DataError, ShapeError
from splitpoint.hooks import frozen
from splitpoint.prediction import aligned

Bounds = tuple[float | Tensor, float | Tensor]


def fgsm(
    model: nn.Module,
    x: Tensor,
    target: Tensor,
    epsilon: float | Tensor,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    valid: Bounds | None = (0.0, 1.0),
) -> Tensor:
    """Fast gradient sign method ``x + epsilon sign(grad_x loss(f(x), y))``, clamped to the `valid` range (E41).

    The model runs in eval mode and is left as it was, gradients of its parameters included.

    Args:
        model: anything that returns a tensor, or an object or mapping with one, such as ``.logits``.
        x: floating-point inputs.
        target: class indices (integers; negative ones do not count) or numbers (NaN does not count).
        epsilon: size of the step in the units of `x`, a tensor where it differs, such as (C, 1, 1) by channel.
        loss: from the output and the target; `classification_loss` for integer targets, `regression_loss` for others
            by default.
        valid: smallest and largest valid input, as numbers or tensors like `epsilon`; None for no clamping.

    Source: Goodfellow, Shlens and Szegedy (2015), Explaining and harnessing adversarial examples.
    """
    if not x.is_floating_point():
        raise DataError(f"Expected floating-point inputs to move, but got {x.dtype}; attack the embeddings instead.")
    if loss is None:
        loss = regression_loss if target.is_floating_point() else classification_loss
    with frozen(model), torch.inference_mode(False), torch.enable_grad():
        moving = x.detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(output_tensor(model(moving)), target.clone()), moving)
    moved = x.detach() + epsilon * gradient.sign()
    if valid is None:
        return moved
    low, high = (torch.as_tensor(bound, dtype=moved.dtype, device=moved.device) for bound in valid)
    return torch.minimum(torch.maximum(moved, low), high)


def regression_loss(output: Tensor, target: Tensor) -> Tensor:
    """Sum of squared errors over the targets that are not NaN; output and target have one shape."""
    target = aligned(output, target)
    seen = ~target.isnan()
    return (output - target)[seen].square().sum()


def classification_loss(output: Tensor, label: Tensor) -> Tensor:
    """Sum of the cross entropies of logits over the labels that are not negative.

    Args:
        output: logits (N, K), (N, K, ...) or (N, ..., K); or one logit for two classes where it has the shape of the
            label, (N,) and (N, 1) being the same.
        label: class indices without the class axis.
    """
    logits, label = _class_rows(output, label.long())
    if len(label) and label.max() >= logits.shape[1]:
        raise DataError(f"Expected labels from 0 to {logits.shape[1] - 1}, but got {int(label.max())}; check them.")
    return F.cross_entropy(logits, label.masked_fill(label < 0, -100), ignore_index=-100, reduction="sum")


def _class_rows(output: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (M, K) and labels (M,) of every row and position."""
    if output.dim() == 1 or output.shape[1] == 1 or output.shape == label.shape:
        if output.numel() == label.numel():
            return torch.stack([torch.zeros_like(output), output], -1).reshape(-1, 2), label.flatten()
    elif output.dim() == 2 and label.shape == (len(output), 1):
        return output, label.squeeze(1)
    for axis in (1, -1):
        if output.dim() > 1 and output.movedim(axis, -1).shape[:-1] == label.shape:
            return output.movedim(axis, -1).flatten(0, -2), label.flatten()
    raise ShapeError(
        f"Expected labels without the class axis of the output {tuple(output.shape)}, but got {tuple(label.shape)}; "
        "reshape them, or give a loss."
    )
