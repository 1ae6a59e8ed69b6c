"""Rivals that read features and outputs of a trained model and leave it untouched."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from splitpoint.baselines.answers import check_answer
from splitpoint.baselines.settings import Rival
from splitpoint.calibration import fit_temperature, tempered
from splitpoint.features import Tap
from splitpoint.layer_setting import LayerSpec
from splitpoint.layout import Layout
from splitpoint.method import GivenRows, PostHoc
from splitpoint.posthoc import PostHocPredictor
from splitpoint.prediction import Prediction
from splitpoint.recording import Recording
from splitpoint.tasks import Answer, ClassAnswer

AtOutput = Callable[[Callable[[Tensor], Tensor]], Tensor]
"""Evaluates a function of feature rows (R, C) -> (R, M) at every position of the output: (N, M) or (N, M, P)."""


class Fitted(nn.Module):
    """Tensors that a method learned, by name; contiguous, so that a loaded copy answers bit for bit the same."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.add(name, tensor)

    @staticmethod
    def among(tensors: Mapping[str, Tensor]) -> Fitted:
        """Those of a predictor's tensors that are learned ones."""
        return Fitted({k.removeprefix("fitted."): v for k, v in tensors.items() if k.startswith("fitted.")}).eval()

    def add(self, name: str, tensor: Tensor) -> None:
        """Keep one more tensor."""
        self.register_buffer(name, tensor.contiguous())

    def __getitem__(self, name: str) -> Tensor:
        return self.get_buffer(name)

    def __contains__(self, name: str) -> bool:
        return name in self._buffers


class BaselinePredictor(PostHocPredictor[Prediction]):
    """A fitted post-hoc rival.

    Attributes:
        fitted: what was learned.
    """

    method: PostHocBaseline

    def __init__(
        self, method: PostHocBaseline, tap: Tap | None, layout: Layout, inputs: int, tensors: Mapping[str, Tensor]
    ) -> None:
        super().__init__(method, tap, layout, inputs, tensors)
        self.fitted = Fitted.among(tensors)

    def _answer(self, features: Tensor, output: Tensor) -> Answer:
        def at_output(function: Callable[[Tensor], Tensor]) -> Tensor:
            return self.layout.pointwise(function, features, output)

        answer = self.method._answer(self.fitted, at_output, self.task.canonical(self.layout.output(output)))
        if isinstance(answer, ClassAnswer) and "temperature" in self.fitted:
            return tempered(answer, self.fitted["temperature"])
        return answer


@dataclass(frozen=True, kw_only=True)
class PostHocBaseline(PostHoc[BaselinePredictor], Rival[BaselinePredictor]):
    """A rival that learns a few tensors from recorded rows and answers from features and output."""

    def _learn(self, rows: Recording, held_out: Recording | None, seed: int) -> dict[str, Tensor]:  # noqa: ARG002
        """What the training rows, and the calibration rows where given, teach; nothing by default."""
        return {}

    @abstractmethod
    def _answer(self, fitted: Fitted, at_output: AtOutput, output: Tensor) -> Answer:
        """The answer for a batch with canonical outputs (N, D, ...), or logits (N, K, ...) of a classifier."""

    def _fit_recorded(self, given: GivenRows) -> list[BaselinePredictor]:
        held_out: Sequence[Recording | None] = given.calibration or [None] * len(given.rows)
        return [self._fit_one(*part) for part in zip(given.rows, held_out, given.seeds, strict=True)]

    @torch.no_grad()
    def _fit_one(self, rows: Recording, held_out: Recording | None, seed: int) -> BaselinePredictor:
        learned = {f"fitted.{name}": tensor for name, tensor in self._learn(rows, held_out, seed).items()}
        predictor = self._predictor(rows.tap, rows.layout, rows.inputs, learned)
        some = next(rows.table.slices(256))
        known = self._answer(predictor.fitted, lambda function: function(some["features"]), some[rows.task.answers])
        check_answer(known, type(self).__name__)
        if self._temperature and held_out is not None:
            features, logits = held_out.table.column("features"), held_out.table.column("logits")
            answer = self._answer(predictor.fitted, lambda function: function(features), logits)
            assert isinstance(answer, ClassAnswer)
            label = held_out.table.column("label")[:, 0]
            predictor.fitted.add("temperature", fit_temperature(answer.scaled, label, self._temperature))
        return predictor.heads_to(rows.device)

    def _predictor(
        self, tap: Tap | None, layout: Layout, inputs: int, tensors: Mapping[str, Tensor]
    ) -> BaselinePredictor:
        return BaselinePredictor(self, tap, layout, inputs, tensors)

    def _rebuilt(self, network: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:  # noqa: ARG002
        """A fresh network as it was trained, ready for its saved weights `tensors`."""
        return network


@dataclass(frozen=True, kw_only=True)
class FeatureBaseline(PostHocBaseline):
    """A rival that learns from features.

    Attributes:
        layer: where features are read; None for the input of the last layer.
    """

    layer: LayerSpec = None

    @property
    def _layer(self) -> LayerSpec:
        return self.layer
