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


def obstacle(protocol: str, noise: str, dataset: str, settings: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Why a run under the protocol, with the settings of its record, does not answer the published question.

    Empty where it does.

    >>> obstacle("authors", "trimodal", "energy"), obstacle("paper", "clean", "cifar10/vgg16")
    ('', '')
    >>> obstacle("short", "clean", "cifar10/vgg16_small")
    'the network is smaller than the published one and trained for fewer epochs'
    """
    if "/" in dataset:
        return _image_obstacle(protocol, dataset, settings)
    if dataset == "cubic":
        return ""
    if settings.get("epochs", EPOCHS["uci"]) != EPOCHS["uci"]:
        return f"networks are trained for {settings['epochs']} epochs in place of {EPOCHS['uci']}"
    if protocol != "paper":
        return ""
    if noise != "clean":
        return "the published tables were made with other noise than the paper states"
    return f"the published tables predict the second target of {dataset}" if dataset in SECOND_TARGET else ""


def _image_obstacle(protocol: str, dataset: str, settings: Mapping[str, Any]) -> str:
    pictures, _, network = dataset.partition("/")
    if network.startswith(DOWNLOADED):
        return "half of the published test pictures serve calibration"
    few = settings.get("epochs", EPOCHS["images"] if protocol == "paper" else 0) < EPOCHS["images"]
    shortened = few and not network.endswith("_published")
    if dataset != _published_place(dataset):
        other = "smaller" if network.endswith("_small") else "another"
        return f"the network is {other} than the published one{' and trained for fewer epochs' if shortened else ''}"
    if shortened:
        return "the network is trained for fewer epochs than published"
    if pictures == "imagenet":
        return "the published network was trained elsewhere"
    if settings.get("outside", OUTSIDE.get(pictures)) != OUTSIDE.get(pictures):
        return "other sets than the published ones are out of distribution"
    return ""
