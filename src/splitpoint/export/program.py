"""A predictor as a program of torch.export, with as few sizes fixed as its model allows."""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from splitpoint.batches import placement
from splitpoint.errors import DataError, ExportError, SplitPointError
from splitpoint.export.graph import Graph, module
from splitpoint.posthoc import PostHocPredictor
from splitpoint.tensors import from_numpy


class Example(NamedTuple):
    """Arguments that a model is traced with.

    Attributes:
        args: tensors by position.
        kwargs: tensors by name.
        names: what all of them are called, in order.
        rows: how many rows each of them has.
    """

    args: tuple[Tensor, ...]
    kwargs: dict[str, Tensor]
    names: tuple[str, ...]
    rows: int

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""
        return dict(zip(self.names, (*self.args, *self.kwargs.values()), strict=True))

    def changed(self, tensors: Sequence[Tensor]) -> Example:
        """The same with other tensors, in the order of the names."""
        count = len(self.args)
        kwargs = dict(zip(self.kwargs, tensors[count:], strict=True))
        return self._replace(args=tuple(tensors[:count]), kwargs=kwargs, rows=tensors[0].shape[0])


def program(
    uq: PostHocPredictor[Any],
    /,
    *example: Any,
    fields: Sequence[str] | None = None,
    fixed_sizes: bool = False,
    **named: Any,
) -> ExportedProgram:
    """The predictor as a program of torch.export: ``program(uq, x).module()(x)`` is a dictionary of tensors.

    It takes any number of rows. Sizes of maps, where the model answers with maps or sequences, and lengths of inputs of
    integers (N, T) may change too, as far as the model allows.

    Args:
        uq: the fitted predictor; its layer has to have a name.
        example: arguments of the model, tensors or arrays of at least two rows: of one, the number of rows would
            become a constant.
        fields: see `module`.
        fixed_sizes: whether sizes are those of the example, all but the number of rows.
        named: further arguments of the model, by name.
    """
    graph = module(uq, fields=fields)
    return exported(graph, prepared(graph, example, named), fixed_sizes)


def prepared(graph: Graph, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Example:
    """The example as tensors on the model's device; an error where it is none that a model can be traced with."""
    device = placement(graph.base)[0]
    names = (*_positional(graph.base, len(args)), *kwargs)
    tensors = []
    for name, value in zip(names, (*args, *kwargs.values()), strict=True):
        tensor = from_numpy(value) if isinstance(value, np.ndarray) else value
        if not isinstance(tensor, Tensor) or not tensor.dim():
            raise DataError(
                f"Expected tensors with rows as the example, but got {type(value).__name__} for '{name}'; leave other "
                "arguments at their defaults, or wrap the model in one that sets them."
            )
        tensors.append(tensor.detach().to(device))
    if not tensors:
        raise DataError(
            "Expected an example of the model's inputs to export with, but got none; pass two rows or more."
        )
    rows = tensors[0].shape[0]
    if rows < 2 or any(tensor.shape[0] != rows for tensor in tensors):
        counts = [tensor.shape[0] for tensor in tensors]
        raise DataError(
            f"Expected an example of two rows or more, the same number in every input, but got {counts}; of one row, "
            "the number of rows would become a constant."
        )
    return Example(tuple(tensors[: len(args)]), dict(zip(kwargs, tensors[len(args) :], strict=True)), names, rows)


def exported(graph: Graph, example: Example, fixed_sizes: bool) -> ExportedProgram:
    """The graph of a module, traced with an example."""
    batch = Dim("batch")
    dense, args, kwargs = graph.fitted.layout.dense, example.args, example.kwargs
    shapes = {name: _dynamic(tensor, batch, dense, fixed_sizes) for name, tensor in example.tensors.items()}
    graph.forward = _signed(graph.forward, example)  # type: ignore[method-assign]
    try:
        with torch.no_grad(), quiet():
            graph(*args, **kwargs)  # what the model itself objects to comes out as it is
            return torch.export.export(graph, args, kwargs, dynamic_shapes=shapes, strict=False)
    except SplitPointError:
        raise
    except Exception as error:  # whatever tracing says of a model
        raise ExportError(
            f"Expected a model that torch.export can trace, but it says: {first_line(error)}; try fixed_sizes=True, or "
            "see torch.export for what a forward pass may do."
        ) from error


def _dynamic(tensor: Tensor, batch: Any, dense: bool, fixed_sizes: bool) -> dict[int, Any]:
    """Which axes of an input may have other sizes."""
    sizes: range | tuple[()] = ()
    if not fixed_sizes and not tensor.is_floating_point() and tensor.dim() == 2:
        sizes = range(1, 2)
    elif not fixed_sizes and dense:
        sizes = range(1 if tensor.dim() == 2 else 2, tensor.dim()) if tensor.dim() != 3 else range(1, 2)
    return {0: batch} | {axis: Dim.AUTO for axis in sizes if tensor.shape[axis] > 1}


def _signed(forward: Callable[..., dict[str, Tensor]], example: Example) -> Callable[..., dict[str, Tensor]]:
    """The same function with parameters of the names of the example, which become those of the program's inputs."""

    def signed(*args: Tensor, **kwargs: Tensor) -> dict[str, Tensor]:
        return forward(*args, **kwargs)

    by_name, anyhow = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, by_name if name in example.kwargs else anyhow) for name in example.names]
    known: Any = signed
    known.__signature__ = inspect.Signature(parameters)
    return signed


def _positional(model: nn.Module, count: int) -> list[str]:
    """Names of the first positional arguments of a model."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        known = [own.name for own in inspect.signature(model.forward).parameters.values() if own.kind in kinds]
    except (TypeError, ValueError):
        known = []
    known = known[:count]
    return known + [f"input_{number}" for number in range(len(known), count)]


@contextmanager
def quiet() -> Iterator[None]:
    """What exporters report of their own doing goes nowhere for as long as the context lasts."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def first_line(error: BaseException) -> str:
    """The first line of what the cause of an error says, without its last stop."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(".:; ")
