"""The networks of the image experiments: how each is built, trained and called, and where its weights come from."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from splitpoint.bench.architectures import IMAGENET, Shape, cifar_resnet, lenet, on_pixels, resnet18, vgg16, wide_resnet
from splitpoint.bench.record import Record
from splitpoint.bench.training import PAPER, Schedule
from splitpoint.datasets.entry import VARIABLE, find, folders
from splitpoint.datasets.images import IMAGE_SETS
from splitpoint.errors import DataError, SettingsError
from splitpoint.networks import Factory


def published(depth: int, classes: int, shape: Shape) -> nn.Module:
    """The published CIFAR-10 ResNet-20 or ResNet-32, from ``models/`` in the folders of SPLITPOINT_DATA."""
    if depth not in (20, 32):
        raise SettingsError(f"Expected depth 20 or 32, but got {depth}; only those are published.")
    if (classes, tuple(shape)) != (10, (3, 32, 32)):
        raise SettingsError(
            f"Expected the ten classes and images (3, 32, 32) of CIFAR-10, which ResNet-{depth} was trained on, "
            f"but got {classes} and {tuple(shape)}; give it cifar10, or choose a network that is trained anew."
        )
    return _with_weights(partial(cifar_resnet, depth), find(f"models/resnet{depth}_cifar10.safetensors"))


def from_torchvision(name: str, classes: int, shape: Shape) -> nn.Module:
    """The ImageNet classifier that the function `name` in ``torchvision.models`` builds, with weights from a file.

    The file is ``models/NAME.safetensors``, ``models/NAME.pth`` or has the name that torchvision gives it, in the
    folders of SPLITPOINT_DATA.
    """
    if (classes, shape[0]) != (1000, 3):
        raise SettingsError(
            f"Expected the 1000 classes and colour images of ImageNet, which torchvision's {name} was trained on, "
            f"but got {classes} and {tuple(shape)}; give it imagenet, or choose a network that is trained anew."
        )
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
    return _with_weights(partial(make, weights=None), _weights_file(name))


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


def _with_weights(make: Callable[[], nn.Module], path: Path) -> nn.Module:
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
        build: makes it for a number of classes and a shape of images.
        title: what people call it.
        stages: names of the layers after which images get smaller, and of hidden layers before the last one.
        schedule: how it is trained on a CPU, unless another schedule is given; None where it comes trained.
        published: the network of the paper whose figures stand beside those of this one; empty where there is none.
        differs: how it differs from that one: it is a "smaller" network or "another"; empty where it is the same.
        evidential_rate: highest learning rate of the evidential loss in its short schedule, where it is another than
            that of the cross entropy.
    """

    build: Callable[[int, Shape], nn.Module]
    title: str
    stages: tuple[str, ...]
    schedule: Schedule | None = None
    published: str = ""
    differs: Literal["", "smaller", "another"] = ""
    evidential_rate: float | None = None

    @property
    def trained(self) -> bool:
        """Whether it comes trained."""
        return self.schedule is None


def _in_body(*names: object) -> tuple[str, ...]:
    return tuple(f"body.{name}" for name in names)


_VGG = _in_body(6, 13, 23, 33)
_RESNET = _in_body("layer1", "layer2", "layer3")
_TORCHVISION_VGG = _in_body("features.4", "features.9", "features.16", "features.23")

_CYCLE = Schedule(30, 0.1, nesterov=True, decay="one_cycle", augment=True)
_SLOW_CYCLE = replace(_CYCLE, learning_rate=0.05)

NETWORKS: dict[str, NetworkSpec] = {
    "lenet": NetworkSpec(
        lenet,
        "LeNet",
        _in_body(2, 5, 8),
        Schedule(6, 0.05, nesterov=True, decay="one_cycle"),
        evidential_rate=0.4,
    ),
    "vgg16": NetworkSpec(vgg16, "VGG-16", _VGG, _SLOW_CYCLE, published="vgg16"),
    "vgg16_small": NetworkSpec(
        partial(vgg16, width=0.25),
        "small VGG-16",
        _VGG,
        replace(_SLOW_CYCLE, epochs=15),
        published="vgg16",
        differs="smaller",
    ),
    "torchvision_vgg16": NetworkSpec(partial(from_torchvision, "vgg16"), "VGG-16", _TORCHVISION_VGG, published="vgg16"),
    "wide_resnet": NetworkSpec(wide_resnet, "Wide ResNet", _in_body(4, 8), _CYCLE, published="wide_resnet"),
    "wide_resnet_small": NetworkSpec(
        partial(wide_resnet, depth=16, width=1),
        "small Wide ResNet",
        _in_body(2, 4),
        replace(_CYCLE, epochs=15),
        published="wide_resnet",
        differs="smaller",
    ),
    "torchvision_wide_resnet50_2": NetworkSpec(
        partial(from_torchvision, "wide_resnet50_2"), "Wide ResNet-50-2", _RESNET, published="wide_resnet"
    ),
    "resnet18": NetworkSpec(resnet18, "ResNet-18", _RESNET, _CYCLE, published="wide_resnet", differs="another"),
    "resnet20_published": NetworkSpec(
        partial(published, 20), "ResNet-20", _RESNET[:2], published="wide_resnet", differs="smaller"
    ),
    "resnet32_published": NetworkSpec(
        partial(published, 32), "ResNet-32", _RESNET[:2], published="wide_resnet", differs="smaller"
    ),
}
"""Networks by name, in the order of reports; short schedules are one cycle of few epochs, for a CPU.

The evidential loss has smaller gradients than the cross entropy, and the usual rate leaves a LeNet far behind: its rate
is the best of 0.05, 0.1, 0.2 and 0.4 by the accuracy on images held out from training, on MNIST and on Fashion-MNIST.
"""


def factory(name: str, classes: int, shape: Shape) -> Factory:
    """A function that builds the network `name` for these classes and images."""
    if name not in NETWORKS:
        raise SettingsError(f"Expected network to be one of {sorted(NETWORKS)}, but got {name!r}.")
    return partial(NETWORKS[name].build, classes, shape)


def schedule_of(protocol: str, dataset: str, network: str, epochs: int | None = None) -> Schedule:
    """How a network is trained: as the paper states, or shorter; digits and letters are never mirrored."""
    own = NETWORKS[network].schedule
    chosen = PAPER if protocol == "paper" or own is None else own
    if not IMAGE_SETS[dataset].mirrored:
        chosen = replace(chosen, augment=False)
    return chosen if epochs is None else replace(chosen, epochs=epochs)


def comes_trained(record: Record) -> bool:
    """Whether others trained the network of a record: its settings have no epochs."""
    spec = NETWORKS.get(record.network)
    silent = record.network and record.settings and "epochs" not in record.settings
    return (spec is not None and spec.trained) or bool(silent)
