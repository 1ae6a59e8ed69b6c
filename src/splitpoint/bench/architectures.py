"""Architectures of image classifiers: from images (N, C, H, W) in [0, 1] to logits (N, K)."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitpoint.errors import SettingsError

Shape = tuple[int, int, int]
"""Channels, height and width of an image."""

Statistics = tuple[Sequence[float], Sequence[float]]
"""Mean and deviation of every channel."""

IMAGENET: Statistics = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR: Statistics = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)
GREY: Statistics = (0.2,), (0.33,)
"""Between MNIST and Fashion-MNIST."""

LARGE = 64
"""Side in pixels from which a ResNet-18 begins as on ImageNet."""


class Normalise(nn.Module):
    """Images (N, C, H, W) less the mean and divided by the deviation of every channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Keep the shape."""
        return (images - self.mean) / self.std


class GlobalMean(nn.Module):
    """Mean over all pixels, (N, C, H, W) -> (N, C)."""

    def forward(self, maps: Tensor) -> Tensor:
        """One vector for each image."""
        return maps.mean((2, 3))


def on_pixels(body: nn.Module, statistics: Statistics) -> nn.Sequential:
    """The network `body` on normalised images."""
    return nn.Sequential(OrderedDict(normalise=Normalise(*statistics), body=body))


def _statistics(classes: int, shape: Shape) -> Statistics:
    """Of the usual images of this shape; an error where there can be no network for it."""
    if classes < 2 or len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1:
        raise SettingsError(
            "Expected two or more classes and images of shape (1 or 3, height, width), but got "
            f"{classes} and {tuple(shape)}."
        )
    return CIFAR if shape[0] == 3 else GREY


def lenet(classes: int, shape: Shape) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling; images below 32 pixels get two more on every side."""
    statistics = _statistics(classes, shape)
    padding = 2 if min(shape[1:]) < 32 else 0
    height, width = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in shape[1:])
    if min(height, width) < 1:
        raise SettingsError(f"Expected images of 12 pixels or more for LeNet, but got {tuple(shape)}.")
    body = nn.Sequential(
        nn.Conv2d(shape[0], 6, 5, padding=padding),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * height * width, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )
    return on_pixels(body, statistics)


def vgg16(classes: int, shape: Shape, width: float = 1.0) -> nn.Module:
    """VGG-16 (Simonyan & Zisserman 2015) for small images: 13 convolutions with batch norm, one linear layer.

    `width` multiplies the channels, which are 64 to 512.
    """
    statistics = _statistics(classes, shape)
    if not 0 < width * 64 < float("inf"):
        raise SettingsError(f"Expected width > 0, but got {width}.")
    layers: list[nn.Module] = []
    inputs = shape[0]
    for count, channels in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        outputs = max(1, round(width * channels))
        for _ in range(count):
            layers += [_conv(inputs, outputs), nn.BatchNorm2d(outputs), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    return on_pixels(nn.Sequential(*layers, GlobalMean(), nn.Linear(inputs, classes)), statistics)


def _conv(inputs: int, outputs: int, stride: int = 1, size: int = 3) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)


class WideBlock(nn.Module):
    """Residual block that normalises and activates before each of its two convolutions."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), _conv(inputs, outputs, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(outputs), _conv(outputs, outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else _conv(inputs, outputs, stride, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape up to stride and channels."""
        active = torch.relu(self.bn1(x))
        kept: Tensor = x if self.shortcut is None else self.shortcut(active)
        change: Tensor = self.conv2(torch.relu(self.bn2(self.conv1(active))))
        return kept + change


