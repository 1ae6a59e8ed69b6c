"""The rows of a trial with several modalities: as tensors, with the noise of a condition, whole and spoilt."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.batches import Batch
from splitpoint.datasets import modal_noise
from splitpoint.datasets.modal import MODAL, ModalRows, splits
from splitpoint.errors import SettingsError
from splitpoint.files import digest

WORDS = 1024
"""Places of a hashed bag of words."""

FUSED = "all"
"""Stands for all modalities together where others are named one by one."""


@dataclass(frozen=True, eq=False)
class Rows:
    """N rows as networks read them.

    Attributes:
        inputs: (N, ...) for each modality, None where it is missing.
        labels: classes (N,).
        groups: (N,) rows of one group are not independent of each other.
    """

    inputs: Mapping[str, Tensor | None]
    labels: Tensor
    groups: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def arguments(self) -> tuple[Tensor | None, ...]:
        """The inputs in the order in which a network takes them."""
        return tuple(self.inputs.values())

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of a row of every modality that is there."""
        return {name: tuple(given.shape[1:]) for name, given in self.inputs.items() if given is not None}

    def at(self, places: Tensor | slice) -> Rows:
        """Some of the rows."""
        inputs = {name: None if given is None else given[places] for name, given in self.inputs.items()}
        return Rows(inputs, self.labels[places], self.groups[places])

    def batch(self, places: Tensor | slice) -> Batch:
        """Some of the rows as arguments of a network and their target."""
        part = self.at(places)
        return Batch(part.arguments, {}, part.labels)

    @property
    def data(self) -> tuple[Tensor, ...]:
        """Inputs and labels in a row, as methods take them; no modality may be missing."""
        return (*(given for given in self.arguments if given is not None), self.labels)

    def digest(self) -> str:
        """Of everything."""
        return digest(self.data)


@dataclass(frozen=True, eq=False)
class ModalTrial:
    """The rows of one trial.

    Attributes:
        train: what networks and heads learn from.
        validation: rows that end trainings.
        calibration: rows that no network has seen.
        test: in distribution.
        ood: of other classes, None where there are none.
        spoilt: the test rows with one modality spoilt, by its name; empty where the condition spoils none.
        classes: how many there are.
    """

    train: Rows
    validation: Rows
    calibration: Rows
    test: Rows
    ood: Rows | None
    spoilt: Mapping[str, Rows]
    classes: int

    @property
    def modalities(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.train.inputs)


NOISY: Mapping[str, Callable[[ModalRows, int], ModalRows]] = {
    "diversity": lambda rows, seed: modal_noise.diversity(rows, seed=seed),
    "label": lambda rows, seed: modal_noise.label(rows, seed=seed),
    "sample": lambda rows, seed: modal_noise.sample(rows, seed=seed),
}
"""Conditions whose noise is in the rows that networks learn from and in those that test them."""

CONFLICT, MISSING = "conflict", "missing"

SPOILING: Mapping[str, Callable[[ModalRows, str, int], ModalRows]] = {
    CONFLICT: lambda rows, modality, seed: modal_noise.conflict(rows, modality, seed=seed),
    MISSING: lambda rows, modality, _: modal_noise.missing(rows, modality),
}
"""Conditions that spoil one modality of the test rows at a time, for networks that were trained on clean rows."""

CLEAN = "clean"
CONDITIONS = (CLEAN, *NOISY, *SPOILING)


def modal_trial(dataset: str, condition: str, modality: str, number: int, seed: int = 0) -> ModalTrial:
    """The rows of trial `number`, which depend on the arguments only.

    Args:
        dataset: name of a set with several modalities.
        condition: see `CONDITIONS`.
        modality: the only one that networks see, or `FUSED` for all of them.
        number: of the trial.
        seed: of the whole run.
    """
    draw = zlib.crc32(f"{dataset} {seed} {number}".encode())
    found, names = splits(dataset, seed=draw), chosen(dataset, modality)
    parts = [found.train, found.validation, found.calibration, found.test]
    if condition in NOISY:
        parts = [NOISY[condition](part, draw + place) for place, part in enumerate(parts)]
    train, validation, calibration, test = (read(part, names) for part in parts)
    spoilt = {}
    if condition in SPOILING:
        spoilt = {name: read(SPOILING[condition](found.test, name, draw), names) for name in names}
    ood = None if found.ood is None else read(found.ood, names)
    return ModalTrial(train, validation, calibration, test, ood, spoilt, len(found.classes))


def chosen(dataset: str, modality: str) -> tuple[str, ...]:
    """Names of the modalities that networks see."""
    names = MODAL[dataset].modalities
    if modality not in (FUSED, *names):
        raise SettingsError(f"Expected modalities among {', '.join((*names, FUSED))}, but got {modality}.")
    return names if modality == FUSED else (modality,)


def read(found: ModalRows, names: Sequence[str]) -> Rows:
    """Some modalities of the rows as tensors, None in the place of one that is missing."""
    inputs = {name: found.inputs.get(name) for name in names}
    read = {name: hashed_words(given) if isinstance(given, tuple) else given for name, given in inputs.items()}
    return Rows(read, found.labels, found.groups)


def hashed_words(texts: Sequence[str], places: int = WORDS) -> Tensor:
    """Words and pairs of words of every text, counted in places (N, P) by their hash, each row of unit length.

    Words are runs of letters and digits, in lower case. A text without any is a row of zeros.
    """
    counts = torch.zeros(len(texts), places)
    for row, text in enumerate(texts):
        words = re.findall(r"\w+", text.lower())
        for part in (*words, *(" ".join(pair) for pair in pairwise(words))):
            counts[row, zlib.crc32(part.encode()) % places] += 1
    return F.normalize(counts, dim=1)
