"""Results as JSON lines: one record for each trial, appended and synced, readable after any interruption."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch

from splitpoint import __version__
from splitpoint.bench.lines import Lines, count_of, mapping_of, name_of, number_of, plain, read_lines, text_of
from splitpoint.errors import DataError

RECORDS = "records.jsonl"

FORMAT = 2
"""Of the lines that are written. Lines without a format are older, and are read with the names below."""

METHODS_BEFORE = {
    "splitpoint": "splitpoint_paper",
    "splitpoint_calibrated": "splitpoint_paper_calibrated",
    "splitpoint_default": "splitpoint",
    "splitpoint_default_calibrated": "splitpoint_conformal",
}
METRICS_BEFORE = {"auroc_adv": "auroc_adversarial", "auroc_adv_entropy": "auroc_adversarial_entropy"}
SETTINGS_BEFORE = {"outside": "ood"}
"""Ids of methods, names of metrics and names of settings in older lines, and what they are called now."""

K = TypeVar("K")


class Cell(NamedTuple):
    """What the trials of one experiment have in common."""

    suite: str
    protocol: str
    noise: str
    dataset: str
    method: str
    variant: str = ""
    network: str = ""

    @property
    def place(self) -> str:
        """Data set and network, for people."""
        return f"{self.dataset}/{self.network}" if self.network else self.dataset


@dataclass(frozen=True)
class Record:
    """One trial.

    Attributes:
        suite: "uci", "cubic", "uci-ablation", ...
        protocol: "paper", "authors" or "short".
        noise: law of the noise that was added, or "clean".
        dataset: name of the data set.
        method: id of the method.
        variant: what an ablation changed, as ``key=value;key=value``.
        trial: number of the trial.
        stack: all trials that were trained together; the records of a stack are written and read as one.
        seed: of the whole run.
        metrics: by name; NaN where one could not be computed.
        timing: CPU seconds of training and microseconds of inference per row.
        settings: of the method and its networks.
        error: why the trial failed; None where it did not.
        versions: of the software.
        network: name of the base network; empty where the suite has one network only.
    """

    suite: str
    protocol: str
    noise: str
    dataset: str
    method: str
    variant: str
    trial: int
    stack: tuple[int, ...]
    seed: int
    metrics: dict[str, float] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    network: str = ""

    @property
    def cell(self) -> Cell:
        """The cell that it belongs to."""
        return Cell(*(getattr(self, name) for name in Cell._fields))

    def line(self) -> str:
        """The record as one line of JSON; NaN and infinity, which JSON lacks, become null."""
        return json.dumps(finite(asdict(self)) | {"format": FORMAT}, sort_keys=True, default=str) + "\n"


def parse(line: str) -> Record:
    """The record of a line; metrics that are null become NaN, and older names those of today.

    An error of `lines.DAMAGE` where a part of it is missing, unknown or of another kind than is written.
    """
    values = mapping_of(line)
    written = values.pop("format", None)
    if written is None:
        values = current(values)
    elif written != FORMAT:
        raise DataError(f"Expected a line of format {FORMAT}, but got {written}.")
    values |= cell_of(values)._asdict()
    values |= {name: count_of(values[name]) for name in ("trial", "seed")}
    values["stack"] = tuple(map(count_of, values["stack"]))
    for name in ("metrics", "timing"):
        values[name] = {name_of(key): number_of(value) for key, value in values[name].items()}
    values |= {name: plain(dict(values.get(name, {}))) for name in ("settings", "versions")}
    values["versions"] = {name: text_of(version) for name, version in values["versions"].items()}
    if values.get("error") is not None:
        values["error"] = text_of(values["error"])
    return Record(**values)


def cell_of(values: Mapping[str, Any]) -> Cell:
    """The cell that a line names."""
    named = {"variant": "", "network": ""} | {name: values[name] for name in Cell._fields if name in values}
    return Cell(**{name: name_of(value) for name, value in named.items()})


def current(values: Mapping[str, Any]) -> dict[str, Any]:
    """An older line, of a record or of what pages draw, with the names of today.

    Its data set is written together with its network, as in ``cifar10/vgg16``, if it has one.
    """
    dataset, _, network = values["dataset"].partition("/")
    found = {**values, "dataset": dataset, "network": network}
    found["method"] = METHODS_BEFORE.get(values["method"], values["method"])
    for part, names in (("metrics", METRICS_BEFORE), ("settings", SETTINGS_BEFORE)):
        if part in values:
            found[part] = {names.get(name, name): value for name, value in values[part].items()}
    return found


def finite(value: Any) -> Any:
    """The same value with None for NaN and infinity, which JSON lacks, at any depth."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions() -> dict[str, str]:
    """Software that results depend on; `source` tells states of this package apart that have the same version."""
    return {
        "numpy": np.__version__,
        "python": platform.python_version(),
        "source": _source(),
        "splitpoint": __version__,
        "torch": str(torch.__version__),
    }


@cache
def _source() -> str:
    """A digest of the code that computes results: all modules but those of reports and commands."""
    digest = hashlib.blake2b(digest_size=4)
    package = Path(__file__).parents[1]
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if not name.startswith(("report/", "demo/", "cli.py")):
            digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()


class Journal:
    """The records file of a folder; only ever appended to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECORDS

    def append(self, records: Sequence[Record]) -> None:
        """Write the records of one stack with a single write, and wait until they are on the disk."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(record.line() for record in records)
        handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if not self._ends_well():
                text = "\n" + text
            data = text.encode()
            written = os.write(handle, data)
            os.fsync(handle)
            if written < len(data):
                raise DataError(f"Expected to write {len(data)} bytes to {self.path}, but only {written} fitted.")
        finally:
            os.close(handle)

    def _ends_well(self) -> bool:
        """Whether the file is empty or ends with a whole line."""
        with open(self.path, "rb") as file:
            if not file.seek(0, os.SEEK_END):
                return True
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"

    @property
    def size(self) -> int:
        """Of the file in bytes; 0 where there is none."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def read(self) -> list[Record]:
        """All records of whole stacks, see `whole_stacks`; damaged lines and torn stacks do not count."""
        return whole_stacks(self.lines().found)

    def lines(self) -> Lines[Record]:
        """All records, and which lines are damaged."""
        return read_lines(self.path, parse)


def whole_stacks(records: Iterable[Record]) -> list[Record]:
    """Those of stacks without gaps; of every trial the first that did not fail, or the first."""
    stacks: dict[tuple[Any, ...], dict[int, Record]] = {}
    for record in records:
        _keep(stacks.setdefault((*record.cell, record.seed, record.stack), {}), record.trial, record)
    kept: dict[tuple[Any, ...], Record] = {}
    for stack in stacks.values():
        for record in stack.values() if all(set(r.stack) == set(stack) for r in stack.values()) else ():
            _keep(kept, (*record.cell, record.seed, record.trial), record)
    return list(kept.values())


def _keep(records: dict[K, Record], key: K, record: Record) -> None:
    """Put a record in its place where there is none yet, or where it succeeds after a failure."""
    if key not in records or (records[key].error is not None and record.error is None):
        records[key] = record


def read_records(folder: Path) -> list[Record]:
    """The records of a folder, or an error that says what to run."""
    journal = Journal(folder)
    records = journal.read()
    if records:
        return records
    if journal.path.is_file():
        raise DataError(
            f"Expected records in {journal.path}, but none of its lines holds one; restore the file, or delete it and "
            "run the benchmark again."
        )
    raise DataError(f"Expected results in {folder}, but found no {RECORDS} there; run `splitpoint bench` first.")
