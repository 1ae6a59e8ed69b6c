"""Files of rows, read by the names of their columns and a part at a time: npz, parquet and csv."""

from __future__ import annotations

import os
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitpoint.datasets.arrays import package
from splitpoint.errors import DataError

Numbers = NDArray[Any]
"""Floating-point or whole numbers with rows on the first axis; NaN where a value is missing."""

BLOCK = 1 << 22
"""Bytes of a csv file that are read at a time."""

EMPTY = ("", "NA", "N/A", "NaN", "nan", "NULL", "null", "None")
"""What stands for a missing number in a csv file; of other columns only an empty cell does."""


class Part(ABC):
    """Some rows of a table, one after the other.

    Attributes:
        first: number of the first of them in the table, from 0.
        rows: how many there are.
    """

    def __init__(self, table: Table, first: int, rows: int) -> None:
        self.table, self.first, self.rows = table, first, rows

    @abstractmethod
    def numbers(self, name: str) -> Numbers:
        """The numbers of a column (rows, ...); an error where it holds anything else."""

    @abstractmethod
    def labels(self, name: str) -> list[Any]:
        """The values of a column, None where one is missing."""

    def copied(self, name: str) -> Any:
        """A column as it is, for a file that is written."""
        return self.labels(name)

    def no_numbers(self, name: str, found: str) -> DataError:
        """The error that says that a column holds something else."""
        return DataError(
            f"Expected numbers in column {name!r} of {self.table.path}, but it holds {found}; encode it as for the "
            "training of the model, or name other columns with --features and --target."
        )


class Table(ABC):
    """A file of rows.

    Attributes:
        path: of the file.
        names: of its columns, in order.
        rows: how many there are; None where that is known only at the end.
    """

    path: Path
    names: tuple[str, ...]
    rows: int | None

    @abstractmethod
    def parts(self, names: Sequence[str], size: int) -> Iterator[Part]:
        """The rows of some columns in order, at most `size` at a time."""

    def beginning(self, names: Sequence[str], size: int) -> Part:
        """The first rows; an error where there are none."""
        for part in self.parts(names, size):
            return part
        raise DataError(f"Expected rows in {self.path}, but there are none; give a file with at least one row.")

    def matrices(self) -> tuple[str, ...]:
        """Columns that hold several numbers for a row, such as an image."""
        return ()


def open_table(path: str | os.PathLike[str]) -> Table:
    """The table in a file, by the ending of its name."""
    path = Path(path)
    if not path.exists():
        raise DataError(f"Expected a file of rows, but {path} does not exist; check the path.")
    kinds: dict[str, Callable[[Path], Table]] = {".npz": Arrays, ".parquet": Parquet, ".pq": Parquet, ".csv": Csv}
    kind = kinds.get(path.suffix.lower())
    if kind is None or not path.is_file():
        raise DataError(
            f"Expected rows in a file .npz, .parquet or .csv, or a folder of images, but got {path}; convert it to one."
        )
    return kind(path)


# NumPy


class Arrays(Table):
    """Arrays of equal length by name, as `numpy.savez` writes them; a file that is not compressed saves time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with np.load(path, allow_pickle=False) as file:
                self.arrays: dict[str, Numbers] = {name: file[name] for name in file.files}
        except (OSError, ValueError, zipfile.BadZipFile, EOFError, KeyError) as error:
            raise DataError(
                f"Expected arrays of numbers or text written by numpy.savez, but {path} cannot be read ({error})."
            ) from error
        flat = [name for name, array in self.arrays.items() if not array.ndim]
        counts = {len(array) for array in self.arrays.values() if array.ndim}
        if flat or len(counts) != 1:
            lengths = ", ".join(f"{name} {array.shape}" for name, array in self.arrays.items()) or "none"
            raise DataError(f"Expected arrays with a row each for every row of the data, but {path} has {lengths}.")
        self.names, self.rows = tuple(self.arrays), counts.pop()

    def parts(self, names: Sequence[str], size: int) -> Iterator[Part]:
        """See `Table`."""
        for start in range(0, self.rows or 0, size):
            yield ArrayPart(self, start, {name: self.arrays[name][start : start + size] for name in names})

    def matrices(self) -> tuple[str, ...]:
        """See `Table`."""
        return tuple(name for name, array in self.arrays.items() if array.ndim > 1)


class ArrayPart(Part):
    """Some rows of arrays."""

    def __init__(self, table: Arrays, first: int, arrays: dict[str, Numbers]) -> None:
        super().__init__(table, first, len(next(iter(arrays.values()))) if arrays else 0)
        self.arrays = arrays

    def numbers(self, name: str) -> Numbers:
        """See `Part`."""
        array = self.arrays[name]
        if array.dtype.kind not in "biuf":
            raise self.no_numbers(name, "text" if array.dtype.kind in "US" else str(array.dtype))
        return array

    def labels(self, name: str) -> list[Any]:
        """See `Part`."""
        array = self.arrays[name]
        if array.ndim > 1 and array.size != len(array):
            raise DataError(
                f"Expected one value for each row in {name!r} of {self.table.path}, but its shape is "
                f"{(self.table.rows, *array.shape[1:])}; give class numbers, not one column for each class."
            )
        flat = array.reshape(len(array)).astype(str) if array.dtype.kind == "S" else array.reshape(len(array))
        return [None if value != value or value == "" else value for value in flat.tolist()]


# Parquet and csv


class Arrow(Table):
    """A file that Arrow reads in batches."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.arrow = package("pyarrow", "reads and writes parquet and csv files", "tables")
        self.names, self.rows = self._head()
        twice = sorted({name for name in self.names if self.names.count(name) > 1})
        if twice:
            raise DataError(f"Expected a name of its own for each column, but {path} has {', '.join(twice)} twice.")

    @abstractmethod
    def _head(self) -> tuple[tuple[str, ...], int | None]:
        """Names of the columns, and how many rows there are if the file says so."""

    @abstractmethod
    def _batches(self, names: Sequence[str], size: int) -> Iterator[Any]:
        """Record batches of the columns, at most about `size` rows each."""

    @abstractmethod
    def number_column(self, part: ArrowPart, name: str) -> Any:
        """A column as an array of numbers, nulls where one is missing."""

    def parts(self, names: Sequence[str], size: int) -> Iterator[Part]:
        """See `Table`."""
        first = 0
        try:
            for batch in self._batches(names, size):
                for start in range(0, batch.num_rows, size):
                    part = ArrowPart(self, first, batch.slice(start, size))
                    first += part.rows
                    yield part
        except self.arrow.ArrowException as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> DataError:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        return DataError(f"Expected a whole {self.path.suffix[1:]} file, but {self.path} cannot be read: {reason}.")


