"""The raw files of the UCI sets, as their sources publish them, turned into the arrays that `uci` reads.

A source may hold the rows several times (the power plant's workbook has five sheets with the rows shuffled), so reading
gives candidates, and whoever verifies them takes the one that is right.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitpoint.datasets.packages import package
from splitpoint.datasets.uci import Arrays, table
from splitpoint.errors import DataError, SplitPointError

Numbers = NDArray[np.float64]


def _words(content: bytes) -> list[Numbers]:
    """Numbers between blanks, one row per line."""
    return [np.loadtxt(io.BytesIO(content), ndmin=2)]


def _commas(content: bytes) -> list[Numbers]:
    """Numbers between commas below one line of names."""
    return [np.loadtxt(io.BytesIO(content), delimiter=",", skiprows=1, ndmin=2)]


def _semicolons(content: bytes) -> list[Numbers]:
    """Numbers between semicolons below one line of names."""
    return [np.loadtxt(io.BytesIO(content), delimiter=";", skiprows=1, ndmin=2)]


def _statlib(content: bytes) -> list[Numbers]:
    """StatLib's Boston file: 22 lines of text, then 14 numbers per row over two lines."""
    numbers = b" ".join(content.splitlines()[22:]).split()
    return [np.array(numbers, dtype=np.float64).reshape(-1, 14)]


def _arff(content: bytes) -> list[Numbers]:
    """Numbers between commas below a line ``@data``."""
    lines = content.decode("latin-1").splitlines()
    begin = next(i for i, line in enumerate(lines) if line.strip().lower() == "@data")
    return [np.loadtxt(lines[begin + 1 :], delimiter=",", comments="%", ndmin=2)]


def _xlsx(content: bytes) -> list[Numbers]:
    """The sheets of an Excel workbook, rows of numbers alone."""
    book = _excel("openpyxl").load_workbook(io.BytesIO(content), read_only=True, data_only=True)
    sheets = [_numbers(sheet.iter_rows(values_only=True)) for sheet in book.worksheets]
    book.close()
    return [sheet for sheet in sheets if len(sheet)]


def _xls(content: bytes) -> list[Numbers]:
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


@dataclass(frozen=True)
class Raw:
    """How a raw file is read: its name in the archive (empty without an archive), reader and columns.

    The target is column `target`, the features those after it (target 0) or before it; further targets follow it.
    `decimals` are those that features and target are rounded to, half up, where the customary file has fewer of them.
    """

    member: str
    read: Callable[[bytes], list[Numbers]]
    target: int
    decimals: tuple[int | None, int | None] = (None, None)


RAW: dict[str, Raw] = {
    "boston": Raw("", _statlib, 13),
    "concrete": Raw("Concrete_Data.xls", _xls, 8, (1, 2)),
    "energy": Raw("ENB2012_data.xlsx", _xlsx, 8, (None, 2)),
    "kin8nm": Raw("", _arff, 8),
    "naval": Raw("data.txt", _words, 16),
    "power": Raw("Folds5x2_pp.xlsx", _xlsx, 4),
    "protein": Raw("CASP.csv", _commas, 0),
    "wine": Raw("winequality-red.csv", _semicolons, 11),
    "yacht": Raw("yacht_hydrodynamics.data", _words, 6),
}
"""How each set is read."""


def require(name: str) -> None:
    """Complain about a missing package before anything is downloaded."""
    reader = RAW[name].read
    if reader in (_xlsx, _xls):
        _excel("openpyxl" if reader is _xlsx else "xlrd")


def candidates(name: str, path: Path) -> Iterator[Arrays]:
    """Arrays of the set `name` from its raw file, as often as the file holds them; DataError if it is none such."""
    raw, targets = RAW[name], len(table(name).targets)
    try:
        tables = raw.read(_content(path, raw.member))
    except SplitPointError:
        raise
    except Exception as error:  # the packages that read Excel files raise whatever comes to their mind
        raise DataError(
            f"Expected {path.name} to be the raw file of {name}, but it cannot be read as such ({error}); "
            "its source may have changed."
        ) from error
    for rows in tables:
        if rows.shape[1:] == (table(name).features + targets,):
            y_all = rows[:, raw.target : raw.target + targets]
            x = np.delete(rows, range(raw.target, raw.target + targets), axis=1)
            arrays = {"X": _rounded(x, raw.decimals[0]), "y": _rounded(y_all[:, 0], raw.decimals[1])}
            yield arrays | ({"y_all": y_all} if targets > 1 else {})


def _content(path: Path, member: str) -> bytes:
    """The raw file, taken out of its archive wherever it lies in there."""
    if not member:
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        found = [name for name in archive.namelist() if name.rpartition("/")[2] == member]
        if not found:
            raise DataError(
                f"Expected {path.name} to hold {member}, but it holds {', '.join(archive.namelist()) or 'nothing'}; "
                "its source may have changed."
            )
        return archive.read(found[0])


def _rounded(values: Numbers, decimals: int | None) -> Numbers:
    """Rounded half up, as Excel shows numbers; the small term undoes that most decimals are no binary fractions."""
    return values if decimals is None else np.floor(values * 10**decimals + 0.5 + 1e-9) / 10**decimals
