"""Training a network of several modalities: Adam, a rate that falls on a plateau, early stopping by validation rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from splitpoint.batches import Batch
from splitpoint.bench.checkpoints import Log
from splitpoint.bench.early_stopping import EarlyStopping
from splitpoint.bench.modal_trials import Rows
from splitpoint.errors import SettingsError

HELD_OUT_BATCH = 256


@dataclass(frozen=True)
class ModalSchedule:
    """How networks of several modalities are trained, as in LUMA.

    Attributes:
        epochs: passes over the rows at most.
        steps: of the optimiser at most, rounded up to whole passes; None for no further limit.
        learning_rate: the first.
        batch_size: rows of a step.
        factor: of the rate, after more than `plateau` epochs without a lower loss on the validation rows.
        plateau: see `factor`.
        patience: epochs without a lower loss after which the training ends. The weights of the lowest one are kept.
    """

    epochs: int = 300
    learning_rate: float = 1e-3
    batch_size: int = 128
    factor: float = 0.33
    plateau: int = 5
    patience: int = 10
    steps: int | None = None

    def __post_init__(self) -> None:
        counts = (self.epochs, self.patience, self.plateau, 1 if self.steps is None else self.steps)
        if min(counts) < 1 or self.batch_size < 2:
            raise SettingsError(
                "Expected epochs, patience, plateau and steps >= 1 and batch_size >= 2, but got "
                f"{', '.join(map(str, counts))} and {self.batch_size}."
            )
        if not (0 < self.learning_rate < math.inf and 0 < self.factor <= 1):
            raise SettingsError(
                f"Expected learning_rate > 0 and factor in (0, 1], but got {self.learning_rate} and {self.factor}."
            )

    def passes(self, steps: int) -> int:
        """Epochs at most when one has that many steps."""
        return self.epochs if self.steps is None else min(self.epochs, math.ceil(self.steps / steps))

    def rate(self, losses: list[float]) -> float:
        """Learning rate after epochs with these losses on the validation rows, as ``ReduceLROnPlateau`` has it.

        >>> ModalSchedule(learning_rate=1.0, factor=0.5, plateau=1).rate([3.0, 2.0, 2.0, 2.0, 2.0, 2.0])
        0.25
        """
        rate, best, bad = self.learning_rate, math.inf, 0
        for loss in losses:
            better = loss < best * (1 - 1e-4)
            best, bad = (loss, 0) if better else (best, bad + 1)
            if bad > self.plateau:
                rate, bad = rate * self.factor, 0
        return rate


@dataclass(frozen=True)
class ModalTraining(EarlyStopping):
    """One training of a network of several modalities, see `EarlyStopping`.

    Attributes:
        name: of the rows, for people.
        train: rows to learn from.
        validation: rows to stop by.
        schedule: of the training.
    """

    least_seconds: ClassVar[float] = 5.0

    name: str
    train: Rows
    validation: Rows
    schedule: ModalSchedule

    @property
    def _name(self) -> str:
        return self.name

    @property
    def _settings(self) -> dict[str, Any]:
        return {"rows": [part.digest() for part in (self.train, self.validation)], "schedule": asdict(self.schedule)}

    @property
    def _rows(self) -> int:
        return len(self.train)

    @property
    def _batch_size(self) -> int:
        return self.schedule.batch_size

    @property
    def _patience(self) -> int:
        return self.schedule.patience

    def _passes(self, steps: int) -> int:
        return self.schedule.passes(steps)

    def _rate(self, part: float, log: Log) -> float:  # noqa: ARG002
        return self.schedule.rate([epoch["held_out"] for epoch in log])

    def _train_batch(self, places: Tensor, generator: torch.Generator) -> Batch:  # noqa: ARG002
        return self.train.batch(places)

    def _held_out_batches(self) -> Iterator[tuple[int, Batch]]:
        for places in torch.arange(len(self.validation)).split(HELD_OUT_BATCH):
            yield len(places), self.validation.batch(places)
