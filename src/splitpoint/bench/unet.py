"""The U-Net of the depth experiment (Ronneberger et al. 2015): images (N, 3, H, W) in [0, 1] to maps (N, 1, H, W)."""

from __future__ import annotations

import itertools
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitpoint.bench.architectures import IMAGENET, Normalise
from splitpoint.errors import SettingsError, ShapeError

Norm = Literal["batch", "none"]

STEPS = 4
"""How often the image is halved."""


class Stage(nn.Sequential):
    """Two 3x3 convolutions with ReLU, batch norm before each where it is asked for."""

    def __init__(self, inputs: int, outputs: int, norm: Norm) -> None:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=norm == "none")]
            layers += [nn.BatchNorm2d(outputs)] if norm == "batch" else []
            layers += [nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """Stages of `width` to 16 `width` channels, max pooling, nearest up-sampling, skips that are joined, a 1x1 output.

    The paper's has width 32 and no batch norm, without which a few hundred images do not get a network away from the
    mean map.
    """

    def __init__(self, width: int = 32, norm: Norm = "none") -> None:
        super().__init__()
        if width < 1 or norm not in get_args(Norm):
            raise SettingsError(f"Expected width >= 1 and norm 'batch' or 'none', but got {width} and {norm!r}.")
        widths = [width * 2**step for step in range(STEPS + 1)]
        self.normalise = Normalise(*IMAGENET)
        self.down = nn.ModuleList(Stage(*pair, norm) for pair in itertools.pairwise((3, *widths)))
        self.up = nn.ModuleList(Stage(fine + coarse, fine, norm) for fine, coarse in _upwards(widths))
        self.output = nn.Conv2d(width, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Images (N, 3, H, W) -> maps (N, 1, H, W); both sides are multiples of 16."""
        if any(side % 2**STEPS for side in images.shape[2:]):
            raise ShapeError(
                f"Expected images whose sides are multiples of {2**STEPS}, but got {tuple(images.shape)}; resize them."
            )
        maps, skips = self.normalise(images), []
        for step, stage in enumerate(self.down):
            maps = stage(F.max_pool2d(maps, 2) if step else maps)
            skips.append(maps)
        for stage, skip in zip(self.up, skips[-2::-1], strict=True):
            maps = stage(torch.cat([skip, F.interpolate(maps, scale_factor=2)], 1))
        found: Tensor = self.output(maps)
        return found


def _upwards(widths: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(widths))[::-1]


DECODER = tuple(f"up.{step}" for step in range(STEPS))
"""Names of the stages after the bottleneck, coarse ones first: what methods that read several stages look at."""
