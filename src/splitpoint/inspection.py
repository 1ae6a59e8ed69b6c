"""`layers(model, x)`: which layers a model has, what they give, and which one would be chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from splitpoint.batches import Batch
from splitpoint.errors import DataError, LayerError, SettingsError
from splitpoint.features import open_tap
from splitpoint.frozen import frozen
from splitpoint.hooks import CALL, INPUT, first_tensor


@dataclass(frozen=True)
class LayerRow:
    """One module that ran: its name for ``layer=``, kind, shapes, own parameters and number of calls."""

    name: str
    kind: str
    input_shape: tuple[int, ...] | None
    output_shape: tuple[int, ...] | None
    parameters: int
    calls: int
    chosen: bool


@dataclass(frozen=True)
class LayerTable:
    """Layers in the order they first finished, and the automatic choice. Print it, iterate it, or read `chosen`.

    Attributes:
        rows: one for each module that ran.
        chosen: what ``layer=None`` stands for, such as ``"fc:input"``, or ``"image.fc:input + text.fc:input"`` where
            the output is put together from several branches; None when nothing fits.
        reason: why.
    """

    rows: tuple[LayerRow, ...]
    chosen: str | None
    reason: str

    def __iter__(self) -> Iterator[LayerRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        header = ("layer", "kind", "input", "output", "parameters", "calls", "")
        lines = [header, *(self._cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        right = {4, 5}
        table = "\n".join(
            "  ".join(
                c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
            for line in lines
        )
        verdict = f"layer=None reads {self.chosen}: {self.reason}" if self.chosen else self.reason
        return f"{table}\n{verdict}"

    __repr__ = __str__

    @staticmethod
    def _cells(row: LayerRow) -> tuple[str, ...]:
        shapes = ("x".join(map(str, shape)) if shape else "-" for shape in (row.input_shape, row.output_shape))
        mark = "<- its input is chosen" if row.chosen else ""
        return (row.name, row.kind, *shapes, f"{row.parameters:,}", str(row.calls), mark)


class ShapeLog:
    """Forward hook that notes the shapes and the order in which modules finish."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {module: name for name, module in model.named_modules() if name}
        self.seen: dict[str, tuple[nn.Module, tuple[int, ...] | None, tuple[int, ...] | None, int]] = {}

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Remember the last call of `module`, which is what a layer setting reads, and count them all."""
        name = self.names[module]
        given, result = _shape((*args, *kwargs.values())), _shape(output)
        calls = self.seen[name][3] if name in self.seen else 0
        self.seen[name] = (module, given, result, calls + 1)


def _shape(value: Any) -> tuple[int, ...] | None:
    tensor = first_tensor(value)
    return None if tensor is None else tuple(tensor.shape)


def layers(model: nn.Module, *args: Any, **kwargs: Any) -> LayerTable:
    """Run `model` once on its own arguments and list the layers that take part.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    >>> layers(net, torch.zeros(2, 4))
    layer  kind    input  output  parameters  calls
    0      Linear  2x4    2x8             40      1
    1      ReLU    2x8    2x8              0      1
    2      Linear  2x8    2x1              9      1  <- its input is chosen
    layer=None reads 2:input: its output is the model's output, (2, 1)
    """
    if not isinstance(model, nn.Module):
        raise SettingsError(f"Expected a torch.nn.Module to list the layers of, but got a {type(model).__name__}.")
    with frozen(model) as view:
        log = ShapeLog(view)
        for module in log.names:
            module.register_forward_hook(log, with_kwargs=True)
        view(*args, **kwargs)
    try:
        tap = open_tap(model, None, Batch(args, kwargs, None))[0]
        names, chosen, reason = tap.names, tap.label, tap.reason
    except (LayerError, DataError) as error:
        names, chosen, reason = (), None, str(error)
    read = {name.partition(CALL)[0] for name in names}
    rows = [
        LayerRow(
            name=name,
            kind=type(module).__name__,
            input_shape=given,
            output_shape=result,
            parameters=sum(p.numel() for p in module.parameters(recurse=False)),
            calls=calls,
            chosen=name + INPUT in read,
        )
        for name, (module, given, result, calls) in log.seen.items()
    ]
    return LayerTable(tuple(rows), chosen, reason)
