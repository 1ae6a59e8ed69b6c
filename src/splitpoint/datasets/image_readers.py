"""The files of image sets: CIFAR's records and pickled batches, idx, npz and MATLAB files, folders of JPEG or PNG.

Every reader takes the entry of the set, where it lies, and the part (``train`` or ``test``) and returns an `ImageSet`;
files that are something else are a DataError.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splitpoint.datasets.arrays import not_the_format, package, present, read_idx, read_npz
from splitpoint.datasets.cifar_batches import NotABatchError, read_batch
from splitpoint.datasets.entry import Entry, ImageEntry, command_for, locate
from splitpoint.datasets.image_set import ImageFiles, ImageSet, Joined, Shape, StoredImages, decoded, pillow
from splitpoint.errors import DataError

CIFAR: Shape = (3, 32, 32)
CIFAR10_BINARY, CIFAR100_BINARY = "cifar-10-batches-bin", "cifar-100-binary"
"""Folders of the binary versions below a data folder."""

CIFAR10_FILES = {"train": [f"data_batch_{number}" for number in range(1, 6)], "test": ["test_batch"]}
CIFAR100_FILES = {"train": ["train"], "test": ["test"]}
IDX_STEMS = {"train": "train", "test": "t10k"}
IMAGENET: Shape = (3, 224, 224)
TINY: Shape = (3, 64, 64)
LETTER: Shape = (1, 28, 28)

SUFFIXES = (".jpeg", ".jpg", ".png")
WNID = re.compile(r"n\d{8}")
"""The name of a class of ImageNet, a number of WordNet."""

WNIDS_FILE = "imagenet_wnids.txt"
"""A file with the 1,000 wnids of ImageNet-1K, the first word of every line, for machines without the images."""


# Arrays


def cifar10_records(entry: ImageEntry, folder: Path, part: str) -> ImageSet:
    """CIFAR-10's binary version: records of one label byte and 3 x 32 x 32 pixel bytes."""
    return _in_a_row([records(entry, folder / f"{file}.bin", 1, entry.classes) for file in CIFAR10_FILES[part]])


def cifar100_records(entry: ImageEntry, folder: Path, part: str) -> ImageSet:
    """CIFAR-100's binary version: records of a coarse and a fine label byte (the fine one counts) and the pixels."""
    return _in_a_row([records(entry, folder / f"{file}.bin", 2, entry.classes) for file in CIFAR100_FILES[part]])


def records(entry: Entry, path: Path, label_bytes: int, classes: int) -> StoredImages:
    """One binary file of CIFAR, mapped into memory: only what is asked for is read."""
    length = label_bytes + int(np.prod(CIFAR))
    size = present(entry, path).stat().st_size
    if size == 0 or size % length:
        raise not_the_format(entry, path, f"records of {length} bytes", f"it has {size:,} bytes")
    records = np.memmap(path, np.uint8, "r").reshape(-1, length)
    images, labels = records[:, label_bytes:].reshape(-1, *CIFAR), records[:, label_bytes - 1]
    return StoredImages(entry.name, images, labels, classes)


def cifar10_batches(entry: ImageEntry, folder: Path, part: str) -> ImageSet:
    """CIFAR-10's Python version: pickled dicts with `data` (n, 3072) and `labels`, read without unpickling."""
    return _in_a_row([_batch(entry, folder / file, "labels") for file in CIFAR10_FILES[part]])


def cifar100_batches(entry: ImageEntry, folder: Path, part: str) -> ImageSet:
    """CIFAR-100's Python version: as CIFAR-10's, with `fine_labels`."""
    return _in_a_row([_batch(entry, folder / file, "fine_labels") for file in CIFAR100_FILES[part]])


def _batch(entry: ImageEntry, path: Path, labels: str) -> StoredImages:
    try:
        pixels, numbers = read_batch(present(entry, path).read_bytes(), labels)
    except NotABatchError as error:
        raise not_the_format(entry, path, "a pickled batch of CIFAR", f"it cannot be read ({error})") from error
    return StoredImages(entry.name, pixels.reshape(-1, *CIFAR), numbers, entry.classes)


def _in_a_row(parts: Sequence[StoredImages]) -> ImageSet:
    return parts[0] if len(parts) == 1 else Joined(parts[0].name, parts, parts[0].classes)


def idx_folder(entry: ImageEntry, folder: Path, part: str) -> ImageSet:
    """MNIST's format: ``train`` or ``t10k`` ``-images-idx3-ubyte`` and ``-labels-idx1-ubyte``, gzipped or not."""
    return _grey(entry, folder, *idx_arrays(entry, folder, part))


