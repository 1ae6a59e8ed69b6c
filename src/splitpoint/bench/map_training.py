"""Training a network for maps: its schedule, its images and how they are changed at random."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from splitpoint.batches import Batch
from splitpoint.bench.checkpoints import Log
from splitpoint.bench.early_stopping import EarlyStopping
from splitpoint.datasets.image_set import in_unit_range
from splitpoint.datasets.scenes import SceneSet
from splitpoint.errors import SettingsError

BRIGHTNESS = 0.2
"""Largest relative change of the brightness of a training image."""

HELD_OUT_BATCH = 32


@dataclass(frozen=True)
class MapSchedule:
    """How a network for maps is trained: Adam, images mirrored and made brighter or darker at random, early stopping.

    Attributes:
        epochs: passes over the images at most; None where `iterations` are given.
        learning_rate: the highest.
        batch_size: images of a step.
        rise: share of the training in which the rate rises linearly, to fall to zero linearly; 0 for a constant rate.
        patience: epochs without a lower loss on the held-out images after which the training ends. The weights of the
            lowest such loss are kept.
        iterations: steps in place of `epochs`, rounded up to whole passes.
    """

    epochs: int | None
    learning_rate: float
    batch_size: int = 16
    rise: float = 0.1
    patience: int = 10
    iterations: int | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.iterations is None):
            raise SettingsError(f"Expected either epochs or iterations, but got {self.epochs} and {self.iterations}.")
        if min(self.epochs or self.iterations or 0, self.patience) < 1 or self.batch_size < 2:
            raise SettingsError(
                "Expected at least one epoch or iteration, patience >= 1 and batch_size >= 2, but got "
                f"{self.epochs or self.iterations}, {self.patience} and {self.batch_size}."
            )
        if not (0 < self.learning_rate < math.inf and 0 <= self.rise < 1):
            raise SettingsError(
                f"Expected learning_rate > 0 and rise in [0, 1), but got {self.learning_rate} and {self.rise}."
            )

    def passes(self, steps: int) -> int:
        """Epochs when one has that many steps."""
        return self.epochs or math.ceil((self.iterations or 0) / steps)

    def rate(self, part: float) -> float:
        """Learning rate when a share `part` of the training is done."""
        if not self.rise:
            return self.learning_rate
        return self.learning_rate * min(part / self.rise, (1 - part) / (1 - self.rise))


class Parts(NamedTuple):
    """Images that a network learns from, and those whose loss says when to stop."""

    train: SceneSet
    held_out: SceneSet


@dataclass(frozen=True)
class MapTraining(EarlyStopping):
    """One training of a network for maps, see `EarlyStopping`; images are changed at random, see `augmented`.

    Attributes:
        parts: the images.
        schedule: of the training.
    """

    parts: Parts
    schedule: MapSchedule

    @property
    def _name(self) -> str:
        return self.parts.train.name

    @property
    def _settings(self) -> dict[str, Any]:
        return {"images": [part.digest() for part in self.parts], "schedule": asdict(self.schedule)}

    @property
    def _rows(self) -> int:
        return len(self.parts.train)

    @property
    def _batch_size(self) -> int:
        return self.schedule.batch_size

    @property
    def _patience(self) -> int:
        return self.schedule.patience

    def _passes(self, steps: int) -> int:
        return self.schedule.passes(steps)

    def _rate(self, part: float, log: Log) -> float:  # noqa: ARG002
        return self.schedule.rate(part)

    def _train_batch(self, places: Tensor, generator: torch.Generator) -> Batch:
        images, depth = augmented(*read(self.parts.train, places), generator)
        return Batch((images,), {}, depth)

    def _held_out_batches(self) -> Iterator[tuple[int, Batch]]:
        part = self.parts.held_out
        for places in torch.arange(len(part)).split(HELD_OUT_BATCH):
            images, depth = read(part, places)
            yield len(places), Batch((images,), {}, depth)


def read(scenes: SceneSet, places: Tensor) -> tuple[Tensor, Tensor]:
    """Images (B, 3, H, W) in [0, 1] and targets (B, 1, H, W) at these places."""
    return in_unit_range(scenes.pixels(places)), scenes.targets(places)


def augmented(images: Tensor, depth: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images (B, 3, H, W) in [0, 1] and maps (B, 1, H, W): half of them mirrored, all a little brighter or darker."""
    mirrored, light = torch.rand(2, len(images), 1, 1, 1, generator=generator).unbind()
    images, depth = (torch.where(mirrored < 0.5, part.flip(3), part) for part in (images, depth))
    return (images * (1 + BRIGHTNESS * (2 * light - 1))).clamp(0, 1), depth
