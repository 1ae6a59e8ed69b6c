"""Published figures: Zhao & Chen 2025, "Split-Point Self-Consistency Verification".

``published.csv`` holds them as printed, with the label of their table. Regression: ``tab:UCI-results1`` (no added
noise), ``tab:UCI-results2`` (log-normal), ``tab:UCI-results3`` (trimodal), ``tab:cubic-results``, and the ablations
``tab:training-reg-as`` and ``tab:model-reg-as``. Images, by data set and base network, and as fractions instead of
percent: ``tab:CLS-results1``, and the ablations ``tab:training-cls-as``, ``tab:calib-cls-as`` and ``tab:model-cls-as``.
The figures after ± are standard errors by the authors' code; the paper does not say.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from splitpoint.report import names

SOURCE = "Zhao & Chen 2025"

COUNTERPARTS = {"piece": "piece_authors", "correlation": "spearman_total", "auroc_error": "auroc_error_epistemic"}
"""Published metrics whose name in the records is another: the definition in the authors' code is what counts."""

FAMILIES = {"vgg": "vgg16", "resnet": "wide_resnet", "wide_resnet": "wide_resnet"}
"""Published base networks by how the names of their relatives begin."""

DOWNLOADED = "torchvision_"
"""How the names of networks begin that were trained by others, on ImageNet, and are the published ones."""

STAGEWISE = "training=stagewise"
"""The usual training in the published ablations; it says nothing beside another setting."""

WHOLE = "train_fraction=1.0"
"""The published row of the usual training."""


@dataclass(frozen=True)
class Figure:
    """A published number.

    Attributes:
        mean: as printed.
        stderr: as printed; NaN where none is.
        unit: one unit of the last printed digit of the mean.
        text: mean and standard error as printed.
        table: label of the table in the paper.
    """

    mean: float
    stderr: float
    unit: float
    text: str
    table: str


Key = tuple[str, str, str, str, str]


def normalised(variant: str) -> str:
    """A variant without ``training=stagewise`` beside another setting, its settings in alphabetical order.

    >>> normalised("training=stagewise;train_fraction=0.2"), normalised("training=stagewise")
    ('train_fraction=0.2', 'training=stagewise')
    """
    settings = sorted(part.strip() for part in variant.split(";") if part.strip())
    return ";".join(part for part in settings if part != STAGEWISE or len(settings) == 1)


@cache
def figures() -> dict[Key, Figure]:
    """Every published figure by data set, noise, method, variant and name of the metric in the records."""
    text = resources.files(__package__).joinpath("published.csv").read_text(encoding="utf-8")
    found: dict[Key, Figure] = {}
    for row in csv.DictReader(text.splitlines()):
        metric = COUNTERPARTS.get(row["metric"], row["metric"])
        found[row["dataset"], row["noise"], row["method"], normalised(row["variant"]), metric] = _figure(row)
    return found


def _figure(row: dict[str, str]) -> Figure:
    mean, stderr = row["mean"], row["stderr"]
    decimals = len(mean.partition(".")[2])
    text = f"{mean} ± {stderr}" if stderr else mean
    return Figure(float(mean), float(stderr) if stderr else math.nan, 10.0**-decimals, text, row["table"])


def find(dataset: str, noise: str, method: str, variant: str, metric: str) -> Figure | None:
    """The published figure, if there is one; for an image network, that of its family."""
    variant = WHOLE if normalised(variant) == STAGEWISE else normalised(variant)
    return figures().get((_published_place(dataset), noise, method, variant, metric))


def _published_place(dataset: str) -> str:
    """Data set and published network of the family, of a name such as ``cifar10/vgg16_small``; other names as such."""
    pictures, slash, network = dataset.partition("/")
    for start, published in FAMILIES.items():
        if network.removeprefix(DOWNLOADED).startswith(start):
            return f"{pictures}{slash}{published}"
    return dataset


