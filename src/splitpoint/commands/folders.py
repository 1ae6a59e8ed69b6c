"""A folder of images: one sub-folder for each class, or images without classes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from splitpoint.commands.tables import Numbers, Part, Table
from splitpoint.datasets.image_set import pillow
from splitpoint.errors import DataError, SettingsError

ENDINGS = (".png", ".jpg", ".jpeg")
IMAGE, CLASS, FILE = "image", "class", "file"
"""Columns of a folder: pixels, name of the sub-folder, and path below the folder."""

GREY = ("1", "L", "LA")
COLOUR = (*GREY, "RGB", "RGBA", "P", "PA", "CMYK", "YCbCr")
"""Kinds of images that lose nothing but their transparency as grey, or as red, green and blue."""


class ImageFolder(Table):
    """PNG and JPEG files below a folder, scaled to [0, 1]: classes in alphabetical order, files likewise.

    Attributes:
        size: height and width that images are brought to; None where all have one size.
        channels: 1 where the first image is grey, else 3.
    """

    rows: int

    def __init__(self, path: Path, size: tuple[int, int] | None = None, channels: int | None = None) -> None:
        self.path, self.size = path, size
        found = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
        if not found:
            raise DataError(f"Expected PNG or JPEG files below the folder {path}, but there are none.")
        parents = [file.relative_to(path).parts[:-1] for file in found]
        classed = all(len(parts) == 1 for parts in parents)
        self.files, self.classes = found, [parts[0] for parts in parents] if classed else []
        self.names, self.rows = ((IMAGE, CLASS, FILE) if classed else (IMAGE, FILE)), len(found)
        self.channels = channels or (1 if self._mode(found[0]) in GREY else 3)

    def parts(self, names: Sequence[str], size: int) -> Iterator[Part]:  # noqa: ARG002
        """See `Table`."""
        for start in range(0, self.rows, size):
            yield ImagePart(self, start, min(size, self.rows - start))

    def matrices(self) -> tuple[str, ...]:
        """See `Table`."""
        return (IMAGE,)

    def _mode(self, file: Path) -> str:
        with self._opened(file) as image:
            return str(image.mode)

    def _opened(self, file: Path) -> Any:
        try:
            return pillow().open(file)
        except OSError as error:
            raise DataError(f"Expected an image, but {file} cannot be read ({error}).") from error

    def pixels(self, number: int) -> Numbers:
        """Pixels (channels, H, W) of an image, float32 in [0, 1]."""
        file = self.files[number]
        with self._opened(file) as image:
            if image.mode not in (GREY if self.channels == 1 else COLOUR):
                wanted = "grey images of 8 bits, as the first one," if self.channels == 1 else "images of 8 bits,"
                raise DataError(f"Expected {wanted} but {file} is of mode {image.mode}; convert it.")
            try:
                plain = image.convert("L" if self.channels == 1 else "RGB")
            except (OSError, SyntaxError, ValueError) as error:
                raise DataError(f"Expected a whole image, but {file} cannot be decoded ({error}).") from error
            if self.size is not None:
                plain = plain.resize((self.size[1], self.size[0]), pillow().Resampling.BILINEAR)
        values = np.asarray(plain, np.float32) / np.float32(255)
        return values[None] if self.channels == 1 else np.ascontiguousarray(values.transpose(2, 0, 1))


class ImagePart(Part):
    """Some images of a folder, decoded when they are asked for."""

    def __init__(self, table: ImageFolder, first: int, rows: int) -> None:
        super().__init__(table, first, rows)
        self.folder = table

    def numbers(self, name: str) -> Numbers:
        """See `Part`."""
        if name != IMAGE:
            raise self.no_numbers(name, "text")
        images = [self.folder.pixels(number) for number in range(self.first, self.first + self.rows)]
        for offset, image in enumerate(images):
            if image.shape != images[0].shape:
                sizes = " x ".join(map(str, images[0].shape[1:])), " x ".join(map(str, image.shape[1:]))
                raise DataError(
                    f"Expected images of one size, {sizes[0]}, but {self.folder.files[self.first + offset]} has "
                    f"{sizes[1]}; bring them to one with --size HxW."
                )
        return np.stack(images)

    def labels(self, name: str) -> list[Any]:
        """See `Part`."""
        numbers = range(self.first, self.first + self.rows)
        if name == CLASS:
            return [self.folder.classes[number] for number in numbers]
        return [str(self.folder.files[number].relative_to(self.folder.path)) for number in numbers]


def height_and_width(text: str) -> tuple[int, int]:
    """A size from the command line.

    >>> height_and_width("32x48")
    (32, 48)
    """
    sizes = text.lower().split("x")
    if len(sizes) != 2 or not all(size.isdecimal() and int(size) for size in sizes):
        raise SettingsError(f"Expected a size such as 224x224, height first, but got {text!r}.")
    return int(sizes[0]), int(sizes[1])
