"""Settings that all baselines share, and what follows from them: the task, how rows are read, how networks learn."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeVar

from torch import Tensor

from splitpoint.classification import SplitPointClassifier
from splitpoint.errors import SettingsError
from splitpoint.features import LayerSpec
from splitpoint.networks import NetworkTraining
from splitpoint.recording import Source
from splitpoint.regression import SplitPointRegressor

Task = Literal["regression", "classification"]
S = TypeVar("S", bound="Settings")


@dataclass(frozen=True)
class About:
    """What a method is, for tables.

    Attributes:
        tasks: what it can do.
        post_hoc: whether it takes a trained model and leaves it as it is.
        passes: forward passes for one prediction, in words.
        needs: what `fit` needs beside training data.
        epistemic: what its epistemic score is, or "none" where it has no such part.
        reference: who defined it.
    """

    tasks: tuple[Task, ...]
    post_hoc: bool
    passes: str
    needs: str
    epistemic: str
    reference: str


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a plain network, which all baselines share.

    Attributes:
        confidence_level: share of targets that the interval (or the prediction set) should cover; a tuple gives
            several levels.
        task: "regression", "classification", or "auto": classification where targets are integers.
        output: what a classifier returns, "logits" or "probs".
        temperature: scale the probabilities by one temperature fitted on calibration data, by log loss ("nll") or
            calibration error ("ece"); None to leave them.
        ignore_index: label that does not count.
        layer: where features are read; None for the input of the last layer.
        output_key: which entry of the model's output is the prediction, where it has several.
        rows_per_call: rows that go through the model at a time when the data do not come in batches.
        positions: most positions used of one map or sequence when something is fitted on features.
        epochs: passes over the data when networks are trained; None for 400, or what makes 2,000 to 20,000 steps.
        learning_rate: of the networks.
        batch_size: rows of a step of the networks' training, for data that do not come in batches.
        weight_decay: of the networks.
        optimiser: "adam", or "sgd" with momentum.
        milestones: shares of the training after which the learning rate is divided by ten.
    """

    about: ClassVar[About] = About(
        tasks=("regression", "classification"),
        post_hoc=False,
        passes="1",
        needs="factory",
        epistemic="none",
        reference="",
    )

    confidence_level: float | tuple[float, ...] = 0.95
    task: Literal["regression", "classification", "auto"] = "auto"
    output: Literal["logits", "probs"] = "logits"
    temperature: Literal["nll", "ece"] | None = None
    ignore_index: int = -100
    layer: LayerSpec = None
    output_key: str | int | None = None
    rows_per_call: int = 256
    positions: int = 256
    epochs: int | None = None
    learning_rate: float = 1e-3
    batch_size: int = 64
    weight_decay: float = 0.0
    optimiser: Literal["adam", "sgd"] = "adam"
    milestones: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        self._regressor()
        self._classifier()
        self._training()
        if self.task != "auto" and self.task not in self.about.tasks:
            raise SettingsError(f"Expected task to be one of {self.about.tasks}, but got {self.task!r}.")
        if self.temperature not in (None, "nll", "ece"):
            raise SettingsError(f"Expected temperature to be None, 'nll' or 'ece', but got {self.temperature!r}.")
        if self.temperature and (self.task == "regression" or self.about.tasks == ("regression",)):
            raise SettingsError(
                f"Expected temperature=None for regression, which has no probabilities, but got {self.temperature!r}; "
                "leave it out."
            )

    @property
    def levels(self) -> tuple[float, ...]:
        """Confidence levels, ascending."""
        return self._regressor().levels

    def _training(self) -> NetworkTraining:
        return NetworkTraining(**{f.name: getattr(self, f.name) for f in dataclasses.fields(NetworkTraining)})

    def _regressor(self) -> SplitPointRegressor:
        return SplitPointRegressor(self.confidence_level, rows_per_call=self.rows_per_call, positions=self.positions)

    def _classifier(self) -> SplitPointClassifier:
        return SplitPointClassifier(output=self.output, ignore_index=self.ignore_index)

    def _source(self) -> Source:
        """How rows are read for the task: residuals for regression, logits and labels for classification."""
        reader = self._classifier() if self.task == "classification" else self._regressor()
        return replace(
            reader._source(),
            layer=self.layer,
            output_key=self.output_key,
            batch_size=self.rows_per_call,
            positions=self.positions,
        )

    def _logits(self, canonical: Tensor) -> Tensor:
        """Canonical output (N, D, ...) -> logits (N, K, ...)."""
        return self._classifier()._logits(canonical)

    def _resolved(self: S, output: Tensor, target: Tensor) -> S:
        """The same settings with the task decided by the first batch."""
        if self.task != "auto":
            return self
        if len(self.about.tasks) == 1:
            return replace(self, task=self.about.tasks[0])
        if target.is_floating_point():
            return replace(self, task="regression")
        if target.numel() == output.numel():
            raise SettingsError(
                f"Expected task= for integer targets of the output's own shape {tuple(output.shape)}, which may be "
                "labels of a one-logit classifier or numbers; pass task='classification' or task='regression'."
            )
        return replace(self, task="classification")
