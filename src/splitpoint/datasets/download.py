"""Getting data sets: download, verify, convert, and put in place whole or not at all.

The image sets are published with checksums, which are verified. The UCI archives are not: what is verified there is the
content, the converted arrays against those that published results were made with. A source with the same rows in
another order is accepted, and said to be so wherever the set is read; a source with other values is refused.

A file that comes over HTTP is resumed where it was cut off, verified, and in its place only when it is whole.
"""

from __future__ import annotations

import contextlib
import fnmatch
import http.client
import os
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from tqdm import tqdm

from splitpoint.datasets import tables
from splitpoint.datasets.arrays import file_checksum, file_matches, read_idx, require_package, write_npz
from splitpoint.datasets.bounded import DAMAGED, MOST_BYTES, check_member, first_line
from splitpoint.datasets.entry import VARIABLE, ImageEntry, TableEntry, folders
from splitpoint.datasets.inventory import verify, verify_arrays
from splitpoint.datasets.registry import DataSet, entry
from splitpoint.errors import DataError, SettingsError, SplitPointError

DOWNLOADS = "downloads"
"""Folder for what has been downloaded but not converted yet, so that an interrupted download can go on."""

WORTH_RETRYING = {408, 425, 429, 500, 502, 503, 504}
"""HTTP codes that may be gone a moment later."""

_CHUNK = 1 << 16


def default_folder() -> Path:
    """The first folder that SPLITPOINT_DATA names."""
    named = folders()
    if not named:
        raise SettingsError(f"Expected a folder for the data, but {VARIABLE} names none; give one with --to DIR.")
    return named[0]


def download(
    name: str, folder: Path | None = None, *, attempts: int = 5, wait: float = 1.0, progress: bool = True
) -> Path:
    """Get the set `name` of `SETS` into `folder`, by default the first of SPLITPOINT_DATA; returns its path.

    A set that is there already and whole is left as it is; a damaged one is replaced. `attempts`, `wait` and `progress`
    are those of `fetch`.
    """
    wanted = entry(name)
    folder = default_folder() if folder is None else folder
    target = folder / wanted.path
    if _is_whole(wanted, target):
        return target
    if not wanted.sources:
        raise DataError(f"Expected {name} in {target}, but it cannot be downloaded; {wanted.by_hand}.")
    if isinstance(wanted, TableEntry):
        require_package(wanted.reader)
    plain = isinstance(wanted, ImageEntry) and wanted.packed == "plain"
    waiting = target if plain else folder / DOWNLOADS / name
    files = [
        fetch(source.url, waiting / source.file_name, source.checksum, attempts=attempts, wait=wait, progress=progress)
        for source in wanted.sources
    ]
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _convert(wanted, files, target)
    except DataError:
        _discard(waiting, target)  # what was wrong would be wrong again
        raise
    _discard(waiting, target)
    return target


def _discard(waiting: Path, target: Path) -> None:
    """Remove downloaded files that are no part of the set."""
    if waiting != target:
        shutil.rmtree(waiting)


def _is_whole(wanted: DataSet, target: Path) -> bool:
    try:
        verify(wanted, target)
    except DataError:
        return False
    return True


def _convert(wanted: DataSet, files: Sequence[Path], target: Path) -> None:
    """Make the set at `target` from its downloaded files."""
    if isinstance(wanted, TableEntry):
        _table(wanted, files[0], target)
    elif isinstance(wanted, ImageEntry):
        _images(wanted, files, target)


def _images(wanted: ImageEntry, files: Sequence[Path], target: Path) -> None:
    """Make the first form of a set of images."""
    if wanted.packed == "idx":
        _idx(wanted, files, target)
    elif wanted.packed == "tar":
        _unpack(wanted, files[0], target, _by_name)
    elif wanted.packed == "folder":
        _unpack(wanted, files[0], target, _by_pattern)


