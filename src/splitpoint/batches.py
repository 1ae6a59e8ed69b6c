"""Data in any usual form, read as a stream of batches: what goes into the model, and the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from splitpoint.errors import DataError

Data: TypeAlias = "DataLoader[Any] | Dataset[Any] | Iterable[Any]"

LABELS = "labels"


@dataclass(frozen=True)
class Batch:
    """Arguments of one call of the model, and the target that belongs to it (None when there is none)."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Tensor | None

    def to(self, model: nn.Module) -> Batch:
        """The batch on the device of `model`, NumPy floats in the precision of `model`."""
        device, dtype = placement(model)

        def move(item: Any) -> Any:
            if isinstance(item, np.ndarray):
                item = from_numpy(item)
                item = item.to(dtype) if item.is_floating_point() else item
            if isinstance(item, dict):
                return {key: move(value) for key, value in item.items()}
            if isinstance(item, tuple | list):
                moved = map(move, item)
                return type(item)(*moved) if hasattr(item, "_fields") else type(item)(moved)
            return item.to(device) if hasattr(item, "to") else item

        target = None if self.target is None else self.target.to(device)
        return Batch(tuple(map(move, self.args)), {k: move(v) for k, v in self.kwargs.items()}, target)

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor of the batch in a fixed order, for fingerprints."""
        items = [*self.args, *(self.kwargs[key] for key in sorted(self.kwargs)), self.target]
        for item in items:
            if isinstance(item, Tensor | np.ndarray):
                yield item if isinstance(item, Tensor) else from_numpy(item)
            elif isinstance(item, Mapping | tuple | list):
                parts = [item[key] for key in sorted(item)] if isinstance(item, Mapping) else item
                yield from Batch(tuple(parts), {}, None).tensors()


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor of the array, sharing its memory where PyTorch can."""
    shareable = array.flags.writeable and min(array.strides, default=0) >= 0
    return torch.from_numpy(array if shareable else array.copy())


