"""Data in any usual form, read as a stream of batches: what goes into the model, and the target."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from splitpoint.errors import DataError
from splitpoint.frozen import frozen
from splitpoint.model_inputs import converted, to_convert
from splitpoint.tensors import from_numpy, numbers
from splitpoint.wrappers import unwrapped

Data: TypeAlias = "DataLoader[Any] | Dataset[Any] | Iterable[Any]"

LABELS = "labels"

MANY = 1_000
"""Arguments that a forward pass with ``*args`` takes."""

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_FORMS: weakref.WeakKeyDictionary[nn.Module, dict[Any, int]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Batch:
    """Arguments of one call of the model, and the target that belongs to it (None when there is none)."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    target: Tensor | None

    def to(self, model: nn.Module) -> Batch:
        """The batch on the device of `model`, arranged and in the types that `model` takes.

        NumPy floats come in the precision of `model`, other inputs where it does not take them otherwise; see
        `model_inputs`.
        """
        device, dtype = placement(model)

        def move(item: Any) -> Any:
            if isinstance(item, np.ndarray):
                item = from_numpy(item)
                item = item.to(dtype) if item.is_floating_point() else item
            return item.to(device) if hasattr(item, "to") else item

        target = None if self.target is None else self.target.to(device)
        moved = Batch(tuple(mapped(move, arg) for arg in self.args), mapped(move, self.kwargs), target)
        return moved.arranged(model).suited(model, dtype)

    def suited(self, model: nn.Module, own: torch.dtype) -> Batch:
        """The batch in the types that the model takes, whose weights are of the type `own`."""
        inputs = self.inputs()
        if all(value.dtype == own for value in inputs.values()):
            return self
        values = list(inputs.values())
        first = unwrapped(model[0] if isinstance(model, nn.ModuleList) else model)

        def runs(tried: Sequence[Tensor]) -> bool:
            return self.with_inputs(dict(zip(inputs, tried, strict=True)))._runs(first)

        places = to_convert(model, values, own, runs)
        return self.with_inputs(dict(zip(inputs, converted(values, places, own), strict=True))) if places else self

    def arranged(self, model: nn.Module) -> Batch:
        """The batch as the `forward` of the model takes it: nested inputs as one argument, or each as one of its own.

        ``((a, b), y)`` is for ``forward(a, b)`` or for ``forward(pair)``, ``({"a": a, "b": b}, y)`` and ``{"a": a,
        "b": b, "labels": y}`` for ``forward(a, b)`` or for ``forward(inputs)``. Where its parameters leave that open,
        the first one is it that runs without an error, nested first.
        """
        if not any(isinstance(item, Mapping | tuple | list) for item in (*self.args, self.kwargs or None)):
            return self
        first = unwrapped(model[0] if isinstance(model, nn.ModuleList) else model)  # several networks are alike
        forms = list(self._forms(_parameters(first)))
        if len(forms) == 1:
            return forms[0]
        known = _FORMS.setdefault(model, {})
        key = tuple(_structure(item) for item in (*self.args, self.kwargs))
        if key not in known:
            known[key] = next((number for number, form in enumerate(forms) if form._runs(first)), 0)
        return forms[known[key]]

    def _forms(self, parameters: Sequence[inspect.Parameter]) -> Iterator[Batch]:
        """The ways in which a `forward` with these parameters may take the batch, nested first."""
        kinds = {parameter.kind for parameter in parameters}
        names = {parameter.name for parameter in parameters if parameter.kind in _BY_NAME}
        most = (
            sum(kind in _BY_PLACE for kind in (p.kind for p in parameters))
            if inspect.Parameter.VAR_POSITIONAL not in kinds
            else MANY
        )
        if self.kwargs:
            yield self
            strange = names.isdisjoint(self.kwargs) and inspect.Parameter.VAR_KEYWORD not in kinds
            if strange and most and not self.args:
                yield Batch((self.kwargs,), {}, self.target)
            return
        inner, rest = self.args[0], len(self.args) - 1
        if isinstance(inner, Mapping):
            by_name = not rest and all(isinstance(key, str) for key in inner)
            fits = by_name and (names >= set(inner) or inspect.Parameter.VAR_KEYWORD in kinds)
            if not (fits and names >= set(inner)):
                yield self
            if fits:
                yield Batch((), dict(inner), self.target)
            return
        spread = isinstance(inner, tuple | list) and not hasattr(inner, "_fields") and len(inner) <= most
        spread = spread and (not rest or (rest == 1 and len(inner) == 2))
        needed = sum(p.default is p.empty and p.kind in _BY_PLACE for p in parameters)
        if not spread or rest or needed < 2:
            yield self
        if spread:
            yield Batch(tuple(inner), {}, self.target)

    def _runs(self, model: nn.Module) -> bool:
        try:
            with frozen(model) as view:
                view(*self.args, **self.kwargs)
        except Exception:  # whatever a forward says to what it does not take
            return False
        return True

    def inputs(self) -> dict[tuple[Any, ...], Tensor]:
        """Every tensor that goes into the model, by the way to it."""
        every = flattened(dict(enumerate(self.args)) | self.kwargs)
        paths = {key if isinstance(key, tuple) else (key,): value for key, value in every.items()}
        return {path: value for path, value in paths.items() if isinstance(value, Tensor)}

    def with_inputs(self, changed: Mapping[tuple[Any, ...], Tensor]) -> Batch:
        """The same with some of the tensors that go into the model exchanged."""

        def put(item: Any, way: tuple[Any, ...]) -> Any:
            if way in changed:
                return changed[way]
            if isinstance(item, Mapping):
                return {key: put(value, (*way, key)) for key, value in item.items()}
            if isinstance(item, tuple | list):
                return _like(item, [put(value, (*way, place)) for place, value in enumerate(item)])
            return item

        args = tuple(put(arg, (place,)) for place, arg in enumerate(self.args))
        return Batch(args, {key: put(value, (key,)) for key, value in self.kwargs.items()}, self.target)

    def tensors(self, *, target: bool = True) -> Iterator[Tensor]:
        """Every tensor of the batch in a fixed order, for fingerprints, with the `target` or without."""
        items = [*self.args, *(self.kwargs[key] for key in sorted(self.kwargs)), self.target if target else None]
        for item in items:
            if isinstance(item, Tensor | np.ndarray):
                yield item if isinstance(item, Tensor) else from_numpy(item)
            elif isinstance(item, Mapping | tuple | list):
                parts = [item[key] for key in sorted(item)] if isinstance(item, Mapping) else item
                yield from Batch(tuple(parts), {}, None).tensors()


