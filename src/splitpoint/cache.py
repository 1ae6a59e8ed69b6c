"""Tables of recorded rows, in memory or in a directory: written once, resumable, refused when stale; their moments."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from splitpoint.errors import CacheError
from splitpoint.files import write_text
from splitpoint.tasks import ColumnName, Rows

WINDOW_BYTES = 64 * 2**20
SLICE_BYTES = 48 * 2**20
FORMAT = 1


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


@dataclass
class DiskTable:
    """A directory that takes recorded batches and becomes a `Table`.

    A journal holds one line for each batch that is safely written: its number of rows and the fingerprint of its
    inputs. A later run skips these batches without running the model, and refuses the directory when the model,
    the settings or the data are others.

    Attributes:
        directory: where the files are.
        identity: what the rows depend on; must be the same for every run that uses the directory.
        meta: facts found on the first batch (columns, layer, layout), None before it.
    """

    directory: Path
    identity: dict[str, Any]
    meta: dict[str, Any] | None = None
    journal: list[dict[str, Any]] = field(default_factory=list)
    position: int = 0

    @staticmethod
    def open(directory: Path, identity: dict[str, Any]) -> DiskTable:
        """Open or create `directory`; a CacheError says how it differs from `identity`."""
        table = DiskTable(directory, identity)
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise CacheError(f"Expected a directory for the cache, but {directory} is a file; name another.") from error
        if not table._meta_path.exists():
            return table
        try:
            saved = json.loads(table._meta_path.read_text())
            found, table.meta = saved["identity"], saved["meta"]
            if saved["format"] != FORMAT:
                raise CacheError(
                    f"Expected a feature cache of format {FORMAT} in {directory}, but got {saved['format']}."
                )
            table.journal = _read_journal(table._journal_path)
        except (ValueError, KeyError, TypeError, OSError) as error:
            if isinstance(error, CacheError):
                raise
            raise CacheError(f"Expected a feature cache in {directory}, but it is damaged; delete it.") from error
        changed = sorted(key for key in identity if found.get(key) != identity[key])
        if changed:
            raise CacheError(
                f"Expected a feature cache of the same {' and '.join(changed)}, but {directory} was recorded with "
                "another; delete it or name another directory."
            )
        table._drop_unfinished()
        return table

    @property
    def _meta_path(self) -> Path:
        return self.directory / "meta.json"

    @property
    def _journal_path(self) -> Path:
        return self.directory / "journal.jsonl"

    def start(self, meta: dict[str, Any]) -> None:
        """Write down what the first batch showed; `meta["columns"]` maps names to (width, dtype)."""
        self.meta = meta
        text = json.dumps({"format": FORMAT, "identity": self.identity, "meta": meta})
        write_text(self._meta_path, text)

    def holds(self, fingerprint: str) -> bool:
        """Whether the next batch is already written; moves on to the batch after it."""
        position, self.position = self.position, self.position + 1
        if position >= len(self.journal):
            return False
        if self.journal[position]["digest"] != fingerprint:
            raise CacheError(
                f"Expected the data that {self.directory} was recorded from, but batch {position} differs (shuffled, "
                "augmented or other data?); pass the data in the same order, or delete the cache."
            )
        return True

    def append(self, columns: Rows, fingerprint: str) -> None:
        """Write the rows of one batch, then its line in the journal."""
        for name, values in columns.items():
            with open(self.directory / f"{name}.bin", "ab") as file:
                file.write(values.cpu().contiguous().numpy().tobytes())
        entry = {"rows": len(next(iter(columns.values()))), "digest": fingerprint}
        with open(self._journal_path, "a") as file:
            file.write(json.dumps(entry) + "\n")
        self.journal.append(entry)

    def finish(self, dense: bool = False) -> Table:
        """The table, once every batch has been seen; `context`, which no head learns from, has no part in a window."""
        if self.position < len(self.journal):
            raise CacheError(
                f"Expected {len(self.journal)} batches as recorded in {self.directory}, but the data ended after "
                f"{self.position}; pass the same data or delete the cache."
            )
        columns = self._columns()
        learned = [column for name, column in columns.items() if name != "context"]
        row_bytes = sum(column.width * np.dtype(column.dtype).itemsize for column in learned)
        window = max(1024, WINDOW_BYTES // max(row_bytes, 1))
        return Table(columns, sum(entry["rows"] for entry in self.journal), window, dense)

    def _columns(self) -> dict[ColumnName, DiskColumn]:
        described = {} if self.meta is None else self.meta["columns"]
        return {
            cast(ColumnName, name): DiskColumn(self.directory / f"{name}.bin", int(width), str(dtype))
            for name, (width, dtype) in described.items()
        }

    def _drop_unfinished(self) -> None:
        """Cut the files back to what the journal vouches for, after a run that was killed while writing."""
        rows = sum(entry["rows"] for entry in self.journal)
        for column in self._columns().values():
            wanted = rows * column.width * np.dtype(column.dtype).itemsize
            size = column.path.stat().st_size if column.path.exists() else 0
            if size < wanted:
                raise CacheError(f"Expected {wanted} bytes in {column.path}, but got {size}; delete the cache.")
            if size > wanted:
                os.truncate(column.path, wanted)
        self._journal_path.write_text("".join(json.dumps(entry) + "\n" for entry in self.journal))


class Collector:
    """Rows that come batch by batch, kept in memory or in a directory, which skips what it holds already.

    Args:
        directory: where they are kept; None for in memory.
        identity: see `DiskTable`.
    """

    def __init__(self, directory: Path | None, identity: dict[str, Any]) -> None:
        self.disk = None if directory is None else DiskTable.open(directory, identity)
        self.parts: list[Rows] = []
        self.held = False

    @property
    def rows(self) -> int:
        """Number of rows so far."""
        return sum(e["rows"] for e in self.disk.journal) if self.disk else sum(_length(part) for part in self.parts)

    def holds(self, fingerprint: str) -> bool:
        """Whether the next batch is there already; moves on to the batch after it."""
        self.held = self.disk is not None and self.disk.holds(fingerprint)
        return self.held

    def add(self, rows: Rows, fingerprint: str, facts: dict[str, Any]) -> None:
        """Keep the rows of a batch that is not there; the facts beside those of the first one."""
        if self.held:
            return
        if self.disk is None:
            self.parts.append(rows)
            return
        if self.disk.meta is None:
            columns = {name: (own.shape[1], str(own.dtype).removeprefix("torch.")) for name, own in rows.items()}
            self.disk.start({"columns": columns, **facts})
        self.disk.append(rows, fingerprint)

    def finish(self, dense: bool = False) -> Table:
        """The table, once every batch has been seen."""
        if self.disk is not None:
            return self.disk.finish(dense)
        names = list(self.parts[0])
        return Table.in_memory({name: torch.cat([part.pop(name) for part in self.parts]) for name in names}, dense)


def _length(rows: Rows) -> int:
    return len(next(iter(rows.values())))


def _read_journal(path: Path) -> list[dict[str, Any]]:
    """Complete lines of the journal; a last line that was cut short by a kill does not count."""
    lines = path.read_text().split("\n") if path.exists() else []
    return [json.loads(line) for line in lines[:-1]]
