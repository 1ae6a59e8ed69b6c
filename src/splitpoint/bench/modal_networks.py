"""Networks of several modalities: a branch for each, as in LUMA, and the mean of their logits.

Branches adapt to the size of their input. On LUMA's own inputs they are those of Bezirganyan et al. (2025): images
3 x 32 x 32 give 2,304 features, sounds 1 x 128 x 128 give 12,544, and texts 768 -> 512 -> 256.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from splitpoint.errors import DataError

CONVOLUTIONS: Mapping[str, tuple[tuple[int, int], ...]] = {"image": ((3, 1), (3, 2)), "audio": ((5, 1), (3, 2), (3, 2))}
"""Size of the kernel and channels, in units of the width, of every convolution; each is pooled."""

HIDDEN: Mapping[str, tuple[int, ...]] = {"text": (512, 256)}
"""Hidden layers of branches that read vectors."""

VIEW_HIDDEN = (128,)
"""The same where `HIDDEN` has none."""

WIDTH = 32
"""Channels of the first convolution in LUMA."""

Shapes = Mapping[str, tuple[int, ...]]
"""Shape of a row of every modality."""


class Branch(nn.Module):
    """Features of one modality, (N, ...) -> (N, F), and logits that are linear in them."""

    def __init__(self, features: nn.Module, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.features = features
        with torch.no_grad():
            count = self.features.eval()(torch.zeros(1, *shape)).shape[1]
        self.train()
        self.output = nn.Linear(count, classes)

    def forward(self, given: Tensor) -> Tensor:
        """(N, ...) -> (N, K)."""
        logits: Tensor = self.output(self.features(given))
        return logits


class LateFusion(nn.Module):
    """The mean of the logits of the branches whose input is there; None stands for a missing one."""

    def __init__(self, branches: Mapping[str, Branch]) -> None:
        super().__init__()
        self.branches = nn.ModuleDict(branches)

    def forward(self, *inputs: Tensor | None) -> Tensor:
        """One input for each branch, in their order -> (N, K)."""
        pairs = zip(self.branches.values(), inputs, strict=True)
        logits = [branch(given) for branch, given in pairs if given is not None]
        if not logits:
            raise DataError("Expected the input of at least one modality, but got none; give one.")
        return torch.stack(logits).mean(0)


def feature_layers(modalities: tuple[str, ...]) -> dict[str, str]:
    """Names of the modules whose outputs are the features of every modality."""
    return {name: f"branches.{name}.features" for name in modalities}


def late_fusion(shapes: Shapes, classes: int, width: int = WIDTH, dropout: float = 0.0) -> LateFusion:
    """The untrained network of some modalities, with dropout before linear layers but not on inputs."""
    return LateFusion(
        {name: Branch(_features(name, shape, width, dropout), shape, classes) for name, shape in shapes.items()}
    )


def _features(name: str, shape: tuple[int, ...], width: int, dropout: float) -> nn.Sequential:
    if len(shape) == 1:
        return _perceptron(shape[0], HIDDEN.get(name, VIEW_HIDDEN), dropout)
    if name not in CONVOLUTIONS:
        raise DataError(
            f"Expected vectors, or images or sounds of a modality among {', '.join(CONVOLUTIONS)}, but got {name!r} of "
            f"shape {shape}; name it so, or give vectors."
        )
    return _convolutions(shape[0], CONVOLUTIONS[name], width, dropout)


def _perceptron(inputs: int, hidden: tuple[int, ...], dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for outputs in hidden:
        layers += [nn.Linear(inputs, outputs), nn.ReLU(), *_dropped(dropout)]
        inputs = outputs
    return nn.Sequential(*layers)


def _convolutions(channels: int, kernels: tuple[tuple[int, int], ...], width: int, dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size, units in kernels:
        layers += [nn.Conv2d(channels, units * width, size), nn.ReLU(), nn.MaxPool2d(2)]
        channels = units * width
    return nn.Sequential(*layers, nn.Flatten(), *_dropped(dropout))


def _dropped(rate: float) -> list[nn.Module]:
    return [nn.Dropout(rate)] if rate else []
