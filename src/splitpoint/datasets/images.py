"""The image sets of the classification benchmark, read from their standard files in the folders of SPLITPOINT_DATA.

`load` gives a part of a set, `splits` its training, calibration and test parts, `ood_union` pictures of other sets in
the shape of a network's own. Values are in [0, 1] everywhere: a network normalises its input itself, so that its own
pictures, attacked ones and those of other sets are normalised alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from splitpoint.datasets import image_folders, image_formats
from splitpoint.datasets.folders import command_for, locate, missing
from splitpoint.datasets.image_set import ImageSet, Joined, Shape, in_unit_range
from splitpoint.datasets.registry import entry
from splitpoint.errors import DataError, SettingsError

__all__ = ["IMAGE_SETS", "Batches", "ImageSet", "ImageSource", "ImageSplits", "load", "ood_union", "splits"]

Reader = Callable[[str, Path, str], ImageSet]
"""Takes the name of a set, where it lies and the part; returns the part."""


@dataclass(frozen=True)
class ImageSource:
    """How a set is read: its number of `classes`, and a reader for every place where it may lie, preferred ones first.

    `trainable` says whether there is a training part.
    """

    classes: int
    readers: Mapping[str, Reader]
    trainable: bool = True


IMAGE_SETS: dict[str, ImageSource] = {
    "cifar10": ImageSource(
        10,
        {
            "cifar-10-batches-bin": image_formats.cifar10_records,
            "cifar-10-batches-py": image_formats.cifar10_batches,
        },
    ),
    "cifar100": ImageSource(
        100,
        {"cifar-100-binary": image_formats.cifar100_records, "cifar-100-python": image_formats.cifar100_batches},
    ),
    "svhn": ImageSource(10, {"svhn": image_formats.svhn_mat}),
    "tiny_imagenet": ImageSource(
        200,
        {"tiny-imagenet-200": image_folders.tiny_folder, "tiny_imagenet_val_32.npz": image_formats.tiny_npz},
    ),
    "imagenet": ImageSource(1000, {"imagenet": image_folders.imagenet}),
    "imagenet_a": ImageSource(1000, {"imagenet-a": image_folders.imagenet_a}, trainable=False),
    "imagenet_o": ImageSource(200, {"imagenet-o": image_folders.imagenet_o}, trainable=False),
    "mnist": ImageSource(
        10,
        {
            "mnist.npz": image_formats.grey_npz,
            "mnist": image_formats.idx_folder,
            "MNIST/raw": image_formats.idx_folder,
        },
    ),
    "fashion_mnist": ImageSource(
        10,
        {
            "fashion_mnist.npz": image_formats.grey_npz,
            "fashion_mnist": image_formats.idx_folder,
            "FashionMNIST/raw": image_formats.idx_folder,
        },
    ),
    "notmnist": ImageSource(
        10,
        {"notMNIST_small": image_folders.letter_folders, "notmnist.npz": image_formats.grey_npz},
        trainable=False,
    ),
}
"""The sets by name; `registry.SETS` says where they come from."""


def load(name: str, part: Literal["train", "test"]) -> ImageSet:
    """The official training or test part of a set of `IMAGE_SETS`; the validation part is the test part of ImageNet.

    A set that is missing is a DataError that says where its files must lie or what to run.
    """
    if name not in IMAGE_SETS:
        raise SettingsError(f"Expected an image set among {', '.join(IMAGE_SETS)}, but got {name!r}.")
    source = IMAGE_SETS[name]
    if part not in ("train", "test"):
        raise SettingsError(f"Expected the part 'train' or 'test' of {name}, but got {part!r}.")
    if part == "train" and not source.trainable:
        raise DataError(f"Expected the part 'test' of {name}, which has no other, but got 'train'.")
    for place, read in source.readers.items():
        path = locate(place)
        if path is not None:
            return read(name, path, part)
    remedy = entry(name).by_hand or f"put it into such a folder or run: {command_for(name)}"
    raise missing(" or ".join(source.readers), remedy)


@dataclass(frozen=True)
class ImageSplits:
    """Training, calibration and test parts of one set."""

    train: ImageSet
    calibration: ImageSet
    test: ImageSet


def splits(name: str, *, calibration: float = 0.1, seed: int = 0) -> ImageSplits:
    """Sample the share `calibration` of the official training part; the test part is the official one.

    Pictures stay in their order; those that are sampled leave the training part. The sample depends on `seed` alone.
    """
    if not 0 < calibration < 1:
        raise SettingsError(f"Expected calibration to be a share in (0, 1), but got {calibration}.")
    official = load(name, "train")
    count = round(len(official) * calibration)
    if not 0 < count < len(official):
        raise DataError(
            f"Expected pictures enough for both parts, but {len(official)} with calibration {calibration} leave none."
        )
    order = torch.randperm(len(official), generator=torch.Generator().manual_seed(seed))
    held_out, rest = order[:count].sort().values, order[count:].sort().values
    return ImageSplits(official.at(rest), official.at(held_out), load(name, "test"))


def ood_union(names: Sequence[str], shape: Shape, count: int | None, seed: int) -> ImageSet:
    """Equal parts of the test parts of several sets, sampled by `seed` and brought to `shape` (C, H, W).

    Every part has as many pictures as the smallest set, and all together at most `count`. The label of a picture is the
    place of its set in `names`.
    """
    if not names or len(set(names)) != len(names):
        raise SettingsError(f"Expected names of different sets, but got {list(names)}.")
    if count is not None and count < len(names):
        raise SettingsError(
            f"Expected a count of at least one picture from each of {len(names)} sets, but got {count}."
        )
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
    passes one after the other. Without a seed pictures come in their order. The last batch may be smaller.
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
