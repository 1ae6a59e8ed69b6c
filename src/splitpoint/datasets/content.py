"""Whether a data set on disk is what it should be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from splitpoint.datasets import checksums, npz, uci
from splitpoint.datasets.image_formats import idx_arrays
from splitpoint.datasets.registry import Entry, cure
from splitpoint.errors import DataError


def verify(name: str, entry: Entry, path: Path) -> bool:
    """Compare the set at `path` with its checksums: a DataError names what is wrong.

    Returns whether its rows are the right ones in another order than the customary one.
    """
    if entry.form == "table":
        return uci.read(name, path)[1]
    content = entry.content_at(path)
    if path.is_file():
        verify_arrays(name, content, npz.read(name, path, content))
    elif entry.form == "idx":
        verify_arrays(name, content, _idx_arrays(name, path))
    else:
        verify_files(name, content, path)
    return False


def verify_arrays(name: str, content: Mapping[str, str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """DataError if an array differs from its checksum."""
    for key, expected in content.items():
        if checksums.of_array(arrays[key]) != expected:
            raise DataError(f"Expected the values of {name}, but its array {key} has others; {cure(name)}.")


def verify_files(name: str, content: Mapping[str, str], folder: Path) -> None:
    """DataError if a file is missing from the folder or differs from its checksum, or if files are too few or many."""
    for key, expected in content.items():
        if expected.startswith("files:"):
            count = sum(not path.name.startswith(".") for path in folder.glob(key))
            if count != int(expected.removeprefix("files:")):
                raise DataError(
                    f"Expected {name} to have {expected.removeprefix('files:')} files {key}, "
                    f"but {folder} has {count}; {cure(name)}."
                )
        elif not (folder / key).is_file():
            raise DataError(f"Expected {name} to have a file {key}, but {folder} has none; {cure(name)}.")
        elif not checksums.file_matches(folder / key, expected):
            raise DataError(f"Expected {folder / key} to have {expected}, but it has not; {cure(name)}.")


def _idx_arrays(name: str, folder: Path) -> dict[str, NDArray[Any]]:
    arrays = {}
    for part in ("train", "test"):
        arrays[f"x_{part}"], arrays[f"y_{part}"] = idx_arrays(name, folder, part)
    return arrays
