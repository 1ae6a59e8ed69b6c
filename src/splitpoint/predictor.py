"""What `fit` returns: a predictor, which answers, saves itself, and knows whether its base model is what it was."""

from __future__ import annotations

import dataclasses
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from splitpoint.batches import Batch, Data, labelled, placement, suited_call, unlabelled
from splitpoint.calibration import image_reference, reference
from splitpoint.checks import Check
from splitpoint.errors import DataError
from splitpoint.files import drop_stale_drafts, file_to_write, write_tensors
from splitpoint.fingerprint import NAME, Fingerprint
from splitpoint.layout import Layout
from splitpoint.prediction import Prediction, Reference, RegressionPrediction, Rowwise, concatenate
from splitpoint.recording import bar
from splitpoint.tasks import Task

FILE_FORMAT, FILE_KEY, SEEN = 4, "splitpoint", "seen."
"""Format of saved files, where in their metadata the description is, and what its fingerprint's tensors begin with."""

P = TypeVar("P", bound=Rowwise)
Self = TypeVar("Self", bound="Predictor[Any]")


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
        fingerprint: of the base as it was at the fit; None where nothing is known of it.
    """

    checks: tuple[Check, ...] = ()
    fingerprint: Fingerprint | None = None
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
        self.register_forward_pre_hook(suited_call, with_kwargs=True)

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

    @abstractmethod
    def observed(self, *args: Any, **kwargs: Any) -> Sequence[Tensor]:
        """What a `Fingerprint` is made of: the output of the base, and the features that are read, for these inputs."""

    def verify(self) -> Check:
        """Whether the base model still is the one that this predictor was fitted on.

        Its weights are compared, and its outputs and features on a few made-up rows, which tell of changes that have
        no weights: another activation, or other units of the inputs. The value is the largest difference of those,
        in units of their spread. "unknown" means that the weights are the same (or, without a model or a fit, that
        there are none) and that there are no answers to compare with.
        """
        if self.fingerprint is None:
            return Check(NAME, float("nan"), "unknown", "nothing was kept of a model at the fit to compare with")
        return self.fingerprint.check(self.base, self.observed)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the base model to one safetensors file; `splitpoint.load` reads it back.

        A link is followed. The file appears whole or not at all; what saves that were killed left beside it goes away.
        """
        place = file_to_write(path)
        drop_stale_drafts(place)
        seen = () if self.fingerprint is None else self.fingerprint.seen
        tensors = self.own_tensors() | {f"{SEEN}{number}": value for number, value in enumerate(seen)}
        write_tensors(place, tensors, {FILE_KEY: json.dumps(self.description(), default=float), "format": "pt"})

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
            "not_finite": sorted(name for name, value in self.own_tensors().items() if not _finite(value)),
            "fingerprint": None if self.fingerprint is None else self.fingerprint.described(),
        }

    def _apply(self: Self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert the base as asked; what was fitted moves with it, in the precision it has."""

        def moved(tensor: Tensor) -> Tensor:
            found = fn(tensor)
            return found if found.dtype == tensor.dtype else tensor.to(found.device)

        for name, module in self.named_children() if recurse else ():
            module._apply(fn if name == "base" else moved)
        super()._apply(moved, recurse=False)  # type: ignore[no-untyped-call]
        return self

    def heads_to(self: Self, device: torch.device) -> Self:
        """Move everything fitted to `device`; the base stays where it is."""
        for name, module in self.named_children():
            if name != "base":
                module.to(device)
        for name, buffer in self.named_buffers(recurse=False):
            setattr(self, name, buffer.to(device))
        return self

    def __repr__(self) -> str:
        """Method, base model, and how much was fitted."""
        fitted = sum(tensor.numel() for tensor in self.own_tensors().values())
        parts = [*self._described(), f"fitted: {fitted:,} numbers", str(self.method)]
        return f"{type(self).__name__}(\n" + "".join(f"  {part}\n" for part in parts) + ")"

    def _described(self) -> list[str]:
        return [f"base: {type(self.base).__name__}"]


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())
