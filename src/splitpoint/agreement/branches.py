"""What the branches of a model say in one forward pass: a vector of features for every modality whose branch ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from splitpoint.batches import output_tensor
from splitpoint.calls import channels_last
from splitpoint.errors import LayerError
from splitpoint.hooks import METHOD, Watched, find_module
from splitpoint.layer_setting import layer_name
from splitpoint.layout import Layout
from splitpoint.model_inputs import retold

Place = str | nn.Module
"""A layer of a model, by name or as the module."""


class Heard(NamedTuple):
    """The output of a model, and what each branch gave: features (N, C) in float32, None where it did not run."""

    output: Tensor
    features: list[Tensor | None]


@dataclass(frozen=True)
class Branches:
    """The places in a model where the features of its modalities are.

    Attributes:
        model: never changed.
        places: name of the layer of every modality, by its own name.
        output_key: which entry of the model's output is the prediction, where it has several.
    """

    model: nn.Module
    places: Mapping[str, str]
    output_key: str | int | None = None

    @staticmethod
    def of(model: nn.Module, places: Mapping[str, Place], output_key: str | int | None) -> Branches:
        """The same for layers that are given as names or as modules of the model."""
        names = {modality: str(layer_name(model, place)) for modality, place in places.items()}
        for name in names.values():
            find_module(model, name)
        return Branches(model, names, output_key)

    def __call__(self, *args: Any, **kwargs: Any) -> Heard:
        """Run the frozen model once."""
        names = list(self.places.values())
        try:
            with torch.no_grad():
                answer, recorders, _ = self._watched(args, kwargs)
        except Exception as error:
            retold(error, self.model)
            raise
        output = output_tensor(answer, self.output_key)
        spoilt = [name for name, recorder in zip(names, recorders, strict=True) if recorder.overwritten]
        if spoilt:
            raise LayerError(
                f"Expected features that stay as they are, but the model overwrites those of {spoilt} in place; choose "
                "another layer of the branch."
            )
        pairs = zip(names, recorders, strict=True)
        return Heard(output, [self._vectors(name, recorder.value, len(output)) for name, recorder in pairs])

    @cached_property
    def _watched(self) -> Watched:
        return Watched(self.model, [(name, None) for name in self.places.values()])

    def _vectors(self, name: str, value: Tensor | None, rows: int) -> Tensor | None:
        """Features (N, C), averaged over positions where they are maps or sequences."""
        if value is None:
            return None
        if value.dim() < 2 or len(value) != rows:
            raise LayerError(
                f"Expected features of shape (rows, channels, ...) with the output's {rows} rows from '{name}', but "
                f"got {tuple(value.shape)}; choose another layer of the branch."
            )
        module = None if name.endswith(METHOD) else find_module(self.model, name)
        with torch.autocast(value.device.type, enabled=False):
            return Layout((channels_last(module, value.dim()),), False, 1).features([value])
