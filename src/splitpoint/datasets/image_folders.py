"""Picture sets that are folders of JPEG or PNG files, decoded one by one when they are asked for.

Readers are called as those of `image_formats`: with the name of the set, where it lies, and the part.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splitpoint.datasets.folders import locate
from splitpoint.datasets.image_formats import not_the_format, present
from splitpoint.datasets.image_set import ImageSet, Shape, StoredImages, class_numbers, row_numbers
from splitpoint.datasets.packages import package
from splitpoint.errors import DataError

SUFFIXES = (".jpeg", ".jpg", ".png")
WNID = re.compile(r"n\d{8}")
"""The name of a class of ImageNet, a number of WordNet."""

WNIDS_FILE = "imagenet_wnids.txt"
"""A file with the 1,000 wnids of ImageNet-1K, the first word of every line, for machines without the pictures."""

SHORTER_SIDE = 256
IMAGENET: Shape = (3, 224, 224)
TINY: Shape = (3, 64, 64)
LETTER: Shape = (1, 28, 28)


class ImageFiles(ImageSet):
    """Pictures in files below `root`; `crop` says that they come in all sizes.

    With `crop` the shorter side is brought to 256 pixels, bilinearly, and the centre of `shape` is cut out. Without it
    every picture must have `shape`.
    """

    def __init__(
        self, name: str, root: Path, files: Sequence[str], labels: Sequence[int], classes: int, shape: Shape, crop: bool
    ) -> None:
        _pillow()
        if not files:
            raise not_the_format(name, root, "JPEG or PNG files in folders of classes", "it has none")
        self.name, self.classes, self.shape = name, classes, shape
        self.root, self.crop = root, crop
        self.files = np.array([os.fsencode(file) for file in files])  # a list would take four times the memory
        self.labels = class_numbers(name, np.array(labels), classes)

    def pixels(self, places: Sequence[int] | Tensor) -> Tensor:
        """Pictures, decoded in as many threads as torch has."""
        rows = row_numbers(places, len(self))
        pixels = torch.empty((len(rows), *self.shape), dtype=torch.uint8)
        paths = (self.root / os.fsdecode(self.files[row]) for row in rows.tolist())
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            decode = map if torch.get_num_threads() == 1 else pool.map
            for slot, picture in enumerate(decode(self._picture, paths)):
                pixels[slot] = torch.from_numpy(picture)
        return pixels

    def _picture(self, path: Path) -> NDArray[np.uint8]:
        try:
            return decoded(path, self.shape, crop=self.crop)
        except Exception as error:  # Pillow raises whatever a damaged file makes it stumble over
            raise DataError(
                f"Expected {path} to be a picture of {self.name}, but it cannot be used ({error}); "
                "put the file there again."
            ) from error


def decoded(path: Path, shape: Shape, *, crop: bool) -> NDArray[np.uint8]:
    """One picture, (C, H, W), as `ImageFiles` says; grey or RGB whatever the file has."""
    channels, height, width = shape
    image = _pillow()
    with image.open(path) as file:
        picture = file.convert("RGB" if channels == 3 else "L")
    if crop:
        shorter = min(picture.size)
        sides = tuple(SHORTER_SIDE if side == shorter else SHORTER_SIDE * side // shorter for side in picture.size)
        picture = picture.resize(sides, image.Resampling.BILINEAR)
        left, top = round((sides[0] - width) / 2), round((sides[1] - height) / 2)
        picture = picture.crop((left, top, left + width, top + height))
    elif picture.size != (width, height):
        raise DataError(f"it has {picture.size[0]} x {picture.size[1]} pixels, not {width} x {height}")
    return np.array(picture).reshape(height, width, channels).transpose(2, 0, 1)


def _pillow() -> Any:
    return package("PIL.Image", "decodes pictures (Pillow)", "images")


def _pictures(folder: Path) -> list[str]:
    """Sorted names of the pictures in a folder; hidden files are none."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(name for name in names if name.lower().endswith(SUFFIXES) and not name.startswith("."))


def _by_class(root: Path, folders: Iterable[tuple[str, int]]) -> tuple[list[str], list[int]]:
    """Files and labels of folders below `root` that hold one class each."""
    files: list[str] = []
    labels: list[int] = []
    for folder, label in folders:
        found = _pictures(root / folder)
        files += [f"{folder}/{name}" for name in found]
        labels += [label] * len(found)
    return files, labels


def _wnid_folders(root: Path) -> list[str]:
    """Sorted names of the class folders of ImageNet."""
    names = os.listdir(root) if root.is_dir() else []
    return sorted(name for name in names if WNID.fullmatch(name) and (root / name).is_dir())