def _table(wanted: TableEntry, file: Path, target: Path) -> None:
    """Write the first candidate in the customary order, or else the first with the right rows."""
    right: dict[bool, tables.Arrays] = {}
    for arrays in tables.candidates(wanted, file):
        with contextlib.suppress(DataError):
            right.setdefault(tables.verify(wanted, arrays, file.name), arrays)
    if not right:
        raise DataError(
            f"Expected {file.name} to hold the values of {wanted.name} that published results were made with, "
            "but it holds others; its source may have changed, so get the set elsewhere."
        )
    write_npz(target, right[min(right)])


def _idx(wanted: ImageEntry, files: Sequence[Path], target: Path) -> None:
    """Images and labels of MNIST's format, (N, 28, 28) and (N,), as ``x_train, y_train, x_test, y_test``."""
    checksums = wanted.forms[0].checksums
    arrays = dict(zip(checksums, map(read_idx, files), strict=True))
    verify_arrays(wanted, checksums, arrays)
    write_npz(target, arrays)


def _by_name(wanted: ImageEntry, member: PurePosixPath) -> PurePosixPath | None:
    """The name of a file of the set, wherever the archive has it."""
    return PurePosixPath(member.name) if member.name in wanted.forms[0].checksums else None


def _by_pattern(wanted: ImageEntry, member: PurePosixPath) -> PurePosixPath | None:
    """The way below the folder of the set to a file that a pattern of the set finds."""
    top, *inside = member.parts or (".",)
    hidden = any(part.startswith(".") for part in inside)  # among them the way out of the folder, ".."
    patterns = (PurePosixPath(pattern).parts for pattern in wanted.forms[0].checksums)
    belongs = any(
        len(pattern) == len(inside) and all(map(fnmatch.fnmatchcase, inside, pattern)) for pattern in patterns
    )
    return PurePosixPath(*inside) if top == PurePosixPath(wanted.path).name and belongs and not hidden else None


def _unpack(
    wanted: ImageEntry,
    archive: Path,
    target: Path,
    place: Callable[[ImageEntry, PurePosixPath], PurePosixPath | None],
) -> None:
    """Put members of the archive where `place` says below `target`, which is replaced when all of them are right.

    Members for which `place` has nothing are not written.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as temporary:
        new = Path(temporary) / target.name
        new.mkdir()
        left = MOST_BYTES
        try:
            for member, source in members(archive):
                inside = place(wanted, member)
                if inside is not None:
                    (new / inside).parent.mkdir(parents=True, exist_ok=True)
                    with source() as stream, (new / inside).open("wb") as file:
                        left -= _copied(stream, file, left)
        except SplitPointError:
            raise
        except DAMAGED as error:
            raise DataError(
                f"Expected {archive.name} to be an archive of {wanted.name}, but it cannot be unpacked "
                f"({first_line(error)})."
            ) from error
        verify(wanted, new)
        if target.exists():
            os.replace(target, Path(temporary) / "old")
        os.replace(new, target)


def _copied(stream: IO[bytes], file: IO[bytes], most: int) -> int:
    """Copy what the stream has and return how many bytes that were, `most` at most."""
    done = 0
    while chunk := stream.read(_CHUNK):
        done += len(chunk)
        if done > most:
            raise DataError(
                f"Expected an archive of at most {MOST_BYTES:,} bytes, but it unpacks to more; get it elsewhere."
            )
        file.write(chunk)
    return done


def members(path: Path) -> Iterator[tuple[PurePosixPath, Callable[[], IO[bytes]]]]:
    """Names of the regular files of an archive, each with a function that opens it; links and folders are left out."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                if not info.is_dir():
                    check_member(info)
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


# Files over HTTP


