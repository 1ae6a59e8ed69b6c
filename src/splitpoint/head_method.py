"""What the split-point methods share: the settings of their heads, and fitting beside a base network in training."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from splitpoint.batches import Data, placement
from splitpoint.cache import Table
from splitpoint.errors import SettingsError
from splitpoint.features import LayerSpec, Tap
from splitpoint.joint import BaseLoss, Companion, LayoutLoss, train_base, train_together
from splitpoint.layout import Layout
from splitpoint.method import P, PostHoc
from splitpoint.networks import NetworkTraining
from splitpoint.recording import Recording
from splitpoint.tasks import Rows
from splitpoint.training import Training


@dataclass(frozen=True, kw_only=True)
class HeadMethod(Training, PostHoc[P]):
    """Settings of methods that train heads on recorded rows; see `Training` and `PostHoc` for the others.

    Attributes:
        layer: where the features are read: None for the input of the last Linear or Conv that produces the output
            (checked and reported), a name, a module, a list of them, or a callable on the model's own arguments.
        cache: "ram", or a directory for recorded features, which later runs with the same data resume or reuse.
        width: most units of a hidden layer, which has as many as there are features (half as many for maps and
            sequences, where every position pays for it), but at least 16; None for no limit.
    """

    layer: LayerSpec = None
    cache: str | os.PathLike[str] = "ram"
    width: int | None = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        super(Training, self).__post_init__()
        if self.width is not None and self.width < 1:
            raise SettingsError(f"Expected width >= 1 or None, but got {self.width}.")

    @property
    def _layer(self) -> LayerSpec:
        return self.layer

    @property
    def _cache(self) -> Path | None:
        return None if self.cache == "ram" else Path(self.cache)

    def _hidden(self, table: Table) -> int:
        """Units of a hidden layer."""
        features = table.width("features")
        wanted = max(features // 2 if table.dense else features, 16)
        return wanted if self.width is None else min(wanted, self.width)

    @abstractmethod
    def _predictor(self, tap: Tap | None, layout: Layout, inputs: int, tensors: Mapping[str, Tensor]) -> P:
        """The predictor that these fitted tensors make, as `fit` and `load` build it."""

    def _check_alike(self, recordings: Sequence[Recording]) -> None:
        """Refuse recordings whose heads could not be trained as one stack."""
        shapes = {(recording.table.width("features"), recording.layout) for recording in recordings}
        if len(shapes) > 1:
            raise SettingsError(
                "Expected models with equal feature widths and outputs to fit as one stack, but got "
                f"{sorted(width for width, _ in shapes)}; fit them one by one."
            )

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
    ) -> P:
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
        settings = NetworkTraining(epochs=base_epochs, learning_rate=base_learning_rate)
        train_base(model, data, self._layout_loss(loss), settings, self._source(), progress)
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
    ) -> P:
        """Train an untrained model and its heads together, in place, on the sum of their losses.

        Arguments as in `fit_stagewise`. The heads learn from residuals of training rows, since the base model moves
        all the time; cross-fitting and leverage have no part in it.
        """
        self._check_calibration(calibration is not None)
        settings = NetworkTraining(epochs=base_epochs, learning_rate=base_learning_rate)
        device = placement(model)[0]
        companion = train_together(
            model,
            data,
            self._layout_loss(loss),
            settings,
            self._source(),
            lambda rows: self._companion(rows, seed, device),
            progress,
        )
        recording = self._record(model, data, "train", progress)
        held_out = None
        if calibration is not None and self._reads_calibration:
            held_out = self._record_more(recording, calibration, "calibration", progress)
        return self._after_joint(recording, companion, held_out, seed, progress)

    @abstractmethod
    def _companion(self, rows: Rows, seed: int, device: torch.device) -> Companion:
        """Heads to train beside the model, of the shape that the rows of a first batch ask for."""

    @abstractmethod
    def _after_joint(
        self, recording: Recording, companion: Companion, calibration: Recording | None, seed: int, progress: bool
    ) -> P:
        """The predictor, once model and heads have been trained together."""

    def _layout_loss(self, loss: BaseLoss | None) -> LayoutLoss:
        if loss is None:
            return self._task.loss
        chosen = loss
        return lambda _layout, output, target: chosen(output, target)