def suited_call(predictor: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The arguments of a call of a predictor in the types that its base takes: a forward pre-hook."""
    base = predictor.base
    assert isinstance(base, nn.Module)
    own = placement(base)[1]

    def move(item: Any) -> Any:
        if not isinstance(item, np.ndarray):
            return item
        found = from_numpy(item)
        return found.to(own) if found.is_floating_point() else found

    moved = Batch(tuple(mapped(move, arg) for arg in args), mapped(move, kwargs), None).suited(base, own)
    return moved.args, moved.kwargs


def mapped(function: Callable[..., Any], item: Any, *others: Any) -> Any:
    """A function of what is not a container, for all of it in nested containers; `others` are nested alike.

    >>> mapped(lambda a, b: a + b, {"x": (1, [2])}, {"x": (10, [20])})
    {'x': (11, [22])}
    """
    if isinstance(item, dict):
        return {key: mapped(function, value, *(other[key] for other in others)) for key, value in item.items()}
    if isinstance(item, tuple | list):
        return _like(item, [mapped(function, *parts) for parts in zip(item, *others, strict=True)])
    return function(item, *others)


def _like(item: Any, parts: Sequence[Any]) -> Any:
    """A tuple or list of the same kind."""
    return type(item)(*parts) if hasattr(item, "_fields") else type(item)(parts)


def flattened(columns: Mapping[Any, Any]) -> dict[Any, Any]:
    """Columns whose nested entries are columns of their own, under the way to them; `item_of` puts them together.

    >>> flattened({0: ("a", "b"), 1: "y"})
    {(0, 0): 'a', (0, 1): 'b', 1: 'y'}
    """
    found: dict[Any, Any] = {}
    for key, value in columns.items():
        if isinstance(value, Mapping | tuple | list):
            inner = value if isinstance(value, Mapping) else dict(enumerate(value))
            way = key if isinstance(key, tuple) else (key,)
            found |= flattened({(*way, own): part for own, part in inner.items()})
        else:
            found[key] = value
    return found


def item_of(columns: Mapping[Any, Any]) -> Any:
    """Columns as data sets have them: a mapping where they have names, else a tuple; nested as they were.

    >>> item_of({(0, 0): "a", (0, 1): "b", 1: "y"})
    (('a', 'b'), 'y')
    """
    tree: dict[Any, Any] = {}
    for key, value in columns.items():
        node, way = tree, key if isinstance(key, tuple) else (key,)
        for part in way[:-1]:
            node = node.setdefault(part, {})
        node[way[-1]] = value

    def closed(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        parts = {key: closed(value) for key, value in node.items()}
        return parts if isinstance(next(iter(parts)), str) else tuple(parts.values())

    return closed(tree)


def _parameters(model: nn.Module) -> list[inspect.Parameter]:
    """Parameters of the model's forward pass."""
    try:
        return list(inspect.signature(model.forward).parameters.values())
    except (TypeError, ValueError):
        return [inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)]