class ArrowPart(Part):
    """Some rows of a record batch."""

    def __init__(self, table: Arrow, first: int, batch: Any) -> None:
        super().__init__(table, first, batch.num_rows)
        self.arrow, self.batch, self.of = table.arrow, batch, table

    def numbers(self, name: str) -> Numbers:
        """See `Part`."""
        found: Numbers = self.of.number_column(self, name).cast(self.arrow.float64()).to_numpy(zero_copy_only=False)
        return found

    def labels(self, name: str) -> list[Any]:
        """See `Part`."""
        return [
            None if value is None or value != value or value == "" else value for value in self.column(name).to_pylist()
        ]

    def copied(self, name: str) -> Any:
        """See `Part`."""
        return self.column(name)

    def column(self, name: str) -> Any:
        """The column, of which a dictionary's entries are written out."""
        column = self.batch.column(self.batch.schema.get_field_index(name))
        return column.dictionary_decode() if self.arrow.types.is_dictionary(column.type) else column


class Parquet(Arrow):
    """A parquet file, whose columns have types."""

    def _head(self) -> tuple[tuple[str, ...], int | None]:
        try:
            with self._file() as file:
                return tuple(file.schema_arrow.names), int(file.metadata.num_rows)
        except (self.arrow.ArrowException, OSError) as error:
            raise self._unreadable(error) from error

    def _file(self) -> Any:
        parquet = package("pyarrow.parquet", "reads and writes parquet files", "tables")
        return parquet.ParquetFile(self.path, memory_map=False, pre_buffer=False)

    def _batches(self, names: Sequence[str], size: int) -> Iterator[Any]:
        with self._file() as file:
            yield from file.iter_batches(batch_size=size, columns=list(names), use_threads=False)

    def number_column(self, part: ArrowPart, name: str) -> Any:
        """See `Arrow`."""
        column, types = part.column(name), self.arrow.types
        known = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
        if not any(kind(column.type) for kind in known):
            raise part.no_numbers(name, "text" if types.is_string(column.type) else str(column.type))
        return column


class Csv(Arrow):
    """A csv file with a line of names and commas: all columns are text until somebody asks for numbers."""

    def _head(self) -> tuple[tuple[str, ...], int | None]:
        csv = package("pyarrow.csv", "reads and writes csv files", "tables")
        try:
            with csv.open_csv(self.path, read_options=csv.ReadOptions(block_size=BLOCK)) as file:
                names = tuple(file.schema.names)
        except (self.arrow.ArrowException, OSError) as error:
            raise self._unreadable(error) from error
        for separator, called in ((";", "semicolons"), ("\t", "tabs")):
            if len(names) == 1 and separator in names[0]:
                raise DataError(
                    f"Expected a csv file with commas, but the columns of {self.path} are apart by {called}."
                )
        return names, None

    def _batches(self, names: Sequence[str], size: int) -> Iterator[Any]:  # noqa: ARG002
        csv, text = package("pyarrow.csv", "reads and writes csv files", "tables"), self.arrow.string()
        convert = csv.ConvertOptions(
            include_columns=list(names), column_types=dict.fromkeys(names, text), strings_can_be_null=False
        )
        read = csv.ReadOptions(block_size=BLOCK, use_threads=False)
        with csv.open_csv(self.path, read_options=read, convert_options=convert) as file:
            yield from file

    def number_column(self, part: ArrowPart, name: str) -> Any:
        """See `Arrow`; ``true`` and ``false`` are 1 and 0."""
        compute = package("pyarrow.compute", "reads and writes csv files", "tables")
        text = compute.utf8_trim_whitespace(part.column(name))
        missing = compute.is_in(text, value_set=self.arrow.array(EMPTY))
        words = compute.replace_substring_regex(compute.utf8_lower(text), "^true$", "1")
        words = compute.replace_substring_regex(words, "^false$", "0")
        try:
            return compute.if_else(missing, self.arrow.scalar(None, self.arrow.string()), words).cast(
                self.arrow.float64()
            )
        except self.arrow.ArrowInvalid as error:
            wrong = next((word for word in text.to_pylist() if not _is_number(word)), str(error))
            raise part.no_numbers(name, f"text such as {wrong!r}") from error


def _is_number(word: str) -> bool:
    try:
        float(word.replace("_", "?"))
    except ValueError:
        return word in EMPTY or word.lower() in ("true", "false")
    return True
