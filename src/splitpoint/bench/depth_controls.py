"""What a method has to beat on maps: intervals without any model of the error, and statistics of the image alone.

They stand in every table beside the methods. A score that tells driving scenes from rooms less well than the colour of
the sky does has told nothing of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from splitpoint.batches import placement
from splitpoint.bench.depth_conformal import image_factor
from splitpoint.bench.depth_trials import TABLE_STRENGTH, DepthTrial, batches, sweep
from splitpoint.metrics import auroc
from splitpoint.prediction import RegressionPrediction

LEVELS = (0.95,)

Shape = Callable[[Tensor], Tensor]
"""From a prediction to half-widths that are right up to a factor."""

WIDTHS: Mapping[str, Shape] = {
    "constant_width": torch.ones_like,
    "width_proportional_to_prediction": torch.abs,
}
"""Intervals that are conformalised on the calibration images, by name."""

Statistic = Callable[[Tensor], Tensor]
"""From images (B, 3, H, W) to a number (B,) each."""


def brightness(images: Tensor) -> Tensor:
    """Mean of all channels."""
    return images.flatten(1).mean(1)


def contrast(images: Tensor) -> Tensor:
    """Deviation of the grey values."""
    return images.mean(1).flatten(1).std(1)


def blue_minus_red(images: Tensor) -> Tensor:
    """Mean of the blue channel less that of the red one."""
    return (images[:, 2] - images[:, 0]).flatten(1).mean(1)


STATISTICS: Mapping[str, Statistic] = {
    "image_brightness": brightness,
    "image_contrast": contrast,
    "image_blue_minus_red": blue_minus_red,
}
"""Statistics of images that stand beside epistemic scores, by name; 0.5 and less says that others are larger."""

CONTROLS = (*WIDTHS, *STATISTICS)
"""All of them, by name."""


@dataclass(frozen=True)
class Widths:
    """The output of a network with half-widths of a given shape.

    Attributes:
        network: trained.
        shape: see `WIDTHS`.
        factor: of the shape.
    """

    network: nn.Module
    shape: Shape
    factor: float

    @staticmethod
    def of(network: nn.Module, shape: Shape, data: DepthTrial) -> Widths:
        """With the factor that the calibration images ask for, image by image."""
        plain = Widths(network, shape, 1.0)
        return replace(plain, factor=image_factor(plain, data.calibration))

    @torch.no_grad()
    def __call__(self, images: Tensor) -> RegressionPrediction:
        """The prediction, with its width as the score of everything."""
        mean = self.network(images.to(placement(self.network)[0])).cpu()
        half = self.factor * self.shape(mean)
        bounds = {"lowers": (mean - half)[..., None], "uppers": (mean + half)[..., None]}
        width = 2 * half
        return RegressionPrediction(width, width, width, None, mean=mean, levels=LEVELS, **bounds)


def separations(
    statistic: Statistic, network: nn.Module, data: DepthTrial, strengths: Sequence[float]
) -> dict[str, float]:
    """What a statistic tells apart, under the names that the same have of scores.

    Args:
        statistic: of images.
        network: what the attack on test images looks at.
        data: the trial.
        strengths: of the attack; that of the table is left out where it is not among them.
    """
    known = torch.cat([statistic(images) for images, _ in batches(data.test)])
    ood = {name: torch.cat([statistic(images) for images, _ in batches(found)]) for name, found in data.ood.items()}
    separated = {f"auroc_ood_{name}": auroc(known, scores) for name, scores in ood.items()}
    separated["auroc_ood"] = auroc(known, torch.cat(list(ood.values())))
    if TABLE_STRENGTH in strengths:
        attacked = [statistic(images.cpu()) for _, images, _ in sweep(data.test, network, [TABLE_STRENGTH])]
        separated["auroc_adversarial"] = auroc(known, torch.cat(attacked))
    return separated
