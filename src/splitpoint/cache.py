"""Tables of recorded rows, in memory or in files that are read as needed; their moments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from splitpoint.tasks import ColumnName, Rows

WINDOW_BYTES = 64 * 2**20
SLICE_BYTES = 48 * 2**20


class Column(Protocol):
    """Rows of one quantity, readable in slices."""

    def read(self, start: int, stop: int) -> Tensor:
        """Rows from `start` to `stop` as a tensor of their own."""
        ...


@dataclass(frozen=True)
class MemoryColumn:
    """A column in memory."""

    values: Tensor

    def read(self, start: int, stop: int) -> Tensor:
        """Rows from `start` to `stop`, a view."""
        return self.values[start:stop]


@dataclass(frozen=True)
class DiskColumn:
    """A column in a raw binary file, mapped into memory for each read, so that pages are given back at once."""

    path: Path
    width: int
    dtype: str

    def read(self, start: int, stop: int) -> Tensor:
        """Rows from `start` to `stop`, copied."""
        offset = start * self.width * np.dtype(self.dtype).itemsize
        mapped = np.memmap(self.path, self.dtype, "r", offset, (stop - start, self.width))
        return torch.from_numpy(np.array(mapped))


@dataclass(frozen=True)
class Table:
    """Rows for training: columns of equal length.

    Attributes:
        columns: by name.
        rows: number of rows.
        window: rows that are held in memory at a time.
        dense: whether the rows are positions of maps or sequences.
    """

    columns: Mapping[ColumnName, Column]
    rows: int
    window: int
    dense: bool = False

    @staticmethod
    def in_memory(values: Rows, dense: bool = False) -> Table:
        """A table of tensors; one window holds everything."""
        rows = len(next(iter(values.values())))
        return Table({name: MemoryColumn(value) for name, value in values.items()}, rows, max(rows, 1), dense)

    def width(self, name: ColumnName) -> int:
        """Width of a column."""
        return self.columns[name].read(0, 1).shape[1]

    def column(self, name: ColumnName) -> Tensor:
        """A whole column."""
        return self.columns[name].read(0, self.rows)

    def groups(self) -> Tensor | None:
        """(rows,) numbers from 0 of the groups that rows belong to; None where each stands for itself."""
        if "group" not in self.columns:
            return None
        found: Tensor = self.column("group")[:, 0].unique(return_inverse=True)[1]
        return found

    def joined(self, more: Rows) -> Table:
        """A table with further columns, which are kept in memory."""
        added: dict[ColumnName, Column] = {name: MemoryColumn(values) for name, values in more.items()}
        return replace(self, columns={**self.columns, **added})

    def whole(self) -> Rows:
        """All rows at once."""
        return self._read(0, self.rows)

    def without(self, name: ColumnName) -> Table:
        """A table without a column."""
        return replace(self, columns={key: column for key, column in self.columns.items() if key != name})

    def slices(self, rows: int | None = None) -> Iterator[Rows]:
        """All rows in order, `rows` or about 48 MiB at a time."""
        row_bytes = sum(value.numel() * value.element_size() for value in self._read(0, 1).values())
        rows = rows or max(256, SLICE_BYTES // max(row_bytes, 1))
        for start in range(0, self.rows, rows):
            yield self._read(start, start + rows)

    def windows(self, generator: torch.Generator) -> Iterator[tuple[int, Rows]]:
        """First row and rows of windows as large as may be held in memory, in random order of windows."""
        starts = torch.arange(0, self.rows, self.window)
        for start in starts[torch.randperm(len(starts), generator=generator)].tolist():
            yield start, self._read(start, start + self.window)

    def _read(self, start: int, stop: int) -> Rows:
        return {name: column.read(start, min(stop, self.rows)) for name, column in self.columns.items()}


class Moments:
    """Counts, means and squared deviations of columns that come in parts; NaN entries do not count.

    Parts are joined by the update of Chan, Golub and LeVeque (1979), in float64.

    Attributes:
        count: (C,) entries so far.
        mean: (C,) of them.
        scatter: (C,) sums of their squared deviations from the mean.
    """

    def __init__(self, parts: Iterable[Tensor]) -> None:
        self.count, self.mean, self.scatter = (torch.zeros((), dtype=torch.float64) for _ in range(3))
        for part in parts:
            self._add(part.double())

    def _add(self, rows: Tensor) -> None:
        """Join with further rows (N, C)."""
        seen = (~rows.isnan()).sum(0).double()
        here = rows.nansum(0) / seen.clamp(min=1)
        joint = (self.count + seen).clamp(min=1)
        shift = here - self.mean
        spread = (rows - here).square().nansum(0)
        self.scatter = self.scatter + spread + shift.square() * self.count * seen / joint
        self.mean, self.count = self.mean + shift * seen / joint, self.count + seen

    @property
    def deviation(self) -> Tensor:
        """(C,) square root of the mean squared deviation."""
        return (self.scatter / self.count.clamp(min=1)).sqrt()

    @property
    def constant(self) -> Tensor:
        """(C,) whether a column never moved by more than what rounding does, whatever the units of the columns.

        Rounding is ``1e-7`` of the mean's size, and of 1, or of what columns usually measure where that is less.
        """
        sizes = self.mean.abs() + self.deviation
        usual = sizes[sizes > 0].median().clamp(max=1) if bool((sizes > 0).any()) else 1.0
        return self.deviation <= 1e-7 * (usual + self.mean.abs())


def feature_moments(table: Table) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (C,) of the features; a constant feature has deviation 1."""
    found = Moments(part["features"] for part in table.slices())
    return found.mean.float(), torch.where(found.constant, 1.0, found.deviation).float()
