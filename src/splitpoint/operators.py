"""Operators that exporters do not know, or that are slow in one of two forms: the form is chosen here and nowhere else.

While a model runs, the form that is fastest. While it is traced (torch.export, torch.compile, TorchScript), one that
formats such as ONNX have operators for, and in which no size becomes a constant.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

SMALL = 4096
"""Numbers below which one operator that also finds where they are is faster than one for each entry of an axis."""


def traced() -> bool:
    """Whether a graph is being made of what runs now."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]


def running_max(values: Tensor, axis: int) -> Tensor:
    """The largest value so far along an axis of few entries.

    >>> running_max(torch.tensor([2.0, 1.0, 3.0]), 0)
    tensor([2., 2., 3.])
    """
    if values.shape[axis] == 1:
        return values
    if not traced() and values.numel() < SMALL:
        return values.cummax(axis).values
    parts = list(values.unbind(axis))
    for place in range(1, len(parts)):
        parts[place] = torch.maximum(parts[place], parts[place - 1])
    return torch.stack(parts, axis)


def count_below(known: Tensor, values: Tensor) -> Tensor:
    """How many of the ascending numbers (S, G) lie below each of the values (S, M), of the same row.

    >>> count_below(torch.tensor([[1.0, 2.0, 2.0, 5.0]]), torch.tensor([[0.0, 2.0, 3.0, 9.0]]))
    tensor([[0, 1, 3, 4]])
    """
    if not traced():
        return torch.searchsorted(known, values)
    size = int(known.shape[1])
    bits = size.bit_length()  # a binary search, step by step
    padded = F.pad(known, (0, 2**bits - 1 - size), value=torch.inf)
    count = torch.zeros_like(values, dtype=torch.long)
    for step in (2**bit for bit in reversed(range(bits))):
        count = torch.where(padded.gather(1, count + (step - 1)) < values, count + step, count)
    return count


def nearest(rows: Tensor, centres: Tensor) -> Tensor:
    """Euclidean distance (R,) of rows (R, C) to the nearest of the centres (S, C).

    >>> nearest(torch.tensor([[0.0, 3.0]]), torch.tensor([[4.0, 0.0], [0.0, 1.0]]))
    tensor([2.])
    """
    if not traced():
        return torch.cdist(rows, centres, compute_mode="use_mm_for_euclid_dist").amin(1)
    squares = rows.square().sum(1, keepdim=True) - 2 * rows @ centres.T + centres.square().sum(1)
    return squares.amin(1).clamp(min=0.0).sqrt()


def averages(values: Tensor, parts: int) -> Tensor:
    """Means (N, C, `parts`) of values (N, C, T) over parts of the last axis, which overlap where they do not divide it.

    >>> averages(torch.tensor([[[1.0, 2.0, 3.0, 6.0]]]), 2)
    tensor([[[1.5000, 4.5000]]])
    """
    if not traced():
        return F.adaptive_avg_pool1d(values, parts)
    size = values.shape[2]
    place, number = torch.arange(size, device=values.device), torch.arange(parts, device=values.device)[:, None]
    inside = ((parts * (place + 1) > number * size) & (parts * place < (number + 1) * size)).to(values.dtype)
    return values @ (inside / inside.sum(1, keepdim=True)).T


def softplus(values: Tensor) -> Tensor:
    """``log(1 + exp(x))``, of which ONNX Runtime knows no form for float64.

    >>> softplus(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([0.3133, 0.6931, 1.3133])
    """
    if not traced():
        return F.softplus(values)
    return values.clamp(min=0.0) + (-values.abs()).exp().log1p()


def evenly(size: int, device: torch.device) -> Tensor:
    """So many numbers from -1 to 1, -1 alone where it is one.

    >>> evenly(3, torch.device("cpu"))
    tensor([-1.,  0.,  1.])
    """
    if not traced():
        return torch.linspace(-1, 1, size, device=device)
    place = torch.arange(size, dtype=torch.float32, device=device)
    return place * (2 / place.amax(0).clamp(min=1.0)) - 1
