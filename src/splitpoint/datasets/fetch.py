"""One file over HTTP: resumed where it was cut off, verified, and in its place only when it is whole."""

from __future__ import annotations

import http.client
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

from tqdm import tqdm

from splitpoint.datasets.arrays import file_checksum, file_matches
from splitpoint.errors import DataError

WORTH_RETRYING = {408, 425, 429, 500, 502, 503, 504}
"""HTTP codes that may be gone a moment later."""

_CHUNK = 1 << 16


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
    """
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
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
            if response.status != 206 or not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                have = 0
            _receive(response, part, have, progress)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # nothing is left to ask for, or the file has become shorter
            _settle(error, part, have)
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


def _settle(error: urllib.error.HTTPError, part: Path, have: int) -> None:
    if error.headers.get("Content-Range") != f"bytes */{have}":
        part.unlink()
        raise _InterruptedError("the file on the server has changed") from error