class _Guarded(urllib.request.HTTPRedirectHandler):
    """Follows a server that sends elsewhere, but from https to https alone."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        """The request that follows, or an error."""
        safe = ("https",) if req.type == "https" else ("https", "http")
        if urllib.parse.urlsplit(newurl).scheme.lower() not in safe:
            raise DataError(
                f"Expected {req.full_url} to stay with {' or '.join(safe)}, but the server sends to {newurl}; nothing "
                "was asked for there."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


_OPENER = urllib.request.build_opener(_Guarded)

_HASHES = ("md5", "sha256")
_HERE = ("127.0.0.1", "::1", "localhost")


def _check_address(url: str, checksum: str) -> None:
    """Refuse an address from which another could send something else unnoticed."""
    try:
        parts = urllib.parse.urlsplit(url)
        scheme, host = parts.scheme.lower(), parts.hostname
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"Expected an https address to download from, but got {url!r}; give one.") from error
    hashed = checksum.partition(":")[0] in _HASHES
    if not host or not (scheme == "https" or (scheme == "http" and (hashed or host in _HERE))):
        raise DataError(
            f"Expected an https address, or an http one with a checksum by {' or '.join(_HASHES)}, but got {url}; "
            "download the file by hand and compare it."
        )


class _InterruptedError(Exception):
    """The transfer ended too early for a reason that may pass."""


def part_of(destination: Path) -> Path:
    """The file that holds what has arrived so far."""
    return destination.with_name(f"{destination.name}.part")


def fetch(
    url: str,
    destination: Path,
    checksum: str = "",
    *,
    attempts: int = 5,
    wait: float = 1.0,
    timeout: float = 30.0,
    progress: bool = True,
) -> Path:
    """Download `url` to `destination` and verify its `checksum`, if one is given; returns `destination`.

    Bytes go to ``destination.part``; the name changes when all of them have arrived and the checksum is right. After a
    cut connection, and in the next call, the rest alone is asked for (HTTP Range); a server that does not know ranges
    sends everything again. A file that is there with the right checksum is kept. Errors that may pass are tried
    `attempts` times, after `wait` seconds, then twice as long and so on. A wrong checksum removes what has arrived.

    The address is an https one; http serves where the file has a hash as checksum, or comes from this machine. A server
    that sends elsewhere may not lead from https to anything else.
    """
    _check_address(url, checksum)
    if checksum and destination.is_file() and file_matches(destination, checksum):
        return destination
    destination.parent.mkdir(parents=True, exist_ok=True)
    part = part_of(destination)
    for attempt in range(attempts):
        resumed = part.exists() and part.stat().st_size > 0
        try:
            _transfer(url, part, timeout, progress)
        except _InterruptedError as error:
            if attempt + 1 == attempts:
                raise DataError(
                    f"Expected to download {url}, but {attempts} attempts failed ({error}); "
                    "try again, and it goes on where it stopped."
                ) from error
            time.sleep(wait * 2**attempt)
            continue
        if not checksum or file_matches(part, checksum):
            break
        found = file_checksum(part, checksum.partition(":")[0])
        part.unlink()
        if not resumed or attempt + 1 == attempts:  # what was resumed may have begun with an older file
            raise DataError(f"Expected {url} to have {checksum}, but what came has {found}; nothing was kept.")
    os.replace(part, destination)
    return destination


def _transfer(url: str, part: Path, timeout: float, progress: bool) -> None:
    """Append to `part` what is missing of `url`."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "splitpoint", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        with _OPENER.open(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
            if response.status != 206 or not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                have = 0
            _receive(response, part, have, progress)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # nothing is left to ask for, or the file has become shorter
            if error.headers.get("Content-Range") != f"bytes */{have}":
                part.unlink()
                raise _InterruptedError("the file on the server has changed") from error
        elif error.code in WORTH_RETRYING:
            raise _InterruptedError(f"HTTP {error.code}") from error
        else:
            raise DataError(f"Expected to download {url}, but the server said {error.code} {error.reason}.") from error
    except (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise _InterruptedError(str(getattr(error, "reason", error)) or type(error).__name__) from error


def _receive(response: http.client.HTTPResponse, part: Path, have: int, progress: bool) -> None:
    length = response.headers.get("Content-Length")
    total = None if length is None else have + int(length)
    with (
        part.open("ab" if have else "wb") as file,
        tqdm(
            total=total, initial=have, unit="B", unit_scale=True, desc=part.stem, disable=not progress, leave=False
        ) as bar,
    ):
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            bar.update(len(chunk))
            have += len(chunk)
    if total is not None and have != total:
        raise _InterruptedError(f"the connection ended after {have:,} of {total:,} bytes")
