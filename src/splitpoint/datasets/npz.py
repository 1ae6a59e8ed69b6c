"""Arrays in one npz file: read without unpickling, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitpoint.datasets.folders import command_for
from splitpoint.errors import DataError


def read(name: str, path: Path, keys: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The arrays `keys` of the data set `name`; DataError if the file does not hold them."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            return {key: file[key] for key in keys}
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(
            f"Expected {path} to hold the arrays of {name}, but they cannot be read; "
            f"get it again with: {command_for(name)}"
        ) from error


def write(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays, compressed, under another name and then give the file its own."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=path.name, suffix=".part", delete=False) as file:
        part = Path(file.name)
        try:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # no array is called allow_pickle
        except BaseException:
            part.unlink()
            raise
    part.chmod(0o644)
    os.replace(part, path)
