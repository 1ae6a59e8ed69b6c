"""What all baselines have in common: one `fit` for trained models and factories, and tensors with names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from splitpoint.baselines.settings import Settings
from splitpoint.batches import Batch, Data, labelled
from splitpoint.errors import DataError, SettingsError
from splitpoint.predictor import Predictor
from splitpoint.surgery import Factory


@dataclass(frozen=True, kw_only=True)
class Baseline(Settings, ABC):
    """A method: frozen settings that `fit`."""

    def fit(
        self,
        model_or_factory: nn.Module | Factory,
        data: Data,
        *,
        calibration: Data | None = None,
        seed: int = 0,
        progress: bool = True,
    ) -> Predictor[Any]:
        """Fit the method.

        Args:
            model_or_factory: a trained model, or a function that builds an untrained one. A post-hoc method leaves a
                model as it is and trains one first when it gets a function; a method that trains networks takes a
                model as a pattern, of which it trains fresh copies.
            data: training data: a DataLoader, an iterable of batches, a Dataset or a pair (X, y).
            calibration: held-out data, for temperatures and conformal methods.
            seed: of everything random.
            progress: whether to show progress bars.
        """
        held_out = None if calibration is None else [calibration]
        return self.fit_many([model_or_factory], [data], calibration=held_out, seeds=[seed], progress=progress)[0]

    def fit_many(
        self,
        models_or_factories: Sequence[nn.Module | Factory],
        data: Sequence[Data],
        *,
        calibration: Sequence[Data] | None = None,
        seeds: Sequence[int] | None = None,
        progress: bool = True,
    ) -> list[Predictor[Any]]:
        """Fit on several data sets, what can be trained as one stack at once. Arguments as in `fit`, in lists."""
        seeds = range(len(data)) if seeds is None else seeds
        lengths = {len(models_or_factories), len(data), len(seeds), len(calibration or data)}
        if lengths != {len(data)} or not data:
            raise SettingsError(
                "Expected as many models, data sets, calibration sets and seeds, but got "
                f"{len(models_or_factories)}, {len(data)}, {len(calibration or data)} and {len(seeds)}."
            )
        if self.temperature and not calibration:
            raise SettingsError(
                f"Expected calibration data for temperature={self.temperature!r}, but got none; "
                "pass calibration= to fit."
            )
        with torch.inference_mode(False):
            return self._fit_many(models_or_factories, data, calibration, seeds, progress)

    @abstractmethod
    def _fit_many(
        self,
        models_or_factories: Sequence[nn.Module | Factory],
        data: Sequence[Data],
        calibration: Sequence[Data] | None,
        seeds: Sequence[int],
        progress: bool,
    ) -> list[Predictor[Any]]:
        """Predictors, one for each data set."""


def first_batch(data: Data, rows: int) -> Batch:
    """The first batch of some data, which must be readable again."""
    if isinstance(data, Iterator):
        raise DataError("Expected data that can be read again, but got an iterator; pass a DataLoader or a list.")
    batch = next(labelled(data, rows), None)
    if batch is None:
        raise DataError("Expected data to fit on, but got none; pass at least two rows.")
    return batch


class Fitted(nn.Module):
    """Tensors that a method learned, by name; contiguous, so that a loaded copy answers bit for bit the same."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.add(name, tensor)

    def add(self, name: str, tensor: Tensor) -> None:
        """Keep one more tensor."""
        self.register_buffer(name, tensor.contiguous())

    def __getitem__(self, name: str) -> Tensor:
        return self.get_buffer(name)

    def __contains__(self, name: str) -> bool:
        return name in self._buffers


def fit_seeds(seed: int, count: int) -> list[int]:
    """Seeds of several networks, from the seed of a fit."""
    return torch.randint(2**31, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
