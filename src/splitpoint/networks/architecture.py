"""Where the layers of a network are and how its output is shaped: found once, on its answer to a first batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from splitpoint.batches import Batch
from splitpoint.errors import ShapeError
from splitpoint.features import open_tap
from splitpoint.hooks import INPUT, Watched
from splitpoint.layout import Layout
from splitpoint.networks.surgery import weight_layers
from splitpoint.tasks import Task


@dataclass(frozen=True)
class Architecture:
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
    def of(network: nn.Module, batch: Batch, output_key: str | int | None, squeezable: int) -> Architecture:
        """Read it off a network and a batch; see `Layout.infer`."""
        tap, (output, features, *_) = open_tap(network, None, batch, output_key)
        last = [tap.channels_last(place, value.dim()) for place, value in enumerate(features)]
        layout = Layout.infer(features, last, output, squeezable)
        name = tap.names[-1].partition(INPUT)[0]
        with torch.no_grad():
            _, (recorder,), _ = Watched(network, [(name, None)])(batch.args, batch.kwargs)
        found = recorder.value
        direct = found is not None and torch.equal(found.flatten().sort().values, output.flatten().sort().values)
        return Architecture(
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

    def targets(self, task: Task, target: Tensor, *, known: bool = False) -> Tensor:
        """Targets (N, ...) in canonical form, see `Task.plain`; those that are `known` to be sound are not checked."""
        return task.plain(self.layout, self.tail, self.outputs, target, known=known)
