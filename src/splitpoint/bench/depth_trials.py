"""The scenes of a trial: what networks learn from, stop by and are calibrated with, what tests them, and the attack.

Neighbours show the same scene, so that parts differ in blocks of consecutive images. The official test part tests.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from splitpoint.attacks import fgsm
from splitpoint.batches import placement
from splitpoint.bench.map_training import Parts, read
from splitpoint.datasets import scenes
from splitpoint.datasets.scene_set import Size
from splitpoint.datasets.scenes import SceneSet

HELD_OUT_SHARE = CALIBRATION_SHARE = 0.1
"""Of the training images: those that end trainings, and those that calibrate."""

STRENGTHS = tuple(round(0.025 * step, 3) for step in range(9))
"""Steps of the attack on images in [0, 1]."""

TABLE_STRENGTH = 0.05
"""Step of the attack that the score should find, where it is among those that are asked for."""

ATTACKED = 120
"""Test images that are attacked at most."""

BATCH = 32
"""Images of a call."""


@dataclass(frozen=True)
class DepthTrial:
    """The scenes of one trial.

    Attributes:
        parts: what networks are trained on and stopped by.
        calibration: held out from them.
        test: in distribution.
        ood: sets out of distribution, by name.
    """

    parts: Parts
    calibration: SceneSet
    test: SceneSet
    ood: Mapping[str, SceneSet]

    @property
    def train(self) -> SceneSet:
        """What networks and heads learn from."""
        return self.parts.train


def depth_trial(
    dataset: str,
    ood: Sequence[str],
    number: int,
    *,
    size: Size,
    seed: int = 0,
    images: int | None = None,
    most_ood: int = 300,
    inverse: bool = False,
) -> DepthTrial:
    """The scenes of trial `number`, which depend on the arguments only.

    Args:
        dataset: name of a set with depths.
        ood: names of sets out of distribution.
        number: of the trial.
        size: height and width to which all images are brought.
        seed: of the whole run.
        images: most images of the training part, and of every part that tests; None for all of them.
        most_ood: most images of every set out of distribution.
        inverse: whether targets are inverse depths and not metres.
    """
    draw = zlib.crc32(f"{dataset} {seed} {number}".encode())
    shares = {"held_out": HELD_OUT_SHARE, "calibration": CALIBRATION_SHARE}
    found = scenes.splits(dataset, **shares, seed=draw, size=size)
    train, held_out, calibration, test = (
        part.inverse() if inverse else part for part in (found.train, found.held_out, found.calibration, found.test)
    )
    most = most_ood if images is None else min(images, most_ood)
    others = {name: few(scenes.load(name, "test", size=size), most) for name in ood}
    return DepthTrial(Parts(few(train, images), held_out), calibration, few(test, images), others)


def few(found: SceneSet, most: int | None) -> SceneSet:
    """At most so many of the scenes, evenly spread."""
    if most is None or most >= len(found):
        return found
    return found.at(torch.linspace(0, len(found) - 1, most).long())


def batches(found: SceneSet) -> Iterator[tuple[Tensor, Tensor]]:
    """Images (B, 3, H, W) in [0, 1] and targets (B, 1, H, W), in order."""
    for places in torch.arange(len(found)).split(BATCH):
        yield read(found, places)


class Attacked(NamedTuple):
    """A batch of attacked images, their targets and the strength of the attack."""

    strength: float
    images: Tensor
    target: Tensor


def sweep(found: SceneSet, network: nn.Module, strengths: Sequence[float]) -> Iterator[Attacked]:
    """Scenes attacked with every strength, all strengths of one batch in a row, clamped to [0, 1].

    The fast gradient sign method on the squared error moves an image in one direction, whatever the strength, so that
    one gradient serves all of them.

    Args:
        found: what is attacked.
        network: what the attack looks at, from images to depths.
        strengths: of the attack.
    """
    device = placement(network)[0]
    for images, target in batches(few(found, ATTACKED)):
        moved = images.to(device)
        direction = (fgsm(network, moved, target.to(device), 1.0, valid=None) - moved).sign()
        for strength in strengths:
            yield Attacked(strength, (moved + strength * direction).clamp(0, 1) if strength else moved, target)