def tiny_folder(name: str, folder: Path, part: str) -> ImageSet:
    """Tiny ImageNet as it is published; ``wnids.txt`` gives the order of the 200 classes, ``val`` is the test part."""
    wnids = present(name, folder / "wnids.txt").read_text().split()
    if len(wnids) != 200 or len(set(wnids)) != 200:
        raise not_the_format(name, folder / "wnids.txt", "200 wnids", f"it has {len(set(wnids))}")
    if part == "train":
        files, labels = _by_class(folder, ((f"train/{wnid}/images", label) for label, wnid in enumerate(wnids)))
        return ImageFiles(name, folder, files, labels, 200, TINY, crop=False)
    numbers = {wnid: label for label, wnid in enumerate(wnids)}
    path = present(name, folder / "val" / "val_annotations.txt")
    rows = [line.split("\t") for line in path.read_text().splitlines() if line.strip()]
    if any(len(row) < 2 or row[1] not in numbers for row in rows):
        raise not_the_format(name, path, "a file name and a wnid of wnids.txt in every line", "a line has not")
    files, labels = [f"val/images/{row[0]}" for row in rows], [numbers[row[1]] for row in rows]
    return ImageFiles(name, folder, files, labels, 200, TINY, crop=False)


def imagenet(name: str, folder: Path, part: str) -> ImageSet:
    """ImageNet-1K: ``train`` or ``val`` with 1,000 class folders; the label is the rank of the wnid."""
    root = folder / ("train" if part == "train" else "val")
    wnids = _wnid_folders(root)
    if len(wnids) != 1000:
        raise DataError(
            f"Expected {root} to hold the 1,000 class folders of ImageNet (n01440764, ...), but it holds {len(wnids)}; "
            "sort the pictures into folders named by their wnids."
        )
    files, labels = _by_class(root, ((wnid, label) for label, wnid in enumerate(wnids)))
    return ImageFiles(name, root, files, labels, 1000, IMAGENET, crop=True)


def imagenet_wnids() -> list[str]:
    """The 1,000 wnids of ImageNet-1K in the order of their labels, from its folders or from `WNIDS_FILE`."""
    for part in ("val", "train"):
        root = locate(f"imagenet/{part}")
        if root is not None and len(wnids := _wnid_folders(root)) == 1000:
            return wnids
    path = locate(WNIDS_FILE)
    if path is None:
        raise DataError(
            "Expected the wnids of ImageNet-1K, which number the classes, but no folder of SPLITPOINT_DATA has "
            f"imagenet/val, imagenet/train or {WNIDS_FILE}; put a file {WNIDS_FILE} there with one wnid per line."
        )
    wnids = sorted({line.split()[0] for line in path.read_text().splitlines() if line.strip()})
    if len(wnids) != 1000 or not all(map(WNID.fullmatch, wnids)):
        raise DataError(
            f"Expected {path} to have the 1,000 wnids of ImageNet-1K, one at the start of each line, "
            f"but it has {len(wnids)} different words there."
        )
    return wnids


def imagenet_a(name: str, folder: Path, _: str) -> ImageSet:
    """ImageNet-A: folders of 200 of the 1,000 classes of ImageNet-1K, whose labels these are."""
    numbers = {wnid: label for label, wnid in enumerate(imagenet_wnids())}
    wnids = _wnid_folders(folder)
    unknown = [wnid for wnid in wnids if wnid not in numbers]
    if unknown:
        raise DataError(f"Expected folders of classes of ImageNet-1K in {folder}, but {unknown[0]} is none.")
    files, labels = _by_class(folder, ((wnid, numbers[wnid]) for wnid in wnids))
    return ImageFiles(name, folder, files, labels, 1000, IMAGENET, crop=True)


def imagenet_o(name: str, folder: Path, _: str) -> ImageSet:
    """ImageNet-O: pictures of none of the 1,000 classes; the label is the number of the folder among its 200."""
    wnids = _wnid_folders(folder)
    files, labels = _by_class(folder, ((wnid, label) for label, wnid in enumerate(wnids)))
    return ImageFiles(name, folder, files, labels, max(200, len(wnids)), IMAGENET, crop=True)


def letter_folders(name: str, folder: Path, _: str) -> ImageSet:
    """notMNIST: folders ``A`` to ``J`` of grey pictures, all decoded at once; broken files are left out and counted."""
    _pillow()
    files, labels = _by_class(folder, ((letter, label) for label, letter in enumerate("ABCDEFGHIJ")))
    read = [(_letter(folder / file), label) for file, label in zip(files, labels, strict=True)]
    whole = [(picture, label) for picture, label in read if picture is not None]
    if not whole:
        raise not_the_format(name, folder, "PNG files in folders A to J", f"none of its {len(files)} can be decoded")
    if len(whole) < len(files):
        broken = len(files) - len(whole)
        warnings.warn(f"Left out {broken} of {len(files)} files of {name}, which are no pictures.", stacklevel=3)
    return StoredImages(name, np.stack([picture for picture, _ in whole]), np.array([label for _, label in whole]), 10)


def _letter(path: Path) -> NDArray[np.uint8] | None:
    try:
        return decoded(path, LETTER, crop=False)
    except Exception:  # as in ImageFiles
        return None
