"""How a method's networks are built and read: decided once, on a fresh network's answer to the first batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from splitpoint.batches import Batch
from splitpoint.errors import DataError, ShapeError
from splitpoint.features import open_tap
from splitpoint.hooks import INPUT, frozen, recording
from splitpoint.layout import Layout
from splitpoint.prediction import aligned
from splitpoint.surgery import weight_layers

IGNORED = -100


@dataclass(frozen=True)
class Blueprint:
    """Places in the network and the shape of its output.

    Attributes:
        layout: how the output of the plain network is shaped.
        tail: shape of its output without rows, for outputs without positions.
        outputs: number of its output channels D.
        last: name of the last layer.
        direct: whether the output holds just the numbers of the last layer, so that nothing but a change of shape
            comes after it.
        layers: names of all linear and convolution layers in the order in which they run.
        inputs: number of positional arguments.
    """

    layout: Layout
    tail: tuple[int, ...]
    outputs: int
    last: str
    direct: bool
    layers: tuple[str, ...]
    inputs: int

    @staticmethod
    def of(network: nn.Module, batch: Batch, output_key: str | int | None, squeezable: int) -> Blueprint:
        """Read it off a network and a batch; see `Layout.infer`."""
        tap, output, features = open_tap(network, None, batch, output_key)
        last = [tap.channels_last(place, value.dim()) for place, value in enumerate(features)]
        layout = Layout.infer(features, last, output, squeezable)
        name = tap.names[0].partition(INPUT)[0]
        with recording(network, name) as recorder, frozen(network):
            network(*batch.args, **batch.kwargs)
        found = recorder.value
        direct = found is not None and torch.equal(found.flatten().sort().values, output.flatten().sort().values)
        return Blueprint(
            layout=layout,
            tail=() if layout.dense else tuple(output.shape[1:]),
            outputs=layout.output(output).shape[1],
            last=name,
            direct=direct,
            layers=tuple(weight_layers(network, batch)),
            inputs=len(batch.args),
        )

    def canonical(self, raw: Tensor, width: int) -> Tensor:
        """Outputs of a network with `width` times the channels -> (N, width D) or (N, width D, P).

        A network that squeezes its output loses the axis of a single row, which is put back.
        """
        if raw.dim() == 1 and width * self.outputs > 1:
            raw = raw.unsqueeze(0)
        found = self._wide(width).output(raw)
        if found.shape[1] != width * self.outputs or found.dim() != 2 + self.layout.dense:
            raise ShapeError(
                f"Expected the network to pass on every channel of its last layer, but it returns {tuple(raw.shape)}; "
                "leave out what comes after the last layer."
            )
        return found

    def _wide(self, width: int) -> Layout:
        """Layout of a network with `width` times the channels, which cannot squeeze away an axis of more than one."""
        if width == 1 or self.layout.axis is not None:
            return self.layout
        return replace(self.layout, axis=-1 if self.layout.last[0] else 1)

    def like(self, raw: Tensor, rows: int, width: int) -> Tensor:
        """A tensor of one number in the shape that the plain network's output has where the wider one's is `raw`."""
        if not self.layout.dense:
            return torch.empty(()).expand(rows, *self.tail)
        wide = self._wide(width).axis
        shape = list(raw.shape)
        if self.layout.axis is not None:
            shape[self.layout.axis] = self.outputs
        elif wide is not None:
            del shape[wide]
        return torch.empty(()).expand(shape)

    def numbers(self, target: Tensor, *, known: bool = False) -> Tensor:
        """Regression targets (N, ...) in canonical form, (N, D) or (N, D, P); NaN where there is none.

        Targets that are `known` to be sound are not looked at again.
        """
        if not known and torch.isinf(target).any():
            raise DataError("Expected finite targets (NaN marks a missing one), but got inf; clean the targets.")
        if self.layout.dense:
            return self.layout.output(target).float()
        return aligned(torch.empty(()).expand(len(target), *self.tail), target).reshape(len(target), -1).float()

    def labels(self, target: Tensor, classes: int, ignore_index: int, *, known: bool = False) -> Tensor:
        """Labels (N,) or (N, P), with -100 where there is none; see `numbers`."""
        shaped = target.reshape(len(target), -1) if self.layout.dense else target.reshape(len(target))
        label = torch.where(shaped == ignore_index, IGNORED, shaped.long())
        if known:
            return label
        wrong = (label != IGNORED) & ((label < 0) | (label >= classes))
        if wrong.any():
            raise DataError(
                f"Expected labels from 0 to {classes - 1}, but got {int(label[wrong][0])}; check the labels, or name "
                "the label to skip with ignore_index=."
            )
        return label


@dataclass(frozen=True)
class Units:
    """Mean and deviation (D,) of regression targets: networks learn ``(y - center) / spread``."""

    center: Tensor
    spread: Tensor

    @staticmethod
    def of(targets: Iterable[Tensor]) -> Units:
        """Moments of canonical targets (N, D, ...), NaN left out; a constant target has deviation 1."""
        count, mean, scatter = torch.zeros(()), torch.zeros(()), torch.zeros(())
        for target in targets:
            flat = target.double().movedim(1, 0).flatten(1)
            seen = (~flat.isnan()).sum(1).double()
            here = flat.nansum(1) / seen.clamp(min=1)
            joint = (count + seen).clamp(min=1)
            shift = here - mean
            scatter = scatter + (flat - here[:, None]).square().nansum(1) + shift.square() * count * seen / joint
            mean, count = mean + shift * seen / joint, count + seen
        if not count.dim() or not bool((count >= 2).all()):
            raise DataError("Expected at least two targets for every output, but got fewer; give more data.")
        spread = (scatter / count).sqrt()
        return Units(mean.float(), torch.where(spread > 1e-7 * mean.abs(), spread, 1.0).float())

    @staticmethod
    def stacked(units: Sequence[Units]) -> Units:
        """Units of E members, (1, E, 1, D), for targets (S, E, B, D, ...)."""
        center, spread = (
            torch.stack(values)[None, :, None] for values in zip(*((u.center, u.spread) for u in units), strict=True)
        )
        return Units(center, spread)

    def standard(self, target: Tensor) -> Tensor:
        """Targets (..., D, *positions) in standard units."""
        wide = [*self.center.shape, *[1] * (target.dim() - max(self.center.dim(), 2))]
        return (target - self.center.to(target.device).reshape(wide)) / self.spread.to(target.device).reshape(wide)
