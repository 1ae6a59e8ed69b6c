"""LUMA as it is published (Bezirganyan et al., SIGIR 2025): sounds, texts, and images of CIFAR-10 and CIFAR-100.

A folder ``luma`` has ``audio/datalist.csv`` (columns `path` and `label`) with the wav files below ``audio``,
``text_data.tsv`` (columns `text` and `label`), and from the repository of LUMA ``split_indices`` with the rows of the
training and test parts. The images are in the binary files of CIFAR, in folders of their own.

Pickles, which LUMA has for generated images and for sets that were compiled, are never loaded.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splitpoint.datasets.arrays import not_the_format, present, read_npz
from splitpoint.datasets.bounded import DAMAGED, npy_array
from splitpoint.datasets.entry import ModalEntry, command_for, locate, missing
from splitpoint.datasets.image_readers import (
    CIFAR,
    CIFAR10_BINARY,
    CIFAR10_FILES,
    CIFAR100_BINARY,
    CIFAR100_FILES,
    records,
)
from splitpoint.datasets.image_set import in_unit_range
from splitpoint.datasets.luma_names import CIFAR10_NAMES, CIFAR100_NAMES, CLASSES, RENAMED
from splitpoint.datasets.modal_rows import Input, ModalRows, ModalSplits, chosen, split_classes
from splitpoint.datasets.waves import log_mels
from splitpoint.errors import DataError

SHARES = (0.8, 0.1, 0.1)
"""Of the training rows for learning, validation and calibration. LUMA has 80% and 20% and no calibration rows."""

FEATURES = "text_features.npy"
PARTS = ("train", "test", "ood")

Rows: TypeAlias = "dict[str, Tensor]"
"""By modality, places in the tables, int64 (n,)."""


def luma(entry: ModalEntry, folder: Path, seed: int) -> ModalSplits:
    """The published rows of each modality, paired at random within their class by `seed`, and split by it.

    Sounds are log mel power (N, 1, 128, 128). Texts are strings, or vectors (N, D) where ``text_features.npy`` has one
    for each row of ``text_data.tsv``, or ``text_features_train.npy``, ``_test`` and ``_ood`` (or with an underscore at
    the end, as the authors of SPC-UQ have them) in the order of the texts of a compiled ``text_data_train.tsv`` and so
    on; a text that is in none of these is then not drawn.
    """
    _refuse_compiled(folder)
    tables = _tables(entry, folder)
    generator = torch.Generator().manual_seed(seed)
    learned, learned_labels = tables.paired(entry, folder, "train_clean", generator)
    tested, tested_labels = tables.paired(entry, folder, "test", generator)
    others, other_labels = tables.out_of_distribution(entry, folder, generator)
    parts = split_classes(learned_labels, torch.arange(len(learned_labels)), SHARES, generator)
    train, validation, calibration = (
        tables.rows({name: rows[part] for name, rows in learned.items()}, learned_labels[part]) for part in parts
    )
    return ModalSplits(
        train,
        validation,
        calibration,
        tables.rows(tested, tested_labels, test=True),
        tables.rows(others, other_labels),
        CLASSES[: entry.classes],
    )


@final
@dataclass(frozen=True, eq=False)
class _Images:
    """Images of CIFAR that LUMA takes, uint8 (N, 3, 32, 32), and their labels (N,)."""

    pixels: NDArray[np.uint8]
    labels: Tensor


@final
@dataclass(frozen=True, eq=False)
class _Tables:
    """What the files list: labels (N,) of each modality, -1 for a text without features, and where the inputs are."""

    images: _Images
    test_images: _Images
    sounds: tuple[Path, ...]
    sound_labels: Tensor
    texts: Input
    text_labels: Tensor

    def labels(self, modality: str, test: bool) -> Tensor:
        """Labels of the rows of the table that a list of one modality counts."""
        images = self.test_images if test else self.images
        return {"image": images.labels, "audio": self.sound_labels, "text": self.text_labels}[modality]

    def paired(self, entry: ModalEntry, folder: Path, part: str, generator: torch.Generator) -> tuple[Rows, Tensor]:
        """Rows of a published part, class by class, those of each modality in an order of their own, and labels."""
        listed: Rows = {}
        for name in entry.modalities:
            path = folder / "split_indices" / f"{name}_{part}.txt"
            rows = _listed(entry, path)
            table = self.labels(name, test=part == "test")
            if not len(rows) or int(rows.min()) < 0 or int(rows.max()) >= len(table):
                raise _outside(entry, folder, path, rows, len(table), name == "image")
            if not bool(((table[rows] >= 0) & (table[rows] < entry.classes)).all()):
                expected = f"rows of the {entry.classes} classes in distribution"
                raise not_the_format(entry, path, expected, "one is of none, or its text has no features")
            listed[name] = _by_class(rows, table[rows], generator)
        counts = {
            name: torch.bincount(self.labels(name, part == "test")[rows], minlength=entry.classes)
            for name, rows in listed.items()
        }
        first = counts[entry.modalities[0]]
        if any(not torch.equal(count, first) for count in counts.values()):
            raise not_the_format(
                entry,
                folder / "split_indices",
                f"as many rows of every class in the lists {part} of {', '.join(counts)}",
                "their numbers differ",
            )
        return listed, torch.arange(entry.classes).repeat_interleave(first)

    def out_of_distribution(self, entry: ModalEntry, folder: Path, generator: torch.Generator) -> tuple[Rows, Tensor]:
        """Of every other class as many rows as the modality with the fewest has, drawn from training images."""
        found: dict[str, list[Tensor]] = {name: [] for name in entry.modalities}
        labels = []
        for label in range(entry.classes, len(CLASSES)):
            places = {name: (self.labels(name, test=False) == label).nonzero()[:, 0] for name in entry.modalities}
            count = min(map(len, places.values()))
            if count == 0:
                raise not_the_format(entry, folder, f"rows of {CLASSES[label]} in every modality", "one has none")
            for name, rows in places.items():
                found[name].append(rows[torch.randperm(len(rows), generator=generator)[:count]])
            labels += [label] * count
        return {name: torch.cat(rows) for name, rows in found.items()}, torch.tensor(labels)

    def rows(self, places: Rows, labels: Tensor, *, test: bool = False) -> ModalRows:
        """The inputs at `places`, read."""
        images = (self.test_images if test else self.images).pixels[places["image"].numpy()]
        inputs: dict[str, Input] = {
            "image": in_unit_range(torch.from_numpy(images)),
            "audio": log_mels([self.sounds[row] for row in places["audio"].tolist()]),
            "text": chosen(self.texts, places["text"]),
        }
        return ModalRows(inputs, labels, places["audio"])


def _by_class(rows: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """Rows in the order of their labels, those of one label shuffled."""
    shuffled = torch.randperm(len(rows), generator=generator)
    return rows[shuffled[labels[shuffled].argsort(stable=True)]]


# Files


def _refuse_compiled(folder: Path) -> None:
    """DataError for a folder with a compiled set and without the published files."""
    compiled = [name for part in PARTS if (folder / (name := f"image_data_{part}.pickle")).exists()]
    if compiled and not (folder / "audio" / "datalist.csv").exists():
        raise DataError(
            f"Expected the published files of LUMA in {folder} (audio/datalist.csv, text_data.tsv, split_indices), but "
            f"it has {compiled[0]} of a compiled set, and pickles are never loaded; put the published files there, "
            "from which the parts are made here."
        )


def _tables(entry: ModalEntry, folder: Path) -> _Tables:
    sounds = _columns(entry, folder / "audio" / "datalist.csv", ",", ("path", "label"))
    texts = _columns(entry, folder / "text_data.tsv", "\t", ("text", "label"))
    images = _cifar(entry, "train")
    generated = _generated(entry, folder)
    if generated is not None:
        images = _Images(
            np.concatenate([images.pixels, generated.pixels]), torch.cat([images.labels, generated.labels])
        )
    tested = _cifar(entry, "test")
    inside = (tested.labels < entry.classes).numpy()  # the list of test images counts those alone
    found: Input = tuple(texts["text"])
    text_labels = _labels(texts["label"])
    features = _features(entry, folder, texts["text"])
    if features is not None:
        found, known = features
        text_labels = torch.where(known, text_labels, -1)
    return _Tables(
        images,
        _Images(tested.pixels[inside], tested.labels[torch.from_numpy(inside)]),
        tuple(folder / "audio" / path for path in sounds["path"]),
        _labels(sounds["label"]),
        found,
        text_labels,
    )


def _columns(entry: ModalEntry, path: Path, by: str, names: Sequence[str]) -> dict[str, list[str]]:
    """Columns of a table whose first line names them."""
    try:
        with present(entry, path).open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, delimiter=by))
    except (UnicodeDecodeError, csv.Error) as error:
        raise not_the_format(entry, path, "a table of text", f"it cannot be read ({error})") from error
    if not rows or any(rows[0].get(name) is None for name in names):
        raise not_the_format(entry, path, f"a table with columns {' and '.join(names)}", "it has not")
    if any(row[name] is None for row in rows for name in names):
        raise not_the_format(entry, path, f"{' and '.join(names)} in every row", "a row is shorter")
    return {name: [row[name] for row in rows] for name in names}


def _labels(names: Sequence[str]) -> Tensor:
    """Labels by name, -1 for a name that is none of the 50."""
    numbers = {name: label for label, name in enumerate(CLASSES)}
    return torch.tensor([numbers.get(name, -1) for name in names], dtype=torch.int64)


def _listed(entry: ModalEntry, path: Path) -> Tensor:
    """Row numbers of a list, one a line, written as 7 or as 7.000000."""
    try:
        numbers = np.loadtxt(present(entry, path), ndmin=1)
    except ValueError as error:
        raise not_the_format(entry, path, "a row number in every line", f"it cannot be read ({error})") from error
    rows = torch.from_numpy(numbers).long()
    if len(rows.unique()) != len(rows) or not np.array_equal(rows.numpy(), numbers):
        raise not_the_format(entry, path, "different whole numbers", "they are others")
    return rows


def _outside(entry: ModalEntry, folder: Path, path: Path, rows: Tensor, count: int, images: bool) -> DataError:
    """The error for a list that is empty or has rows of no table, such as those of generated images in a pickle."""
    if images and len(rows) and (folder / "edm_images.pickle").exists():
        return DataError(
            f"Expected rows below {count} in {path}, but it asks for {int(rows.max())}, a generated image of "
            'edm_images.pickle, and pickles are never loaded; convert it where you trust it with: python -c "import '
            "numpy, pandas; d = pandas.read_pickle('edm_images.pickle'); numpy.savez('edm_images.npz', "
            "image=numpy.stack(d['image']), label=d['label'].to_numpy(str))\"."
        )
    return not_the_format(entry, path, f"rows of 0 to {count - 1}", "one is outside or there is none")


def _features(entry: ModalEntry, folder: Path, texts: Sequence[str]) -> tuple[Tensor, Tensor] | None:
    """A vector for every text, and whether there is one, or None where there is no file of them."""
    if (folder / FEATURES).exists():
        vectors = _array(entry, folder / FEATURES)
        if len(vectors) != len(texts):
            expected = f"{len(texts)} rows, as text_data.tsv"
            raise not_the_format(entry, folder / FEATURES, expected, f"it has {len(vectors)}")
        return torch.from_numpy(vectors), torch.ones(len(texts), dtype=torch.bool)
    names = ([f"text_features_{part}{end}.npy" for part in PARTS] for end in ("", "_"))
    files = next((each for each in names if all((folder / name).exists() for name in each)), None)
    if files is None:
        return None
    found: dict[str, NDArray[np.float32]] = {}
    for part, name in zip(PARTS, files, strict=True):
        vectors = _array(entry, folder / name)
        compiled = _columns(entry, folder / f"text_data_{part}.tsv", "\t", ("text",))["text"]
        if len(compiled) != len(vectors):
            expected = f"{len(compiled)} rows, as text_data_{part}.tsv"
            raise not_the_format(entry, folder / name, expected, f"it has {len(vectors)}")
        found |= dict(zip(compiled, vectors, strict=True))
    none = np.zeros_like(vectors[0])
    known = torch.tensor([text in found for text in texts])
    return torch.from_numpy(np.stack([found.get(text, none) for text in texts])), known


def _array(entry: ModalEntry, path: Path) -> NDArray[np.float32]:
    try:
        vectors = npy_array(path)
    except DAMAGED as error:
        raise not_the_format(entry, path, "an array (N, D)", f"it cannot be read ({error})") from error
    if vectors.ndim != 2 or vectors.dtype.kind != "f":
        raise not_the_format(entry, path, "an array (N, D) of numbers", f"it is {vectors.dtype} of {vectors.shape}")
    return vectors.astype(np.float32)


# Images


def _cifar(entry: ModalEntry, part: str) -> _Images:
    """The images of CIFAR-10 and then of CIFAR-100 whose class is among the 50, in the order of the files."""
    found = [
        _of_names(entry, _binary(CIFAR10_BINARY, "cifar10"), CIFAR10_FILES[part], 1, CIFAR10_NAMES),
        _of_names(entry, _binary(CIFAR100_BINARY, "cifar100"), CIFAR100_FILES[part], 2, CIFAR100_NAMES),
    ]
    return _Images(np.concatenate([one.pixels for one in found]), torch.cat([one.labels for one in found]))


def _binary(name: str, of: str) -> Path:
    path = locate(name)
    if path is None:
        raise missing(f"{name} with images of LUMA", f"get it with: {command_for(of)}")
    return path


def _of_names(entry: ModalEntry, folder: Path, files: Sequence[str], label_bytes: int, names: Sequence[str]) -> _Images:
    numbers = _labels([RENAMED.get(name, name) for name in names])
    pixels, labels = [], []
    for file in files:
        stored = records(entry, folder / f"{file}.bin", label_bytes, len(names))
        own = numbers[stored.labels]
        kept = (own >= 0).nonzero()[:, 0]
        pixels.append(stored.pixels(kept).numpy())
        labels.append(own[kept])
    return _Images(np.concatenate(pixels), torch.cat(labels))


def _generated(entry: ModalEntry, folder: Path) -> _Images | None:
    """Generated images of the 50 classes, which have the rows after those of CIFAR; None where there are none."""
    path = folder / "edm_images.npz"
    if not path.exists():
        return None
    arrays: Mapping[str, NDArray[np.uint8]] = read_npz(entry, path, ("image", "label"))
    images, names = arrays["image"], [str(name) for name in arrays["label"]]
    if images.shape != (len(names), *CIFAR[1:], 3) or images.dtype != np.uint8:
        raise not_the_format(
            entry, path, "images uint8 (N, 32, 32, 3) and N names", f"they are {images.dtype} of {images.shape}"
        )
    labels = _labels([RENAMED.get(name, name) for name in names])
    kept = (labels >= 0).nonzero()[:, 0]
    return _Images(images[kept.numpy()].transpose(0, 3, 1, 2), labels[kept])
