"""Getting data sets: download, verify, convert, and put in place whole or not at all.

The image sets are published with checksums, which are verified. The UCI archives are not: what is verified there is the
content, the converted arrays against those that published results were made with. A source with the same rows in
another order is accepted, and said to be so wherever the set is read; a source with other values is refused.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from splitpoint.datasets import content, npz, raw, uci
from splitpoint.datasets.fetch import fetch
from splitpoint.datasets.folders import VARIABLE, folders
from splitpoint.datasets.registry import Entry, entry
from splitpoint.errors import DataError, SettingsError

DOWNLOADS = "downloads"
"""Folder for what has been downloaded but not converted yet, so that an interrupted download can go on."""


def default_folder() -> Path:
    """The first folder that SPLITPOINT_DATA names."""
    named = folders()
    if not named:
        raise SettingsError(f"Expected a folder for the data, but {VARIABLE} names none; give one with --to DIR.")
    return named[0]


def download(
    name: str, folder: Path | None = None, *, attempts: int = 5, wait: float = 1.0, progress: bool = True
) -> Path:
    """Get the set `name` of `registry.SETS` into `folder`, by default the first of SPLITPOINT_DATA; returns its path.

    A set that is there already and whole is left as it is; a damaged one is replaced. `attempts`, `wait` and `progress`
    are those of `fetch.fetch`.
    """
    wanted = entry(name)
    folder = default_folder() if folder is None else folder
    target = folder / wanted.path
    if _is_whole(name, wanted, target):
        return target
    if wanted.form == "table":
        raw.require(name)
    waiting = target if wanted.form == "plain" else folder / DOWNLOADS / name
    files = [
        fetch(source.url, waiting / source.file_name, source.checksum, attempts=attempts, wait=wait, progress=progress)
        for source in wanted.sources
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _FORMS[wanted.form](name, wanted, files, target)
    finally:
        if waiting != target:  # even where it was refused: what was wrong would be wrong again
            shutil.rmtree(waiting)
    return target


def _is_whole(name: str, wanted: Entry, target: Path) -> bool:
    try:
        content.verify(name, wanted, target)
    except DataError:
        return False
    return True


def _table(name: str, _: Entry, files: Sequence[Path], target: Path) -> None:
    """Write the first candidate in the customary order, or else the first with the right rows."""
    right: dict[bool, uci.Arrays] = {}
    for arrays in raw.candidates(name, files[0]):
        with contextlib.suppress(DataError):
            right.setdefault(uci.verify(name, arrays, files[0].name), arrays)
    if not right:
        raise DataError(
            f"Expected {files[0].name} to hold the values of {name} that published results were made with, "
            "but it holds others; its source may have changed, so get the set elsewhere."
        )
    npz.write(target, right[min(right)])


def _idx(name: str, wanted: Entry, files: Sequence[Path], target: Path) -> None:
    """Images and labels of MNIST's format, (N, 28, 28) and (N,), as ``x_train, y_train, x_test, y_test``."""
    arrays = dict(zip(wanted.content, map(read_idx, files), strict=True))
    content.verify_arrays(name, wanted, arrays)
    npz.write(target, arrays)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Bytes of a gzipped idx file: two zeros, type 8, number of axes, their lengths (big-endian), the values."""
    try:
        data = gzip.decompress(path.read_bytes())
        axes = data[3] if data.startswith(b"\0\0\x08") else 0
        shape = np.frombuffer(data, ">u4", axes, offset=4)
        return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(tuple(map(int, shape)))
    except (OSError, EOFError, ValueError, IndexError) as error:
        raise DataError(f"Expected {path.name} to be a gzipped idx file of bytes, but it is not ({error}).") from error


def _tar(name: str, wanted: Entry, files: Sequence[Path], target: Path) -> None:
    """The files of `content` alone, wherever the archive has them; nothing else of it is written."""
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        new = Path(temporary) / target.name
        new.mkdir()
        with tarfile.open(files[0]) as archive:
            for member in archive:
                file_name = member.name.rpartition("/")[2]
                source = archive.extractfile(member) if file_name in wanted.content else None
                if source is not None:
                    with source, (new / file_name).open("wb") as file:
                        shutil.copyfileobj(source, file)
        content.verify_files(name, wanted, new)
        if target.exists():
            os.replace(target, Path(temporary) / "old")
        os.replace(new, target)


def _plain(name: str, wanted: Entry, files: Sequence[Path], target: Path) -> None:
    """Nothing to convert."""


_FORMS: dict[str, Callable[[str, Entry, Sequence[Path], Path], None]] = {
    "table": _table,
    "idx": _idx,
    "tar": _tar,
    "plain": _plain,
}
