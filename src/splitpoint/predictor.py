"""What `fit` returns: a predictor, on the features of a base model or with networks of its own."""

from __future__ import annotations

import dataclasses
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from splitpoint.batches import Batch, Data, labelled, placement, unlabelled
from splitpoint.calibration import image_reference, reference
from splitpoint.checks import Check
from splitpoint.errors import DataError, SettingsError, ShapeError, StorageError
from splitpoint.features import Reading, Tap
from splitpoint.files import model_fingerprint, write_tensors
from splitpoint.image_support import ImageSupport
from splitpoint.layout import Layout
from splitpoint.prediction import Prediction, Reference, RegressionPrediction, Rowwise, concatenate, with_fields
from splitpoint.recording import bar
from splitpoint.tasks import Answer, Task

FILE_FORMAT, FILE_KEY = 3, "splitpoint"
"""Format of saved files, and where in their metadata the description is."""

P = TypeVar("P", bound=Rowwise)
Self = TypeVar("Self", bound="Predictor[Any]")
SelfPostHoc = TypeVar("SelfPostHoc", bound="PostHocPredictor[Any]")


class Settings(Protocol):
    """What a predictor reads of its method's settings."""

    @property
    def rows_per_call(self) -> int:
        """Rows that go through the model at a time when the data do not come in batches."""
        ...

    @property
    def _task(self) -> Task:
        """How outputs are read."""
        ...


