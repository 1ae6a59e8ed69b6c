"""Labelled images behind one interface: stored arrays, files, parts of a set, other shapes, several sets in a row."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from splitpoint.datasets.arrays import package
from splitpoint.errors import DataError, SettingsError

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""

SAMPLED = 64
"""Images whose pixels enter the digest of a set."""

LUMA = (0.299, 0.587, 0.114)
"""Shares of red, green and blue in grey (ITU-R 601), as Pillow has them."""

SHORTER_SIDE = 256
"""Pixels of the shorter side of an image before its centre is cut out."""


class PlaceError(DataError, IndexError):
    """A place outside of a set; an IndexError too, so that a loop over a set ends."""


class ImageSet(Dataset[tuple[Tensor, Tensor]], ABC):
    """N images of one `shape` (C, H, W) and their `labels` (N,), int64 in ``0 ... classes - 1``.

    Pixels are read when they are asked for; `labels` are there without decoding any image.
    """

    name: str
    classes: int
    shape: Shape
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def pixels(self, places: Sequence[int] | Tensor) -> Tensor:
        """Images at `places` in their order, uint8 (n, C, H, W)."""

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        """One image, float32 (C, H, W) in [0, 1], and its label, int64 without axes."""
        return self.__getitems__([place])[0]

    def __getitems__(self, places: list[int]) -> list[tuple[Tensor, Tensor]]:
        """Images and labels as `__getitem__` gives them, read together."""
        rows = row_numbers(places, len(self))
        return list(zip(in_unit_range(self.pixels(rows)), self.labels[rows], strict=True))

    def digest(self) -> str:
        """Hash of shape, labels and some pixels: what tells these images from others of the same name."""
        places = torch.linspace(0, len(self) - 1, min(len(self), SAMPLED)).long()
        state = hashlib.blake2b(f"{self.shape}".encode(), digest_size=16)
        for part in (self.labels, self.pixels(places)):
            state.update(part.contiguous().numpy().tobytes())
        return state.hexdigest()

    def at(self, places: Tensor) -> ImageSet:
        """The part of the set at `places`, int64 (n,); no pixel is copied."""
        return Part(self, row_numbers(places, len(self)))

    def fitted_to(self, shape: Shape) -> ImageSet:
        """The same images in another `shape`, so that they enter a network as its own images do.

        Grey becomes three equal channels, RGB becomes its luma. What is larger shrinks by averaging areas, what is
        smaller grows bilinearly; another ratio of the sides stretches. Values are rounded to whole steps of 1/255.
        """
        return self if shape == self.shape else Fitted(self, shape)


def row_numbers(places: Sequence[int] | Tensor, count: int) -> Tensor:
    """`places` as int64 (n,) in ``0 ... count - 1``; negative ones count from the end, others are `PlaceError`."""
    rows = torch.as_tensor(places)
    if rows.ndim != 1 or (len(rows) and rows.dtype not in (torch.int64, torch.int32)):
        raise SettingsError(
            f"Expected places as one row of whole numbers, but got {rows.dtype} of shape {tuple(rows.shape)}; "
            "give row numbers, not a mask."
        )
    rows = rows.long()
    if len(rows) and not -count <= int(rows.min()) <= int(rows.max()) < count:
        raise PlaceError(f"Expected places of a set of {count} images, but got {int(rows.min())} to {int(rows.max())}.")
    return torch.where(rows < 0, rows + count, rows)


def in_unit_range(pixels: Tensor) -> Tensor:
    """Uint8 as float32 in [0, 1]."""
    return pixels.float().div_(255)


class StoredImages(ImageSet):
    """Images in one array `stored` (N, C, H, W), uint8, in memory or mapped from a file."""

    def __init__(self, name: str, stored: NDArray[np.uint8], labels: NDArray[Any], classes: int) -> None:
        if stored.ndim != 4 or stored.dtype != np.uint8 or labels.shape != stored.shape[:1] or not len(stored):
            raise DataError(
                f"Expected {name} to have uint8 images (N, C, H, W) with a label each, "
                f"but got {stored.dtype} {stored.shape} and labels {labels.shape}."
            )
        self.name, self.classes, self.stored = name, classes, stored
        self.shape = (stored.shape[1], stored.shape[2], stored.shape[3])
        self.labels = class_numbers(name, labels, classes)

    def pixels(self, places: Sequence[int] | Tensor) -> Tensor:
        """Copies of the stored images."""
        rows = row_numbers(places, len(self)).numpy()
        return torch.from_numpy(np.ascontiguousarray(self.stored[rows]))


def class_numbers(name: str, labels: NDArray[Any], classes: int) -> Tensor:
    """Labels as int64; DataError if one is no class."""
    numbers = torch.from_numpy(labels.astype(np.int64))
    low, high = int(numbers.min()), int(numbers.max())
    if low < 0 or high >= classes:
        raise DataError(
            f"Expected labels of {name} from 0 to {classes - 1}, but got {low} to {high}; are its files another set's?"
        )
    return numbers


class ImageFiles(ImageSet):
    """Images in files below `root`, decoded when they are asked for; `crop` says that they come in all sizes.

    With `crop` the shorter side is brought to 256 pixels, bilinearly, and the centre of `shape` is cut out. Without it
    every image must have `shape`.
    """

    def __init__(
        self, name: str, root: Path, files: Sequence[str], labels: Sequence[int], classes: int, shape: Shape, crop: bool
    ) -> None:
        self.name, self.classes, self.shape = name, classes, shape
        self.root, self.crop = root, crop
        self.files = np.array([os.fsencode(file) for file in files])  # a list would take four times the memory
        self.labels = class_numbers(name, np.array(labels), classes)

    def pixels(self, places: Sequence[int] | Tensor) -> Tensor:
        """Images, decoded in as many threads as torch has."""
        rows = row_numbers(places, len(self))
        pixels = torch.empty((len(rows), *self.shape), dtype=torch.uint8)
        paths = (self.root / os.fsdecode(self.files[row]) for row in rows.tolist())
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            decode = map if torch.get_num_threads() == 1 else pool.map
            for slot, image in enumerate(decode(self._image, paths)):
                pixels[slot] = torch.from_numpy(image)
        return pixels

    def _image(self, path: Path) -> NDArray[np.uint8]:
        try:
            return decoded(path, self.shape, crop=self.crop)
        except Exception as error:  # Pillow raises whatever a damaged file makes it stumble over
            raise DataError(
                f"Expected {path} to be an image of {self.name}, but it cannot be used ({error}); "
                "put the file there again."
            ) from error


def decoded(path: Path, shape: Shape, *, crop: bool) -> NDArray[np.uint8]:
    """One image, (C, H, W), as `ImageFiles` says; grey or RGB whatever the file has."""
    channels, height, width = shape
    decoder = pillow()
    with decoder.open(path) as file:
        image = file.convert("RGB" if channels == 3 else "L")
    if crop:
        shorter = min(image.size)
        sides = tuple(SHORTER_SIDE if side == shorter else SHORTER_SIDE * side // shorter for side in image.size)
        image = image.resize(sides, decoder.Resampling.BILINEAR)
        left, top = round((sides[0] - width) / 2), round((sides[1] - height) / 2)
        image = image.crop((left, top, left + width, top + height))
    elif image.size != (width, height):
        raise DataError(f"it has {image.size[0]} x {image.size[1]} pixels, not {width} x {height}")
    return np.array(image).reshape(height, width, channels).transpose(2, 0, 1)


def pillow() -> Any:
    """Pillow's module for images."""
    return package("PIL.Image", "decodes images (Pillow)", "images")


