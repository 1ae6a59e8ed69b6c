"""Baselines that read features and outputs of a trained model and leave it untouched."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from splitpoint.baselines.answers import Answer, ClassAnswer
from splitpoint.baselines.method import Baseline, Fitted, first_batch
from splitpoint.baselines.plain import train_plain
from splitpoint.baselines.temperature import fit_temperature, tempered
from splitpoint.batches import Data
from splitpoint.cache import Table
from splitpoint.features import Tap, open_tap
from splitpoint.layout import Layout
from splitpoint.prediction import Prediction
from splitpoint.predictor import PostHocPredictor, Predictor
from splitpoint.recording import Recording, record
from splitpoint.surgery import Factory

AtOutput = Callable[[Callable[[Tensor], Tensor]], Tensor]
"""Evaluates a function of feature rows (R, C) -> (R, M) at every position of the output: (N, M) or (N, M, P)."""


class BaselinePredictor(PostHocPredictor[Prediction]):
    """A fitted post-hoc baseline.

    Attributes:
        fitted: what was learned.
    """

    method: PostHocBaseline

    def __init__(
        self, method: PostHocBaseline, tap: Tap, layout: Layout, inputs: int, tensors: Mapping[str, Tensor]
    ) -> None:
        super().__init__(method, tap, layout, inputs, tensors)
        self.fitted = Fitted(
            {k.removeprefix("fitted."): v for k, v in tensors.items() if k.startswith("fitted.")}
        ).eval()

    def _predict(self, features: Tensor, output: Tensor) -> Prediction:
        canonical = self.layout.output(output)
        if self.method.task == "classification":
            canonical = self.method._logits(canonical)
        elif canonical.dtype != torch.float64:
            canonical = canonical.float()

        def at_output(function: Callable[[Tensor], Tensor]) -> Tensor:
            return self.layout.pointwise(function, features, output)

        answer = self.method._answer(self.fitted, at_output, canonical)
        if isinstance(answer, ClassAnswer) and "temperature" in self.fitted:
            answer = tempered(answer, self.fitted["temperature"])
        return answer.prediction(self.layout, output, self.reference)

    def _channels(self, score: Tensor) -> tuple[int, ...]:
        return self.layout.channel_shape(score) if self.method.task == "regression" else ()


@dataclass(frozen=True, kw_only=True)
class PostHocBaseline(Baseline):
    """A method that learns a few tensors from recorded rows and answers from features and output."""

    @abstractmethod
    def _learn(self, rows: Recording, held_out: Recording | None, seed: int) -> dict[str, Tensor]:
        """What the training rows, and the calibration rows where given, teach."""

    @abstractmethod
    def _answer(self, fitted: Fitted, at_output: AtOutput, output: Tensor) -> Answer:
        """The answer for a batch with canonical outputs (N, D, ...), or logits (N, K, ...) of a classifier."""

    def _fit_many(
        self,
        models_or_factories: Sequence[nn.Module | Factory],
        data: Sequence[Data],
        calibration: Sequence[Data] | None,
        seeds: Sequence[int],
        progress: bool,
    ) -> list[Predictor[Any]]:
        held_out: Sequence[Data | None] = calibration or [None] * len(data)
        parts = zip(models_or_factories, data, held_out, seeds, strict=True)
        return [self._fit_one(model, own, held, seed, progress) for model, own, held, seed in parts]

    def _fit_one(
        self, model_or_factory: nn.Module | Factory, data: Data, calibration: Data | None, seed: int, progress: bool
    ) -> BaselinePredictor:
        if isinstance(model_or_factory, nn.Module):
            model = self._given(model_or_factory)
        else:
            model = self._trained(model_or_factory, data, seed, progress)
        batch = first_batch(data, self.rows_per_call).to(model)
        assert batch.target is not None
        tap, output, _ = open_tap(model, self.layer, batch, self.output_key)
        method = self._resolved(output, batch.target)
        source = method._source()
        rows = record(model, data, source, cache=None, label="reading features", progress=progress)
        held = None
        if calibration is not None:
            held = record(model, calibration, source, cache=None, label="calibration", progress=progress)
        with torch.inference_mode(False), torch.no_grad():
            learned = method._learn(rows, held, seed)
            tensors = {f"fitted.{name}": tensor for name, tensor in learned.items()}
            predictor = BaselinePredictor(method, rows.tap, rows.layout, rows.inputs, tensors)
            predictor.owns_base = not isinstance(model_or_factory, nn.Module)
            if method.temperature and held is not None:
                value = fit_temperature(*method._calibration_logits(predictor, held.table), method.temperature)
                predictor.fitted.add("temperature", value)
        return predictor.heads_to(tap.device)

    def _calibration_logits(self, predictor: BaselinePredictor, table: Table) -> tuple[Tensor, Tensor]:
        """Logits (n, K) of the method on calibration rows, and labels (n,)."""
        features, logits = table.column("features"), table.column("logits")
        answer = self._answer(predictor.fitted, lambda function: function(features), logits)
        assert isinstance(answer, ClassAnswer)
        return answer.scaled, table.column("label")[:, 0]

    def _given(self, model: nn.Module) -> nn.Module:
        """A trained model, if the settings can do with one."""
        return model

    def _rebuilt(self, network: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:  # noqa: ARG002
        """A fresh network as it was trained, ready for its saved weights `tensors`."""
        return network

    def _trained(self, factory: Factory, data: Data, seed: int, progress: bool) -> nn.Module:
        """A network trained on the data with the plain loss of the task."""
        return train_plain(self, [factory], [data], [seed], progress=progress)[0]