def wide_resnet(classes: int, shape: Shape, depth: int = 28, width: int = 10) -> nn.Module:
    """Wide ResNet WRN-depth-width (Zagoruyko & Komodakis 2016) without dropout; `depth` is 6n + 4."""
    statistics = _statistics(classes, shape)
    if depth < 10 or depth % 6 != 4 or width < 1:
        raise SettingsError(f"Expected depth 10, 16, 22, 28, ... and width >= 1, but got {depth} and {width}.")
    layers: list[nn.Module] = [_conv(shape[0], 16)]
    inputs = 16
    for stage, outputs in enumerate((16 * width, 32 * width, 64 * width)):
        for place in range((depth - 4) // 6):
            layers.append(WideBlock(inputs, outputs, 2 if stage and not place else 1))
            inputs = outputs
    layers += [nn.BatchNorm2d(inputs), nn.ReLU(), GlobalMean(), nn.Linear(inputs, classes)]
    return on_pixels(nn.Sequential(*layers), statistics)


class Subsample(nn.Module):
    """Shortcut without parameters: every second pixel, with as many zero channels before as after."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.padding = (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) -> (N, outputs, H / 2, W / 2)."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.padding, self.padding))


def projection(inputs: int, outputs: int) -> nn.Module:
    """Shortcut that learns: a 1x1 convolution of every second pixel, with batch norm."""
    return nn.Sequential(_conv(inputs, outputs, 2, 1), nn.BatchNorm2d(outputs))


Shortcut = Callable[[int, int], nn.Module]


class Block(nn.Module):
    """Residual block of two convolutions; with more outputs than inputs it halves the image."""

    def __init__(self, inputs: int, outputs: int, shortcut: Shortcut) -> None:
        super().__init__()
        same = inputs == outputs
        self.conv1, self.bn1 = _conv(inputs, outputs, 1 if same else 2), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = _conv(outputs, outputs), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity() if same else shortcut(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape up to stride and channels."""
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(out + self.shortcut(x))


def _resnet(
    classes: int, stem: OrderedDict[str, nn.Module], widths: Sequence[int], count: int, shortcut: Shortcut
) -> nn.Sequential:
    """ResNet (He et al. 2016) with `count` blocks of each of the widths; its parts have the customary names."""
    layers = stem.copy()
    for stage, (inputs, outputs) in enumerate(itertools.pairwise((widths[0], *widths)), start=1):
        blocks = [Block(inputs if place == 0 else outputs, outputs, shortcut) for place in range(count)]
        layers[f"layer{stage}"] = nn.Sequential(*blocks)
    layers["mean"], layers["linear"] = GlobalMean(), nn.Linear(widths[-1], classes)
    return nn.Sequential(layers)


def resnet18(classes: int, shape: Shape, width: int = 64) -> nn.Module:
    """ResNet-18 with `width` to 8 `width` channels; images below 64 pixels enter it in their full size."""
    statistics = _statistics(classes, shape)
    if width < 1:
        raise SettingsError(f"Expected width >= 1, but got {width}.")
    large = min(shape[1:]) >= LARGE
    conv = _conv(shape[0], width, 2, 7) if large else _conv(shape[0], width)
    stem: OrderedDict[str, nn.Module] = OrderedDict(conv1=conv, bn1=nn.BatchNorm2d(width), relu=nn.ReLU())
    if large:
        stem["pool"] = nn.MaxPool2d(3, 2, 1)
    return on_pixels(_resnet(classes, stem, [width * 2**stage for stage in range(4)], 2, projection), statistics)


def cifar_resnet(depth: int) -> nn.Module:
    """ResNet for normalised images of CIFAR-10, as small as He et al. (2016) made it; `depth` is 6n + 2.

    It has 0.27 million parameters at depth 20.
    """
    if depth < 8 or depth % 6 != 2:
        raise SettingsError(f"Expected depth 8, 14, 20, 26, 32, ..., but got {depth}.")
    stem: OrderedDict[str, nn.Module] = OrderedDict(conv1=_conv(3, 16), bn1=nn.BatchNorm2d(16), relu=nn.ReLU())
    return _resnet(10, stem, (16, 32, 64), (depth - 2) // 6, Subsample)
