"""Intervals of any method on maps, conformalised image by image on the calibration images.

What separates methods then is the shape of their half-widths, no longer how many pixels they hold.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from splitpoint.bench.depth_evidence import Predict
from splitpoint.bench.depth_trials import batches
from splitpoint.conformal import conformal_factor
from splitpoint.datasets.scenes import SceneSet
from splitpoint.groups import Owners, group_ids
from splitpoint.prediction import RegressionPrediction


@torch.no_grad()
def image_factor(predict: Predict, found: SceneSet) -> float:
    """The factor on half-widths that the images of a set ask for; see `conformal.group_factor`."""
    ratios, level = [], 0.0
    for images, target in batches(found):
        said = predict(images)
        level = said.levels[-1]
        middle, half = _middle(said)
        ratios.append(((target - middle).abs() / half).flatten(1))
    ratio = torch.cat(ratios)
    seen = ~ratio.isnan()
    owners = Owners.of(group_ids(seen.nonzero()[:, 0]))
    return float(conformal_factor(ratio[seen], level, "pixels", owners))


def scaled(prediction: RegressionPrediction, factor: float) -> RegressionPrediction:
    """The prediction with an interval at its highest level that is `factor` times as wide, about the same middle."""
    middle, half = _middle(prediction)
    lowers, uppers = ((middle + sign * factor * half)[..., None] for sign in (-1, 1))
    return replace(prediction, lowers=lowers, uppers=uppers, levels=prediction.levels[-1:])


def _middle(prediction: RegressionPrediction) -> tuple[Tensor, Tensor]:
    """Middles and half-widths of the intervals."""
    return (prediction.upper + prediction.lower) / 2, (prediction.upper - prediction.lower) / 2
