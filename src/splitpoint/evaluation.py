"""Everything there is to say about a predictor on labelled data, from one pass over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from splitpoint import metrics
from splitpoint.batches import Data
from splitpoint.metrics.probabilities import class_axis, without_class_axis
from splitpoint.prediction import (
    ClassificationPrediction,
    Prediction,
    RegressionPrediction,
    aligned,
    concatenate,
)
from splitpoint.predictor import Predictor

REGRESSION = (
    "rmse",
    "mae",
    "picp",
    "mpiw",
    "winkler",
    "piece",
    "piece_authors",
    "piece_plus",
    "piece_minus",
    "pinball",
    "spearman_epistemic",
    "spearman_total",
    "ause",
)
"""Metrics of every regression prediction, by their names in `metrics`."""

CLASSIFICATION = ("accuracy", "nll", "brier", "ece", "adaptive_ece", "classwise_ece")
"""Metrics of every classification prediction, by their names in `metrics`."""

DETECTION = ("auroc", "aupr", "fpr95")
"""How well a score tells two groups apart, by their names in `metrics`."""


def evaluate(
    uq: Predictor[Any], data: Data, ood: Data | None = None, adversarial: Data | None = None, progress: bool = False
) -> dict[str, float]:
    """Figures of a predictor by name: quality of its predictions on `data`, and what its scores detect.

    Runs once over each of the data and keeps the predictions in the memory of the CPU. Missing targets (NaN, negative
    labels, the method's `ignore_index`) do not count. The names are those of the functions in `metrics`, with the
    group that a score should find as a suffix: `_error` for wrong classes (total score, every pixel of a map),
    `_ood` and `_adversarial` for foreign rows (epistemic score, mean over a row's outputs or pixels). `_entropy` marks
    the same with the entropy in place of the score, the rival to beat.

    Args:
        uq: a fitted predictor.
        data: with targets, held out from fitting.
        ood: out-of-distribution inputs, with or without targets.
        adversarial: attacked inputs, such as those of `attacks.fgsm`.
        progress: whether to show progress bars.
    """
    parts, targets, scores = [], [], []
    for prediction, target in uq.labelled(data, progress):
        scores.append(_row_scores(prediction))
        part, counted = _counted(prediction, target, getattr(uq.method, "ignore_index", None))
        parts.append(part)
        targets.append(counted)
    known = torch.cat(scores)
    figures = {"rows": float(len(known)), **_quality(concatenate(parts), torch.cat(targets))}
    for group, foreign in (("ood", ood), ("adversarial", adversarial)):
        if foreign is not None:
            found = torch.cat([_row_scores(prediction) for prediction in uq._each(foreign, progress)])
            figures |= _detected(group, known[:, 0], found[:, 0], DETECTION)
            if known.shape[1] > 1:
                figures |= _detected(f"{group}_entropy", known[:, 1], found[:, 1], ["auroc"])
    return figures


def _row_scores(prediction: Prediction) -> Tensor:
    """(N, 1) epistemic scores, and (N, 2) with the entropy in classification: one of each for a row."""
    scores = [prediction.epistemic]
    if isinstance(prediction, ClassificationPrediction):
        scores.append(prediction.aleatoric)
    return torch.stack([score.double().reshape(len(score), -1).mean(1) for score in scores], 1)


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
        sets=None if prediction.sets is None else classes(prediction.sets),
        mar=None,
        label=prediction.label[seen],
        aleatoric=prediction.aleatoric[seen],
        epistemic=prediction.epistemic[seen],
        total=prediction.total[seen],
    )
    return rows, label[seen]


def _quality(prediction: Prediction, target: Tensor) -> dict[str, float]:
    if isinstance(prediction, RegressionPrediction):
        return _regression(prediction, target)
    assert isinstance(prediction, ClassificationPrediction)
    return _classification(prediction, target)


def _regression(prediction: RegressionPrediction, target: Tensor) -> dict[str, float]:
    figures: dict[str, float] = {name: getattr(metrics, name)(prediction, target) for name in REGRESSION}
    if prediction.scale is not None:
        figures["crps"] = metrics.crps(prediction, target)
    return {"level": prediction.levels[-1], **figures}


def _classification(prediction: ClassificationPrediction, label: Tensor) -> dict[str, float]:
    figures: dict[str, float] = {name: getattr(metrics, name)(prediction, label) for name in CLASSIFICATION}
    wrong = prediction.label != label
    for suffix, score, names in (
        ("error", prediction.total, DETECTION),
        ("error_epistemic", prediction.epistemic, ("auroc",)),
        ("error_entropy", prediction.aleatoric, ("auroc",)),
    ):
        figures |= _detected(suffix, score[~wrong], score[wrong], names)
    figures["aurc"] = metrics.aurc(prediction.total, wrong.double())
    if prediction.sets is not None:
        figures["set_coverage"] = metrics.set_coverage(prediction, label)
        figures["set_size"] = metrics.set_size(prediction)
    return figures


def _detected(suffix: str, negative: Tensor, positive: Tensor, names: Iterable[str]) -> dict[str, float]:
    return {f"{name}_{suffix}": getattr(metrics, name)(negative, positive) for name in names}
