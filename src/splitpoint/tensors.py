"""Arrays and lists of numbers as tensors: what is masked is missing, and what is no number is told in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from splitpoint.errors import DataError

_WIDER = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64}
"""Types of whole numbers that PyTorch stores but hardly computes with, and those that hold them."""


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor of the array, sharing its memory where PyTorch can; masked entries are NaN.

    >>> from_numpy(np.ma.masked_array([1.0, 2.0], [False, True]))
    tensor([1., nan], dtype=torch.float64)
    """
    array = _unmasked(array)
    if array.dtype.kind not in "biufc":
        raise DataError(f"Expected an array of numbers, but got one of type {array.dtype}; convert it to numbers.")
    if array.dtype.name == "uint64" and array.size and int(array.max()) >= 2**63:
        raise DataError(f"Expected whole numbers below 2**63, but got {int(array.max())}; convert them to floats.")
    wanted = array.dtype.newbyteorder("=")
    if wanted.kind == "f" and wanted.itemsize > 8:
        wanted = np.dtype(np.float64)
    array = array.astype(_WIDER.get(wanted.name, wanted), copy=False)
    shareable = array.flags.writeable and min(array.strides, default=0) >= 0
    return torch.from_numpy(array if shareable else array.copy())


def _unmasked(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same without a mask: NaN where numbers are masked; whole numbers have nothing that says so."""
    if not isinstance(array, np.ma.MaskedArray):
        return np.asarray(array)
    if not np.ma.getmaskarray(array).any():
        return np.asarray(array.data)
    if array.dtype.kind not in "fc":
        count = int(np.ma.getmaskarray(array).sum())
        raise DataError(
            f"Expected no masked entries among {array.dtype} numbers, but got {count}; convert "
            "numbers to floats, where NaN is a missing one, and fill labels with the ignore_index."
        )
    return np.asarray(array.filled(np.nan))


def numbers(value: Any, name: str) -> Tensor:
    """A dense tensor of real numbers: a tensor as it is, an array, or a list or number that makes one.

    Args:
        value: what was given.
        name: what it is called in the sentence that refuses it.

    >>> numbers([0.5, 1], "scores")
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """
    found = value if isinstance(value, Tensor) else _listed(value, name)
    if found.is_complex() or found.layout is not torch.strided or found.is_nested or found.is_quantized:
        kind = "complex numbers" if found.is_complex() else "a sparse, nested or quantised tensor"
        raise DataError(f"Expected {name} as a dense tensor of real numbers, but got {kind}; convert it.")
    return found.detach()


def _listed(value: Any, name: str) -> Tensor:
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(_plain(value))
    except (TypeError, ValueError, OverflowError, RuntimeError, RecursionError) as error:
        raise DataError(
            f"Expected {name} as a tensor, an array or a list of numbers, but got a {type(value).__name__} that makes "
            "none; give one number for each row."
        ) from error
    if array.dtype.kind not in "biufc":
        raise DataError(
            f"Expected {name} as a tensor, an array or a list of numbers, but got a {type(value).__name__} of type "
            f"{array.dtype}; convert it to numbers."
        )
    return from_numpy(array)


def _plain(value: Any) -> Any:
    """Lists of tensors as lists of arrays, which NumPy can put together."""
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value
