"""What the split-point methods have in common: frozen settings that `fit`."""

from __future__ import annotations

import dataclasses
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from splitpoint.batches import Data, placement
from splitpoint.cache import Table
from splitpoint.errors import SettingsError
from splitpoint.features import LayerSpec
from splitpoint.joint import BaseLoss, BaseTraining, Companion, LayoutLoss, train_base, train_together
from splitpoint.layout import Layout
from splitpoint.predictor import PostHocPredictor
from splitpoint.recording import Recording, Source, record
from splitpoint.training import Rows, Training

R = TypeVar("R", bound=PostHocPredictor[Any])


@dataclass(frozen=True, kw_only=True)
class Method(ABC, Generic[R]):
    """Settings that all split-point methods share.

    Attributes:
        layer: where the features are read: None for the input of the last Linear or Conv that produces the output
            (checked and reported), a name, a module, a list of them, or a callable on the model's own arguments.
        output_key: which entry of the model's output is the prediction, where it has several.
        cache: "ram", or a directory for recorded features, which later runs with the same data resume or reuse.
        rows_per_call: rows that go through the model at a time when the data do not come in batches.
        positions: most positions used of one map or sequence when the heads are trained.
        width: most units of a hidden layer, which has as many as there are features (half as many for maps and
            sequences, where every position pays for it), but at least 16.
        epochs: passes over the recorded rows; None for 50, or what makes 1,000 to 3,000 steps.
        learning_rate: of the heads' optimiser.
        decay: whether the learning rate falls to zero along a cosine.
        batch_size: rows of a step; None chooses by the number of rows.
        weight_decay: of the heads' optimiser.
        held_back: share of the rows kept aside to find the best epoch; 0 trains on all rows to the end.
        patience: epochs without improvement before stopping; None makes all passes and keeps the best state.
    """

    layer: LayerSpec = None
    output_key: str | int | None = None
    cache: str | os.PathLike[str] = "ram"
    rows_per_call: int = 256
    positions: int = 256
    width: int = 64
    epochs: int | None = None
    learning_rate: float = 1e-3
    decay: bool = True
    batch_size: int | None = None
    weight_decay: float = 0.0
    held_back: float = 0.1
    patience: int | None = None

    def __post_init__(self) -> None:
        for name in ("rows_per_call", "positions", "width"):
            if getattr(self, name) < 1:
                raise SettingsError(f"Expected {name} >= 1, but got {getattr(self, name)}.")
        self._training()

    def _training(self) -> Training:
        return Training(**{field.name: getattr(self, field.name) for field in dataclasses.fields(Training)})

    def _hidden(self, table: Table) -> int:
        features = table.width("features")
        return min(max(features // 2 if table.dense else features, 16), self.width)

    def fit(
        self, model: nn.Module, data: Data, *, calibration: Data | None = None, seed: int = 0, progress: bool = True
    ) -> R:
        """Fit on one pass of the frozen model over `data`, and one over `calibration` where given.

        Args:
            model: the trained base model; left bit for bit as it was.
            data: what it was trained on, or more of the same: a DataLoader, an iterable of batches, a Dataset or a
                pair (X, y).
            calibration: held-out data, for conformal intervals or calibrated probabilities.
            seed: of everything random.
            progress: whether to show progress bars.
        """
        held_out = None if calibration is None else [calibration]
        return self.fit_many([model], [data], calibration=held_out, seeds=[seed], progress=progress)[0]

    def fit_stagewise(
        self,
        model: nn.Module,
        data: Data,
        *,
        loss: BaseLoss | None = None,
        base_epochs: int = 100,
        base_learning_rate: float = 1e-3,
        calibration: Data | None = None,
        seed: int = 0,
        progress: bool = True,
    ) -> R:
        """Train an untrained model first, in place, and fit the heads after.

        Args:
            model: the untrained base model.
            data: to train both on; must allow one pass per epoch.
            loss: of the base model, from its output and the target; squared error or log loss by default.
            base_epochs: passes over the data.
            base_learning_rate: of Adam.
            calibration: as in `fit`.
            seed: of the heads; the model brings its own initial weights, the data their own order.
            progress: whether to show progress bars.
        """
        self._check_calibration(calibration is not None)
        settings = BaseTraining(self._layout_loss(loss), base_epochs, base_learning_rate)
        train_base(model, data, settings, self._source(), progress)
        return self.fit(model, data, calibration=calibration, seed=seed, progress=progress)

    def fit_jointly(
        self,
        model: nn.Module,
        data: Data,
        *,
        loss: BaseLoss | None = None,
        base_epochs: int = 100,
        base_learning_rate: float = 1e-3,
        calibration: Data | None = None,
        seed: int = 0,
        progress: bool = True,
    ) -> R:
        """Train an untrained model and its heads together, in place, on the sum of their losses.

        Arguments as in `fit_stagewise`. The heads learn from residuals of training rows, since the base model moves
        all the time; cross-fitting and leverage have no part in it.
        """
        self._check_calibration(calibration is not None)
        settings = BaseTraining(self._layout_loss(loss), base_epochs, base_learning_rate)
        device = placement(model)[0]
        companion = train_together(
            model, data, settings, self._source(), lambda rows: self._companion(rows, seed, device), progress
        )
        recording = self._record(model, data, "train", progress)
        return self._after_joint(recording, companion, calibration, seed, progress)

    @abstractmethod
    def _companion(self, rows: Rows, seed: int, device: torch.device) -> Companion:
        """Heads to train beside the model, of the shape that the rows of a first batch ask for."""

    @abstractmethod
    def _after_joint(
        self, recording: Recording, companion: Companion, calibration: Data | None, _seed: int, progress: bool
    ) -> R:
        """The predictor, once model and heads have been trained together."""

    def _layout_loss(self, loss: BaseLoss | None) -> LayoutLoss:
        if loss is None:
            return self._base_loss
        chosen = loss
        return lambda _layout, output, target: chosen(output, target)

    @abstractmethod
    def _base_loss(self, layout: Layout, output: Tensor, target: Tensor) -> Tensor:
        """Loss of the base network, where the user names none."""

    @abstractmethod
    def _check_calibration(self, given: bool) -> None:
        """Refuse settings that need calibration data when none are given."""

    @abstractmethod
    def _source(self) -> Source:
        """How rows are read for this method."""

    def fit_many(
        self,
        models: Sequence[nn.Module],
        data: Sequence[Data],
        *,
        calibration: Sequence[Data] | None = None,
        seeds: Sequence[int] | None = None,
        progress: bool = True,
    ) -> list[R]:
        """Fit several models of one shape at once, their heads trained as one stack.

        With equal numbers of rows each ends up as `fit` alone would leave it, at a fraction of the cost.

        Args:
            models: the trained base models.
            data: training data of each.
            calibration: held-out data of each.
            seeds: one for each model; 0, 1, 2, ... by default.
            progress: whether to show progress bars.
        """
        seeds = range(len(models)) if seeds is None else seeds
        given = {"data sets": data, "seeds": seeds, "calibration sets": models if calibration is None else calibration}
        for name, values in given.items():
            if len(values) != len(models) or not models:
                raise SettingsError(f"Expected as many {name} as models, but got {len(values)} for {len(models)}.")
        self._check_calibration(calibration is not None)
        with torch.inference_mode(False), torch.enable_grad():
            recordings = self._record_many(models, data, progress)
            return self._fit_recorded(recordings, calibration, generators_for(seeds), progress)

    @abstractmethod
    def _fit_recorded(
        self,
        recordings: Sequence[Recording],
        calibration: Sequence[Data] | None,
        generators: Sequence[torch.Generator],
        progress: bool,
    ) -> list[R]:
        """Predictors from the recorded training rows of every model."""

    def _record(self, model: nn.Module, data: Data, part: str, progress: bool) -> Recording:
        if not isinstance(model, nn.Module):
            raise SettingsError(f"Expected the base model to be a torch.nn.Module, but got {type(model).__name__}.")
        cache = None if self.cache == "ram" else Path(self.cache) / part
        return record(model, data, self._source(), cache=cache, label=part.split("/")[-1], progress=progress)

    @staticmethod
    def _part(name: str, number: int, count: int) -> str:
        """Folder of one of several models' rows in a cache."""
        return f"{number}/{name}" if count > 1 else name

    def _record_many(self, models: Sequence[nn.Module], data: Sequence[Data], progress: bool) -> list[Recording]:
        pairs = enumerate(zip(models, data, strict=True))
        found = [self._record(m, d, self._part("train", i, len(models)), progress) for i, (m, d) in pairs]
        shapes = {(r.table.width("features"), r.layout) for r in found}
        if len(shapes) > 1:
            raise SettingsError(
                "Expected models with equal feature widths and outputs to fit as one stack, but got "
                f"{sorted(width for width, _ in shapes)}; fit them one by one."
            )
        return found


def generators_for(seeds: Sequence[int]) -> list[torch.Generator]:
    """A generator for each seed, apart from the global state."""
    return [torch.Generator().manual_seed(seed) for seed in seeds]