class Predictor(nn.Module, ABC, Generic[P]):
    """A fitted method: call it with the model's own arguments to get a `Prediction`.

    It is a module in eval mode and stays so.

    Attributes:
        method: the settings it was fitted with.
        task: how outputs are read.
        base: what runs on the inputs: the base model, which moves with it but is not changed, or networks of its own.
        layout: how the model's output is shaped.
        inputs: number of positional arguments of the model.
        checks: what `fit` found out about itself.
    """

    checks: tuple[Check, ...] = ()
    quantiles: Tensor | None
    threshold: Tensor | None
    image_quantiles: Tensor | None
    image_threshold: Tensor | None

    def __init__(
        self, method: Settings, base: nn.Module, layout: Layout, inputs: int, tensors: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.method, self.base, self.layout, self.inputs = method, base, layout, inputs
        self.task = method._task
        for name in ("quantiles", "threshold", "image_quantiles", "image_threshold"):
            self.register_buffer(name, tensors.get(name))
        self.training = False

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> P:
        """The prediction for these inputs."""

    def train(self: Self, mode: bool = True) -> Self:  # noqa: ARG002
        """Does nothing: a fitted predictor is always in eval mode, and the base model keeps its own."""
        return self

    def predict(self, data: Data, progress: bool = False) -> P:
        """One prediction for everything in `data`, in order, on the CPU; targets in the data are ignored."""
        return concatenate(list(self.stream(data, progress)))

    def stream(self, data: Data, progress: bool = False) -> Iterator[P]:
        """The prediction for every batch of `data`, in order, on the CPU: one batch is in memory at a time."""
        batches = unlabelled(data, self.method.rows_per_call, self.inputs)
        return (prediction for prediction, _ in self._run(batches, progress))

    def labelled(self, data: Data, progress: bool = False) -> Iterator[tuple[P, Tensor]]:
        """The prediction for every batch of `data` and its target, both on the CPU."""
        for prediction, target in self._run(labelled(data, self.method.rows_per_call), progress):
            assert target is not None
            yield prediction, target.cpu()

    def _run(self, batches: Iterable[Batch], progress: bool) -> Iterator[tuple[P, Tensor | None]]:
        """The prediction for every batch, on the CPU, and the target as it came."""
        found = False
        for batch in bar(batches, "predicting", progress):
            moved, found = batch.to(self.base), True
            prediction: P = self(*moved.args, **moved.kwargs)
            yield prediction.to("cpu"), batch.target
        if not found:
            raise DataError("Expected data to predict on, but got no batch; pass at least one row.")

    def set_threshold(self: Self, data: Data | Rowwise, quantile: float = 0.95, progress: bool = False) -> Self:
        """Take n rows of in-distribution `data` as the reference: higher scores than most of theirs are flagged (E26).

        Flagged is what exceeds the ``ceil((n + 1) quantile)``-th smallest of theirs: of rows exchangeable with them at
        most a share ``1 - quantile``, on average. It takes at least ``quantile / (1 - quantile)`` rows, 19 at .95.
        Afterwards every prediction has `flagged` and `percentile`, and so has its `image` where it has one. The data
        should be held out from training. Several channels get a threshold each, since their scores have units of
        their own. A prediction made before, such as that of `predict_rows`, serves as well as data.
        """
        if isinstance(data, Prediction) and isinstance(data, RegressionPrediction) != (self.task.name == "regression"):
            raise DataError(
                f"Expected a prediction of {self.task.name} as the reference, but got {type(data).__name__}; give "
                "one that this predictor made."
            )
        if isinstance(data, Prediction) and bool(data.support.isnan().all()) and len(data):
            raise DataError(
                "Expected a prediction with support as the reference, but got one of rows without what earlier layers "
                "read; give predict_rows their context=, or set the threshold on data."
            )
        known: Iterable[Rowwise] = [data] if isinstance(data, Rowwise) else self.stream(data, progress)
        pairs = [prediction._scores() for prediction in known]
        scores, images = [score.cpu() for score, _ in pairs], [image.cpu() for _, image in pairs if image is not None]
        found = reference(scores, self.task.channels(self.layout, scores[0]), quantile)
        device = placement(self)[0]
        self.quantiles, self.threshold = found.quantiles.to(device), found.threshold.to(device)
        if images:
            whole = image_reference(images, quantile)
            self.image_quantiles, self.image_threshold = whole.quantiles.to(device), whole.threshold.to(device)
        return self

    @property
    def reference(self) -> Reference | None:
        """The in-distribution reference that `set_threshold` made."""
        if self.quantiles is None or self.threshold is None:
            return None
        return Reference(self.quantiles, self.threshold)

    @property
    def image_reference(self) -> Reference | None:
        """That of whole images."""
        if self.image_quantiles is None or self.image_threshold is None:
            return None
        return Reference(self.image_quantiles, self.image_threshold)

    def own_tensors(self) -> dict[str, Tensor]:
        """Everything fitted, by name: the state of the predictor without the base model."""
        return {name: tensor for name, tensor in self.state_dict().items() if not name.startswith("base.")}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the base model to one safetensors file; `splitpoint.load` reads it back."""
        path = Path(path)
        if path.is_dir():
            raise StorageError(f"Expected a file to save to, but {path} is a folder; name a file in it.")
        if not path.parent.is_dir():
            raise StorageError(f"Expected a folder to save to, but {path.parent} does not exist; create it first.")
        metadata = {FILE_KEY: json.dumps(self.description(), default=float), "format": "pt"}
        write_tensors(path, self.own_tensors(), metadata)

    def description(self) -> dict[str, Any]:
        """What a file holds beside the tensors: the method and its settings, and how outputs are shaped."""
        method: Any = self.method
        settings = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
        # a layer is found again by its name, and how a base network came about no longer matters
        settings = {name: value for name, value in settings.items() if name not in ("layer", "training", "retrain")}
        if "cache" in settings:
            settings["cache"] = str(settings["cache"])
        return {
            "format": FILE_FORMAT,
            "kind": type(method).__name__,
            "settings": settings,
            "layout": dataclasses.asdict(self.layout),
            "inputs": self.inputs,
            "checks": [dataclasses.asdict(check) for check in self.checks],
        }

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

    def _in_context(self, answer: Answer, features: Any, context: Tensor) -> Answer:  # noqa: ARG002
        """The answer with what layers before the last one tell of the rows; the same by default."""
        return answer

    def _predict(self, features: Any, output: Tensor, context: Tensor | None = None) -> P:
        """Prediction from features, the model's output tensor and what layers before the last one read."""
        answer = self._answer(features, output)
        if context is not None:
            answer = self._in_context(answer, features, context)
        elif self._reads_context:
            answer = dataclasses.replace(answer, support=torch.full_like(answer.epistemic, torch.nan))
        prediction: Any = answer.prediction(self.layout, output, self.reference)
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
        given, answers = torch.as_tensor(features), torch.as_tensor(outputs)
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
            earlier = [part.to(device).float() for part in torch.as_tensor(context).split(rows)]
        parts = zip(given.split(rows), answers.split(rows), earlier, strict=True)
        with torch.no_grad():
            return concatenate([self._predict(f.to(device).float(), o.to(device), c).to("cpu") for f, o, c in parts])

    def own_tensors(self) -> dict[str, Tensor]:
        """Everything fitted, by name, the base model's weights included where `fit` trained it."""
        return dict(self.state_dict()) if self.owns_base else super().own_tensors()

    def description(self) -> dict[str, Any]:
        """See `Predictor`; also where the features are read, and the fingerprint of the base model."""
        tap = self.tap
        if tap is None:
            return super().description() | {"widths": self.widths, "layer": {}, "base_model": ""}
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
            "base_model": model_fingerprint(tap.model),
        }

    def heads_to(self: SelfPostHoc, device: torch.device) -> SelfPostHoc:
        """Move everything fitted to `device`; the base model stays where it is."""
        for name, module in self.named_children():
            if name != "base":
                module.to(device)
        for name, buffer in self.named_buffers(recurse=False):
            setattr(self, name, buffer.to(device))
        return self

    def _described(self) -> list[str]:
        reason = "recorded before" if self.tap is None else self.tap.reason
        return [*super()._described(), f"layer: {self.layer} ({reason})"]
