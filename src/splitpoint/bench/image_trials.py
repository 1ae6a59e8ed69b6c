"""The images of a trial: what networks train on, calibrate with and are tested by, and the attack on test images.

Calibration images come from the official training part and are no longer training images. A network that was trained
by others has seen all of that part: there, one half of the official test part calibrates and the other tests. Attacked,
natural adversarial and out-of-distribution images only ever serve testing.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from splitpoint.attacks import fgsm
from splitpoint.batches import placement
from splitpoint.datasets.images import IMAGE_SETS, Batches, ImageSet, load, ood_union, splits
from splitpoint.files import text_digest
from splitpoint.prediction import ClassificationPrediction, concatenate

TABLE_STRENGTH = 0.02
CURVE = tuple(round(0.04 * step, 2) for step in range(11))
STRENGTHS = (0.0, TABLE_STRENGTH, *CURVE[1:])
"""Steps of the attack in units of the normalised input: that of the table, 0 to 0.4 for the curves, and all of them."""

CALIBRATION_SHARE = 0.1

VALUES, MOST_IMAGES = 2**22, 256
"""Pixel values of a batch, and images at most: few enough of 224 pixels for the gradients of a deep network."""


@dataclass(frozen=True)
class ImageTrial:
    """The images of one trial.

    Attributes:
        train: what networks and heads are trained on.
        calibration: held out from them.
        test: in distribution.
        ood: out of distribution, in the shape of the others.
        natural: adversarial without an attack, where the data set has such images.
    """

    train: ImageSet
    calibration: ImageSet
    test: ImageSet
    ood: ImageSet
    natural: ImageSet | None = None


def image_trial(
    dataset: str,
    ood: Sequence[str],
    number: int,
    *,
    seed: int = 0,
    trained: bool = False,
    share: float = CALIBRATION_SHARE,
) -> ImageTrial:
    """The images of trial `number`.

    Args:
        dataset: name of the data set.
        ood: names of the sets out of distribution, together as many images as there are test images.
        number: of the trial.
        seed: of the whole run.
        trained: whether the network was trained by others, on the whole training part.
        share: of the training images that serve calibration, where it was not.
    """
    draw = zlib.crc32(f"{dataset} {seed} {number}".encode())
    if trained:
        train, test = load(dataset, "train"), load(dataset, "test")
        order = torch.randperm(len(test), generator=torch.Generator().manual_seed(draw))
        calibration, test = test.at(order[: len(test) // 2]), test.at(order[len(test) // 2 :])
    else:
        parts = splits(dataset, calibration=share, seed=draw)
        train, calibration, test = parts.train, parts.calibration, parts.test
    adversarial = IMAGE_SETS[dataset].adversarial
    natural = load(adversarial, "test") if adversarial else None
    return ImageTrial(train, calibration, test, ood_union(ood, test.shape, len(test), draw), natural)


def batches(images: ImageSet, batch_size: int | None = None, seed: int | None = None) -> Batches:
    """Batches of images, smaller ones where images are large."""
    size = batch_size or max(1, min(MOST_IMAGES, VALUES // math.prod(images.shape)))
    return Batches(images, size, seed=seed)


# The attack


class Sweep:
    """Test images attacked with every strength: batches of images, all strengths of one batch in a row.

    Batches are on the device of the network. The fast gradient sign method moves an image in one direction, whatever
    the strength, so that one gradient serves all of them.

    Args:
        images: what is attacked.
        network: what the attack looks at, from images to logits or log-probabilities.
        unit: (C, 1, 1) size of a step of strength 1, in pixel values.
        strengths: of the attack.
        batch_size: images a batch; see `batches`.
    """

    def __init__(
        self,
        images: ImageSet,
        network: nn.Module,
        unit: Tensor,
        strengths: Sequence[float] = STRENGTHS,
        batch_size: int | None = None,
    ) -> None:
        self.batches, self.labels = batches(images, batch_size), images.labels
        self.network, self.unit, self.strengths = network, unit, tuple(strengths)

    def __len__(self) -> int:
        return len(self.labels) * len(self.strengths)

    def digest(self) -> str:
        """What tells the stream from others of the same network."""
        images = self.batches.images.digest()
        return text_digest(f"{images} {self.strengths} {self.batches.batch_size} {self.unit.tolist()}")

    def __iter__(self) -> Iterator[Tensor]:
        device = placement(self.network)[0]
        unit = self.unit.to(device)
        for some, labels in self.batches:
            images = some.to(device)
            direction = (fgsm(self.network, images, labels.to(device), 1.0, valid=None) - images).sign()
            for strength in self.strengths:
                yield (images + strength * unit * direction).clamp(0, 1) if strength else images

    def parts(self) -> Iterator[tuple[float, slice]]:
        """Strength and rows of the data set of every batch, in the order of the stream."""
        size, count = self.batches.batch_size, len(self.labels)
        for start in range(0, count, size):
            for strength in self.strengths:
                yield strength, slice(start, min(start + size, count))


Curves = dict[str, list[float]]
"""Strengths of the attack, and the accuracy and the mean epistemic score under each."""


class UnderAttack(NamedTuple):
    """Predictions for the images as they are and under the attack of the table, and the curves of the attack."""

    clean: ClassificationPrediction
    attacked: ClassificationPrediction
    curves: Curves


def under_attack(
    predict: Callable[[Any], ClassificationPrediction], sweep: Sweep, stream: Iterable[Any]
) -> UnderAttack:
    """What a method predicts for a sweep.

    The strength of the table is no point of the curves, which have steps of equal size. Predictions of the other
    strengths are not kept, since a thousand classes would need gigabytes.

    Args:
        predict: from a batch to the prediction, on the CPU.
        sweep: the attack.
        stream: its batches, or what `predict` takes in place of each.
    """
    kept: dict[float, list[ClassificationPrediction]] = {0.0: [], TABLE_STRENGTH: []}
    right, doubt = dict.fromkeys(sweep.strengths, 0), dict.fromkeys(sweep.strengths, 0.0)
    for (strength, part), batch in zip(sweep.parts(), stream, strict=True):
        prediction = predict(batch)
        right[strength] += int((prediction.label == sweep.labels[part]).sum())
        doubt[strength] += float(prediction.epistemic.double().sum())
        if strength in kept:
            kept[strength].append(prediction)
    strengths, count = sorted(set(sweep.strengths) - {TABLE_STRENGTH}), len(sweep.labels)
    curves = {
        "strength": strengths,
        "accuracy": [right[strength] / count for strength in strengths],
        "epistemic": [doubt[strength] / count for strength in strengths],
    }
    return UnderAttack(concatenate(kept[0.0]), concatenate(kept[TABLE_STRENGTH]), curves)
