"""The files of sets with several modalities that come as arrays: three real sets put together, and vectors as views.

Every reader takes the entry of the set, where it lies, and a seed, and returns its `ModalSplits`; files that are
something else are a DataError.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splitpoint.datasets.arrays import not_the_format, read_npz
from splitpoint.datasets.entry import ModalEntry
from splitpoint.datasets.image_set import in_unit_range
from splitpoint.datasets.modal_rows import ModalRows, ModalSplits, split_classes

TRAIN, TEST, OOD = 0, 1, 2
"""What the array `split` of `three_modal` says of a row."""

CALIBRATION_FOLD = "4"
VALIDATION = 0.2
"""Share of the training rows by which networks stop, as in LUMA."""

TEST_SHARE, CALIBRATION_SHARE, VALIDATION_SHARE = 0.2, 0.2, 0.1
"""Of views: the share of all rows that RCML tests with, and shares of the rest."""


def three_modal(entry: ModalEntry, path: Path, seed: int) -> ModalSplits:
    """Images (N, 32, 32, 3) and log mel sounds (N, 48, 48), both uint8, and texts (N,), with `y`, `split` and `clip`.

    A clip is a file of ESC-50, ``FOLD-SOURCE-TAKE-CLASS.wav``: several rows are windows of one, and takes of one source
    are in one fold. Rows of fold 4 are for calibration. The other training rows are split by `seed` so that a source
    stays whole. Sounds are given as bytes over 255, which is 1 at the maximum of the clip and 0 at 80 dB below it.
    """
    arrays = read_npz(
        entry, path, ("image", "audio", "text", "y", "split", "clip", "image_names", "audio_names", "text_names")
    )
    _fits(entry, path, arrays, {"image": (32, 32, 3), "audio": (48, 48), "text": (), "split": (), "clip": ()})
    labels, split = _numbers(arrays["y"]), _numbers(arrays["split"])
    _classes_fit(entry, path, labels, split)
    folds, sources = _recordings(entry, path, arrays["clip"])
    rows = ModalRows(
        {
            "image": in_unit_range(torch.from_numpy(np.ascontiguousarray(arrays["image"].transpose(0, 3, 1, 2)))),
            "audio": in_unit_range(torch.from_numpy(arrays["audio"])[:, None]),
            "text": tuple(map(str, arrays["text"])),
        },
        labels,
        sources,
    )
    calibrated = torch.tensor([fold == CALIBRATION_FOLD for fold in folds])
    learned = ((split == TRAIN) & ~calibrated).nonzero()[:, 0]
    generator = torch.Generator().manual_seed(seed)
    train, validation = split_classes(labels[learned], sources[learned], (1 - VALIDATION, VALIDATION), generator)
    names = [" / ".join(triple) for triple in zip(*(arrays[f"{name}_names"] for name in rows.modalities), strict=True)]
    return ModalSplits(
        rows.at(learned[train]),
        rows.at(learned[validation]),
        rows.at(((split == TRAIN) & calibrated).nonzero()[:, 0]),
        rows.at((split == TEST).nonzero()[:, 0]),
        rows.at((split == OOD).nonzero()[:, 0]),
        tuple(names[: entry.classes]),
    )


def _classes_fit(entry: ModalEntry, path: Path, labels: Tensor, split: Tensor) -> None:
    """DataError unless the classes out of distribution come after those in distribution."""
    if not torch.equal(split == OOD, labels >= entry.classes):
        expected = f"classes 0 to {entry.classes - 1} in splits {TRAIN} and {TEST} and others in split {OOD}"
        raise not_the_format(entry, path, expected, "a class is in another split")


def _recordings(entry: ModalEntry, path: Path, clips: NDArray[Any]) -> tuple[list[str], Tensor]:
    """The fold of every clip, and the number of its fold and source."""
    parts = [str(clip).split("-") for clip in clips]
    if any(len(part) != 4 for part in parts):
        raise not_the_format(entry, path, "clips FOLD-SOURCE-TAKE-CLASS.wav", "a clip has another name")
    sources = [(fold, source) for fold, source, _, _ in parts]
    numbers = {source: number for number, source in enumerate(dict.fromkeys(sources))}
    return [fold for fold, _ in sources], torch.tensor([numbers[source] for source in sources])


def views(entry: ModalEntry, path: Path, seed: int) -> ModalSplits:
    """Vectors `view0`, `view1`, ... (N, D), one array for each modality of the entry in their order, and `y` (N,).

    The rows are shuffled by `seed` and the last fifth is for tests, as in RCML (Xu et al., AAAI 2024). Of the rest a
    fifth is for calibration and a tenth for validation, class by class. Every column is scaled so that the training
    rows fill [0, 1]; other rows may lie outside. RCML scales by all rows, test rows among them.
    """
    stored = {modality: f"view{number}" for number, modality in enumerate(entry.modalities)}
    arrays = read_npz(entry, path, ("y", *stored.values()))
    labels = _numbers(arrays["y"])
    _fits(entry, path, arrays, {key: (arrays[key].size // max(1, len(labels)),) for key in stored.values()})
    if labels.unique().tolist() != list(range(entry.classes)):
        raise not_the_format(entry, path, f"classes y of 0 to {entry.classes - 1}", "they are others")
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    tested = len(labels) - int((1 - TEST_SHARE) * len(labels))
    rest, test = order[:-tested].sort().values, order[-tested:].sort().values
    shares = (1 - CALIBRATION_SHARE - VALIDATION_SHARE, CALIBRATION_SHARE, VALIDATION_SHARE)
    train, calibration, validation = (
        rest[places] for places in split_classes(labels[rest], torch.arange(len(rest)), shares, generator)
    )
    inputs = {modality: _scaled(torch.from_numpy(arrays[key]).float(), train) for modality, key in stored.items()}
    rows = ModalRows(inputs, labels, torch.arange(len(labels)))
    return ModalSplits(
        rows.at(train),
        rows.at(validation),
        rows.at(calibration),
        rows.at(test),
        None,
        tuple(map(str, range(entry.classes))),
    )


def _scaled(vectors: Tensor, train: Tensor) -> Tensor:
    """Columns with the least of the training rows at 0 and the largest at 1; a constant column is only moved."""
    least, largest = vectors[train].amin(0), vectors[train].amax(0)
    span = largest - least
    return (vectors - least) / torch.where(span > 0, span, 1.0)


def _numbers(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(array.astype(np.int64).reshape(-1))


def _fits(
    entry: ModalEntry, path: Path, arrays: Mapping[str, NDArray[Any]], tails: Mapping[str, tuple[int, ...]]
) -> None:
    """DataError unless every array has one row for each label, of the shape that `tails` says."""
    count = arrays["y"].size
    for key, tail in tails.items():
        if arrays[key].shape != (count, *tail):
            expected = f"an array {key} of shape {(count, *tail)}"
            raise not_the_format(entry, path, expected, f"it has shape {arrays[key].shape}")
