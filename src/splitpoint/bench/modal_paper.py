"""The paper's recipe on several modalities: heads on the features of each, and the mean of their MARs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from splitpoint.baselines import METHODS
from splitpoint.bench.modal_networks import feature_layers
from splitpoint.bench.modal_trials import Rows
from splitpoint.consistency import class_sds, entropy
from splitpoint.prediction import ClassificationPrediction
from splitpoint.predictor import Predictor

WIDTHS: Mapping[str, int] = {"image": 512, "audio": 512, "text": 256}
"""Hidden units of the heads; elsewhere they are as many as there are features."""


def given(train: Rows, calibration: Rows | None, seed: int) -> dict[str, Any]:
    """What `Method.fit_many` gets beside network and training rows."""
    found: dict[str, Any] = {"groups": [train.groups], "seeds": [seed], "progress": False}
    if calibration is not None:
        found |= {"calibration": [calibration.data], "calibration_groups": [calibration.groups]}
    return found


def averaged(parts: Sequence[ClassificationPrediction]) -> ClassificationPrediction:
    """Predictions of one network by heads on different features as one: mean MARs, and what follows from them.

    ``SDS = sum_k |2 p_k (1 - p_k) - z_k|`` with z the mean of the MARs; calibrated probabilities are the mean too.
    """
    base, probs = parts[0].base_probs, torch.stack([part.probs for part in parts]).mean(0)
    mar = torch.stack([part.mar for part in parts if part.mar is not None]).mean(0)
    sds = class_sds(base, mar, 1)
    scores: dict[str, Any] = {"epistemic": sds, "support": sds, "sds": sds, "total": mar.sum(1) + sds}
    return replace(parts[0], probs=probs, label=probs.argmax(1), mar=mar, aleatoric=entropy(probs, 1), **scores)


@dataclass(frozen=True)
class PaperHeads:
    """Heads of every modality.

    Attributes:
        predictors: by modality, all on the same network.
    """

    predictors: Mapping[str, Predictor[Any]]

    @staticmethod
    def fit(
        name: str, network: nn.Module, train: Rows, calibration: Rows | None, seed: int, settings: Mapping[str, Any]
    ) -> PaperHeads:
        """Fit the method `name` once for each modality; what is learned is the residual of the whole network."""
        found = {}
        for modality, layer in feature_layers(tuple(train.inputs)).items():
            method = METHODS[name](**{"width": WIDTHS.get(modality), **settings, "layer": layer})
            (found[modality],) = method.fit_many([network], [train.data], **given(train, calibration, seed))
        return PaperHeads(found)

    def __call__(self, rows: Rows) -> ClassificationPrediction:
        """The prediction by the heads of the modalities that are there."""
        pairs = zip(self.predictors.values(), rows.arguments, strict=True)
        return averaged([predictor(*rows.arguments) for predictor, there in pairs if there is not None])
