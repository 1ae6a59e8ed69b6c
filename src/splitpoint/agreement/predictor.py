"""A fitted `Agreement`: one forward pass of the model, and a linear probe for every branch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from splitpoint.agreement.branches import Branches
from splitpoint.agreement.opinions import blame, conflict, left_out, mixed
from splitpoint.agreement.prediction import AgreementPrediction
from splitpoint.agreement.probes import Probe
from splitpoint.batches import Data
from splitpoint.errors import DataError, LayerError, ShapeError
from splitpoint.layout import Layout
from splitpoint.prediction import Rowwise
from splitpoint.predictor import Predictor, Self

if TYPE_CHECKING:
    from splitpoint.agreement.method import Agreement

ROWS = Layout((False,), False, 1)
"""The model answers with one set of numbers for each row."""


class AgreementPredictor(Predictor[AgreementPrediction]):
    """Compares what the branches of a model say; see `Agreement`.

    Attributes:
        branches: where the features of the modalities are read.
        classes: number of classes K.
    """

    present: Tensor
    method: Agreement

    def __init__(
        self, method: Agreement, branches: Branches, inputs: int, classes: int, tensors: Mapping[str, Tensor]
    ) -> None:
        super().__init__(method, branches.model, ROWS, inputs, tensors)
        self.branches, self.classes = branches, classes
        self.register_buffer("present", tensors["present"])
        for number in range(len(branches.places)):
            for field in dataclasses.fields(Probe):
                name = f"{field.name}{number}"
                self.register_buffer(name, tensors[name].contiguous())

    @property
    def modalities(self) -> tuple[str, ...]:
        """Names of the M modalities."""
        return tuple(self.branches.places)

    def forward(self, *args: Any, **kwargs: Any) -> AgreementPrediction:
        """Run the base model once and compare what its branches say about these inputs."""
        heard = self.branches(*args, **kwargs)
        with torch.no_grad(), torch.autocast(heard.output.device.type, enabled=False):
            return self._compared(heard.features, heard.output)

    def observed(self, *args: Any, **kwargs: Any) -> Sequence[Tensor]:
        """See `Predictor`."""
        heard = self.branches(*args, **kwargs)
        return [heard.output, *(value for value in heard.features if value is not None)]

    def _compared(self, features: Sequence[Tensor | None], output: Tensor) -> AgreementPrediction:
        rows, few = len(output), len(self.present)
        gone = torch.tensor([value is None for value in features], device=output.device)
        if bool(gone.all()):
            raise LayerError(
                f"Expected at least one of the branches {list(self.branches.places.values())} to run, but none did; "
                "give the input of a modality."
            )
        uniform = torch.full((rows, few), 1 / few, device=output.device)
        own = torch.stack(
            [
                uniform if value is None else self._probe(number, value).softmax(1)
                for number, value in enumerate(features)
            ]
        )
        missing = gone.expand(rows, -1)
        opinions = left_out(mixed(own, self.method.doubt), missing)
        probs = own.new_zeros(*own.shape[:2], self.classes).index_copy(2, self.present, own)
        return AgreementPrediction(
            conflict=conflict(opinions),
            blame=blame(opinions),
            probs=probs.movedim(0, 1),
            missing=missing.clone(),
            modalities=self.modalities,
            reference=self.reference,
        )

    def _probe(self, number: int, features: Tensor) -> Tensor:
        """Logits of the probe of a modality."""
        parts = [self.get_buffer(f"{field.name}{number}") for field in dataclasses.fields(Probe)]
        probe = Probe(*parts)
        if features.shape[1] != len(probe.center):
            raise ShapeError(
                f"Expected {len(probe.center)} features of '{self.modalities[number]}', as in the fit, but got "
                f"{features.shape[1]}; give inputs of the same size."
            )
        return probe.logits(features)

    def set_threshold(self: Self, data: Data | Rowwise, quantile: float = 0.95, progress: bool = False) -> Self:
        """Take in-distribution `data` as the reference: a `conflict` above their `quantile` will be flagged.

        The data should be held out from training. A prediction that was made before serves as well.
        """
        if isinstance(data, Rowwise) and not isinstance(data, AgreementPrediction):
            raise DataError(
                f"Expected an AgreementPrediction as the reference, but got {type(data).__name__}; give one that this "
                "predictor made."
            )
        return super().set_threshold(data, quantile, progress)

    def description(self) -> dict[str, Any]:
        """See `Predictor`; also the places of the branches."""
        found = super().description()
        found["settings"]["branches"] = dict(self.branches.places)
        return found | {"layer": {}, "classes": self.classes}

    def _described(self) -> list[str]:
        places = ", ".join(f"{name} ({place})" for name, place in self.branches.places.items())
        return [*super()._described(), f"modalities: {places}"]
