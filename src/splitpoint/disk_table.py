"""Recorded rows in a directory: one writer at a time, resumed after a kill, refused where they are others or damaged.

What vouches for what: a line of the journal for the rows of one batch in every column, by a checksum of their bytes,
and every line, like the facts in ``meta.json``, for itself. A checksum is a CRC-32: it sees every damage of up to 32
bits in a row and all but one in four billion of any other; nobody is kept from forging one.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np

from splitpoint.cache import WINDOW_BYTES, DiskColumn, Table
from splitpoint.errors import CacheError
from splitpoint.files import drop_stale_drafts, write_text
from splitpoint.locks import exclusive
from splitpoint.tasks import ColumnName, Rows

FORMAT = 2
PIECE_BYTES = 4 * 2**20
SYNC_SECONDS = 1.0
"""Between two waits for the disk: what a power failure may take."""


@contextmanager
def alone_in(directory: Path) -> Iterator[None]:
    """Hold a directory, which is made where there is none, alone among all processes; another one waits."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise CacheError(f"Expected a directory for the cache, but {directory} is a file; name another.") from error
    except OSError as error:
        raise CacheError(f"Expected to write to a directory for the cache, but got: {error}; name another.") from error
    with exclusive(directory / "lock", f"{{holder}} records rows in {directory}; waiting until it is done."):
        yield


