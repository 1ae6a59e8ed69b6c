"""Rows with one input for each modality (an image, a sound, a text, a vector), and splits of them.

A row belongs to a class and to a group, such as the recording that a sound was cut from; rows of one group stay in one
part of a split.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, final

import torch
from torch import Tensor

from splitpoint.datasets.blocks import split_blocks
from splitpoint.datasets.image_set import row_numbers
from splitpoint.errors import DataError, SettingsError

Input: TypeAlias = "Tensor | tuple[str, ...]"
"""What one modality gives of N rows: a tensor (N, ...) or N texts."""


@final
@dataclass(frozen=True, eq=False)
class ModalRows:
    """N rows.

    Attributes:
        inputs: by modality: images (N, C, H, W) in [0, 1], sounds (N, 1, H, W), vectors (N, D), all float32, and texts
            as tuples of N strings. A modality that is missing is not among them.
        labels: classes, int64 (N,).
        groups: what rows were cut from, int64 (N,); rows of one group are not independent of each other.
    """

    inputs: Mapping[str, Input]
    labels: Tensor
    groups: Tensor

    def __post_init__(self) -> None:
        lengths = {name: len(each) for name, each in self.inputs.items()}
        lengths |= {"labels": len(self.labels), "groups": len(self.groups)}
        if len(set(lengths.values())) > 1:
            got = ", ".join(f"{count} of {name}" for name, count in lengths.items())
            raise DataError(f"Expected as many rows in every modality as there are labels and groups, but got {got}.")
        for name, numbers in (("labels", self.labels), ("groups", self.groups)):
            if numbers.ndim != 1 or numbers.dtype != torch.int64:
                raise DataError(
                    f"Expected {name} as one row of int64, but got {numbers.dtype} of shape {tuple(numbers.shape)}."
                )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def modalities(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.inputs)

    def of(self, modality: str) -> Input:
        """The input of a modality; SettingsError where the rows have none of that name."""
        if modality not in self.inputs:
            raise SettingsError(f"Expected a modality among {', '.join(self.inputs)}, but got {modality!r}.")
        return self.inputs[modality]

    def at(self, places: Sequence[int] | Tensor) -> ModalRows:
        """The rows at `places`, (n,) whole numbers, in their order."""
        kept = row_numbers(places, len(self))
        inputs = {name: chosen(each, kept) for name, each in self.inputs.items()}
        return ModalRows(inputs, self.labels[kept], self.groups[kept])

    def having(self, modality: str, given: Input) -> ModalRows:
        """The same rows with another input of one `modality`, which they have already."""
        self.of(modality)
        return replace(self, inputs={**self.inputs, modality: given})


def chosen(given: Input, rows: Tensor) -> Input:
    """The `rows`, int64 (n,), of the input of a modality."""
    return given[rows] if isinstance(given, Tensor) else tuple(given[row] for row in rows.tolist())


def joined(parts: Sequence[ModalRows]) -> ModalRows:
    """The rows of several parts one after the other; all must have the same modalities."""
    if not parts or any(part.modalities != parts[0].modalities for part in parts):
        raise DataError(
            f"Expected parts with the same modalities, but got {[list(part.modalities) for part in parts]}."
        )
    inputs = {name: _in_a_row([part.inputs[name] for part in parts]) for name in parts[0].modalities}
    labels, groups = (torch.cat([getattr(part, name) for part in parts]) for name in ("labels", "groups"))
    return ModalRows(inputs, labels, groups)


def _in_a_row(given: Sequence[Input]) -> Input:
    tensors = [each for each in given if isinstance(each, Tensor)]
    if len(tensors) == len(given):
        return torch.cat(tensors)
    return tuple(text for each in given for text in each if isinstance(text, str))


@final
@dataclass(frozen=True, eq=False)
class ModalSplits:
    """Parts of one set: networks learn `train`, stop by `validation`, and are calibrated with `calibration`.

    Attributes:
        ood: rows of classes that are in none of the other parts, or None; their labels go on where those of `classes`
            end.
        classes: names of the classes in distribution, in the order of their labels.
    """

    train: ModalRows
    validation: ModalRows
    calibration: ModalRows
    test: ModalRows
    ood: ModalRows | None
    classes: tuple[str, ...]


def split_classes(labels: Tensor, groups: Tensor, shares: Sequence[float], generator: torch.Generator) -> list[Tensor]:
    """Split rows class by class, so that rows of one group stay together.

    `labels` and `groups` are int64 (N,), and `shares` what each part should have of every class. A class of fewer
    groups than parts is whole in the first part.

    Returns:
        Places of the rows of every part, ascending, int64.
    """
    parts: list[list[Tensor]] = [[] for _ in shares]
    for label in labels.unique().tolist():
        places = (labels == label).nonzero()[:, 0]
        if len(groups[places].unique()) < len(shares):
            parts[0].append(places)
            continue
        for part, found in zip(parts, split_blocks(groups[places], shares, generator), strict=True):
            part.append(places[found])
    return [torch.cat(part).sort().values if part else torch.empty(0, dtype=torch.int64) for part in parts]
