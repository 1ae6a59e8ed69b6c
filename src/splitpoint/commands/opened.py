"""What commands start from: files of rows, a saved predictor with its model, and a place for what they write."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from splitpoint.commands.columns import Columns, chosen_targets, some_of
from splitpoint.commands.folders import ImageFolder, height_and_width
from splitpoint.commands.model import built, check_trained
from splitpoint.commands.tables import Table, open_table
from splitpoint.errors import DataError, SettingsError, StorageError
from splitpoint.files import drop_stale_drafts, file_to_write, read_tensors
from splitpoint.predictor import FILE_KEY, Predictor
from splitpoint.storage import load
from splitpoint.tasks import TaskName

GRAPHS = (".onnx", ".pt2")
"""Endings of what ``splitpoint export`` writes."""

VECTORS, MATRICES = 1024, 64
"""Rows that go through the model at a time: of numbers side by side, and of images and other arrays."""


def rows_of(path: str, size: str | None = None, like: Columns | None = None) -> Table:
    """The table in a file or a folder of images, read `like` those of a fit."""
    if not Path(path).is_dir():
        if size is not None:
            raise SettingsError(f"Expected --size with a folder of images, but the data are in {path}; leave it out.")
        return open_table(path)
    chosen = height_and_width(size) if size is not None else None if like is None else like.size
    return ImageFolder(Path(path), chosen, None if like is None else like.shape[0])


def batch_of(columns: Columns, wanted: int | None) -> int:
    """Rows that go through the model at a time."""
    if wanted is not None and wanted < 1:
        raise SettingsError(f"Expected --batch >= 1, but got {wanted}.")
    return wanted or (VECTORS if len(columns.shape) == 1 else MATRICES)


def destination(path: str, endings: Sequence[str]) -> Path:
    """A place to write to, checked before any work is done; drafts of it that killed commands left behind go away."""
    found = Path(path)
    if found.suffix not in endings:
        raise SettingsError(f"Expected a file {' or '.join(endings)} to write to, but got {path}; rename it.")
    drop_stale_drafts(file_to_write(found))
    return found


def names_of(text: str | None) -> list[str] | None:
    """Names with commas between them.

    >>> names_of("age, income")
    ['age', 'income']
    """
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def opened(path: str, model: str | None, weights: str | None, device: str | None = None) -> Predictor[Any]:
    """A saved predictor on its model."""
    if Path(path).suffix in GRAPHS:
        raise SettingsError(
            f"Expected a predictor that splitpoint fit wrote, but got the graph {path}; give the file that it was "
            "exported from. Graphs .onnx run with splitpoint.runtime.load, and splitpoint verdict judges them."
        )
    if model is None:
        place = _notes(path).get("model")
        known = f"; it was fitted with --model {place}" if place else ""
        raise SettingsError(f"Expected --model package.module:factory, the model that {path} belongs to{known}.")
    network = built(model, weights, device)
    try:
        return load(path, network)
    except StorageError:
        if weights is None:
            check_trained(model, network)
        raise


def _notes(path: str) -> dict[str, str]:
    if not Path(path).is_file():
        raise StorageError(
            f"Expected a predictor that splitpoint fit wrote, but {path} does not exist; check the path."
        )
    metadata = read_tensors(Path(path))[0]
    notes: dict[str, str] = json.loads(metadata.get(FILE_KEY, "{}")).get("notes", {})
    return notes


def recorded(notes: Mapping[str, str]) -> Columns | None:
    """The columns that a predictor was fitted on, by its notes; None where it was fitted in Python."""
    return Columns.of_notes(notes) if "features" in notes else None


def columns_of(
    known: Columns | None, task: TaskName, table: Table, features: list[str] | None, targets: list[str] | None = None
) -> Columns:
    """The columns that are known from a fit; those that are named where it was in Python."""
    if known is not None:
        if features is not None and tuple(features) != known.features:
            raise SettingsError(
                f"Expected the features of the fit, {some_of(known.features)}, but got {some_of(features)}; leave "
                "--features out."
            )
        return known if targets is None else replace(known, targets=chosen_targets(table, targets))
    if features is None and not table.matrices():
        raise DataError(
            "Expected a predictor that knows its features, but this one was fitted in Python; name them in their order "
            "with --features a,b,c."
        )
    return Columns.of(table, task, features, targets)
