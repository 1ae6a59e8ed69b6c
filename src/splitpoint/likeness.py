"""Rows made up in the likeness of a batch: the same every time, and none of them is a row of the data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from splitpoint.batches import Batch, mapped
from splitpoint.errors import SplitPointError, StorageError

ROWS = 4
"""Rows that are made up."""

ENOUGH, WIDEST = 16, 4096
"""Fewest rows of a batch, and most columns, whose columns have ranges of their own; else all share one."""

MOST_NUMBERS = 2**26
"""Most numbers that are made up for one tensor."""

TENSOR, PARTS, NAMED = "tensor", "parts", "named"
"""How files tell tensors, tuples and lists, and mappings apart."""


class StrangeError(SplitPointError):
    """An input is nothing that rows can be made up for."""


@dataclass(frozen=True)
class Drawn:
    """A tensor of made-up numbers, uniform between the smallest and the largest one of the batch.

    Attributes:
        shape: of the tensor.
        dtype: its type, as ``"float32"``.
        low: the smallest number, or that of every column; of floats rounded, so that it is no number of the data.
        high: the same for the largest.
    """

    shape: tuple[int, ...]
    dtype: str
    low: float | list[float]
    high: float | list[float]

    @staticmethod
    def like(value: Tensor, rows: int) -> Drawn:
        """What numbers in the place of `value` are drawn from; cut to a few rows where it has that many."""
        if value.is_nested or value.layout != torch.strided or value.is_quantized or value.is_complex():
            raise StrangeError
        by_row = value.dim() > 0 and len(value) == rows
        shape = (min(rows, ROWS), *value.shape[1:]) if by_row else tuple(value.shape)
        if math.prod(shape) > MOST_NUMBERS:
            raise StrangeError
        columns = by_row and value.dim() == 2 and rows >= ENOUGH and value.shape[1] <= WIDEST
        places = not value.is_floating_point() and value.dtype != torch.bool  # in a table, perhaps
        if places and value.device.type != "cpu" and not columns and not (by_row and value.dim() == 1):
            raise StrangeError  # one beyond the end of its table, which on a CUDA device no program survives
        flat = value.detach().cpu().reshape(rows, -1) if columns else value.detach().cpu().reshape(-1, 1)
        if not flat.numel():
            return Drawn(shape, _name(value.dtype), 0, 0)
        if value.is_floating_point():
            wide = flat.double()
            there = wide.isfinite()
            low = wide.where(there, torch.inf).amin(0)
            high = wide.where(there, -torch.inf).amax(0)
            ends = [[float(f"{end:.1e}") if np.isfinite(end) else 0.0 for end in side.tolist()] for side in (low, high)]
        else:
            ends = [side.tolist() for side in (flat.long().amin(0), flat.long().amax(0))]
        low_end, high_end = ends if columns else (ends[0][0], ends[1][0])
        return Drawn(shape, _name(value.dtype), low_end, high_end)

    def drawn(self, random: np.random.RandomState) -> Tensor:
        """The numbers, the same on every machine and for every version of NumPy."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        low, high = (np.asarray(end, dtype=np.float64) for end in (self.low, self.high))
        whole = not dtype.is_floating_point
        shares = random.random_sample(self.shape)
        values = low + (high - low + whole) * shares
        return torch.as_tensor(np.minimum(np.floor(values), high) if whole else values).to(dtype)


class Likeness(NamedTuple):
    """Arguments of one call of a model, with `Drawn` in the place of every tensor."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @staticmethod
    def of(batch: Batch) -> Likeness | None:
        """What a batch on the device of its model is like; None where rows like its cannot be made up."""
        rows = _rows(batch)
        try:
            args = tuple(_each(lambda leaf: _like(leaf, rows), given) for given in batch.args)
            kwargs = {name: _each(lambda leaf: _like(leaf, rows), given) for name, given in batch.kwargs.items()}
        except StrangeError:
            return None
        return Likeness(args, kwargs)

    def batch(self, device: torch.device, cast: Mapping[torch.dtype, torch.dtype]) -> Batch:
        """The made-up rows on a device, those of some types in another one."""
        random = np.random.RandomState(0)  # whose numbers never change

        def made(leaf: Any) -> Any:
            if not isinstance(leaf, Drawn):
                return leaf
            value = leaf.drawn(random)
            return value.to(device, cast.get(value.dtype, value.dtype))

        return Batch(mapped(made, self.args), mapped(made, self.kwargs), None)

    def described(self) -> dict[str, Any]:
        """What a file holds of it."""
        return {"args": _described(self.args), "kwargs": _described(self.kwargs)}

    @staticmethod
    def read(saved: Mapping[str, Any]) -> Likeness:
        """That of a file."""
        return Likeness(_read(saved["args"]), _read(saved["kwargs"]))


def _rows(batch: Batch) -> int:
    """Rows of a batch: those of its target, or else of the first input."""
    every = [*([] if batch.target is None else [batch.target]), *batch.inputs().values()]
    return next((len(value) for value in every if value.dim()), 0)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _like(leaf: Any, rows: int) -> Any:
    if isinstance(leaf, Tensor):
        return Drawn.like(leaf, rows)
    if leaf is None or type(leaf) in (bool, int, float, str):
        return leaf
    raise StrangeError


def _each(function: Callable[[Any], Any], item: Any) -> Any:
    """A function of every leaf; texts in lists are rows of the data, and stay out of it."""
    if type(item) is dict and all(isinstance(key, str) for key in item):
        return {key: _each(function, value) for key, value in item.items()}
    if type(item) in (tuple, list) and not any(isinstance(part, str) for part in item):
        return type(item)(_each(function, part) for part in item)
    return function(item)


def _described(item: Any) -> Any:
    if isinstance(item, Drawn):
        return {TENSOR: list(item.shape), "dtype": item.dtype, "low": item.low, "high": item.high}
    if isinstance(item, dict):
        return {NAMED: {key: _described(value) for key, value in item.items()}}
    if isinstance(item, tuple | list):
        return {PARTS: [_described(part) for part in item], "list": isinstance(item, list)}
    return item


def _read(saved: Any) -> Any:
    if not isinstance(saved, dict):
        return saved
    if TENSOR in saved:
        if math.prod(saved[TENSOR]) > MOST_NUMBERS:
            raise StorageError(
                f"Expected a few made-up rows, but got a tensor of {saved[TENSOR]}; fit again and save it."
            )
        return Drawn(tuple(saved[TENSOR]), saved["dtype"], saved["low"], saved["high"])
    if NAMED in saved:
        return {key: _read(value) for key, value in saved[NAMED].items()}
    parts = [_read(part) for part in saved[PARTS]]
    return parts if saved["list"] else tuple(parts)
