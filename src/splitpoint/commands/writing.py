"""Parquet and csv files that are written a few rows at a time."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from splitpoint.datasets.arrays import package

GROUP = 65_536
"""Rows that are written at once, as a group of a parquet file."""


class RowFile:
    """A file of rows, opened by the first of them; the ending of its name says which kind it is.

    Attributes:
        rows: how many were added.
        columns: how many numbers and words a row has.
    """

    def __init__(self, path: Path, ending: str) -> None:
        self.path, self.ending = path, ending
        self.arrow = package("pyarrow", "reads and writes parquet and csv files", "tables")
        self.rows, self.columns = 0, 0
        self._writer: Any = None
        self._waiting: list[Any] = []

    def __enter__(self) -> RowFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._write()
        finally:
            if self._writer is not None:
                self._writer.close()

    def add(self, columns: dict[str, Any]) -> None:
        """Rows as columns by name."""
        table = self.arrow.table(columns)
        if self._writer is None and not self._waiting:
            self._open(table.schema)
        self.rows, self.columns = self.rows + table.num_rows, table.num_columns
        self._waiting.append(table)
        if sum(part.num_rows for part in self._waiting) >= GROUP:
            self._write()

    def _open(self, schema: Any) -> None:
        if self.ending == ".csv":
            csv = package("pyarrow.csv", "reads and writes csv files", "tables")
            self._writer = csv.CSVWriter(self.path, schema)
        else:
            parquet = package("pyarrow.parquet", "reads and writes parquet files", "tables")
            self._writer = parquet.ParquetWriter(self.path, schema)

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(self.arrow.concat_tables(self._waiting))
            self._waiting = []
