"""Arrays from files that may lie about themselves: what a header claims is compared with the file before it is read.

Nothing is unpickled, and no more memory is asked for than the bytes of the file can fill.
"""

from __future__ import annotations

import gzip
import lzma
import math
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

MOST_BYTES = 2**34
"""Bytes of an array or of an unpacked archive, at most; the largest set has a tenth of that."""

_INFLATED = 1_032
"""What one byte can become where it was deflated, at most."""

_MOST_OF_A_BYTE = {
    zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: _INFLATED, zipfile.ZIP_BZIP2: MOST_BYTES, zipfile.ZIP_LZMA: MOST_BYTES,
}  # fmt: skip
"""The same by the method of a member of a zip file; the last two know no bound."""

_ENCRYPTED = 1

DAMAGED = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, ArithmeticError, EOFError,
    LookupError, MemoryError, OSError, RecursionError, RuntimeError, SyntaxError, TypeError, ValueError,
)  # fmt: skip
"""What reading a damaged file raises, encrypted and unknown members of archives included."""


class _ClaimError(ValueError):
    """The file claims something that cannot be."""


def first_line(error: BaseException) -> str:
    """What an error says, on one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(":")


def npz_arrays(path: Path, keys: Iterable[str]) -> dict[str, NDArray[Any]]:
    """The arrays `keys` of an npz file; one of `DAMAGED` says why there are none such."""
    with zipfile.ZipFile(path) as archive:
        return {key: _member(archive, f"{key}.npy") for key in keys}


def _member(archive: zipfile.ZipFile, name: str) -> NDArray[Any]:
    info = archive.getinfo(name)
    check_member(info)
    with archive.open(info) as stream:
        _check_header(stream, info.file_size)
    with archive.open(info) as stream:
        found: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return found


def check_member(info: zipfile.ZipInfo, most: int = MOST_BYTES) -> None:
    """Refuse a member of a zip file that is encrypted, packed in an unusual way or larger than it can be."""
    if info.flag_bits & _ENCRYPTED:
        raise _ClaimError(f"{info.filename} is encrypted")
    if info.compress_type not in _MOST_OF_A_BYTE:
        raise _ClaimError(f"{info.filename} is packed by method {info.compress_type}")
    if info.file_size > min(most, _MOST_OF_A_BYTE[info.compress_type] * (info.compress_size + 1)):
        raise _ClaimError(f"{info.filename} claims {info.file_size:,} bytes")


def npy_array(path: Path) -> NDArray[Any]:
    """The array of an npy file; one of `DAMAGED` says why there is none."""
    with path.open("rb") as stream:
        _check_header(stream, path.stat().st_size)
        stream.seek(0)
        found: NDArray[Any] = npy.read_array(stream, allow_pickle=False)
    return found


def _check_header(stream: IO[bytes], size: int) -> None:
    """Refuse an array that is no plain one, or whose shape asks for other bytes than there are."""
    version = npy.read_magic(stream)
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    if version not in readers:
        raise _ClaimError(f"it has format {version}")
    shape, _, kind = readers[version](stream)
    if kind.hasobject:
        raise _ClaimError("it holds pickled objects")
    wanted = math.prod(shape) * kind.itemsize
    if min(shape, default=0) < 0 or wanted != size - stream.tell() or wanted > MOST_BYTES:
        raise _ClaimError(f"its header claims {wanted:,} bytes")


def unzipped_idx(path: Path) -> NDArray[np.uint8]:
    """The bytes of a gzipped idx file, no more than its header says and the file can hold."""
    with gzip.open(path) as stream:
        head = stream.read(4)
        lengths = stream.read(4 * head[3])
        wanted = math.prod(np.frombuffer(lengths, ">u4").tolist())
        if wanted > min(MOST_BYTES, _INFLATED * path.stat().st_size):
            raise _ClaimError(f"its header claims {wanted:,} bytes")
        return np.frombuffer(head + lengths + stream.read(wanted + 1), np.uint8)
