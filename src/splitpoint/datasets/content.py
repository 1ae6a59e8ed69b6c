"""Whether a data set on disk is what it should be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from splitpoint.datasets import checksums, npz, uci
from splitpoint.datasets.folders import command_for
from splitpoint.datasets.registry import Entry
from splitpoint.errors import DataError


def verify(name: str, entry: Entry, path: Path) -> bool:
    """Compare the set at `path` with its checksums: a DataError names what is wrong.

    Returns whether its rows are the right ones in another order than the customary one.
    """
    if entry.form == "table":
        return uci.read(name, path)[1]
    if entry.form == "idx":
        verify_arrays(name, entry, npz.read(name, path, entry.content))
    else:
        verify_files(name, entry, path)
    return False


def verify_arrays(name: str, entry: Entry, arrays: dict[str, NDArray[Any]]) -> None:
    """DataError if an array differs from its checksum."""
    for key, expected in entry.content.items():
        if checksums.of_array(arrays[key]) != expected:
            raise DataError(f"Expected the values of {name}, but its array {key} has others; {_again(name)}")


def verify_files(name: str, entry: Entry, folder: Path) -> None:
    """DataError if a file is missing from the folder or differs from its checksum."""
    for key, expected in entry.content.items():
        if not (folder / key).is_file():
            raise DataError(f"Expected {name} to have a file {key}, but {folder} has none; {_again(name)}")
        if not checksums.file_matches(folder / key, expected):
            raise DataError(f"Expected {folder / key} to have {expected}, but it has not; {_again(name)}")


def _again(name: str) -> str:
    return f"get it again with: {command_for(name)}"
