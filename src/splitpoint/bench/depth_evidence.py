"""What a method predicts on the scenes of a trial: pixels that have a depth, a score for every image, the attack."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from splitpoint.bench.depth_trials import TABLE_STRENGTH, DepthTrial, batches, sweep
from splitpoint.datasets.scenes import SceneSet
from splitpoint.metrics import Evidence, row_scores
from splitpoint.prediction import Prediction, RegressionPrediction, concatenate

MOST_PIXELS = 2**22
"""Test pixels that are kept for metrics; where there are more, as many of every image, drawn at random."""

FLAG_QUANTILE = 0.95
"""Of the score of calibration images: the threshold above which an image is flagged."""

Predict = Callable[[Tensor], RegressionPrediction]
"""From images (B, 3, H, W) on any device to the prediction, on the CPU."""


def image_scores(prediction: RegressionPrediction) -> Prediction:
    """Scores (N,) of whole images: `support` is the method's own score of an image where it has one.

    The others, and `support` where there is none, are means of the map.
    """
    found = row_scores(prediction)
    own = prediction.image_epistemic
    return replace(found, support=found.epistemic if own is None else own.double())


def coverage_of_images(prediction: RegressionPrediction, target: Tensor) -> Tensor:
    """Share of the pixels of every image inside their interval, (N,); NaN for an image without any depth."""
    inside = (prediction.lower <= target) & (target <= prediction.upper)
    return torch.where(target.isnan(), torch.nan, inside.double()).flatten(1).nanmean(1)


@dataclass
class Pixels:
    """Predictions for pixels that have a depth, as they come.

    Attributes:
        each: pixels that are kept of an image at most.
        parts: predictions of those pixels.
        targets: their depths.
    """

    each: int
    parts: list[RegressionPrediction] = field(default_factory=list)
    targets: list[Tensor] = field(default_factory=list)

    def add(self, prediction: RegressionPrediction, target: Tensor) -> None:
        """Keep pixels (M,) of a batch of maps."""
        generator = torch.Generator().manual_seed(len(self.parts))
        draws = torch.rand(target.shape, generator=generator).masked_fill(target.isnan(), 2.0).flatten(1)
        last = draws.kthvalue(min(self.each, draws.shape[1]), 1, keepdim=True).values
        kept = ((draws <= last) & (draws < 2)).reshape(target.shape)
        names = ("aleatoric", "epistemic", "total", "mean", "lowers", "uppers", "scale", "freedom")
        values = {name: getattr(prediction, name) for name in names}
        pixels: dict[str, Any] = {name: None if value is None else value[kept] for name, value in values.items()}
        self.parts.append(RegressionPrediction(**pixels, reference=None, levels=prediction.levels))
        self.targets.append(target[kept])


@dataclass(frozen=True)
class Judged:
    """What a method said of a trial.

    Attributes:
        evidence: for the metrics.
        ood: scores of every set out of distribution, by name.
        seconds_per_image: CPU seconds of a prediction.
    """

    evidence: Evidence
    ood: Mapping[str, Prediction]
    seconds_per_image: float


def judged(predict: Predict, network: nn.Module, data: DepthTrial, strengths: Sequence[float]) -> Judged:
    """What a method says of the scenes of a trial.

    Args:
        predict: the method.
        network: what an attack on it looks at, from images to depths.
        data: the trial.
        strengths: of the attack.
    """
    began, count = time.process_time(), max(1, MOST_PIXELS // len(data.test))
    pixels, scores, covered = Pixels(count), [], []
    for images, target in batches(data.test):
        prediction = predict(images)
        scores.append(image_scores(prediction))
        covered.append(coverage_of_images(prediction, target))
        pixels.add(prediction, target)
    seconds = (time.process_time() - began) / len(data.test)
    known = concatenate(scores)
    attacked, curves = under_attack(predict, network, data.test, strengths)
    ood = {name: scores_of(predict, found) for name, found in data.ood.items()}
    calibration = scores_of(predict, data.calibration)
    evidence = Evidence(
        concatenate(pixels.parts),
        torch.cat(pixels.targets),
        rows=known,
        ood=concatenate(list(ood.values())) if ood else None,
        adversarial=attacked,
        attack=curves,
        coverage=torch.cat(covered),
        threshold=float(calibration.support.quantile(FLAG_QUANTILE)),
    )
    return Judged(evidence, ood, seconds)


def scores_of(predict: Predict, found: SceneSet) -> Prediction:
    """Scores of all images of a set."""
    return concatenate([image_scores(predict(images)) for images, _ in batches(found)])


Curves = dict[str, list[float]]
"""Strengths of the attack, and under each the error, the mean score and, where there is one, the mean root of SDS."""


def under_attack(
    predict: Predict, network: nn.Module, found: SceneSet, strengths: Sequence[float]
) -> tuple[Prediction | None, Curves]:
    """Scores of images under the attack of the table, None where it is not asked for, and the curves of the attack."""
    kept: list[Prediction] = []
    sums: dict[float, list[Tensor]] = {strength: [] for strength in strengths}
    for strength, images, target in sweep(found, network, strengths):
        prediction = predict(images)
        scores = image_scores(prediction)
        sums[strength].append(_sums(prediction, target, scores))
        if strength == TABLE_STRENGTH:
            kept.append(scores)
    totals = torch.stack([torch.stack(sums[strength]).sum(0) for strength in strengths])
    square, pixels, score, sds, images_seen = totals.unbind(1)
    curves = {
        "strength": list(strengths),
        "rmse": (square / pixels).sqrt().tolist(),
        "epistemic": (score / images_seen).tolist(),
    }
    if bool(sds.isfinite().all()):
        curves["sds"] = (sds / images_seen).tolist()
    return concatenate(kept) if kept else None, curves


def _sums(prediction: RegressionPrediction, target: Tensor, scores: Prediction) -> Tensor:
    """Squared error, pixels, image score, root of SDS (NaN where there is none) and images of a batch."""
    error = (prediction.mean - target).double()
    sds = torch.full((), torch.nan)
    if prediction.sds is not None:
        sds = prediction.sds.double().clamp(min=0).sqrt().flatten(1).mean(1).sum()
    found = (error.square().nansum(), (~error.isnan()).sum(), scores.support.sum(), sds, len(error))
    return torch.stack([torch.as_tensor(value).double() for value in found])