def _structure(item: Any) -> Any:
    """What containers an item is made of."""
    if isinstance(item, Mapping):
        return tuple((key, _structure(value)) for key, value in item.items())
    return tuple(map(_structure, item)) if isinstance(item, tuple | list) else ""


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
    """Arrays that hold the whole data set at once, by position or by name; None when `data` is a stream.

    An input may be nested, as in ``((a, b), y)``, see `flattened`, or None where it is missing in all rows.
    """
    if isinstance(data, Tensor | np.ndarray):
        return {0: data}
    if isinstance(data, Mapping):
        return flattened(data)
    if isinstance(data, Sequence) and any(isinstance(item, Tensor | np.ndarray) for item in data):
        found = flattened(dict(enumerate(data)))
        return found if all(isinstance(item, Tensor | np.ndarray | None) for item in found.values()) else None
    return None


def _slices(arrays: dict[Any, Any], batch_size: int) -> Iterator[Any]:
    sparse = [key for key, value in arrays.items() if getattr(value, "layout", torch.strided) is not torch.strided]
    if sparse:
        raise DataError(f"Expected dense arrays, but the entries {sparse} are sparse; call to_dense() on them.")
    flat = [key for key, value in arrays.items() if value is not None and not getattr(value, "ndim", 0)]
    if flat:
        raise DataError(f"Expected arrays with rows, but the entries {flat} have none; pass them in batches instead.")
    rows = {key: len(value) for key, value in arrays.items() if value is not None}
    if len(set(rows.values())) != 1:
        raise DataError(f"Expected arrays with the same number of rows, but got {list(rows.values())}.")
    for start in range(0, next(iter(rows.values())), batch_size):
        yield item_of({key: arrays[key][start : start + batch_size] if key in rows else None for key in arrays})


def _split(item: Any, inputs: int | None) -> Batch:
    if isinstance(item, Mapping):
        kwargs = {str(key): value for key, value in item.items()}
        return Batch((), kwargs, _target(kwargs.pop(LABELS, None)))
    if isinstance(item, Tensor | np.ndarray):
        return Batch((item,), {}, None)
    if isinstance(item, Sequence) and item:
        parts = tuple(item)
        if len(parts) in (1, inputs):
            return Batch(parts, {}, None)
        return Batch(parts[:-1], {}, _target(parts[-1]))
    raise DataError(f"Expected batches (x, y), (x1, x2, ..., y), dicts or tensors, but got {_kind(item)}.")


def _target(value: Any) -> Tensor | None:
    return None if value is None else numbers(value, "targets")


def _kind(item: Any) -> str:
    if isinstance(item, Mapping):
        return f"a mapping with keys {sorted(map(str, item))}"
    if isinstance(item, Sequence) and not isinstance(item, str):
        return f"a {type(item).__name__} of {len(item)}: {[type(part).__name__ for part in item][:4]}"
    return f"{type(item).__name__}"


def output_tensor(raw: Any, key: str | int | None = None) -> Tensor:
    """The tensor among a model's outputs: itself, ``.logits``, the only entry of a mapping, or the entry `key`."""
    found = _only(raw) if key is None else _entry(raw, key)
    if found is None:
        raise DataError(
            "Expected the model to return a tensor, an object with .logits or a dict with one tensor, but got "
            f"{_kind(raw)}; name the entry with output_key=."
        )
    if found.is_complex():
        raise DataError("Expected a model that returns real numbers, but got complex ones; let it return their parts.")
    return found.unsqueeze(0) if found.dim() == 0 else found  # `squeeze` leaves a single row without axes


def _only(raw: Any) -> Tensor | None:
    """The one tensor that a model returned, wherever it is; None where there is none or several."""
    if isinstance(raw, Tensor):
        return raw
    found: Any = getattr(raw, "logits", None)
    if not isinstance(found, Tensor) and isinstance(raw, Mapping):
        names = [name for name in ("logits", "out") if name in raw] or list(raw)
        found = raw[names[0]] if len(names) == 1 else None
    elif not isinstance(found, Tensor) and isinstance(raw, Sequence):
        found = raw[0] if len(raw) == 1 else None
    return found if isinstance(found, Tensor) else None


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


def one_pass(places: Tensor, generator: torch.Generator, count: int) -> Tensor:
    """`count` of the places in random order, all of them once before any comes again."""
    order = places.index_select(0, torch.randperm(len(places), generator=generator))
    passes, rest = divmod(count, len(places))
    return torch.cat([order] * passes + [order[:rest]])
