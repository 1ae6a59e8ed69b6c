"""Published figures: Zhao & Chen 2025, "Split-Point Self-Consistency Verification", regression tables.

``published.csv`` holds them as printed, with the label of their table: ``tab:UCI-results1`` (no added noise),
``tab:UCI-results2`` (log-normal), ``tab:UCI-results3`` (trimodal), ``tab:cubic-results``, ``tab:training-reg-as`` and
``tab:model-reg-as`` (ablations). The figures after ± are standard errors by the authors' code; the paper does not say.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

SOURCE = "Zhao & Chen 2025"

COUNTERPARTS = {"piece": "piece_authors", "correlation": "spearman_total"}
"""Published metrics whose name in the records is another: the definition in the authors' code is what counts."""

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
    """The published figure, if there is one."""
    variant = normalised(variant)
    return figures().get((dataset, noise, method, WHOLE if variant == STAGEWISE else variant, metric))


SECOND_TARGET = ("energy", "naval")
"""Data sets of two targets; the published tables predict the second."""


def obstacle(protocol: str, noise: str, dataset: str) -> str:
    """Why a run under the protocol does not answer the published question; empty where it does.

    >>> obstacle("authors", "trimodal", "energy"), obstacle("paper", "clean", "boston")
    ('', '')
    """
    if protocol != "paper" or dataset == "cubic":
        return ""
    if noise != "clean":
        return "the published tables were made with other noise than the paper states"
    return f"the published tables predict the second target of {dataset}" if dataset in SECOND_TARGET else ""