class Part(ImageSet):
    """Some images of a set, in the order of `rows`."""

    def __init__(self, images: ImageSet, rows: Tensor) -> None:
        self.name, self.classes, self.shape = images.name, images.classes, images.shape
        self.images, self.rows = images, rows
        self.labels = images.labels[rows]

    def pixels(self, places: Sequence[int] | Tensor) -> Tensor:
        """Pixels of the whole set at the rows of this part."""
        return self.images.pixels(self.rows[row_numbers(places, len(self))])

    def at(self, places: Tensor) -> ImageSet:
        """A part of the whole set, so that parts of parts are no slower."""
        return Part(self.images, self.rows[row_numbers(places, len(self))])


class Fitted(ImageSet):
    """A set in another shape; see `ImageSet.fitted_to`."""

    def __init__(self, images: ImageSet, shape: Shape) -> None:
        if len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1:
            raise SettingsError(f"Expected a shape (1 or 3 channels, height, width), but got {shape}.")
        self.name, self.classes, self.shape = images.name, images.classes, shape
        self.images, self.labels = images, images.labels

    def pixels(self, places: Sequence[int] | Tensor) -> Tensor:
        """Pixels of the set, brought to the shape."""
        return fitted(self.images.pixels(places), self.shape)


def fitted(pixels: Tensor, shape: Shape) -> Tensor:
    """Images (n, C, H, W) in uint8 brought to `shape`, as `ImageSet.fitted_to` says."""
    channels, height, width = shape
    values = pixels.float()
    if channels == 1 and values.shape[1] == 3:
        values = (values * values.new_tensor(LUMA).reshape(3, 1, 1)).sum(1, keepdim=True)
    smaller = (min(height, values.shape[2]), min(width, values.shape[3]))
    if smaller != values.shape[2:]:
        values = F.interpolate(values, smaller, mode="area")
    if smaller != (height, width):
        values = F.interpolate(values, (height, width), mode="bilinear", align_corners=False)
    return values.round().clamp(0, 255).to(torch.uint8).expand(-1, channels, -1, -1).contiguous()


class Joined(ImageSet):
    """Sets of one shape, one after the other; `labels` (N,) are those of the parts unless others are given."""

    def __init__(self, name: str, parts: Sequence[ImageSet], classes: int, labels: Tensor | None = None) -> None:
        shapes = {part.shape for part in parts}
        if len(shapes) != 1:
            raise DataError(f"Expected the parts of {name} to have one shape, but got {sorted(shapes)}.")
        self.name, self.classes, self.parts = name, classes, tuple(parts)
        self.shape = parts[0].shape
        self.labels = torch.cat([part.labels for part in parts]) if labels is None else labels
        self.ends = torch.tensor([len(part) for part in parts]).cumsum(0)

    def pixels(self, places: Sequence[int] | Tensor) -> Tensor:
        """Pixels of every part that is asked for, in the order of `places`."""
        rows = row_numbers(places, len(self))
        pixels = torch.empty((len(rows), *self.shape), dtype=torch.uint8)
        owners = torch.bucketize(rows, self.ends, right=True)
        for owner in owners.unique().tolist():
            mine = owners == owner
            part = self.parts[owner]
            pixels[mine] = part.pixels(rows[mine] - (self.ends[owner] - len(part)))
        return pixels
