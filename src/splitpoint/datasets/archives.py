"""Members of a tar or zip archive, one after the other, so that whoever reads them decides what is written where."""

from __future__ import annotations

import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO

DAMAGED = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError)
"""What reading a damaged archive raises."""


def members(path: Path) -> Iterator[tuple[PurePosixPath, Callable[[], IO[bytes]]]]:
    """Names of the regular files of an archive, each with a function that opens it; links and folders are left out."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    yield PurePosixPath(info.filename), partial(archive.open, info)
        return
    with tarfile.open(path) as tar:
        for member in tar:
            if member.isreg():
                yield PurePosixPath(member.name), partial(_opened, tar, member)


def _opened(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    stream = tar.extractfile(member)
    if stream is None:
        raise tarfile.ReadError(f"{member.name} is no file")
    return stream
