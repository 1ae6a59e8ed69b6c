"""The pictures of an image experiment: what a trial trains on, calibrates with, and is judged by.

Calibration pictures come from the official training part and are no longer training pictures. A network that was
trained elsewhere has seen all of that part: there, one half of the official test part calibrates and the other tests.
Attacked, natural adversarial and out-of-distribution pictures only ever serve judging.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from splitpoint.attacks import fgsm
from splitpoint.batches import placement
from splitpoint.datasets.images import Batches, ImageSet, load, ood_union, splits

OUTSIDE: dict[str, tuple[str, ...]] = {
    "mnist": ("fashion_mnist", "notmnist"),
    "fashion_mnist": ("mnist", "notmnist"),
    "cifar10": ("svhn", "tiny_imagenet"),
    "cifar100": ("svhn", "tiny_imagenet"),
    "imagenet": ("imagenet_o",),
}
"""Data sets of the experiments, and the sets that are out of distribution for them."""

NATURAL = {"imagenet": "imagenet_a"}
"""Sets of natural adversarial pictures, which stand for the attack where there is one."""

TABLE_STRENGTH = 0.02
CURVE = tuple(round(0.04 * step, 2) for step in range(11))
STRENGTHS = (0.0, TABLE_STRENGTH, *CURVE[1:])
"""Steps of the attack in units of the normalised input: that of the table, 0 to 0.4 for the curves, and all of them."""

CALIBRATION_SHARE = 0.1

VALUES, MOST_PICTURES = 2**22, 256
"""Pixel values of a batch, and pictures at most: few enough of 224 pixels for the gradients of a deep network."""


@dataclass(frozen=True)
class Trial:
    """The pictures of one trial.

    Attributes:
        train: what networks and heads are trained on.
        calibration: held out from them.
        test: in distribution.
        outside: out of distribution, in the shape of the others.
        natural: adversarial without an attack, where the data set has such pictures.
    """

    train: ImageSet
    calibration: ImageSet
    test: ImageSet
    outside: ImageSet
    natural: ImageSet | None = None


def trial_of(
    dataset: str,
    outside: Sequence[str],
    number: int,
    *,
    seed: int = 0,
    trained: bool = False,
    share: float = CALIBRATION_SHARE,
) -> Trial:
    """The pictures of trial `number`.

    Args:
        dataset: name of the data set.
        outside: names of the sets out of distribution, together as many pictures as there are test pictures.
        number: of the trial.
        seed: of the whole run.
        trained: whether the network was trained elsewhere, on the whole training part.
        share: of the training pictures that serve calibration, where it was not.
    """
    draw = zlib.crc32(f"{dataset} {seed} {number}".encode())
    if trained:
        train, test = load(dataset, "train"), load(dataset, "test")
        order = torch.randperm(len(test), generator=torch.Generator().manual_seed(draw))
        calibration, test = test.at(order[: len(test) // 2]), test.at(order[len(test) // 2 :])
    else:
        parts = splits(dataset, calibration=share, seed=draw)
        train, calibration, test = parts.train, parts.calibration, parts.test
    natural = load(NATURAL[dataset], "test") if dataset in NATURAL else None
    return Trial(train, calibration, test, ood_union(outside, test.shape, len(test), draw), natural)


def batches(pictures: ImageSet, batch_size: int | None = None, seed: int | None = None) -> Batches:
    """Batches of pictures, smaller ones where pictures are large."""
    size = batch_size or max(1, min(MOST_PICTURES, VALUES // math.prod(pictures.shape)))
    return Batches(pictures, size, seed=seed)


class Sweep:
    """Test pictures attacked with every strength: batches of pictures, all strengths of one batch in a row.

    Batches are on the device of the network.

    The fast gradient sign method moves a picture in one direction, whatever the strength, so that one gradient serves
    all of them.

    Args:
        pictures: what is attacked.
        network: what the attack looks at, from pictures to logits or log-probabilities.
        unit: (C, 1, 1) size of a step of strength 1, in pixel values.
        strengths: of the attack.
        batch_size: pictures a batch; see `batches`.
    """

    def __init__(
        self,
        pictures: ImageSet,
        network: nn.Module,
        unit: Tensor,
        strengths: Sequence[float] = STRENGTHS,
        batch_size: int | None = None,
    ) -> None:
        self.batches, self.count = batches(pictures, batch_size), len(pictures)
        self.network, self.unit, self.strengths = network, unit, tuple(strengths)

    def __len__(self) -> int:
        return self.count * len(self.strengths)

    def digest(self) -> str:
        """What tells the stream from others of the same network."""
        told = f"{self.batches.images.digest()} {self.strengths} {self.batches.batch_size} {self.unit.tolist()}"
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()

    def __iter__(self) -> Iterator[Tensor]:
        device = placement(self.network)[0]
        unit = self.unit.to(device)
        for some, labels in self.batches:
            pictures = some.to(device)
            direction = (fgsm(self.network, pictures, labels.to(device), 1.0, valid=None) - pictures).sign()
            for strength in self.strengths:
                yield (pictures + strength * unit * direction).clamp(0, 1) if strength else pictures

    def parts(self) -> Iterator[tuple[float, slice]]:
        """Strength and rows of the data set of every batch, in the order of the stream."""
        size = self.batches.batch_size
        for start in range(0, self.count, size):
            for strength in self.strengths:
                yield strength, slice(start, min(start + size, self.count))

    def slices(self, rows: Tensor) -> tuple[Tensor, ...]:
        """The rows that were recorded of the whole stream, batch by batch."""
        parts: tuple[Tensor, ...] = rows.split([part.stop - part.start for _, part in self.parts()])
        return parts
