"""The image sets of the classification benchmark, read from their standard files in the folders of SPLITPOINT_DATA.

`load` gives a part of a set, `splits` its training, calibration and test parts, `ood_union` images of other sets in
the shape of a network's own. Values are in [0, 1] everywhere: a network normalises its input itself, so that its own
images, attacked ones and those of other sets are normalised alike.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from splitpoint.datasets.image_set import ImageSet, Joined, Shape, in_unit_range
from splitpoint.datasets.registry import IMAGE_SETS
from splitpoint.errors import DataError, SettingsError

__all__ = ["IMAGE_SETS", "Batches", "ImageSet", "ImageSplits", "load", "ood_union", "splits"]


def load(name: str, part: Literal["train", "test"]) -> ImageSet:
    """The official training or test part of a set of `IMAGE_SETS`; the validation part is the test part of ImageNet.

    A set that is missing is a DataError that says where its files must lie or what to run.
    """
    if name not in IMAGE_SETS:
        raise SettingsError(f"Expected an image set among {', '.join(IMAGE_SETS)}, but got {name!r}.")
    entry = IMAGE_SETS[name]
    form, path = entry.form_for(part)
    return form.reader(entry, path, part)


@dataclass(frozen=True)
class ImageSplits:
    """Training, calibration and test parts of one set."""

    train: ImageSet
    calibration: ImageSet
    test: ImageSet


def splits(name: str, *, calibration: float = 0.1, seed: int = 0) -> ImageSplits:
    """Sample the share `calibration` of the official training part; the test part is the official one.

    Images stay in their order; those that are sampled leave the training part. The sample depends on `seed` alone.
    """
    if not 0 < calibration < 1:
        raise SettingsError(f"Expected calibration to be a share in (0, 1), but got {calibration}.")
    official = load(name, "train")
    count = round(len(official) * calibration)
    if not 0 < count < len(official):
        raise DataError(
            f"Expected images enough for both parts, but {len(official)} with calibration {calibration} leave none."
        )
    order = torch.randperm(len(official), generator=torch.Generator().manual_seed(seed))
    held_out, rest = order[:count].sort().values, order[count:].sort().values
    return ImageSplits(official.at(rest), official.at(held_out), load(name, "test"))


def ood_union(names: Sequence[str], shape: Shape, count: int | None, seed: int) -> ImageSet:
    """Equal parts of the test parts of several sets, sampled by `seed` and brought to `shape` (C, H, W).

    Every part has as many images as the smallest set, and all together at most `count`. The label of an image is the
    place of its set in `names`.
    """
    if not names or len(set(names)) != len(names):
        raise SettingsError(f"Expected names of different sets, but got {list(names)}.")
    if count is not None and count < len(names):
        raise SettingsError(f"Expected a count of at least one image from each of {len(names)} sets, but got {count}.")
    sets = [load(name, "test") for name in names]
    each = min(len(images) for images in sets)
    each = each if count is None else min(each, count // len(names))
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randperm(len(images), generator=generator)[:each].sort().values for images in sets]
    parts = [images.at(chosen).fitted_to(shape) for images, chosen in zip(sets, rows, strict=True)]
    labels = torch.arange(len(names)).repeat_interleave(each)
    return Joined("+".join(names), parts, len(names), labels)


class Batches:
    """A stream of batches ``(x, y)``: float32 (B, C, H, W) in [0, 1] and int64 (B,); it can be read again and again.

    With a `seed` every pass has a new order, drawn from a generator of its own: two streams of one seed have the same
    passes one after the other. Without a seed images come in their order. The last batch may be smaller.
    """

    def __init__(self, images: ImageSet, batch_size: int = 256, *, seed: int | None = None) -> None:
        if batch_size < 1:
            raise SettingsError(f"Expected batch_size to be at least 1, but got {batch_size}.")
        self.images, self.batch_size = images, batch_size
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return -(-len(self.images) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        count = len(self.images)
        order = torch.arange(count) if self._generator is None else torch.randperm(count, generator=self._generator)
        for rows in order.split(self.batch_size):
            yield in_unit_range(self.images.pixels(rows)), self.images.labels[rows]
