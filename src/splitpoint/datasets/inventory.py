"""Which data sets are on this machine, where, and whether they are whole."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from splitpoint.datasets import tables
from splitpoint.datasets.arrays import array_checksum, file_matches, read_npz
from splitpoint.datasets.entry import VARIABLE, Entry, ModalEntry, SceneEntry, TableEntry, command_for, folders, locate
from splitpoint.datasets.image_readers import idx_arrays
from splitpoint.datasets.registry import DataSet, entries, entry
from splitpoint.errors import DataError, SettingsError

MOST_ENTRIES = 50_000
"""Entries of a folder whose sizes are added up."""


@dataclass(frozen=True)
class Finding:
    """One set: its `size` in rows, and where it is; `verdict` is what checking it said, empty if nobody has checked.

    `damage` is the sentence that says what is wrong, or why nobody can tell; empty where nothing is.
    """

    name: str
    size: str
    path: Path | None
    verdict: str = ""
    damage: str = ""


@dataclass(frozen=True)
class Inventory:
    """Findings in the order of `SETS`; prints as a table."""

    findings: tuple[Finding, ...]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    @property
    def damaged(self) -> tuple[Finding, ...]:
        """The sets that are there and not what they should be."""
        return tuple(found for found in self.findings if found.damage)

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the sets that are not there."""
        return tuple(found.name for found in self.findings if found.path is None)

    def __str__(self) -> str:
        checked = any(found.verdict for found in self.findings)
        header = ["set", "rows x features", "on disk", *(["checked"] if checked else []), "where"]
        rows = [header, *(_cells(found, checked) for found in self.findings)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, "", *self._advice()])

    def _advice(self) -> Iterator[str]:
        if not folders():
            yield f"{VARIABLE} is not set: it names the folders that hold data sets, separated by {os.pathsep!r}."
            yield f"To get one: {command_for('NAME')}, and then: export {VARIABLE}=DIR"
            return
        yield f"{VARIABLE} names {', '.join(map(str, folders()))}."
        if any(found.verdict == "reordered" for found in self.findings):
            yield "reordered: the right rows in another order than the customary one, so the splits differ too."
        for_download = [name for name in self.missing if entry(name).sources]
        if for_download:
            yield f"To get what is missing: {command_for(' '.join(for_download))}"
        for name in self.missing:
            if not entry(name).sources:
                yield f"To get {name}: {entry(name).cure}."


def survey(names: Iterable[str] = ()) -> Inventory:
    """Where the sets are, all of them by default; nothing is opened."""
    return Inventory(tuple(_found(expected) for expected in entries(names).values()))


def check(names: Iterable[str] = ()) -> Inventory:
    """As `survey`, with every set that is there read and compared with its checksums."""
    return Inventory(tuple(_checked(_found(expected), expected) for expected in entries(names).values()))


def _found(expected: DataSet) -> Finding:
    path = locate(*expected.paths)
    return Finding(expected.name, expected.size_at(path), path)


def _checked(found: Finding, expected: DataSet) -> Finding:
    if found.path is None:
        return found
    try:
        reordered = verify(expected, found.path)
    except DataError as error:
        return replace(found, verdict="DAMAGED", damage=str(error))
    except SettingsError as error:  # a package that reads it is missing
        return replace(found, verdict="unread", damage=str(error))
    return replace(found, verdict="reordered" if reordered else "whole")


def _cells(found: Finding, checked: bool) -> list[str]:
    verdict = [found.verdict or "-"] if checked else []
    if found.path is None:
        return [found.name, found.size, "-", *verdict, "missing"]
    return [found.name, found.size, _bytes(found.path), *verdict, str(found.path)]


def _bytes(path: Path) -> str:
    """Size of a file or folder, "-" of a folder with more entries than can be looked at in a moment."""
    entries = [path] if path.is_file() else list(itertools.islice(path.rglob("*"), MOST_ENTRIES + 1))
    if len(entries) > MOST_ENTRIES:
        return "-"
    size = sum(entry.stat().st_size for entry in entries if entry.is_file())
    return f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


# Verifying


def verify(expected: DataSet, path: Path) -> bool:
    """Compare the set at `path` with its checksums: a DataError names what is wrong.

    Returns whether its rows are the right ones in another order than the customary one.
    """
    if isinstance(expected, TableEntry):
        return tables.read(expected, path)[1]
    if isinstance(expected, SceneEntry):
        _verify_scenes(expected, path)
        return False
    if isinstance(expected, ModalEntry):
        _verify_modal(expected, path)
        return False
    checksums = expected.form_at(path).checksums
    if path.is_file():
        verify_arrays(expected, checksums, read_npz(expected, path, checksums))
    elif expected.packed == "idx":
        parts = {part: idx_arrays(expected, path, part) for part in ("train", "test")}
        arrays = {f"{key}_{part}": array for part, pair in parts.items() for key, array in zip("xy", pair, strict=True)}
        verify_arrays(expected, checksums, arrays)
    else:
        _verify_files(expected, checksums, path)
    return False


def _verify_scenes(expected: SceneEntry, path: Path) -> None:
    """Every part must be what its reader takes, and have the checksums that are known."""
    form = expected.form_at(path)
    known = {key: checksum for key, checksum in form.checksums.items() if checksum}
    if path.is_dir():
        _verify_files(expected, known, path)
    elif known:
        verify_arrays(expected, known, read_npz(expected, path, known))
    for part in ("train", "test") if expected.trainable else ("test",):
        form.reader(expected, path, part)


def _verify_modal(expected: ModalEntry, path: Path) -> None:
    """The set must be what its reader takes, and have the checksums that are known."""
    if path.is_dir():
        _verify_files(expected, expected.checksums, path)
    else:
        verify_arrays(expected, expected.checksums, read_npz(expected, path, expected.checksums))
    expected.reader(expected, path, 0)


def verify_arrays(expected: Entry, checksums: Mapping[str, str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """DataError if an array differs from its checksum."""
    for key, checksum in checksums.items():
        if array_checksum(arrays[key]) != checksum:
            raise DataError(f"Expected the values of {expected.name}, but its array {key} has others; {expected.cure}.")


def _verify_files(expected: Entry, checksums: Mapping[str, str], folder: Path) -> None:
    """DataError if a file is missing from the folder or differs from its checksum, or if files are too few or many."""
    for key, checksum in checksums.items():
        kind, _, value = checksum.partition(":")
        if kind == "files":
            count = sum(not path.name.startswith(".") for path in folder.glob(key))
            least, _, most = value.partition("-")
            if not int(least) <= count <= int(most or least):
                raise DataError(
                    f"Expected {expected.name} to have {value} files {key}, but {folder} has {count}; {expected.cure}."
                )
        elif not (folder / key).is_file():
            raise DataError(f"Expected {expected.name} to have a file {key}, but {folder} has none; {expected.cure}.")
        elif not file_matches(folder / key, checksum):
            raise DataError(f"Expected {folder / key} to have {checksum}, but it has not; {expected.cure}.")
