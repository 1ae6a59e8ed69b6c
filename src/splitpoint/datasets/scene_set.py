"""Photographs of scenes and the depth of every pixel behind one interface, read when they are asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import Dataset

from splitpoint.datasets.depth_scale import DepthScale
from splitpoint.datasets.image_set import SAMPLED, fitted, in_unit_range, pillow, row_numbers
from splitpoint.errors import DataError, SettingsError

Size = tuple[int, int]
"""Height and width."""

CHUNK = 64
"""Images that are read, and made smaller, at once where all are wanted."""


class Rows(Protocol):
    """The rows of an array that need not be in memory."""

    def __getitem__(self, rows: NDArray[np.int64], /) -> NDArray[Any]:
        """The `rows`, in their order."""


class Photographs(Protocol):
    """Images that are decoded or read when they are asked for."""

    @property
    def size(self) -> Size:
        """Height and width as they are stored."""

    def pixels(self, rows: NDArray[np.int64], size: Size) -> Tensor:
        """The images `rows`, uint8 (n, 3, H, W), brought to `size`."""


@final
@dataclass(frozen=True)
class StoredPhotographs:
    """Images in one array `stored` (N, H, W, 3), uint8."""

    stored: Rows
    size: Size

    def pixels(self, rows: NDArray[np.int64], size: Size) -> Tensor:
        """Copies of the stored images, brought to `size`."""
        images = torch.from_numpy(np.ascontiguousarray(self.stored[rows].transpose(0, 3, 1, 2)))
        return images if size == self.size else fitted(images, (3, *size))


@final
@dataclass(frozen=True)
class PhotographFiles:
    """Images in `files` below `root`, which may differ in size; `size` is that of the first."""

    name: str
    root: Path
    files: tuple[str, ...]
    size: Size

    def pixels(self, rows: NDArray[np.int64], size: Size) -> Tensor:
        """Images, decoded and brought to `size` one by one, in as many threads as torch has."""
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            decode = map if torch.get_num_threads() == 1 else pool.map
            images = list(decode(lambda row: self._image(self.root / self.files[row], size), rows.tolist()))
        return torch.stack(images) if images else torch.empty(0, 3, *size, dtype=torch.uint8)

    def _image(self, path: Path, size: Size) -> Tensor:
        try:
            with pillow().open(path) as file:
                image = np.array(file.convert("RGB")).transpose(2, 0, 1)
        except Exception as error:  # Pillow raises whatever a damaged file makes it stumble over
            raise DataError(
                f"Expected {path} to be an image of {self.name}, but it cannot be used ({error}); "
                "put the file there again."
            ) from error
        return fitted(torch.from_numpy(image)[None], (3, *size))[0]


@final
@dataclass(frozen=True)
class Depths:
    """Depths of the images: `stored` (N, H, W), or (N, H, W, 1), and what its numbers mean."""

    stored: Rows
    scale: DepthScale


@final
@dataclass(frozen=True, eq=False)
class SceneSet(Dataset[tuple[Tensor, Tensor]]):
    """N images of scenes (3, H, W), each with a map (1, H, W) of the depth of its pixels.

    Images and depths are read when they are asked for. A set without depths has maps of NaN, which is what an unknown
    target is everywhere in the library.

    Attributes:
        name: the key of the set in the table of data sets.
        photographs: where the images come from.
        depths: where their depths come from, None in a set without.
        groups: int64 (N,); images of one number were taken one after the other and may show the same scene.
        names: of the images, (N,): their files, or their numbers in the published set.
        size: height and width to which images and depths are brought.
        rows: int64 (N,), the places of the images in `photographs` and `depths`.
        unit: ``m`` where targets are depths in metres, ``1/m`` where they are inverse depths.
    """

    name: str
    photographs: Photographs
    depths: Depths | None
    groups: Tensor
    names: tuple[str, ...]
    size: Size
    rows: Tensor
    unit: Literal["m", "1/m"] = "m"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of an image."""
        return (3, *self.size)

    def pixels(self, places: Sequence[int] | Tensor) -> Tensor:
        """Images at `places` in their order, uint8 (n, 3, H, W)."""
        return self.photographs.pixels(self._stored_at(places), self.size)

    def targets(self, places: Sequence[int] | Tensor) -> Tensor:
        """Depths at `places` in their order, float32 (n, 1, H, W) in `unit`, NaN where there is none."""
        stored_at = self._stored_at(places)
        if self.depths is None:
            return torch.full((len(stored_at), 1, *self.size), torch.nan)
        stored = self.depths.stored[stored_at]
        scale = self.depths.scale
        maps = scale.metres(stored) if self.unit == "m" else scale.inverse(stored)
        return resized(torch.from_numpy(maps).reshape(len(maps), 1, *maps.shape[1:3]), self.size)

    def tensors(self) -> tuple[Tensor, Tensor]:
        """All images, float32 (N, 3, H, W) in [0, 1], and all targets (N, 1, H, W): for sets that fit into memory."""
        images, targets = torch.empty(len(self), *self.shape), torch.empty(len(self), 1, *self.size)
        for places in torch.arange(len(self)).split(CHUNK):
            images[places], targets[places] = in_unit_range(self.pixels(places)), self.targets(places)
        return images, targets

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        """One image, float32 (3, H, W) in [0, 1], and its target (1, H, W)."""
        return self.__getitems__([place])[0]

    def __getitems__(self, places: list[int]) -> list[tuple[Tensor, Tensor]]:
        """Images and targets as `__getitem__` gives them, read together."""
        return list(zip(in_unit_range(self.pixels(places)), self.targets(places), strict=True))

    def at(self, places: Sequence[int] | Tensor) -> SceneSet:
        """The part of the set at `places`, (n,) whole numbers; nothing is read."""
        kept = row_numbers(places, len(self))
        names = tuple(self.names[place] for place in kept.tolist())
        return replace(self, rows=self.rows[kept], groups=self.groups[kept], names=names)

    def fitted_to(self, size: Size) -> SceneSet:
        """The same scenes at another `size` (height, width).

        What is larger shrinks by averaging areas; a pixel of a map is the mean of the depths that are known in its
        area, NaN where none is. What is smaller grows: images bilinearly, depths by repeating the nearest. Another
        ratio of the sides stretches.
        """
        if min(size) < 1:
            raise SettingsError(f"Expected a height and a width of at least 1, but got {size}.")
        return replace(self, size=(size[0], size[1]))

    def inverse(self) -> SceneSet:
        """The same scenes with inverse depths ``min(1, 1 / metres)`` as targets, which the authors' networks learn."""
        return replace(self, unit="1/m")

    def digest(self) -> str:
        """Hash of size, unit, places and some images and targets: what tells these from others of the same name."""
        places = torch.linspace(0, len(self) - 1, min(len(self), SAMPLED)).long()
        state = hashlib.blake2b(f"{self.size} {self.unit}".encode(), digest_size=16)
        for part in (self.rows, self.pixels(places), self.targets(places)):
            state.update(part.contiguous().numpy().tobytes())
        return state.hexdigest()

    def _stored_at(self, places: Sequence[int] | Tensor) -> NDArray[np.int64]:
        return self.rows[row_numbers(places, len(self))].numpy()


def resized(maps: Tensor, size: Size) -> Tensor:
    """Maps (n, 1, H, W) with NaN brought to `size`, as `SceneSet.fitted_to` says of depths."""
    smaller = (min(size[0], maps.shape[2]), min(size[1], maps.shape[3]))
    if smaller != maps.shape[2:]:
        known = ~maps.isnan()
        share = F.interpolate(known.float(), smaller, mode="area")
        maps = F.interpolate(maps.nan_to_num(0.0), smaller, mode="area") / share  # 0 / 0 is NaN
    return maps if smaller == size else F.interpolate(maps, size, mode="nearest")