def idx_arrays(entry: ImageEntry, folder: Path, part: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (N, H, W) and labels (N,) of one part in MNIST's format."""
    stem = IDX_STEMS[part]
    plain = (folder / f"{stem}-images-idx3-ubyte", folder / f"{stem}-labels-idx1-ubyte")
    found = [path if path.exists() else path.with_name(f"{path.name}.gz") for path in plain]
    images, labels = (read_idx(present(entry, path)) for path in found)
    return images, labels


def grey_npz(entry: ImageEntry, path: Path, part: str) -> ImageSet:
    """Arrays ``x_train``, ``y_train``, ``x_test``, ``y_test`` (or the test ones alone): uint8 (N, 28, 28) and (N,)."""
    arrays = read_npz(entry, path, (f"x_{part}", f"y_{part}"))
    return _grey(entry, path, arrays[f"x_{part}"], arrays[f"y_{part}"])


def _grey(entry: ImageEntry, path: Path, images: NDArray[Any], labels: NDArray[Any]) -> StoredImages:
    if images.shape[1:] != (28, 28):
        raise not_the_format(entry, path, "images (N, 28, 28)", f"they have shape {images.shape}")
    return StoredImages(entry.name, images[:, None], labels, entry.classes)


def tiny_npz(entry: ImageEntry, path: Path, part: str) -> ImageSet:
    """Tiny ImageNet's validation images at 32 pixels: `x` uint8 (N, 32, 32, 3) and `y` (N,), classes by wnid."""
    if part != "test":
        raise DataError(
            f"Expected the folder tiny-imagenet-200 with the training images, but there is only {path}, "
            f"which holds the test part; get the whole set with: {command_for(entry.name)}"
        )
    arrays = read_npz(entry, path, ("x", "y"))
    if arrays["x"].shape[1:] != (32, 32, 3):
        raise not_the_format(entry, path, "images (N, 32, 32, 3)", f"they have shape {arrays['x'].shape}")
    return StoredImages(entry.name, arrays["x"].transpose(0, 3, 1, 2), arrays["y"], entry.classes)


def svhn_mat(entry: ImageEntry, folder: Path, part: str) -> ImageSet:
    """SVHN's cropped digits in MATLAB's format 5: `X` (32, 32, 3, N) and `y` (N, 1), where 10 is the digit 0."""
    scipy = package("scipy.io", "reads MATLAB files", "images")
    path = present(entry, folder / f"{part}_32x32.mat")
    try:
        table = scipy.loadmat(path, variable_names=("X", "y"))
        images, labels = table["X"], table["y"].reshape(-1)
    except Exception as error:  # SciPy raises whatever a damaged file makes it stumble over
        raise not_the_format(entry, path, "a MATLAB file with X and y", f"it cannot be read ({error})") from error
    if images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise not_the_format(entry, path, "images (32, 32, 3, N)", f"they have shape {images.shape}")
    return StoredImages(entry.name, images.transpose(3, 2, 0, 1), np.where(labels == 10, 0, labels), entry.classes)


# Folders of files


def tiny_folder(entry: ImageEntry, folder: Path, part: str) -> ImageSet:
    """Tiny ImageNet as it is published; ``wnids.txt`` gives the order of the classes, ``val`` is the test part."""
    wnids = present(entry, folder / "wnids.txt").read_text().split()
    numbers = {wnid: label for label, wnid in enumerate(wnids)}
    if not len(wnids) == len(numbers) == entry.classes:
        raise not_the_format(entry, folder / "wnids.txt", f"{entry.classes} wnids", f"it has {len(numbers)}")
    if part == "train":
        by_class = _by_class(folder, ((f"train/{wnid}/images", label) for wnid, label in numbers.items()))
        return _image_files(entry, folder, *by_class, entry.classes, TINY)
    path = present(entry, folder / "val" / "val_annotations.txt")
    rows = [line.split("\t") for line in path.read_text().splitlines() if line.strip()]
    if any(len(row) < 2 or row[1] not in numbers for row in rows):
        raise not_the_format(entry, path, "a file name and a wnid of wnids.txt in every line", "a line has not")
    files, labels = [f"val/images/{row[0]}" for row in rows], [numbers[row[1]] for row in rows]
    return _image_files(entry, folder, files, labels, entry.classes, TINY)


def imagenet(entry: ImageEntry, folder: Path, part: str) -> ImageSet:
    """ImageNet-1K: ``train`` or ``val`` with 1,000 class folders; the label is the rank of the wnid."""
    root = folder / ("train" if part == "train" else "val")
    wnids = _wnid_folders(root)
    if len(wnids) != entry.classes:
        raise DataError(
            f"Expected {root} to hold the {entry.classes:,} class folders of ImageNet (n01440764, ...), "
            f"but it holds {len(wnids)}; sort the images into folders named by their wnids."
        )
    by_class = _by_class(root, ((wnid, label) for label, wnid in enumerate(wnids)))
    return _image_files(entry, root, *by_class, entry.classes, IMAGENET, crop=True)


def imagenet_a(entry: ImageEntry, folder: Path, _: str) -> ImageSet:
    """ImageNet-A: folders of 200 of the 1,000 classes of ImageNet-1K, whose labels these are."""
    numbers = {wnid: label for label, wnid in enumerate(_imagenet_wnids(entry.classes))}
    wnids = _wnid_folders(folder)
    unknown = [wnid for wnid in wnids if wnid not in numbers]
    if unknown:
        raise DataError(f"Expected folders of classes of ImageNet-1K in {folder}, but {unknown[0]} is none.")
    by_class = _by_class(folder, ((wnid, numbers[wnid]) for wnid in wnids))
    return _image_files(entry, folder, *by_class, entry.classes, IMAGENET, crop=True)


def imagenet_o(entry: ImageEntry, folder: Path, _: str) -> ImageSet:
    """ImageNet-O: images of none of the 1,000 classes; the label is the number of the folder among its 200."""
    wnids = _wnid_folders(folder)
    by_class = _by_class(folder, ((wnid, label) for label, wnid in enumerate(wnids)))
    return _image_files(entry, folder, *by_class, max(entry.classes, len(wnids)), IMAGENET, crop=True)


def letter_folders(entry: ImageEntry, folder: Path, _: str) -> ImageSet:
    """notMNIST: folders ``A`` to ``J`` of grey images, all decoded at once; broken files are left out and counted."""
    pillow()
    files, labels = _by_class(folder, ((letter, label) for label, letter in enumerate("ABCDEFGHIJ")))
    read = [(_letter(folder / file), label) for file, label in zip(files, labels, strict=True)]
    whole = [(image, label) for image, label in read if image is not None]
    if not whole:
        raise not_the_format(entry, folder, "PNG files in folders A to J", f"none of its {len(files)} can be decoded")
    if len(whole) < len(files):
        broken = len(files) - len(whole)
        warnings.warn(f"Left out {broken} of {len(files)} files of {entry.name}, which are no images.", stacklevel=3)
    images, kept = np.stack([image for image, _ in whole]), np.array([label for _, label in whole])
    return StoredImages(entry.name, images, kept, entry.classes)


def _letter(path: Path) -> NDArray[np.uint8] | None:
    try:
        return decoded(path, LETTER, crop=False)
    except Exception:  # as in ImageFiles
        return None


def _image_files(
    entry: ImageEntry, root: Path, files: list[str], labels: list[int], classes: int, shape: Shape, crop: bool = False
) -> ImageFiles:
    pillow()
    if not files:
        raise not_the_format(entry, root, "JPEG or PNG files in folders of classes", "it has none")
    return ImageFiles(entry.name, root, files, labels, classes, shape, crop)


def _by_class(root: Path, folders: Iterable[tuple[str, int]]) -> tuple[list[str], list[int]]:
    """Files and labels of folders below `root` that hold one class each; files are sorted, hidden ones left out."""
    files: list[str] = []
    labels: list[int] = []
    for folder, label in folders:
        names = os.listdir(root / folder) if (root / folder).is_dir() else []
        found = sorted(name for name in names if name.lower().endswith(SUFFIXES) and not name.startswith("."))
        files += [f"{folder}/{name}" for name in found]
        labels += [label] * len(found)
    return files, labels


def _wnid_folders(root: Path) -> list[str]:
    """Sorted names of the class folders of ImageNet."""
    names = os.listdir(root) if root.is_dir() else []
    return sorted(name for name in names if WNID.fullmatch(name) and (root / name).is_dir())


def _imagenet_wnids(count: int) -> list[str]:
    """The 1,000 wnids of ImageNet-1K (`count`) in the order of their labels, from its folders or from `WNIDS_FILE`."""
    for part in ("val", "train"):
        root = locate(f"imagenet/{part}")
        if root is not None and len(wnids := _wnid_folders(root)) == count:
            return wnids
    path = locate(WNIDS_FILE)
    if path is None:
        raise DataError(
            "Expected the wnids of ImageNet-1K, which number the classes, but no folder of SPLITPOINT_DATA has "
            f"imagenet/val, imagenet/train or {WNIDS_FILE}; put a file {WNIDS_FILE} there with one wnid per line."
        )
    wnids = sorted({line.split()[0] for line in path.read_text().splitlines() if line.strip()})
    if len(wnids) != count or not all(map(WNID.fullmatch, wnids)):
        raise DataError(
            f"Expected {path} to have the {count:,} wnids of ImageNet-1K, one at the start of each line, "
            f"but it has {len(wnids)} different words there."
        )
    return wnids
