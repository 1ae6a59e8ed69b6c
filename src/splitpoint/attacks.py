"""Adversarial inputs for evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitpoint.batches import Batch, output_tensor
from splitpoint.errors import DataError, ShapeError
from splitpoint.frozen import frozen
from splitpoint.prediction import aligned

Bounds = tuple[float | Tensor, float | Tensor]
Inputs = TypeVar("Inputs", Tensor, tuple[Any, ...], list[Any], dict[str, Any])


def fgsm(
    model: nn.Module,
    x: Inputs,
    target: Tensor,
    epsilon: float | Tensor | Mapping[Any, float | Tensor],
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    valid: Bounds | Mapping[Any, Bounds | None] | None = (0.0, 1.0),
) -> Inputs:
    """Fast gradient sign method ``x + epsilon sign(grad_x loss(f(x), y))``, clamped to the `valid` range (E41).

    The model runs in eval mode and is left as it was, gradients of its parameters included.

    Args:
        model: anything that returns a tensor, or an object or mapping with one, such as ``.logits``.
        x: floating-point inputs; or several inputs in a tuple, a list or a mapping, as data sets have them beside their
            targets, all of which are moved at once but those that are no floating-point tensors.
        target: class indices (integers; negative ones do not count) or numbers (NaN does not count).
        epsilon: size of the step in the units of `x`, a tensor where it differs, such as (C, 1, 1) by channel; of
            several inputs one for all, or a mapping with one for each by its place or name.
        loss: from the output and the target; `classification_loss` for integer targets, `regression_loss` for others
            by default.
        valid: smallest and largest valid input, as numbers or tensors like `epsilon`; None for no clamping. Likewise.

    Source: Goodfellow, Shlens and Szegedy (2015), Explaining and harnessing adversarial examples.
    """
    given = Batch((x,), {}, None)
    known = {way: value for way, value in given.inputs().items() if value.is_floating_point()}
    if not known:
        kinds = ", ".join(sorted({str(value.dtype) for value in given.inputs().values()})) or type(x).__name__
        raise DataError(f"Expected floating-point inputs to move, but got {kinds}; attack the embeddings instead.")
    steps, limits = (_of_inputs(setting, list(known)) for setting in (epsilon, valid))
    if loss is None:
        loss = regression_loss if target.is_floating_point() else classification_loss
    with frozen(model) as view, torch.inference_mode(False), torch.enable_grad():
        moving = {way: value.detach().clone().requires_grad_() for way, value in known.items()}
        batch = given.with_inputs(moving).arranged(model)
        total = loss(output_tensor(view(*batch.args, **batch.kwargs)), target.clone())
        gradients = torch.autograd.grad(total, list(moving.values()), allow_unused=len(moving) > 1)
    moved = {
        way: _moved(value.detach(), gradient, steps[way], limits[way])
        for (way, value), gradient in zip(known.items(), gradients, strict=True)
    }
    attacked: Inputs = given.with_inputs(moved).args[0]
    return attacked


def _moved(x: Tensor, gradient: Tensor | None, epsilon: float | Tensor, valid: Bounds | None) -> Tensor:
    """One input after the step; where the loss does not depend on it, without one."""
    moved = x if gradient is None else x + epsilon * gradient.sign()
    if valid is None:
        return moved
    low, high = (torch.as_tensor(bound, dtype=moved.dtype, device=moved.device) for bound in valid)
    return torch.minimum(torch.maximum(moved, low), high)


def _of_inputs(setting: Any, ways: Sequence[tuple[Any, ...]]) -> dict[tuple[Any, ...], Any]:
    """A setting for every input that is moved: the same for all, or those of a mapping by place or name."""
    if not isinstance(setting, Mapping):
        return dict.fromkeys(ways, setting)
    keys = {way: way[1] if len(way) == 2 else way[1:] for way in ways}
    lacking = [key for key in keys.values() if key not in setting]
    if lacking:
        raise DataError(f"Expected epsilon and valid for every input, but got none for {lacking}; add them.")
    return {way: setting[key] for way, key in keys.items()}


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
