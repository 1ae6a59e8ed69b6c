"""A table as batches for `fit`, `predict` and `verdict`, which can be read any number of times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from splitpoint.commands.columns import Columns
from splitpoint.commands.folders import ImageFolder, ImagePart
from splitpoint.commands.tables import Table
from splitpoint.errors import DataError


@dataclass(frozen=True)
class Batches:
    """Batches (x, y) of a table, or (x,) where the columns have no targets; one of them is in memory at a time.

    Attributes:
        table: the file.
        columns: what is read of it.
        size: rows of a batch.
    """

    table: Table
    columns: Columns
    size: int

    def __post_init__(self) -> None:
        self.columns.check(self.table, targets=True)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        columns = self.columns
        for part in self.table.parts([*columns.features, *columns.targets], self.size):
            inputs = columns.inputs(part)
            yield (inputs, columns.wanted(part)) if columns.targets else (inputs,)

    def whole(self) -> Any:
        """Rows in memory, or single images: where rows can be picked, `fit` finds out more than in a stream."""
        if isinstance(self.table, ImageFolder):
            return Images(self.table, self.columns)
        batches = list(self)
        if not batches:
            raise DataError(f"Expected rows in {self.table.path}, but there are none; give at least two.")
        return tuple(map(torch.cat, zip(*batches, strict=True)))


class Images(Dataset[tuple[Tensor, Tensor]]):
    """Images of a folder and their classes, decoded when they are asked for."""

    def __init__(self, folder: ImageFolder, columns: Columns) -> None:
        self.folder, self.columns = folder, columns
        self.targets = columns.wanted(ImagePart(folder, 0, folder.rows))

    def __len__(self) -> int:
        return self.folder.rows

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return self.columns.inputs(ImagePart(self.folder, number, 1))[0], self.targets[number]
