"""Predictors that read features and output of a frozen base model, which all post-hoc methods return."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from splitpoint.batches import placement
from splitpoint.cache import feature_moments
from splitpoint.errors import DataError, SettingsError, ShapeError
from splitpoint.features import Reading, Tap
from splitpoint.fingerprint import Fingerprint, tapped
from splitpoint.image_support import ImageSupport
from splitpoint.layout import Layout
from splitpoint.prediction import concatenate, with_fields
from splitpoint.predictor import P, Predictor, Settings
from splitpoint.recording import Recording
from splitpoint.tasks import Answer
from splitpoint.tensors import numbers

SelfPostHoc = TypeVar("SelfPostHoc", bound="PostHocPredictor[Any]")


class PostHocPredictor(Predictor[P]):
    """A predictor that reads features and output of a frozen base model in one forward pass.

    Attributes:
        tap: where the features are read, and why there; None where it was fitted on rows without a model.
        owns_base: whether the base model was trained by `fit`, and so belongs to what is saved.
        widths: numbers of features and of outputs (or logits) of a row; None where they are not known.
        images: how little the training set says about a whole map or sequence; None where that is not asked.
        typical: (C,) mean features of the training rows, which stand for those of a branch that did not run; None
            where no branches are read.
    """

    typical: Tensor | None
    owns_base = False
    widths: tuple[int, int] | None = None

    def __init__(
        self, method: Settings, tap: Tap | None, layout: Layout, inputs: int, tensors: Mapping[str, Tensor]
    ) -> None:
        super().__init__(method, nn.Module() if tap is None else tap.model, layout, inputs, tensors)
        self.tap = tap
        self.images = ImageSupport.among(tensors)
        self.register_buffer("typical", tensors.get("typical"))
        self._lacking: dict[tuple[bool, ...], PostHocPredictor[P]] = {}

    @abstractmethod
    def _answer(self, features: Any, output: Tensor) -> Answer:
        """The answer from features, see `_features`, and the model's output tensor, in canonical form."""

    def _features(self, tensors: Sequence[Tensor]) -> Any:
        """Features as `_answer` reads them: canonical ones, (N, C) or (N, C, *positions)."""
        return self.layout.features(tensors)

    def _predict(self, features: Any, output: Tensor, context: Tensor | None = None) -> P:  # noqa: ARG002
        """Prediction from features, the model's output tensor and what layers before the last one read."""
        prediction: Any = self._answer(features, output).prediction(self.layout, output, self.reference)
        return prediction  # type: ignore[no-any-return]

    @property
    def layer(self) -> str:
        """Where the features come from."""
        return "rows" if self.tap is None else self.tap.label

    def forward(self, *args: Any, **kwargs: Any) -> P:
        """Run the base model once and return the prediction for these inputs."""
        if self.tap is None:
            raise SettingsError(
                "Expected a predictor with a model, but this one was fitted on recorded rows alone; call "
                "predict_rows(features, outputs), or give the recording its tap."
            )
        with torch.no_grad():
            reading = self.tap(*args, **kwargs)
            kind = reading.output.device.type
            if not torch.is_autocast_enabled(kind):
                return self.of_reading(reading)
            with torch.autocast(kind, enabled=False):
                return self.of_reading(reading)

    def of_reading(self, reading: Reading) -> P:
        """The prediction for what one forward pass of the base model gave."""
        lost = any(reading.missing)
        features = self._completed(reading) if lost else reading.features
        fitted = self._by_others(reading.missing) if lost else self
        found = fitted._predict(self._features(features), reading.output, reading.context)
        return self._of_branches(self._of_images(found, reading), reading)

    def work_ahead(self) -> None:
        """Work out what predictions are made of, where that is not done in each of them; the first one does it too."""

    def _of_branches(self, prediction: P, reading: Reading) -> P:
        """The same with what branches did not run for every row."""
        if self.tap is None or not self.tap.branches:
            return prediction
        missing = torch.tensor([reading.missing], device=reading.output.device).expand(reading.output.shape[0], -1)
        names = tuple(branch.name for branch in self.tap.branches)
        return with_fields(prediction, missing=missing, branches=names, reference=self.reference)

    def _completed(self, reading: Reading) -> list[Tensor]:
        """Features with the mean of the training rows in the place of those of branches that did not run."""
        assert self.tap is not None
        assert self.typical is not None
        parts = self.typical.split([branch.width for branch in self.tap.branches])
        ones = [1] * (reading.output.dim() - 1 - (self.layout.axis is not None)) if self.layout.dense else []
        found = []
        for value, part, last, lost in zip(reading.features, parts, self.layout.last, reading.missing, strict=True):
            filled = part.reshape(1, -1, *ones).expand(len(value), *[-1] * (1 + len(ones)))
            found.append((filled.movedim(1, -1) if last and ones else filled) if lost else value)
        return found

    def _by_others(self, missing: tuple[bool, ...]) -> PostHocPredictor[P]:
        """The predictor that scores rows by the features of the other branches; see `_marginal`."""
        known = self._lacking.get(missing)
        assert self.tap is not None
        assert self.typical is not None
        if known is None or known.typical is None or known.typical.device != self.typical.device:
            tensors = self._marginal(self.own_tensors(), self.tap.columns(missing), self._gone(missing))
            known = type(self)(self.method, self.tap, self.layout, self.inputs, tensors)
            self._lacking[missing] = known
        return known

    def _gone(self, missing: tuple[bool, ...]) -> Tensor:
        """Which columns of the context belong to branches that did not run."""
        assert self.tap is not None
        return self.tap.columns(missing, context=True)

    def _marginal(self, tensors: dict[str, Tensor], features: Tensor, context: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """Fitted tensors for rows without some of the features (C,) and of the context; the same by default.

        Distances are those of the features that are there, where the method has any; all else sees the mean of the
        training rows in the place of those that are not.
        """
        return tensors

    def _of_images(self, prediction: P, reading: Reading) -> P:
        """The same with a score for every image as a whole, where there is one."""
        if self.images is None:
            return prediction
        if any(reading.missing):
            score = reading.output.new_full((len(prediction),), torch.nan)
        else:
            score = self.images([*reading.stages, *self.layout.bands(reading.features)])
        return with_fields(prediction, image_epistemic=score, image_reference=self.image_reference)

    @property
    def _reads_context(self) -> bool:
        """Whether support is that of several layers."""
        return self.tap is not None and bool(self.tap.context)

    def predict_rows(
        self,
        features: Tensor | np.ndarray[Any, Any],
        outputs: Tensor | np.ndarray[Any, Any],
        context: Tensor | np.ndarray[Any, Any] | None = None,
    ) -> P:
        """The prediction for rows that were recorded before, on the CPU.

        Args:
            features: (N, C) as the predictor reads them.
            outputs: (N,) or (N, D) outputs of the model for the same rows.
            context: (N, W) what earlier layers read, the column ``context`` of a recording, where `support` is that of
                several layers; without it `support` is NaN, since it cannot be known.
        """
        if self.layout.dense:
            raise SettingsError(
                "Expected a model with one answer for each row to predict from rows, but it answers with maps or "
                "sequences; call the predictor with the model's own inputs."
            )
        given, answers = numbers(features, "features"), numbers(outputs, "outputs")
        if not len(given) or len(given) != len(answers):
            raise DataError(
                f"Expected features and outputs of as many rows, at least one, but got {len(given)} and {len(answers)}."
            )
        found = (*given.shape[1:], self.task.canonical(self.layout.output(answers[:1])).shape[1])
        if self.widths is not None and found != self.widths:
            raise ShapeError(
                "Expected rows of {} features and {} outputs, as in the fit, ".format(*self.widths)
                + f"but got {tuple(given.shape)} and {tuple(answers.shape)}; read them at the same layer."
            )
        device, rows = placement(self)[0], self.method.rows_per_call
        earlier: Sequence[Tensor | None] = [None] * -(-len(given) // rows)
        if context is not None and self._reads_context:
            earlier = [part.to(device).float() for part in numbers(context, "context").split(rows)]
        parts = zip(given.split(rows), answers.split(rows), earlier, strict=True)
        with torch.no_grad():
            return concatenate([self._predict(f.to(device).float(), o.to(device), c).to("cpu") for f, o, c in parts])

    def own_tensors(self) -> dict[str, Tensor]:
        """Everything fitted, by name, the base model's weights included where `fit` trained it."""
        return dict(self.state_dict()) if self.owns_base else super().own_tensors()

    def observed(self, *args: Any, **kwargs: Any) -> Sequence[Tensor]:
        """See `Predictor`."""
        return () if self.tap is None else tapped(self.tap)(*args, **kwargs)

    def fitted_on(self: SelfPostHoc, recording: Recording) -> SelfPostHoc:
        """The predictor with what the recording of its training rows tells of the model and of its features."""
        known, tap = recording.fingerprint, recording.tap
        if known is not None and self.tap is not None and tap is not None and self.tap.names != tap.names:
            known = replace(Fingerprint.at(self.tap, known.likeness), weights=known.weights)
        self.fingerprint, self.widths = known, self.widths or recording.widths
        if self.tap is not None and self.tap.branches:
            self.typical = feature_moments(recording.table)[0].to(recording.device)
        return self

    def description(self) -> dict[str, Any]:
        """See `Predictor`; also where the features are read."""
        tap = self.tap
        if tap is None:
            return super().description() | {"widths": self.widths, "layer": {}}
        function = None if tap.names else tap.label
        return super().description() | {
            "widths": self.widths,
            "layer": {
                "names": tap.names,
                "reason": tap.reason,
                "function": function,
                "context": tap.context,
                "stages": tap.stages,
                "branches": [dataclasses.astuple(branch) for branch in tap.branches],
            },
        }

    def _described(self) -> list[str]:
        reason = "recorded before" if self.tap is None else self.tap.reason
        return [*super()._described(), f"layer: {self.layer} ({reason})"]
