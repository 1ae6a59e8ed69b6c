"""What is kept of one batch: features, outputs and targets of its rows, or of positions drawn from its maps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from splitpoint.errors import DataError
from splitpoint.features import Reading
from splitpoint.layout import Layout
from splitpoint.tasks import Rows, Task


@dataclass(frozen=True)
class Columns:
    """Columns of a batch in canonical form, (N, M) or (N, M, P), and which rows and positions have a target."""

    values: Rows
    valid: Tensor

    def rows(self) -> Rows:
        """The rows that have a target."""
        return {name: values[self.valid].cpu() for name, values in self.values.items()}

    def drawn(self, positions: int, number: int, features: Callable[[Tensor], Tensor] | None = None) -> Rows:
        """Rows at some positions of every map that have a target, drawn at random by the `number` of the batch.

        Args:
            positions: most positions of a map.
            number: of the batch.
            features: those (N, C, K) at some positions (N, K), so that no others are ever worked out.
        """
        generator = torch.Generator().manual_seed(number)
        draws = torch.rand(self.valid.shape, generator=generator, dtype=torch.float32).to(self.valid.device)
        keys, chosen = (draws + 2 * ~self.valid).topk(min(positions, draws.shape[1]), largest=False)
        kept = (keys < 2).flatten()
        found: Rows = {} if features is None else {"features": features(chosen)}
        for name, values in self.values.items():
            found[name] = values.gather(2, chosen.unsqueeze(1).expand(-1, values.shape[1], -1))
        return {name: values.movedim(1, 2).flatten(0, 1)[kept].cpu() for name, values in found.items()}


def columns_of(layout: Layout, reading: Reading, target: Tensor, task: Task, owners: Tensor | None = None) -> Columns:
    """What the task keeps of outputs and targets, features of rows, and groups (N,) of rows that are in groups.

    An error where a number is not finite.
    """
    if not torch.isfinite(reading.output).all():
        raise DataError(
            "Expected finite outputs of the base model, but got NaN or inf; check the model and its inputs."
        )
    targets = task.targets(layout, reading.output, target)
    read: Rows = {} if layout.dense else {"features": layout.features(reading.features)}
    if reading.context is not None:
        read["context"] = reading.context
    for values in reading.features if layout.dense else read.values():
        checked(values)
    if owners is not None:
        valid = targets.valid.unsqueeze(1)
        read["group"] = owners.to(valid.device).reshape(-1, *[1] * (valid.dim() - 1)).expand_as(valid)
    return Columns({**read, **targets.columns}, targets.valid)


def checked(features: Tensor) -> Tensor:
    """The same, or an error where a number is not finite."""
    if not torch.isfinite(features).all():
        raise DataError("Expected finite features, but got NaN or inf; check the inputs or choose another layer.")
    return features


def vectors_of(layout: Layout, reading: Reading) -> list[Tensor]:
    """What tells of every image or sequence as a whole: a vector (N, W) a layer, the last one's at the end."""
    return [*reading.stages, *layout.bands(reading.features)]


def rows_of(
    layout: Layout,
    reading: Reading,
    target: Tensor | None,
    task: Task,
    positions: int,
    number: int,
    owners: Tensor | None = None,
) -> Rows:
    """Columns of the rows (and, where dense, of some positions) of one batch that have a target.

    Args:
        layout: how features and output are shaped.
        reading: what the tap recorded.
        target: as the data have it, which must be there.
        task: how outputs and targets are read.
        positions: most positions kept of one row of a dense output.
        number: of the batch; positions of dense outputs are drawn by it.
        owners: (N,) numbers of the groups that its rows belong to, if they belong to any.
    """
    assert target is not None
    columns = columns_of(layout, reading, target, task, owners)
    if not layout.dense:
        return columns.rows()
    columns.values["place"] = layout.places(reading.output).float().expand(len(reading.output), -1, -1)
    return columns.drawn(positions, number, lambda at: layout.at(reading.features, reading.output, at))
