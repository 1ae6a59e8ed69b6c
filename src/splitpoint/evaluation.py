"""Everything there is to say about a predictor on labelled data, from one pass over them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from splitpoint.batches import Data
from splitpoint.errors import SettingsError
from splitpoint.metrics.classification import class_axis, without_class_axis
from splitpoint.metrics.table import Evidence, measured, row_scores
from splitpoint.prediction import (
    ClassificationPrediction,
    Prediction,
    RegressionPrediction,
    aligned,
    concatenate,
)
from splitpoint.predictor import Predictor


def evaluate(
    uq: Predictor[Any], data: Data, ood: Data | None = None, adversarial: Data | None = None, progress: bool = False
) -> dict[str, float]:
    """Figures of a predictor by name: quality of its predictions on `data`, and what its scores detect.

    Runs once over each of the data and keeps the predictions in the memory of the CPU. Missing targets (NaN, negative
    labels, the method's `ignore_index`) do not count. The names are those of the table `metrics.METRICS`, with the
    group that a score should find as a suffix: `_error` for wrong classes (total score, every pixel of a map), `_ood`
    and `_adversarial` for such rows (`support`, mean over a row's outputs or pixels). `_entropy` marks the same
    with the entropy in place of the score, the rival to beat. Besides there are the number of `rows` and, in
    regression, the `level` of the intervals.

    Args:
        uq: a fitted predictor.
        data: with targets, held out from fitting.
        ood: out-of-distribution inputs, with or without targets.
        adversarial: attacked inputs, such as those of `attacks.fgsm`.
        progress: whether to show progress bars.
    """
    if not callable(getattr(uq, "labelled", None)):
        raise SettingsError(f"Expected a fitted predictor to evaluate, but got a {type(uq).__name__}; call fit first.")
    parts, targets, scores = [], [], []
    for prediction, target in uq.labelled(data, progress):
        scores.append(row_scores(prediction))
        part, counted = _counted(prediction, target, getattr(uq.method, "ignore_index", None))
        parts.append(part)
        targets.append(counted)

    def scored(inputs: Data | None) -> Prediction | None:
        return None if inputs is None else concatenate([row_scores(part) for part in uq.stream(inputs, progress)])

    whole, rows = concatenate(parts), concatenate(scores)
    evidence = Evidence(whole, torch.cat(targets), rows=rows, ood=scored(ood), adversarial=scored(adversarial))
    level = {"level": whole.levels[-1]} if isinstance(whole, RegressionPrediction) else {}
    return {"rows": float(len(rows)), **level, **measured(evidence)}


def _counted(prediction: Prediction, target: Tensor, ignored: int | None) -> tuple[Prediction, Tensor]:
    """Entries (M,) that have a target, and their targets: rows, outputs and positions alike."""
    if isinstance(prediction, ClassificationPrediction):
        label = target if target.is_floating_point() else target.long()
        label = label if ignored is None else label.masked_fill(label == ignored, -100)
        return _labelled(prediction, without_class_axis(prediction.probs, label))
    assert isinstance(prediction, RegressionPrediction)
    target = aligned(prediction.mean, target)
    seen = ~target.isnan()
    return prediction[seen], target[seen]


def _labelled(prediction: ClassificationPrediction, label: Tensor) -> tuple[ClassificationPrediction, Tensor]:
    axis, seen = class_axis(prediction.probs, label), label >= 0

    def classes(values: Tensor) -> Tensor:
        return values.movedim(axis, -1)[seen]

    rows = replace(
        prediction,
        probs=classes(prediction.probs),
        base_probs=classes(prediction.base_probs),
        mar=None,
        label=prediction.label[seen],
        aleatoric=prediction.aleatoric[seen],
        epistemic=prediction.epistemic[seen],
        support=prediction.support[seen],
        sds=None,
        total=prediction.total[seen],
        image_epistemic=None,
        missing=None,
    )
    return rows, label[seen]
