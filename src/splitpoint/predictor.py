"""What `fit` returns: a predictor, on the features of a base model or with networks of its own."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from splitpoint.batches import Batch, Data, labelled, placement, unlabelled
from splitpoint.calibration import reference
from splitpoint.errors import DataError
from splitpoint.features import Tap
from splitpoint.layout import Layout
from splitpoint.prediction import Prediction, Reference, concatenate
from splitpoint.recording import bar

P = TypeVar("P", bound=Prediction)
Self = TypeVar("Self", bound="Predictor[Any]")
SelfPostHoc = TypeVar("SelfPostHoc", bound="PostHocPredictor[Any]")


class Settings(Protocol):
    """What a predictor reads of its method's settings."""

    @property
    def rows_per_call(self) -> int:
        """Rows that go through the model at a time when the data do not come in batches."""
        ...


class Predictor(nn.Module, ABC, Generic[P]):
    """A fitted method: call it with the model's own arguments to get a `Prediction`.

    It is a module in eval mode and stays so.

    Attributes:
        method: the settings it was fitted with.
        base: what runs on the inputs: the base model, which moves with it but is not changed, or networks of its own.
        layout: how the model's output is shaped.
        inputs: number of positional arguments of the model.
    """

    quantiles: Tensor | None
    threshold: Tensor | None

    def __init__(
        self, method: Settings, base: nn.Module, layout: Layout, inputs: int, tensors: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.method, self.base, self.layout, self.inputs = method, base, layout, inputs
        self.register_buffer("quantiles", tensors.get("quantiles"))
        self.register_buffer("threshold", tensors.get("threshold"))
        self.training = False

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> P:
        """The prediction for these inputs."""

    @abstractmethod
    def _channels(self, score: Tensor) -> tuple[int, ...]:
        """Shape of a threshold that broadcasts against a score's rows: sizes above 1 have thresholds of their own."""

    def train(self: Self, mode: bool = True) -> Self:  # noqa: ARG002
        """Does nothing: a fitted predictor is always in eval mode, and the base model keeps its own."""
        return self

    def predict(self, data: Data, progress: bool = False) -> P:
        """One prediction for everything in `data`, in order, on the CPU; targets in the data are ignored."""
        return concatenate(list(self._each(data, progress)))

    def labelled(self, data: Data, progress: bool = False) -> Iterator[tuple[P, Tensor]]:
        """The prediction for every batch of `data` and its target, both on the CPU."""
        for prediction, target in self._run(labelled(data, self.method.rows_per_call), progress):
            assert target is not None
            yield prediction, target.cpu()

    def _each(self, data: Data, progress: bool) -> Iterator[P]:
        """The prediction for every batch, on the CPU; targets are ignored."""
        batches = unlabelled(data, self.method.rows_per_call, self.inputs)
        return (prediction for prediction, _ in self._run(batches, progress))

    def _run(self, batches: Iterable[Batch], progress: bool) -> Iterator[tuple[P, Tensor | None]]:
        """The prediction for every batch, on the CPU, and the target as it came."""
        found = False
        for batch in bar(batches, "predicting", progress):
            moved, found = batch.to(self.base), True
            prediction: P = self(*moved.args, **moved.kwargs)
            yield prediction.to("cpu"), batch.target
        if not found:
            raise DataError("Expected data to predict on, but got no batch; pass at least one row.")

    def set_threshold(self: Self, data: Data, quantile: float = 0.95, progress: bool = False) -> Self:
        """Take in-distribution `data` as the reference: scores above their `quantile` will be flagged (E26).

        Afterwards every prediction has `flagged` and `percentile`. The data should be held out from training.
        Outputs with several channels get a threshold each, since their scores have units of their own.
        """
        scores = [prediction.epistemic for prediction in self._each(data, progress)]
        found = reference(scores, self._channels(scores[0]), quantile)
        device = placement(self)[0]
        self.quantiles, self.threshold = found.quantiles.to(device), found.threshold.to(device)
        return self

    @property
    def reference(self) -> Reference | None:
        """The in-distribution reference that `set_threshold` made."""
        if self.quantiles is None or self.threshold is None:
            return None
        return Reference(self.quantiles, self.threshold)

    def own_tensors(self) -> dict[str, Tensor]:
        """Everything fitted, by name: the state of the predictor without the base model."""
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("base.")}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the base model to one safetensors file; `splitpoint.load` reads it back."""
        from splitpoint.storage import save

        save(self, Path(path))

    def __repr__(self) -> str:
        """Method, base model, and how much was fitted."""
        fitted = sum(tensor.numel() for tensor in self.own_tensors().values())
        parts = [*self._described(), f"fitted: {fitted:,} numbers", str(self.method)]
        return f"{type(self).__name__}(\n" + "".join(f"  {part}\n" for part in parts) + ")"

    def _described(self) -> list[str]:
        return [f"base: {type(self.base).__name__}"]


class PostHocPredictor(Predictor[P]):
    """A predictor that reads features and output of a frozen base model in one forward pass.

    Attributes:
        tap: where the features are read, and why there.
        owns_base: whether the base model was trained by `fit`, and so belongs to what is saved.
    """

    owns_base = False

    def __init__(self, method: Settings, tap: Tap, layout: Layout, inputs: int, tensors: Mapping[str, Tensor]) -> None:
        super().__init__(method, tap.model, layout, inputs, tensors)
        self.tap = tap

    @abstractmethod
    def _predict(self, features: Tensor, output: Tensor) -> P:
        """Prediction from canonical features and the model's output tensor."""

    @property
    def layer(self) -> str:
        """Where the features come from."""
        return self.tap.label

    def forward(self, *args: Any, **kwargs: Any) -> P:
        """Run the base model once and return the prediction for these inputs."""
        with torch.no_grad():
            output, features = self.tap(*args, **kwargs)
            with torch.autocast(output.device.type, enabled=False):
                return self._predict(self.layout.features(features), output)

    def own_tensors(self) -> dict[str, Tensor]:
        """Everything fitted, by name, the base model's weights included where `fit` trained it."""
        return dict(self.state_dict()) if self.owns_base else super().own_tensors()

    def heads_to(self: SelfPostHoc, device: torch.device) -> SelfPostHoc:
        """Move everything fitted to `device`; the base model stays where it is."""
        for name, module in self.named_children():
            if name != "base":
                module.to(device)
        for name, buffer in self.named_buffers(recurse=False):
            setattr(self, name, buffer.to(device))
        return self

    def _described(self) -> list[str]:
        return [*super()._described(), f"layer: {self.layer} ({self.tap.reason})"]
