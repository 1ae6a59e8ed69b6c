"""Regression tables: read and checked to the last digit, split into training and test rows, standardised.

The tables are the nine UCI sets on which the paper reports intervals. Their files come from raw files as the sources
publish them; `candidates` turns one into arrays. A source may hold the rows several times (the power plant's workbook
has five sheets with the rows shuffled), so there are candidates, and whoever verifies them takes the one that is right.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from splitpoint.datasets.arrays import Numbers, array_checksum, read_npz, rows_checksum
from splitpoint.datasets.bounded import check_member
from splitpoint.datasets.entry import TableEntry, command_for, find
from splitpoint.datasets.registry import TABLES
from splitpoint.errors import DataError, SettingsError, SplitPointError

MOST_RAW = 2**30
"""Bytes of the raw file of a table, at most."""

Arrays = Mapping[str, Numbers]


@dataclass(frozen=True)
class Tabular:
    """A regression set: features `X` (N, D) and one target `y` (N, 1), in float64 and in the units of the source.

    `reordered` says that the rows are the right ones in another order than the customary one, so that seeds and stored
    row numbers give other splits than they gave elsewhere.
    """

    X: Tensor
    y: Tensor
    name: str
    target: str
    reordered: bool = False


def load(name: str, target: str | None = None) -> Tabular:
    """Read a table of `SETS` from the folders of SPLITPOINT_DATA and verify it.

    `target` is one of the names in its entry, the first by default: energy has heating and cooling, naval compressor
    and turbine. The customary first target of energy is rounded to two decimals. A set that is missing or not what it
    should be is a DataError that says how to get it.
    """
    if name not in TABLES:
        raise SettingsError(f"Expected a UCI set among {', '.join(TABLES)}, but got {name!r}.")
    entry = TABLES[name]
    target = entry.targets[0] if target is None else target
    if target not in entry.targets:
        raise SettingsError(f"Expected a target of {name} among {', '.join(entry.targets)}, but got {target!r}.")
    arrays, reordered = read(entry, find(entry.path, f" or run: {command_for(name)}"))
    column = entry.targets.index(target)
    y = arrays["y_all"][:, column] if column else arrays["y"]
    x = torch.from_numpy(np.ascontiguousarray(arrays["X"]))
    return Tabular(x, torch.from_numpy(np.ascontiguousarray(y))[:, None], name, target, reordered)


def read(entry: TableEntry, path: Path) -> tuple[Arrays, bool]:
    """Verified arrays of the file `path`, and whether their rows are in another order than the customary one."""
    arrays = read_npz(entry, path, entry.arrays)
    return arrays, verify(entry, arrays, str(path))


def verify(entry: TableEntry, arrays: Arrays, origin: str) -> bool:
    """Whether the rows are in another order than the customary one; DataError if they are not the right rows at all."""
    shape = arrays["X"].shape
    if shape != (entry.rows, entry.features):
        raise DataError(
            f"Expected {entry.name} to have {entry.rows} rows and {entry.features} features, "
            f"but those of {origin} have shape {shape}; {entry.cure}."
        )
    if all(array_checksum(arrays[key]) == entry.checksums[key] for key in entry.arrays):
        return False
    if rows_checksum([arrays[key] for key in entry.arrays]) == entry.checksums["rows"]:
        return True
    raise DataError(
        f"Expected the values of {entry.name}, but {origin} has other values of the same size; {entry.cure}."
    )


def candidates(entry: TableEntry, path: Path) -> Iterator[Arrays]:
    """Arrays of the set from its raw file, as often as the file holds them; DataError if it is none such."""
    try:
        tables = entry.reader(_raw_content(path, entry.member))
    except SplitPointError:
        raise
    except Exception as error:  # the packages that read Excel files raise whatever comes to their mind
        raise DataError(
            f"Expected {path.name} to be the raw file of {entry.name}, but it cannot be read as such ({error}); "
            "its source may have changed."
        ) from error
    count, first = len(entry.targets), 0 if entry.targets_first else entry.features
    for table in tables:
        if table.shape[1:] == (entry.features + count,):
            y_all, x = table[:, first : first + count], np.delete(table, range(first, first + count), axis=1)
            arrays = {"X": _rounded(x, entry.decimals[0]), "y": _rounded(y_all[:, 0], entry.decimals[1])}
            yield arrays | ({"y_all": y_all} if count > 1 else {})


def _raw_content(path: Path, member: str) -> bytes:
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
        check_member(archive.getinfo(found[0]), MOST_RAW)
        return archive.read(found[0])


def _rounded(values: Numbers, decimals: int | None) -> Numbers:
    """Rounded half up, as Excel shows numbers; the small term undoes that most decimals are no binary fractions."""
    return values if decimals is None else np.floor(values * 10**decimals + 0.5 + 1e-9) / 10**decimals


# Splits


def split(rows: int, trial: int, test_share: float = 0.1) -> tuple[Tensor, Tensor]:
    """Row numbers ``(train, test)`` of one trial: disjoint, together complete, the same wherever they are drawn.

    The permutation is that of NumPy's ``RandomState(trial)``, cut after ``round(rows * (1 - test_share))`` rows, which
    is the split of the authors' code; they use `test_share` 0.1, and 0.2 for boston and wine.
    """
    if not 0 < test_share < 1:
        raise SettingsError(f"Expected test_share in (0, 1), but got {test_share}.")
    cut = round(rows * (1 - test_share))
    if not 0 < cut < rows:
        raise DataError(
            f"Expected rows enough for both parts, but {rows} rows with test_share {test_share} leave none."
        )
    order = torch.from_numpy(np.random.RandomState(trial).permutation(rows))
    return order[:cut], order[cut:]


@dataclass(frozen=True)
class Standardised:
    """Training and test rows with mean 0 and standard deviation 1 in the training rows, in float32.

    Shapes are (N, D) and (N, 1). A feature that is constant in the training rows is centred and keeps its scale.
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    centre: float
    scale: float

    def in_units(self, values: Tensor) -> Tensor:
        """Targets, predictions or bounds in the units of the target: ``centre + scale * values``."""
        return self.centre + self.scale * values

    def sizes_in_units(self, sizes: Tensor) -> Tensor:
        """Widths or standard deviations in the units of the target: ``scale * sizes``."""
        return self.scale * sizes


def standardise(x: Tensor, y: Tensor, train: Tensor, test: Tensor) -> Standardised:
    """Rows `train` and `test` of `x` (N, D) and `y` (N, 1), standardised by the statistics of the rows `train`."""
    x_centre, x_scale = _statistics(x[train])
    y_centre, y_scale = _statistics(y[train])
    x, scaled = (x - x_centre) / x_scale, (y - y_centre) / y_scale
    parts = (x[train], scaled[train], x[test], scaled[test])
    x_train, y_train, x_test, y_test = (part.float() for part in parts)
    return Standardised(x_train, y_train, x_test, y_test, float(y_centre), float(y_scale))


def _statistics(columns: Tensor) -> tuple[Tensor, Tensor]:
    """Means and standard deviations of columns, in float64; a constant column has 1, whatever rounding leaves of it."""
    columns = columns.double()
    constant = columns.amax(0) == columns.amin(0)
    return columns.mean(0), columns.std(0, correction=0).masked_fill(constant, 1.0)
