"""Image classifiers of the experiments: from pictures (N, C, H, W) in [0, 1] to logits (N, K)."""

from __future__ import annotations

import importlib
import itertools
import pickle
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from splitpoint.bench.training import SHORT, Schedule
from splitpoint.datasets.folders import VARIABLE, find, folders
from splitpoint.errors import DataError, SettingsError
from splitpoint.surgery import Factory

Shape = tuple[int, int, int]
"""Channels, height and width of a picture."""

Statistics = tuple[Sequence[float], Sequence[float]]
"""Mean and deviation of every channel."""

IMAGENET: Statistics = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CIFAR: Statistics = (0.491, 0.482, 0.447), (0.247, 0.243, 0.262)
GREY: Statistics = (0.2,), (0.33,)
"""Between MNIST and Fashion-MNIST."""

LARGE = 64
"""Side in pixels from which a ResNet-18 begins as on ImageNet."""


class Normalise(nn.Module):
    """Pictures (N, C, H, W) less the mean and divided by the deviation of every channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        """Keep the shape."""
        return (pictures - self.mean) / self.std


class GlobalMean(nn.Module):
    """Mean over all pixels, (N, C, H, W) -> (N, C)."""

    def forward(self, maps: Tensor) -> Tensor:
        """One vector for each picture."""
        return maps.mean((2, 3))


def on_pixels(body: nn.Module, statistics: Statistics) -> nn.Sequential:
    """The network `body` on normalised pictures."""
    return nn.Sequential(OrderedDict(normalise=Normalise(*statistics), body=body))


def _statistics(classes: int, shape: Shape) -> Statistics:
    """Of the usual pictures of this shape; an error where there can be no network for it."""
    if classes < 2 or len(shape) != 3 or shape[0] not in (1, 3) or min(shape) < 1:
        raise SettingsError(
            "Expected two or more classes and pictures of shape (1 or 3, height, width), but got "
            f"{classes} and {tuple(shape)}."
        )
    return CIFAR if shape[0] == 3 else GREY


def lenet(classes: int, shape: Shape) -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) with ReLU and max pooling; pictures below 32 pixels get two more on every side."""
    statistics = _statistics(classes, shape)
    padding = 2 if min(shape[1:]) < 32 else 0
    height, width = (((side + 2 * padding - 4) // 2 - 4) // 2 for side in shape[1:])
    if min(height, width) < 1:
        raise SettingsError(f"Expected pictures of 12 pixels or more for LeNet, but got {tuple(shape)}.")
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
    """VGG-16 (Simonyan & Zisserman 2015) for small pictures: 13 convolutions with batch norm, one linear layer.

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
    """Residual block of two convolutions; with more outputs than inputs it halves the picture."""

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
    """ResNet-18 with `width` to 8 `width` channels; pictures below 64 pixels enter it in their full size."""
    statistics = _statistics(classes, shape)
    if width < 1:
        raise SettingsError(f"Expected width >= 1, but got {width}.")
    large = min(shape[1:]) >= LARGE
    conv = _conv(shape[0], width, 2, 7) if large else _conv(shape[0], width)
    stem: OrderedDict[str, nn.Module] = OrderedDict(conv1=conv, bn1=nn.BatchNorm2d(width), relu=nn.ReLU())
    if large:
        stem["pool"] = nn.MaxPool2d(3, 2, 1)
    return on_pixels(_resnet(classes, stem, [width * 2**stage for stage in range(4)], 2, projection), statistics)


def _cifar_body(depth: int) -> nn.Module:
    if depth < 8 or depth % 6 != 2:
        raise SettingsError(f"Expected depth 8, 14, 20, 26, 32, ..., but got {depth}.")
    stem: OrderedDict[str, nn.Module] = OrderedDict(conv1=_conv(3, 16), bn1=nn.BatchNorm2d(16), relu=nn.ReLU())
    return _resnet(10, stem, (16, 32, 64), (depth - 2) // 6, Subsample)


def cifar_resnet(depth: int) -> nn.Module:
    """ResNet for CIFAR-10 of depth 6n + 2, as small as He et al. (2016) made it: 0.27 million parameters at 20."""
    return on_pixels(_cifar_body(depth), IMAGENET)


def published(depth: int) -> nn.Module:
    """The published CIFAR-10 ResNet-20 or ResNet-32, from ``models/`` in the folders of SPLITPOINT_DATA."""
    if depth not in (20, 32):
        raise SettingsError(f"Expected depth 20 or 32, but got {depth}; only those are published.")
    return _trained(partial(_cifar_body, depth), find(f"models/resnet{depth}_cifar10.safetensors"))


def from_torchvision(name: str, path: Path | None = None) -> nn.Module:
    """The ImageNet classifier `name` of torchvision with weights from a local file.

    Args:
        name: of the function in ``torchvision.models``.
        path: state dict, ``.pth`` or ``.safetensors``; by default ``models/NAME.safetensors``, ``models/NAME.pth`` or
            a file with the name that torchvision gives it, in the folders of SPLITPOINT_DATA.
    """
    try:
        models = importlib.import_module("torchvision.models")
    except (ImportError, RuntimeError) as error:  # a RuntimeError where it was made for another torch
        raise SettingsError(
            f"Expected torchvision, which defines {name}, but it cannot be imported ({error}); "
            f"install the version that goes with torch {torch.__version__}."
        ) from error
    make = getattr(models, name, None)
    if not callable(make):
        raise SettingsError(f"Expected the name of a network in torchvision.models, but got {name!r}.")
    return _trained(partial(make, weights=None), _weights_file(name) if path is None else path)


def _weights_file(name: str) -> Path:
    patterns = [f"models/{name}{ending}" for ending in (".safetensors", ".pth", "-*.pth")]
    found = (path for folder in folders() for pattern in patterns for path in sorted(folder.glob(pattern)))
    path = next(found, None)
    if path is None:
        raise DataError(
            f"Expected the weights of torchvision's {name}, but no folder of {VARIABLE} has {' or '.join(patterns)}; "
            "put the file there that torchvision publishes."
        )
    return path


def _trained(make: Callable[[], nn.Module], path: Path) -> nn.Module:
    """The network with the weights of a file, in eval mode and frozen."""
    weights = _read(path)
    with torch.device("meta"):  # no time and no random numbers for weights that are replaced
        body = make()
    try:
        body.load_state_dict(weights, assign=True)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise DataError(f"Expected weights that fit the network, but those in {path} do not: {reason}") from error
    return on_pixels(body, IMAGENET).eval().requires_grad_(False)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        found = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, SafetensorError, pickle.UnpicklingError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise DataError(f"Expected a file of weights, but {path} cannot be read ({reason}); get it again.") from error
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise DataError(f"Expected a state dict of tensors, but {path} holds something else; get the weights alone.")
    return found


@dataclass(frozen=True)
class NetworkSpec:
    """One network of the experiments.

    Attributes:
        build: makes it for a number of classes and a shape of pictures.
        schedule: how it is trained on a CPU, unless another schedule is given; None where it comes trained.
        stages: names of the layers after which pictures get smaller, and of hidden layers before the last one.
    """

    build: Callable[[int, Shape], nn.Module]
    schedule: Schedule | None = None
    stages: tuple[str, ...] = ()

    @property
    def trained(self) -> bool:
        """Whether it comes trained."""
        return self.schedule is None


def _published_for(depth: int, classes: int, shape: Shape) -> nn.Module:
    if (classes, tuple(shape)) != (10, (3, 32, 32)):
        raise SettingsError(
            f"Expected the ten classes and pictures (3, 32, 32) of CIFAR-10, which ResNet-{depth} was trained on, "
            f"but got {classes} and {tuple(shape)}; give it cifar10, or choose a network that is trained anew."
        )
    return published(depth)


def _torchvision_for(name: str, classes: int, shape: Shape) -> nn.Module:
    if (classes, shape[0]) != (1000, 3):
        raise SettingsError(
            f"Expected the 1000 classes and colour pictures of ImageNet, which torchvision's {name} was trained on, "
            f"but got {classes} and {tuple(shape)}; give it imagenet, or choose a network that is trained anew."
        )
    return from_torchvision(name)


def _in_body(*names: object) -> tuple[str, ...]:
    return tuple(f"body.{name}" for name in names)


_LENET = _in_body(2, 5, 8)
_VGG = _in_body(6, 13, 23, 33)
_RESNET = _in_body("layer1", "layer2", "layer3")
_TORCHVISION_VGG = _in_body("features.4", "features.9", "features.16", "features.23")

NETWORKS: dict[str, NetworkSpec] = {
    "lenet": NetworkSpec(lenet, SHORT["lenet"], _LENET),
    "vgg16": NetworkSpec(vgg16, SHORT["vgg16"], _VGG),
    "vgg16_small": NetworkSpec(partial(vgg16, width=0.25), SHORT["vgg16_small"], _VGG),
    "wide_resnet": NetworkSpec(wide_resnet, SHORT["wide_resnet"], _in_body(4, 8)),
    "wide_resnet_small": NetworkSpec(
        partial(wide_resnet, depth=16, width=1), SHORT["wide_resnet_small"], _in_body(2, 4)
    ),
    "resnet18": NetworkSpec(resnet18, SHORT["resnet18"], _RESNET),
    "resnet20_published": NetworkSpec(partial(_published_for, 20), stages=_RESNET[:2]),
    "resnet32_published": NetworkSpec(partial(_published_for, 32), stages=_RESNET[:2]),
    "torchvision_vgg16": NetworkSpec(partial(_torchvision_for, "vgg16"), stages=_TORCHVISION_VGG),
    "torchvision_wide_resnet50_2": NetworkSpec(partial(_torchvision_for, "wide_resnet50_2"), stages=_RESNET),
}
"""Networks by name."""


def factory(name: str, classes: int, shape: Shape) -> Factory:
    """A function that builds the network `name` for these classes and pictures."""
    if name not in NETWORKS:
        raise SettingsError(f"Expected network to be one of {sorted(NETWORKS)}, but got {name!r}.")
    return partial(NETWORKS[name].build, classes, shape)
