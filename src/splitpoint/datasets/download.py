"""Getting data sets: download, verify, convert, and put in place whole or not at all.

The image sets are published with checksums, which are verified. The UCI archives are not: what is verified there is the
content, the converted arrays against those that published results were made with. A source with the same rows in
another order is accepted, and said to be so wherever the set is read; a source with other values is refused.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from splitpoint.datasets import archives, content, npz, raw, uci
from splitpoint.datasets.fetch import fetch
from splitpoint.datasets.folders import VARIABLE, folders
from splitpoint.datasets.image_formats import read_idx
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
    if not wanted.sources:
        raise DataError(f"Expected {name} in {target}, but it cannot be downloaded; {wanted.by_hand}.")
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
    except DataError:
        _discard(waiting, target)  # what was wrong would be wrong again
        raise
    _discard(waiting, target)
    return target


def _discard(waiting: Path, target: Path) -> None:
    """Remove downloaded files that are no part of the set."""
    if waiting != target:
        shutil.rmtree(waiting)


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
    content.verify_arrays(name, wanted.content, arrays)
    npz.write(target, arrays)


def _tar(name: str, wanted: Entry, files: Sequence[Path], target: Path) -> None:
    """The files of `content` alone, wherever the archive has them; nothing else of it is written."""

    def place(member: PurePosixPath) -> PurePosixPath | None:
        return PurePosixPath(member.name) if member.name in wanted.content else None

    _unpack(name, wanted, files[0], target, place)


def _folder(name: str, wanted: Entry, files: Sequence[Path], target: Path) -> None:
    """The files that patterns of `content` find below the folder of the set; nothing else of the archive is written."""
    patterns = [PurePosixPath(pattern).parts for pattern in wanted.content]

    def place(member: PurePosixPath) -> PurePosixPath | None:
        top, *inside = member.parts
        hidden = any(part.startswith(".") for part in inside)  # among them the way out of the folder, ".."
        wanted_here = any(
            len(pattern) == len(inside) and all(map(fnmatch.fnmatchcase, inside, pattern)) for pattern in patterns
        )
        return PurePosixPath(*inside) if top == target.name and wanted_here and not hidden else None

    _unpack(name, wanted, files[0], target, place)


def _unpack(
    name: str, wanted: Entry, archive: Path, target: Path, place: Callable[[PurePosixPath], PurePosixPath | None]
) -> None:
    """Put members of the archive where `place` says below `target`, which is replaced when all of them are right."""
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        new = Path(temporary) / target.name
        new.mkdir()
        try:
            for member, source in archives.members(archive):
                inside = place(member)
                if inside is not None:
                    (new / inside).parent.mkdir(parents=True, exist_ok=True)
                    with source() as stream, (new / inside).open("wb") as file:
                        shutil.copyfileobj(stream, file)
        except archives.DAMAGED as error:
            raise DataError(
                f"Expected {archive.name} to be an archive of {name}, but it cannot be unpacked ({error})."
            ) from error
        content.verify_files(name, wanted.content, new)
        if target.exists():
            os.replace(target, Path(temporary) / "old")
        os.replace(new, target)


def _plain(name: str, wanted: Entry, files: Sequence[Path], target: Path) -> None:
    """Nothing to convert."""


_FORMS: dict[str, Callable[[str, Entry, Sequence[Path], Path], None]] = {
    "table": _table,
    "idx": _idx,
    "tar": _tar,
    "folder": _folder,
    "plain": _plain,
}
