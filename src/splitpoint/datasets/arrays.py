"""Files and arrays of data sets: read without unpickling, written whole or not at all, compared with checksums.

A checksum is a text ``kind:value``, such as ``md5:900150983cd24fb0d6963f7d28e17f72``.

The raw files of regression tables come in a few formats. Each reader takes the bytes of such a file and returns the
tables of numbers in it, one array (N, columns) each: a workbook may have several sheets.
"""

from __future__ import annotations

import hashlib
import importlib
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitpoint.datasets.bounded import DAMAGED, npz_arrays, unzipped_idx
from splitpoint.datasets.entry import Entry
from splitpoint.errors import DataError, SettingsError
from splitpoint.files import replacing

Numbers = NDArray[np.float64]
CHUNK = 1 << 20


def file_checksum(path: Path, kind: str) -> str:
    """Checksum of a file; `kind` is ``md5``, ``sha256`` or ``size`` (in bytes, where no hash was published)."""
    if kind == "size":
        return f"size:{path.stat().st_size}"
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return f"{kind}:{digest.hexdigest()}"


def file_matches(path: Path, checksum: str) -> bool:
    """Whether a file has the `checksum`."""
    return file_checksum(path, checksum.partition(":")[0]) == checksum


def array_checksum(array: NDArray[Any]) -> str:
    """SHA-256 of the values in C order and little-endian; memory layout and compression do not matter."""
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return f"sha256:{hashlib.sha256(plain.tobytes()).hexdigest()}"


def rows_checksum(columns: Sequence[Numbers]) -> str:
    """SHA-256 of the rows of a table in sorted order, so that the order of the rows does not matter.

    `columns` are arrays with one row per entry, (N,) or (N, D), set side by side.
    """
    table = np.column_stack(columns) + 0.0  # -0 becomes 0
    return array_checksum(table[np.lexsort(table.T[::-1])])


def read_npz(entry: Entry, path: Path, keys: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The arrays `keys` of a data set; DataError if the file does not hold them."""
    try:
        return npz_arrays(path, keys)
    except DAMAGED as error:
        raise DataError(
            f"Expected {path} to hold the arrays of {entry.name}, but they cannot be read; {entry.cure}."
        ) from error


def write_npz(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays, compressed, whole or not at all."""
    with replacing(path) as draft, draft.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # no array is called allow_pickle


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Bytes of an idx file: two zeros, type 8, number of axes, their lengths (big-endian), the values.

    A gzipped file is unpacked, another one mapped into memory.
    """
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        data = unzipped_idx(path) if zipped else np.memmap(path, np.uint8, "r")
        if data[:3].tobytes() != b"\0\0\x08":
            raise DataError("it begins otherwise")
        axes = int(data[3])
        shape = tuple(map(int, data[4 : 4 + 4 * axes].view(">u4")))
        if len(shape) != axes:
            raise DataError("it ends too early")
        return data[4 + 4 * axes :].reshape(shape)
    except DAMAGED as error:
        raise DataError(
            f"Expected {path.name} to be an idx file of bytes, gzipped or not, but it is not ({error})."
        ) from error


def package(module: str, purpose: str, extra: str) -> Any:
    """The imported `module`; a SettingsError says that it `purpose` (a clause) and which `extra` installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"Expected the package {module.partition('.')[0]}, which {purpose}, but it is missing; "
            f"install it with: pip install '.[{extra}]' in a checkout"
        ) from error


def present(entry: Entry, path: Path) -> Path:
    """`path`; DataError if there is no such file."""
    if not path.is_file():
        raise DataError(f"Expected {entry.name} to have a file {path.name}, but {path.parent} has none; {entry.cure}.")
    return path


def not_the_format(entry: Entry, path: Path, expected: str, got: str) -> DataError:
    """The error that says that a file of the set is something else."""
    return DataError(f"Expected {path} to hold {expected}, but {got}; {entry.cure}.")


# Raw files of tables


def separated(by: str | None = None, header: int = 0) -> Callable[[bytes], list[Numbers]]:
    """A reader of numbers between separators, blanks by default, one row per line below `header` lines of names."""
    return lambda content: [np.loadtxt(io.BytesIO(content), delimiter=by, skiprows=header, ndmin=2)]


def statlib_boston(content: bytes) -> list[Numbers]:
    """StatLib's Boston file: 22 lines of text, then 14 numbers per row over two lines."""
    numbers = b" ".join(content.splitlines()[22:]).split()
    return [np.array(numbers, dtype=np.float64).reshape(-1, 14)]


def arff(content: bytes) -> list[Numbers]:
    """Numbers between commas below a line ``@data``."""
    lines = content.decode("latin-1").splitlines()
    begin = next(i for i, line in enumerate(lines) if line.strip().lower() == "@data")
    return [np.loadtxt(lines[begin + 1 :], delimiter=",", comments="%", ndmin=2)]


def xlsx(content: bytes) -> list[Numbers]:
    """The sheets of an Excel workbook, rows of numbers alone."""
    book = _excel("openpyxl").load_workbook(io.BytesIO(content), read_only=True, data_only=True)
    sheets = [_numbers(sheet.iter_rows(values_only=True)) for sheet in book.worksheets]
    book.close()
    return [sheet for sheet in sheets if len(sheet)]


def xls(content: bytes) -> list[Numbers]:
    """The sheets of an Excel workbook of before 2007, rows of numbers alone."""
    book = _excel("xlrd").open_workbook(file_contents=content)
    sheets = [_numbers(sheet.row_values(row) for row in range(sheet.nrows)) for sheet in book.sheets()]
    return [sheet for sheet in sheets if len(sheet)]


def _numbers(rows: Iterable[Sequence[object]]) -> Numbers:
    """Rows whose cells are numbers, without empty cells; names above and blank rows below are left out."""
    kept = []
    for row in rows:
        cells = [cell for cell in row if cell is not None and cell != ""]
        if cells and all(isinstance(cell, int | float) for cell in cells):
            kept.append(cells)
    return np.array(kept, dtype=np.float64)


def _excel(module: str) -> Any:
    return package(module, "reads Excel files", "data")


def require_package(reader: Callable[[bytes], list[Numbers]]) -> None:
    """Complain about a package that `reader` needs and that is missing."""
    if reader in (xlsx, xls):
        _excel("openpyxl" if reader is xlsx else "xlrd")