@dataclass
class DiskTable:
    """A directory that takes recorded batches and becomes a `Table`; for one writer at a time, see `alone_in`.

    The journal holds one line for each batch that is safely written: its number of rows, the fingerprint of its inputs
    and the checksums of its rows. A later run skips these batches, and refuses the directory when the model, the
    settings or the data are others, or when it is damaged. Without ``meta.json`` all that it wrote is begun anew.

    Attributes:
        directory: where the files are.
        identity: what the rows depend on; must be the same for every run that uses the directory.
        meta: facts found on the first batch (columns, layer, layout), None before it.
        journal: what its lines say.
        position: number of batches that were asked for.
    """

    directory: Path
    identity: dict[str, Any]
    meta: dict[str, Any] | None = None
    journal: list[dict[str, Any]] = field(default_factory=list)
    position: int = 0
    _files: dict[str, FileIO] = field(default_factory=dict)
    _lines: list[str] = field(default_factory=list)
    _synced: float = field(default_factory=time.monotonic)

    @staticmethod
    def open(directory: Path, identity: dict[str, Any]) -> DiskTable:
        """Open or create `directory`; a CacheError says how it differs from `identity`, or that it is damaged."""
        table = DiskTable(directory, identity)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            drop_stale_drafts(table._meta_path)
            if not table._meta_path.exists():
                table._clear()
                return table
            saved = table._read_meta()
            table.meta = saved["meta"]
            table._read_journal()
            table._check_columns()
        except OSError as error:
            raise CacheError(f"Expected to read the feature cache in {directory}, but got: {error}.") from error
        found = saved["identity"]
        changed = sorted(key for key in identity if found.get(key) != identity[key])
        if changed:
            raise CacheError(
                f"Expected a feature cache of the same {' and '.join(changed)}, but {directory} was recorded with "
                "another; delete it or name another directory."
            )
        return table

    @property
    def _meta_path(self) -> Path:
        return self.directory / "meta.json"

    @property
    def _journal_path(self) -> Path:
        return self.directory / "journal.jsonl"

    @property
    def _damage(self) -> CacheError:
        return CacheError(f"Expected a feature cache in {self.directory}, but it is damaged; delete it.")

    def start(self, meta: dict[str, Any]) -> None:
        """Write down what the first batch showed; `meta["columns"]` maps names to (width, dtype)."""
        self.meta = meta
        with self._writing():
            write_text(self._meta_path, _sealed({"format": FORMAT, "identity": self.identity, "meta": meta}))

    def holds(self, fingerprint: str) -> bool:
        """Whether the next batch is already written; moves on to the batch after it."""
        position, self.position = self.position, self.position + 1
        if position >= len(self.journal):
            return False
        if self.journal[position]["digest"] != fingerprint:
            raise CacheError(
                f"Expected the data that {self.directory} was recorded from, but batch {position} differs (shuffled, "
                "augmented or other data?); pass the data in the same order, or delete the cache."
            )
        return True

    def current(self) -> Rows:
        """The recorded rows of the batch that was asked for last."""
        start = sum(entry["rows"] for entry in self.journal[: self.position - 1])
        stop = start + self.journal[self.position - 1]["rows"]
        return {name: column.read(start, stop) for name, column in self._columns().items()} if stop > start else {}

    def append(self, columns: Rows, fingerprint: str) -> None:
        """Write the rows of one batch; its line in the journal follows when they are on the disk, see `sync`."""
        sums = {}
        with self._writing():
            for name, values in columns.items():
                data = values.cpu().contiguous().numpy().tobytes()
                _write(self._file(f"{name}.bin"), data)
                sums[name] = zlib.crc32(data)
        entry = {"rows": len(next(iter(columns.values()))), "digest": fingerprint, "columns": sums}
        self._lines.append(_sealed(entry) + "\n")
        self.journal.append(entry)
        if time.monotonic() > self._synced + SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """Wait until all rows are on the disk, then write the lines that vouch for them, and wait for these."""
        if self._lines:
            self._check_still_there()
            with self._writing():
                for name, file in self._files.items():
                    if name != self._journal_path.name:
                        os.fsync(file.fileno())
                journal = self._file(self._journal_path.name)
                _write(journal, "".join(self._lines).encode())
                os.fsync(journal.fileno())
            self._lines.clear()
        self._synced = time.monotonic()

    def close(self) -> None:
        """Keep what is written."""
        try:
            self.sync()
        finally:
            while self._files:
                self._files.popitem()[1].close()

    def finish(self, dense: bool = False) -> Table:
        """The finished table; a CacheError if the data ended before the batches that were recorded."""
        if self.position < len(self.journal):
            raise CacheError(
                f"Expected {len(self.journal)} batches as recorded in {self.directory}, but the data ended after "
                f"{self.position}; pass the same data or delete the cache."
            )
        self._check_still_there()
        self.close()
        columns = self._columns()
        learned = [column for name, column in columns.items() if name != "context"]
        row_bytes = sum(column.width * np.dtype(column.dtype).itemsize for column in learned)
        window = max(1024, WINDOW_BYTES // max(row_bytes, 1))
        return Table(columns, sum(entry["rows"] for entry in self.journal), window, dense)

    def _file(self, name: str) -> FileIO:
        """A file of the directory, open for adding to it."""
        if name not in self._files:
            self._files[name] = open(self.directory / name, "ab", buffering=0)  # noqa: SIM115
        return self._files[name]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._lines.clear()
            raise CacheError(
                f"Expected to write to the feature cache in {self.directory}, but got: {error}; run the same again "
                "when that is mended, and it goes on where it stopped."
            ) from error

    def _check_still_there(self) -> None:
        """Refuse to go on with files that others deleted, and perhaps made anew, while this process wrote to them."""
        for name, file in self._files.items():
            path = self.directory / name
            if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file.fileno())):
                self._lines.clear()
                raise CacheError(
                    f"Expected {path} to stay where it is, but it was deleted while rows were recorded; run it again."
                )

    def _columns(self) -> dict[ColumnName, DiskColumn]:
        described = {} if self.meta is None else self.meta["columns"]
        return {
            cast(ColumnName, name): DiskColumn(self.directory / f"{name}.bin", int(width), str(dtype))
            for name, (width, dtype) in described.items()
        }

    def _clear(self) -> None:
        """Delete what was written before, and nothing else, where no facts tell whose it is."""
        for name in (self._journal_path.name, *(f"{column}.bin" for column in get_args(ColumnName))):
            (self.directory / name).unlink(missing_ok=True)

    def _read_meta(self) -> dict[str, Any]:
        """The facts, or an error where they are damaged or of another format."""
        text = self._meta_path.read_bytes()
        saved = _parsed(text)
        if isinstance(saved, dict) and saved.get("format", FORMAT) != FORMAT:
            raise CacheError(
                f"Expected a feature cache of format {FORMAT} in {self.directory}, but got {saved['format']}; delete "
                "it or name another directory."
            )
        opened = _unsealed(text)
        if opened is None:
            raise self._damage
        return opened

    def _read_journal(self) -> None:
        """Lines of the journal; a last one that was cut short by a kill goes."""
        data = self._journal_path.read_bytes() if self._journal_path.exists() else b""
        *lines, rest = data.split(b"\n")
        if rest:
            os.truncate(self._journal_path, len(data) - len(rest))
        for line in lines:
            entry = _unsealed(line)
            if entry is None:
                raise self._damage
            self.journal.append(entry)

    def _check_columns(self) -> None:
        """Compare all rows with their checksums, and cut off what was half written when a run was killed."""
        rows = sum(entry["rows"] for entry in self.journal)
        for name, column in self._columns().items():
            row_bytes = column.width * np.dtype(column.dtype).itemsize
            size = column.path.stat().st_size if column.path.exists() else 0
            if size < rows * row_bytes:
                raise CacheError(
                    f"Expected {rows * row_bytes} bytes in {column.path}, but got {size}; delete the cache."
                )
            if size:
                with open(column.path, "rb") as file:
                    sums = [_checksum(file, entry["rows"] * row_bytes) for entry in self.journal]
                if sums != [entry["columns"][name] for entry in self.journal]:
                    raise self._damage
            if size > rows * row_bytes:
                os.truncate(column.path, rows * row_bytes)


def _write(file: FileIO, data: bytes) -> None:
    """Write all bytes, which one call need not do."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]


def _checksum(file: Any, size: int) -> int:
    """CRC-32 of the next bytes of a file."""
    found = 0
    while size:
        data = file.read(min(size, PIECE_BYTES))
        found, size = zlib.crc32(data, found), size - len(data)
    return found


def _sealed(values: dict[str, Any]) -> str:
    """JSON with a checksum of itself."""
    return json.dumps(values | {"check": _seal(values)})


def _seal(values: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def _parsed(text: bytes) -> Any:
    """What JSON says; None where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _unsealed(text: bytes) -> dict[str, Any] | None:
    """What was sealed; None where it is damaged."""
    values = _parsed(text)
    return values if isinstance(values, dict) and values.pop("check", None) == _seal(values) else None