SECOND_TARGET = ("energy", "naval")
"""Data sets of two targets; the published tables predict the second."""


EPOCHS = {"uci": 400, "images": 350}
"""Epochs of the published networks."""

OUTSIDE = {"cifar10": "svhn + tiny_imagenet", "cifar100": "svhn + tiny_imagenet", "imagenet": "imagenet_o"}
"""Published sets out of distribution."""

SMALLER = ("resnet20", "resnet32")
"""How the names of networks begin, beside those that end in ``_small``, that are smaller than the published ones."""


def comes_trained(dataset: str, settings: Mapping[str, Any] = MappingProxyType({})) -> bool:
    """Whether the network of a data set was trained by others; records of such have settings, but no epochs.

    >>> comes_trained("cifar10/resnet20_published"), comes_trained("cifar10/vgg16", {"epochs": 12})
    (True, False)
    """
    _, slash, network = dataset.partition("/")
    named = network.startswith(DOWNLOADED) or network.endswith("_published")
    return named or bool(slash and settings and "epochs" not in settings)


def obstacles(
    protocol: str, noise: str, dataset: str, settings: Mapping[str, Any] = MappingProxyType({})
) -> tuple[str, ...]:
    """All reasons why a run under the protocol, with the settings of its record, leaves the published question open.

    None where it answers it.

    >>> obstacles("authors", "trimodal", "energy"), obstacles("paper", "clean", "cifar10/vgg16")
    ((), ())
    >>> obstacles("short", "clean", "cifar10/vgg16_small")
    ('the network is smaller than the published one', 'the network is trained for fewer epochs than the published one')
    """
    if "/" in dataset:
        return tuple(filter(None, _image_obstacles(protocol, dataset, settings)))
    if dataset == "cubic":
        return ()
    found = []
    if settings.get("epochs", EPOCHS["uci"]) != EPOCHS["uci"]:
        found.append(f"networks are trained for {settings['epochs']} epochs in place of {EPOCHS['uci']}")
    if protocol == "paper" and noise != "clean":
        found.append("the published tables were made with other noise than the paper states")
    if protocol == "paper" and dataset in SECOND_TARGET:
        found.append("the published tables predict the second target")
    return tuple(found)


def _image_obstacles(protocol: str, dataset: str, settings: Mapping[str, Any]) -> list[str]:
    """An empty text for each reason that does not apply."""
    pictures = dataset.partition("/")[0]
    trained = comes_trained(dataset, settings)
    few = settings.get("epochs", EPOCHS["images"] if protocol == "paper" else 0) < EPOCHS["images"]
    return [
        _other_network(dataset),
        "the network is trained for fewer epochs than the published one" if few and not trained else "",
        "the published network was trained elsewhere" if pictures == "imagenet" and not trained else "",
        _other_outside(settings.get("outside", ""), OUTSIDE.get(pictures, "")),
        "half of the published test pictures serve calibration" if trained else "",
    ]


def _other_network(dataset: str) -> str:
    network = dataset.partition("/")[2]
    if network.startswith(DOWNLOADED) or dataset == _published_place(dataset):
        return ""
    smaller = network.endswith("_small") or network.startswith(SMALLER)
    return f"the network is {'smaller' if smaller else 'another'} than the published one"


def _other_outside(ours: str, published: str) -> str:
    """What is out of distribution in place of the published sets, where both are known; their order says nothing.

    >>> _other_outside("tiny_imagenet", "svhn + tiny_imagenet")
    'Tiny ImageNet alone in place of SVHN + Tiny ImageNet is out of distribution'
    """
    sets, wanted = ([part.strip() for part in text.split("+")] for text in (ours, published))
    if not ours or not published or set(sets) == set(wanted):
        return ""
    told, theirs = (" + ".join(names.title(name, names.OUTSIDE) for name in part) for part in (sets, wanted))
    alone = " alone" if set(sets) < set(wanted) else ""
    return f"{told}{alone} in place of {theirs} is out of distribution"
