"""Which columns of a table are features and targets, and what a model gets of them; found again by name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splitpoint.commands.folders import CLASS, IMAGE, ImageFolder
from splitpoint.commands.tables import Part, Table
from splitpoint.errors import DataError, SettingsError, StorageError
from splitpoint.tasks import MISSING, TASKS, TaskName

SAME_NAMES = ("X", "y")
"""Arrays of an npz file that are features and targets where nothing else is said."""

LISTS = ("features", "shape", "targets", "classes")
"""What is recorded of columns beside the task, as lists in JSON."""

MOST_CLASSES = 10_000
"""Most different labels of a target; beyond, it is no class."""


@dataclass(frozen=True)
class Columns:
    """Names of features and targets, recorded when a predictor is fitted.

    Attributes:
        task: what the targets are.
        features: columns of numbers that are set side by side, or one column with an array for each row.
        shape: of the features of a row.
        targets: one column, or several for a regression with several outputs; none where nothing was to be learned.
        classes: names of the classes in the order of the model's outputs; empty where labels are their numbers.
        size: height and width that images are brought to, where they are.
    """

    task: TaskName
    features: tuple[str, ...]
    shape: tuple[int, ...]
    targets: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    size: tuple[int, int] | None = None

    @staticmethod
    def of(
        table: Table,
        task: TaskName,
        features: Sequence[str] | None = None,
        targets: Sequence[str] | None = None,
        classes: Sequence[str] | None = None,
        without: Sequence[str] = (),
    ) -> Columns:
        """Those of a table: all columns but the targets and some others, in order, unless features are named."""
        chosen = chosen_targets(table, targets)
        named = chosen_features(table, features, (*chosen, *without))
        shape = table.beginning(named, 1).numbers(named[0]).shape[1:] or (len(named),)
        if task == "classification" and len(chosen) > 1:
            raise SettingsError(f"Expected one target for a classification, but got {', '.join(chosen)}; name one.")
        found = tuple(classes or ()) if task == "classification" else ()
        if task == "classification" and chosen and not found:
            found = class_names(table, chosen[0])
        size = table.size if isinstance(table, ImageFolder) else None
        return Columns(task, named, tuple(shape), chosen, found, size)

    @staticmethod
    def of_notes(notes: Mapping[str, str]) -> Columns:
        """Those that a saved predictor remembers."""
        try:
            known: dict[str, Any] = {name: tuple(json.loads(notes[name])) for name in LISTS}
            size = tuple(json.loads(notes["size"])) if "size" in notes else None
            return Columns(TASKS[TASKS.index(notes["task"])], **known, size=size)
        except (KeyError, TypeError, ValueError) as error:
            raise StorageError(
                f"Expected the names of columns in the predictor, but its notes lack or garble {error}; fit it again."
            ) from error

    def notes(self) -> dict[str, str]:
        """What a saved predictor remembers of them."""
        lists: dict[str, Any] = {name: getattr(self, name) for name in LISTS}
        lists |= {} if self.size is None else {"size": self.size}
        return {"task": self.task} | {name: json.dumps(values) for name, values in lists.items()}

    def check(self, table: Table, *, targets: bool = False) -> None:
        """Refuse a table that lacks some of the features, or of the targets where they are needed."""
        for kind, names in (("features", self.features), ("targets", self.targets if targets else ())):
            missing = [name for name in names if name not in table.names]
            if missing:
                raise DataError(
                    f"Expected the {kind} {some_of(names)}, but {table.path} lacks {some_of(missing)}; it has "
                    f"{some_of(table.names)}."
                )

    def inputs(self, part: Part) -> Tensor:
        """What the model gets of some rows: float32 (rows, *shape)."""
        found = []
        for name in self.features:
            values = part.numbers(name)
            with np.errstate(over="ignore"):
                plain = values.astype(np.float32, copy=False)
            wrong = ~np.isfinite(plain.reshape(part.rows, -1)).all(1)
            if wrong.any():
                row = int(wrong.argmax())
                what = "inf" if np.isinf(plain[row]).any() else "no value"
                raise DataError(
                    f"Expected a finite number in every row of the features, but column {name!r} of "
                    f"{part.table.path} has {what} in row {part.first + row + 1:,}; fill it as in the training of the "
                    "model, or leave the row out."
                )
            found.append(plain)
        rows = found[0] if found[0].ndim > 1 else np.stack(found, 1)
        if rows.shape[1:] != self.shape:
            cure = "bring them to one size with --size HxW" if isinstance(part.table, ImageFolder) else "reshape them"
            raise DataError(
                f"Expected rows of shape {self.shape}, but {self.features[0]!r} of {part.table.path} has "
                f"{rows.shape[1:]} in row {part.first + 1:,}; {cure}."
            )
        return torch.from_numpy(np.ascontiguousarray(rows))

    def wanted(self, part: Part) -> Tensor:
        """Targets of some rows: numbers (rows,) or (rows, D), NaN where one is missing, or class numbers (rows,)."""
        if self.task == "regression":
            columns = [part.numbers(name).astype(np.float64) for name in self.targets]
            return torch.from_numpy(columns[0] if len(columns) == 1 else np.stack(columns, 1))
        values = part.labels(self.targets[0])
        numbers = {value: self._number(value) for value in set(values)}
        found = [numbers[value] for value in values]
        if None in found:
            row = found.index(None)
            wanted = f"one of the classes {some_of(self.classes)}" if self.classes else "the number of a class"
            raise DataError(
                f"Expected {wanted} in column {self.targets[0]!r}, but {part.table.path} has {values[row]!r} in row "
                f"{part.first + row + 1:,}; correct the label, or leave it empty."
            )
        return torch.tensor(found, dtype=torch.long)

    def _number(self, value: Any) -> int | None:
        """The number of a class, `MISSING` where there is no label; None for a label that is no class."""
        if value is None:
            return MISSING
        whole = whole_number(value)
        if not self.classes:
            return whole
        known = (name for name in (str(value), str(whole)) if name in self.classes)
        return next((self.classes.index(name) for name in known), None)

    def named(self, labels: Tensor) -> list[Any]:
        """Class numbers as labels of the data."""
        return [self.classes[label] for label in labels.tolist()] if self.classes else labels.tolist()


def chosen_targets(table: Table, targets: Sequence[str] | None) -> tuple[str, ...]:
    """The target that is named, the array y of an npz file, or the class of a folder of images."""
    if targets is not None:
        known = [name for name in [",".join(targets)] if name in table.names]  # a name may have commas of its own
        return _present(table, known or targets, "--target")
    for usual in (
        CLASS if isinstance(table, ImageFolder) else "",
        SAME_NAMES[1] if SAME_NAMES[0] in table.names else "",
    ):
        if usual in table.names:
            return (usual,)
    return ()


def chosen_features(table: Table, features: Sequence[str] | None, without: Sequence[str]) -> tuple[str, ...]:
    """The features that are named, or all columns but some; an array for each row has to be the only one."""
    matrices = table.matrices()
    if isinstance(table, ImageFolder):
        if features not in (None, [IMAGE]):
            raise SettingsError(f"Expected no --features with a folder of images, but got {some_of(features or ())}.")
        named: tuple[str, ...] = (IMAGE,)
    elif features is not None:
        named = _present(table, features, "--features")
    elif SAME_NAMES[0] in matrices:
        named = SAME_NAMES[:1]
    else:
        named = tuple(name for name in table.names if name not in without)
    if not named:
        raise DataError(f"Expected columns with features in {table.path}, but it has {some_of(table.names)} only.")
    both = [name for name in named if name in without]
    if both:
        raise SettingsError(
            f"Expected features that are no targets or groups, but got {some_of(both)}; leave them out."
        )
    if len(named) > 1 and set(named) & set(matrices):
        raise DataError(
            f"Expected one array of features or columns of numbers in {table.path}, but got {some_of(named)}; "
            "name the array with --features."
        )
    return named


def _present(table: Table, names: Sequence[str], option: str) -> tuple[str, ...]:
    for name in names:
        if name not in table.names:
            near = difflib.get_close_matches(name, table.names, 1)
            raise DataError(
                f"Expected a column of {table.path} with {option}, but got {name!r}; "
                f"{f'did you mean {near[0]!r}? It' if near else 'it'} has {some_of(table.names)}."
            )
    return tuple(dict.fromkeys(names))


def some_of(names: Sequence[str], most: int = 12) -> str:
    """Names in a sentence, without those beyond a number of them.

    >>> some_of(("a", "b", "c"), 2)
    'a, b and 1 more'
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def whole_number(value: Any) -> int | None:
    """A label as a whole number; None where it is none.

    >>> whole_number("3"), whole_number(2.0), whole_number("cat"), whole_number(True)
    (3, 2, None, 1)
    """
    return int(float(value)) if is_number(value) and float(value).is_integer() else None


def is_number(value: Any) -> bool:
    """Whether a label is a number, or text that says one."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def class_names(table: Table, target: str) -> tuple[str, ...]:
    """Labels that are text, sorted; nothing where they are whole numbers."""
    found: set[Any] = set()
    for part in table.parts([target], 65_536):
        found |= set(part.labels(target)) - {None}
        if len(found) > MOST_CLASSES:
            raise DataError(
                f"Expected classes in column {target!r} of {table.path}, but it has more than {MOST_CLASSES:,} "
                "different values; name the column of the class, or use --task regression."
            )
    whole = [whole_number(value) is not None for value in found]
    if all(whole):
        return ()
    if all(map(is_number, found)):
        odd = next(value for value, fine in zip(found, whole, strict=True) if not fine)
        raise DataError(
            f"Expected classes in column {target!r} of {table.path}, but it holds {odd!r}; give text or whole numbers, "
            "or use --task regression."
        )
    return tuple(sorted(map(str, found)))
