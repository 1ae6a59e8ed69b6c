"""Published figures: Zhao & Chen 2025, "Split-Point Self-Consistency Verification".

``published.csv`` holds them as printed, with the label of their table. Regression: ``tab:UCI-results1`` (no added
noise), ``tab:UCI-results2`` (log-normal), ``tab:UCI-results3`` (trimodal), ``tab:cubic-results``, and the ablations
``tab:training-reg-as`` and ``tab:model-reg-as``. Images, by data set and base network, and as fractions instead of
percent: ``tab:CLS-results1``, and the ablations ``tab:training-cls-as``, ``tab:calib-cls-as`` and ``tab:model-cls-as``.
Several modalities: ``tab:LUMA-results``, by data set and modality, accuracy as a fraction and changes in percent. Depth
maps: ``tab:Monocular-Depth-result``, in units of inverse depth, without its times, which are another machine's.
The figures after ± are standard errors by the authors' code; the paper does not say.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

from splitpoint.bench.networks import NETWORKS
from splitpoint.bench.record import METHODS_BEFORE, METRICS_BEFORE, Cell

SOURCE = "Zhao & Chen 2025"

COUNTERPARTS = METRICS_BEFORE | {
    "piece": "piece_authors",
    "correlation": "spearman_total",
    "auroc_error": "auroc_error_epistemic",
}
"""Published metrics whose name in the records is another: the definition in the authors' code is what counts."""

COUNTERPARTS_IN = {
    "tab:Monocular-Depth-result": {"rmse": "rmse_authors", "auroc": "auroc_ood"},
    "tab:LUMA-results": {"auroc": "auroc_ood"},
}
"""The same in single tables: the code for depth prints the mean absolute error as RMSE."""

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
    """Every published figure by data set and network, noise, method, variant and metric, as records name them."""
    text = resources.files(__package__).joinpath("published.csv").read_text(encoding="utf-8")
    found: dict[Key, Figure] = {}
    for row in csv.DictReader(text.splitlines()):
        metric = (COUNTERPARTS | COUNTERPARTS_IN.get(row["table"], {})).get(row["metric"], row["metric"])
        method = METHODS_BEFORE.get(row["method"], row["method"])
        found[row["dataset"], row["noise"], method, normalised(row["variant"]), metric] = _figure(row)
    return found


def _figure(row: dict[str, str]) -> Figure:
    mean, stderr = row["mean"], row["stderr"]
    decimals = len(mean.partition(".")[2])
    text = f"{mean} ± {stderr}" if stderr else mean
    return Figure(float(mean), float(stderr) if stderr else math.nan, 10.0**-decimals, text, row["table"])


def find(cell: Cell, metric: str) -> Figure | None:
    """The published figure of a cell, if there is one; for an image network, that of its published counterpart."""
    network = NETWORKS[cell.network].published if cell.network in NETWORKS else cell.network
    dataset = f"{cell.dataset}/{network}" if network else cell.dataset
    variant = WHOLE if normalised(cell.variant) == STAGEWISE else normalised(cell.variant)
    return figures().get((dataset, cell.noise, cell.method, variant, metric))
