"""Networks of the sizes that the benchmarks speak of, with random weights: their speed does not depend on training."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def mlp(inputs: int = 16, hidden: int = 64) -> nn.Module:
    """Two hidden layers, one output."""
    layers = [
        nn.Linear(inputs, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 1),
    ]
    return nn.Sequential(*layers)


def _double(inputs: int, outputs: int) -> nn.Sequential:
    convs = [
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.ReLU(),
    ]
    return nn.Sequential(*convs)


class UNet(nn.Module):
    """U-Net for depth maps: five resolutions, 32 to 512 channels, 8 million parameters."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(5)]
        self.down = nn.ModuleList(_double(i, o) for i, o in zip([3, *widths[:-1]], widths, strict=True))
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, 2) for i, o in pairs)
        self.merge = nn.ModuleList(_double(i, o) for i, o in pairs)
        self.depth = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, 1, H, W)."""
        kept = []
        for level, block in enumerate(self.down):
            x = block(nn.functional.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for up, merge, skip in zip(self.up, self.merge, kept[-2::-1], strict=True):
            x = merge(torch.cat([up(x), skip], 1))
        return self.depth(x)
