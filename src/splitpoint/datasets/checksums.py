"""What data must be, to the byte: checksums of files and of arrays, written ``kind:value``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 20


def of_file(path: Path, kind: str) -> str:
    """Checksum of a file; `kind` is ``md5``, ``sha256`` or ``size`` (in bytes, where no hash was published)."""
    if kind == "size":
        return f"size:{path.stat().st_size}"
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return f"{kind}:{digest.hexdigest()}"


def file_matches(path: Path, checksum: str) -> bool:
    """Whether a file has the `checksum`, such as ``md5:900150983cd24fb0d6963f7d28e17f72``."""
    return of_file(path, checksum.partition(":")[0]) == checksum


def of_array(array: NDArray[Any]) -> str:
    """SHA-256 of the values in C order and little-endian; memory layout and compression do not matter."""
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return f"sha256:{hashlib.sha256(plain.tobytes()).hexdigest()}"


def of_rows(columns: Sequence[NDArray[np.float64]]) -> str:
    """SHA-256 of the rows of a table in sorted order, so that the order of the rows does not matter.

    `columns` are arrays with one row per entry, (N,) or (N, D), set side by side.
    """
    table = np.column_stack(columns) + 0.0  # -0 becomes 0
    return of_array(table[np.lexsort(table.T[::-1])])
