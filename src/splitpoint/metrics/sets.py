"""Quality of prediction sets, for classification methods that have them."""

from __future__ import annotations

from torch import Tensor

from splitpoint.errors import DataError
from splitpoint.metrics.probabilities import labelled_rows
from splitpoint.prediction import ClassificationPrediction


def set_coverage(prediction: ClassificationPrediction, label: Tensor) -> float:
    """Share of labels that are in their prediction set; negative and NaN labels do not count."""
    inside, label = labelled_rows(prediction, label, _sets(prediction))
    return float(inside.gather(1, label[:, None]).mean())


def set_size(prediction: ClassificationPrediction) -> float:
    """Mean number of classes in a prediction set, over all rows and positions."""
    return float(_sets(prediction).double().sum() / prediction.label.numel())


def _sets(prediction: ClassificationPrediction) -> Tensor:
    if prediction.sets is None:
        raise DataError("Expected a prediction with sets, but got one without; use a conformal classifier.")
    return prediction.sets
