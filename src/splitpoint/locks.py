"""Locks between processes: held through the operating system, which lets go of them when their process ends.

A lock file says nothing by being there, and stays where it is.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from splitpoint.errors import SplitPointError

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

POLL_SECONDS, SAY_SECONDS = 0.05, 1.0
"""Between two tries to take a lock, and the wait after which it is told."""

PLACES = 2**31 - 2
"""Bytes that can be locked one by one on every system; the file need not be that long."""


class _Holder(NamedTuple):
    """The file of a lock that is held or waited for, and the thread that does."""

    file: tuple[int, int]
    thread: int
    held: bool


_OPEN: dict[int, _Holder] = {}
"""Locks of this process by their handles."""


@contextmanager
def exclusive(path: Path, message: str) -> Iterator[None]:
    """Hold the lock file `path`, alone among all threads and processes; whoever comes second waits.

    Children that are forked meanwhile do not hold it.

    Args:
        path: the lock file, in a folder that exists.
        message: told on standard error, once, where the wait is longer than a second; ``{holder}`` in it becomes who
            holds the lock.
    """
    handle = _waited_for(path, message)
    try:
        yield
    finally:
        if _OPEN.pop(handle, None):  # not in a child that was forked meanwhile, which has closed it
            _unlock(handle)
            os.close(handle)


def _waited_for(path: Path, message: str) -> int:
    """A handle of the lock file at `path`, locked."""
    began, told = time.monotonic(), False
    while True:
        handle = _opened(path)
        file, thread = _file(os.fstat(handle)), threading.get_ident()
        _OPEN[handle] = _Holder(file, thread, held=False)
        try:
            while not _lock(handle):
                if any(holder == (file, thread, True) for holder in list(_OPEN.values())):
                    raise SplitPointError(
                        f"Expected nobody to use {path.parent} while this thread does, but what it runs there needs "
                        "it too; give one of them another folder."
                    )
                if not told and time.monotonic() > began + SAY_SECONDS:
                    tqdm.write(message.format(holder=_holder(handle)), file=sys.stderr)
                    told = True
                time.sleep(POLL_SECONDS)
            if path.exists() and _file(os.stat(path)) == file:
                os.ftruncate(handle, 0)
                os.write(handle, f"{os.getpid()}\n".encode())
                _OPEN[handle] = _Holder(file, thread, held=True)
                return handle
        except BaseException:
            _close(handle)
            raise
        _close(handle)  # the file was deleted, and perhaps made anew, while this process waited


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise SplitPointError(f"Expected to write to the folder {path.parent}, but got: {error}.") from error


def _close(handle: int) -> None:
    if _OPEN.pop(handle, None):
        os.close(handle)


def _file(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _holder(handle: int) -> str:
    """Who holds a lock, in words."""
    os.lseek(handle, 0, os.SEEK_SET)
    number = os.read(handle, 20).decode("ascii", "replace").strip()
    os.lseek(handle, 0, os.SEEK_SET)
    if number == str(os.getpid()):
        return "another thread of this process"
    return f"process {number}" if number.isdecimal() else "another process"


def _forget() -> None:
    """Close what a forked child has of the locks of its parent, which keeps them."""
    for handle in list(_OPEN):
        _close(handle)


if sys.platform == "win32":

    def _lock(handle: int, place: int = PLACES) -> bool:
        """Lock a byte of a file unless it is locked."""
        os.lseek(handle, place, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(handle, 0, os.SEEK_SET)
        return True

    def _unlock(handle: int, place: int = PLACES) -> None:
        os.lseek(handle, place, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:

    def _lock(handle: int, place: int | None = None) -> bool:
        """Lock a file, or a byte of it for this process, unless it is locked."""
        flags = fcntl.LOCK_EX | fcntl.LOCK_NB
        try:
            fcntl.flock(handle, flags) if place is None else fcntl.lockf(handle, flags, 1, place)
        except (BlockingIOError, PermissionError):
            return False
        except OSError as error:
            raise SplitPointError(
                f"Expected a folder whose files can be locked, so that no two processes write at a time, but got: "
                f"{error}; name one on another disk."
            ) from error
        return True

    def _unlock(handle: int, place: int | None = None) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN) if place is None else fcntl.lockf(handle, fcntl.LOCK_UN, 1, place)

    os.register_at_fork(after_in_child=_forget)


class Claims:
    """What processes that share some work are at, each name by one of them at most.

    A name is a byte of one file, which the process locks; two names that fall on the same byte wait for each other.
    Threads of one process do not exclude each other.

    Args:
        path: the file, in a folder that exists. Nothing else in this process may open it.
    """

    def __init__(self, path: Path) -> None:
        self._handle = _opened(path)
        self._taken: set[int] = set()

    def take(self, names: Iterable[str]) -> bool:
        """Claim all names, or none where one is taken."""
        taken: set[int] = set()
        for place in sorted(_places(names)):
            if place in self._taken or not _lock(self._handle, place):
                self._give_back(taken)
                return False
            taken.add(place)
        self._taken |= taken
        return True

    def drop(self, names: Iterable[str]) -> None:
        """Give names back."""
        places = _places(names) & self._taken
        self._taken -= places
        self._give_back(places)

    def _give_back(self, places: Iterable[int]) -> None:
        for place in places:
            _unlock(self._handle, place)

    def close(self) -> None:
        """Give everything back."""
        os.close(self._handle)


def _places(names: Iterable[str]) -> set[int]:
    """The bytes of names."""
    return {zlib.crc32(name.encode()) % PLACES for name in names}
