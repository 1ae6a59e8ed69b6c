"""A predictor as a plain module: tensors in, named tensors out."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import fields as fields_of
from typing import Any

import torch
from torch import Tensor, nn

from splitpoint.batches import output_tensor
from splitpoint.errors import ExportError, LayerError, SettingsError
from splitpoint.features import Tap
from splitpoint.frozen import frozen_view
from splitpoint.hooks import Listener, Recorder, listen
from splitpoint.posthoc import PostHocPredictor
from splitpoint.prediction import Prediction
from splitpoint.runtime import PREFIX

LEFT_OUT = ("missing",)
"""Fields of predictions that are no part of a graph: every branch of the model runs there."""


def module(uq: PostHocPredictor[Any], *, fields: Sequence[str] | None = None) -> Graph:
    """The predictor as a module that takes the model's own arguments and returns a dictionary of tensors.

    It runs a frozen view of the base model, which shares the weights, and computes what `uq` does, without locks,
    hooks that come and go, or classes of its own: torch.export, torch.compile and TorchScript read it.

    Args:
        uq: the fitted predictor; its layer has to have a name.
        fields: which fields of the prediction to return, such as ``("mean", "lowers", "uppers", "flagged")``; None for
            all that there are. In the dictionary their names begin with ``uq_``.
    """
    return Graph(uq, fields)


class Heard:
    """Who listens to the call under way; unlike `hooks.Calls` the same for every thread.

    Attributes:
        recorders: one for each place.
    """

    recorders: Sequence[Recorder] = ()


class Graph(nn.Module):
    """What `module` returns.

    Args:
        uq: the predictor.
        fields: see `module`.
    """

    def __init__(self, uq: PostHocPredictor[Any], fields: Sequence[str] | None = None) -> None:
        super().__init__()
        self.tap = exportable(uq)
        self.base = frozen_view(self.tap.model)
        self.fitted = _without_base(uq)
        self.fitted.work_ahead()
        self.heard, self.places = Heard(), self.tap.places
        for number, (name, _) in enumerate(self.places):
            listen(self.base, name, Listener(self.heard, number))
        self.fields = None if fields is None else tuple(fields)
        self.training = False

    def train(self, mode: bool = True) -> Graph:  # noqa: ARG002
        """Does nothing: like the predictor, the module stays in eval mode."""
        return self

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The fields of the prediction for these inputs, by name."""
        with torch.no_grad():
            recorders = [Recorder(name, pool) for name, pool in self.places]
            self.heard.recorders = recorders
            output = output_tensor(self.base(*args, **kwargs), self.tap.output_key)
            self.heard.recorders = ()
            reading = self.tap.reading(output, recorders, None)
            if any(reading.missing):
                raise ExportError("Expected inputs for every branch of the model, but one did not run; give them all.")
            found = named_fields(self.fitted.of_reading(reading))
        chosen = tuple(found) if self.fields is None else self.fields
        unknown = [name for name in chosen if name not in found]
        if unknown or not chosen:
            raise SettingsError(
                f"Expected fields out of {tuple(found)}, but got {unknown or 'none'}; leave others out."
            )
        return {PREFIX + name: found[name] for name in chosen}


def _without_base(uq: PostHocPredictor[Any]) -> PostHocPredictor[Any]:
    """A copy of a predictor without its base model, of whose tensors none is a part of a larger one."""
    fitted = copy.copy(uq)
    fitted._buffers = dict(uq._buffers)
    fitted._modules = {name: copy.deepcopy(part) for name, part in uq._modules.items() if name != "base"}
    for part in fitted.modules():
        for name, weight in part.named_parameters(recurse=False):
            own = weight.detach().clone(memory_format=torch.contiguous_format)
            part._parameters[name] = nn.Parameter(own, requires_grad=False)
        for name, buffer in part.named_buffers(recurse=False):
            part._buffers[name] = buffer.clone(memory_format=torch.contiguous_format)
    return fitted


def exportable(uq: Any) -> Tap:
    """The tap of a predictor that can be one graph, or an error that says why it cannot."""
    if not isinstance(uq, PostHocPredictor):
        raise ExportError(
            "Expected a predictor on the layers of one model to export, as SplitPointRegressor and "
            f"SplitPointClassifier give, but got {type(uq).__name__}."
        )
    if uq.tap is None:
        raise ExportError(
            "Expected a predictor with a model to export, but this one was fitted on recorded rows alone; give the "
            "recording its tap."
        )
    if uq.tap.function is not None:
        raise LayerError(
            "Expected a layer with a name to export, but this predictor reads its features through a callable; fit it "
            "with the name of a layer or of a method of the model."
        )
    return uq.tap


def named_fields(prediction: Prediction) -> dict[str, Tensor]:
    """The tensors of a prediction by name, percentile and flags where there is a threshold, those of images too."""
    values = {field.name: getattr(prediction, field.name) for field in fields_of(prediction)}
    found = {name: own for name, own in values.items() if isinstance(own, Tensor) and name not in LEFT_OUT}
    if prediction.reference is not None:
        found |= {"percentile": prediction.percentile, "flagged": prediction.flagged}
    if prediction.image_reference is not None and prediction.image_epistemic is not None:
        image = prediction.image
        found |= {"image_percentile": image.percentile, "image_flagged": image.flagged}
    return found