def placement(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Device and floating-point type of the model's first floating-point parameter or buffer."""
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            return tensor.device, tensor.dtype
    return torch.device("cpu"), torch.get_default_dtype()


def labelled(data: Data, batch_size: int) -> Iterator[Batch]:
    """Batches with a target: ``(x, ..., y)`` tuples, or mappings with ``labels``."""
    for item in _items(data, batch_size):
        batch = _split(item, inputs=None)
        if batch.target is None:
            raise DataError(
                f"Expected batches with a target, (x, y) or a dict with '{LABELS}', but got {_kind(item)}; "
                "give the data together with their targets."
            )
        yield batch


def first_batch(data: Data, rows: int) -> Batch:
    """The first batch of some data, which must be readable again."""
    if isinstance(data, Iterator):
        raise DataError("Expected data that can be read again, but got an iterator; pass a DataLoader or a list.")
    batch = next(labelled(data, rows), None)
    if batch is None:
        raise DataError("Expected data to fit on, but got none; pass at least two rows.")
    return batch


def unlabelled(data: Data, batch_size: int, inputs: int) -> Iterator[Batch]:
    """Batches for prediction, where a target may be missing and is dropped; the model takes `inputs` positions."""
    for item in _items(data, batch_size):
        yield replace(_split(item, inputs), target=None)


def _items(data: Data, batch_size: int) -> Iterable[Any]:
    arrays = whole_arrays(data)
    if arrays is not None:
        return _slices(arrays, batch_size)
    if isinstance(data, Dataset):
        return DataLoader(data, batch_size=batch_size, generator=torch.Generator())
    if isinstance(data, Iterable):
        return data
    raise DataError(
        f"Expected a DataLoader, an iterable of batches, a Dataset or a pair (X, y), but got {_kind(data)}."
    )


def whole_arrays(data: Any) -> dict[Any, Any] | None:
    """Arrays that hold the whole data set at once, by position or by name; None when `data` is a stream."""
    if isinstance(data, Tensor | np.ndarray):
        return {0: data}
    if isinstance(data, Mapping):
        return dict(data)
    if isinstance(data, Sequence) and data and all(isinstance(item, Tensor | np.ndarray) for item in data):
        return dict(enumerate(data))
    return None


def _slices(arrays: dict[Any, Any], batch_size: int) -> Iterator[Any]:
    flat = [key for key, value in arrays.items() if not getattr(value, "ndim", 0)]
    if flat:
        raise DataError(f"Expected arrays with rows, but the entries {flat} have none; pass them in batches instead.")
    rows = {key: len(value) for key, value in arrays.items()}
    if len(set(rows.values())) != 1:
        raise DataError(f"Expected arrays with the same number of rows, but got {list(rows.values())}.")
    named = isinstance(next(iter(arrays)), str)
    for start in range(0, next(iter(rows.values())), batch_size):
        part = {key: value[start : start + batch_size] for key, value in arrays.items()}
        yield part if named else tuple(part.values())


def _split(item: Any, inputs: int | None) -> Batch:
    if isinstance(item, Mapping):
        kwargs = {str(key): value for key, value in item.items()}
        return Batch((), kwargs, _target(kwargs.pop(LABELS, None)))
    if isinstance(item, Tensor | np.ndarray):
        return Batch((item,), {}, None)
    if isinstance(item, Sequence) and item:
        parts = tuple(item)
        if len(parts) == 1 or len(parts) == inputs:
            return Batch(parts, {}, None)
        return Batch(parts[:-1], {}, _target(parts[-1]))
    raise DataError(f"Expected batches (x, y), (x1, x2, ..., y), dicts or tensors, but got {_kind(item)}.")


def _target(value: Any) -> Tensor | None:
    if value is None or isinstance(value, Tensor):
        return None if value is None else value.detach()
    try:
        return from_numpy(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise DataError(f"Expected targets that form a tensor, but got {_kind(value)}.") from error


def _kind(item: Any) -> str:
    if isinstance(item, Mapping):
        return f"a mapping with keys {sorted(map(str, item))}"
    if isinstance(item, Sequence) and not isinstance(item, str):
        return f"a {type(item).__name__} of {len(item)}: {[type(part).__name__ for part in item][:4]}"
    return f"{type(item).__name__}"


def output_tensor(raw: Any, key: str | int | None = None) -> Tensor:
    """The tensor among a model's outputs: itself, ``.logits``, the only entry of a mapping, or the entry `key`."""
    if key is not None:
        return _with_rows(_entry(raw, key))
    if isinstance(raw, Tensor):
        return _with_rows(raw)
    if isinstance(getattr(raw, "logits", None), Tensor):
        return _as_tensor(raw.logits)
    if isinstance(raw, Mapping):
        names = [name for name in ("logits", "out") if name in raw] or list(raw)
        if len(names) == 1 and isinstance(raw[names[0]], Tensor):
            return _as_tensor(raw[names[0]])
    elif isinstance(raw, Sequence) and len(raw) == 1 and isinstance(raw[0], Tensor):
        return raw[0]
    raise DataError(
        "Expected the model to return a tensor, an object with .logits or a dict with one tensor, but got "
        f"{_kind(raw)}; name the entry with output_key=."
    )


def _with_rows(output: Tensor) -> Tensor:
    """An output without axes, as `squeeze` leaves it for a single row, is that row."""
    return output.unsqueeze(0) if output.dim() == 0 else output


def _entry(raw: Any, key: str | int) -> Tensor:
    lookups: list[Callable[[], Any]] = [lambda: raw[key], lambda: getattr(raw, str(key))]
    for lookup in lookups:
        try:
            value = lookup()
        except (KeyError, IndexError, TypeError, AttributeError):
            continue
        if isinstance(value, Tensor):
            return value
    raise DataError(f"Expected a tensor at output_key={key!r} of the model's output, but got {_kind(raw)}.")


def _as_tensor(value: Any) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def one_pass(places: Tensor, generator: torch.Generator, count: int) -> Tensor:
    """`count` of the places in random order, all of them once before any comes again."""
    order = places.index_select(0, torch.randperm(len(places), generator=generator))
    passes, rest = divmod(count, len(places))
    return torch.cat([order] * passes + [order[:rest]])
