"""The ablations on UCI sets: the paper's own for its recipe, and one for every choice that our recipe makes.

A variant is named as in the published tables, ``key=value;key=value``; equal fits of two variants are made once. The
base networks of a data set are the same for all variants but those that train them otherwise: joint training, and
conformal calibration, which holds rows back. Published: ``tab:training-reg-as`` and ``tab:model-reg-as``.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from splitpoint.bench.fitting import CALIBRATED, POST_HOC, Base, described, judge_rows
from splitpoint.bench.protocols import CALIBRATION_SHARE, PROTOCOLS, Rows
from splitpoint.bench.suite import Fit, Option, Request, Suite, Trial, Work
from splitpoint.bench.suites import uci
from splitpoint.datasets import TABLES
from splitpoint.networks import build
from splitpoint.regression import SplitPointRegressor
from splitpoint.tasks import Regression

DATASETS = ("concrete", "energy", "kin8nm", "naval", "power", "wine")
"""Sets of the published ablations."""

JOINT = "joint"
"""Group of the variants whose base networks are trained together with the heads."""


@dataclass(frozen=True)
class Variant:
    """One way to fit a method.

    Attributes:
        name: of the variant, as in the published tables.
        method: "splitpoint_paper", the paper's recipe, or "splitpoint", ours.
        group: what base networks learn from: `POST_HOC` all training rows, `CALIBRATED` those that do not serve
            calibration, `JOINT` all, together with the heads.
        share: of the training rows that the heads see, or that serve calibration.
        changes: settings that differ from those of the method.
    """

    name: str
    method: str
    group: str = POST_HOC
    share: float = 1.0
    changes: dict[str, Any] = field(default_factory=dict)

    def recipe(self, work: Work) -> SplitPointRegressor:
        """The settings of the heads."""
        settings: dict[str, Any] = {**uci.changes(work)[self.method], **self.changes}
        return SplitPointRegressor.paper(**settings) if self.method == PAPER else SplitPointRegressor(**settings)


PAPER, OURS = "splitpoint_paper", "splitpoint"


def _ours(changes: dict[str, Any]) -> Variant:
    return Variant(";".join(f"{key}={value}" for key, value in changes.items()), OURS, changes=changes)


def _calibrated(kind: str, group: str, interval: str, share: float = 1.0) -> Variant:
    return Variant(f"calibration={kind}", OURS, group, share, {"interval": interval})


ABLATIONS: dict[str, tuple[Variant, ...]] = {
    "training": (
        *(
            Variant(f"training=stagewise;train_fraction={share}", PAPER, share=share)
            for share in (0.2, 0.4, 0.6, 0.8, 1.0)
        ),
        Variant("training=joint", PAPER, JOINT),
    ),
    "hidden_layers": tuple(
        Variant(f"hidden_layers={count}", PAPER, changes={"mar_layers": count}) for count in (1, 2, 3)
    ),
    "residuals": tuple(_ours({"residuals": kind}) for kind in ("train", "loo")),
    "quantile_loss": tuple(_ours({"quantile_loss": kind}) for kind in ("pinball", "coverage", "coverage_paper")),
    "head_layers": tuple(
        _ours({"quantile_layers": quantile, "mar_layers": mar}) for quantile in (1, 3) for mar in (1, 3)
    ),
    "calibration": (
        _calibrated("none", POST_HOC, "split"),
        _calibrated("consistent", POST_HOC, "consistent"),
        _calibrated("conformal", CALIBRATED, "conformal", CALIBRATION_SHARE),
    ),
    "calibration_share": tuple(
        Variant(f"calibration_share={share}", OURS, CALIBRATED, share, {"interval": "conformal"})
        for share in (0.1, 0.2, 0.3, 0.4, 0.5)
    ),
}
"""Variants by what is ablated; the first two are the paper's, on its recipe, whose only trunk has `mar_layers`."""

VARIANTS = {variant.name: variant for variants in ABLATIONS.values() for variant in variants}
"""Variants by name."""


def cells(request: Request) -> list[Work]:
    """Every data set and group of variants; a set that is not there is an error."""
    groups: dict[str, tuple[str, ...]] = {}
    for variant in (variant for name in request["ablations"] for variant in ABLATIONS[name]):
        groups[variant.group] = (*groups.get(variant.group, ()), variant.name)
    for dataset in request["datasets"]:
        PROTOCOLS["paper"].table(dataset)
    return [
        request.work(dataset=dataset, group=group, methods=names)
        for dataset in request["datasets"]
        for group, names in groups.items()
    ]


def fit(works: Sequence[Work], trials: Sequence[Trial]) -> Iterator[Fit]:
    """Fit every variant of one group."""
    (work,) = works
    return (_jointly if work.group == JOINT else _stagewise)(work, trials)


def _stagewise(work: Work, trials: Sequence[Trial]) -> Iterator[Fit]:
    """Heads on base networks; variants that differ in name or in how intervals are read share a fit."""
    training, bases = uci.settings(work), dict[float, Base]()
    if work.group == POST_HOC:
        bases[1.0] = Base.of([work], trials, uci.network(trials[0])).trained(Regression(), training)
    for variant in (VARIANTS[name] for name in work.methods):
        share, recipe = variant.share, variant.recipe(work)
        if share not in bases and work.group == POST_HOC:
            rows = [_share_of(own.train, share, number) for own, number in zip(trials, work.trials, strict=True)]
            bases[share] = replace(bases[1.0], data=rows, known={})
        elif share not in bases:
            parts = [uci.trial(work, number, share) for number in work.trials]
            bases[share] = Base.of([work], parts, uci.network(parts[0]), calibrated=True).trained(
                Regression(), training
            )
        predictors, seconds = bases[share].fit(recipe)
        rows_of = {"share": share} if work.group == POST_HOC else bases[share].settings
        yield Fit(variant.name, predictors, training | rows_of | described(recipe, {}), seconds)


def _jointly(work: Work, trials: Sequence[Trial]) -> Iterator[Fit]:
    """Base networks and heads trained together, with the budget of the base networks."""
    training = uci.settings(work)
    for variant in (VARIANTS[name] for name in work.methods):
        began = time.process_time()
        recipe = variant.recipe(work)
        predictors = [
            recipe.fit_jointly(
                build(uci.network(own), seed),
                Shuffled(own.train, training["batch_size"], seed),
                base_epochs=training["epochs"],
                base_learning_rate=training["learning_rate"],
                seed=seed,
                progress=False,
            )
            for seed, own in zip(work.seeds, trials, strict=True)
        ]
        yield Fit(variant.name, predictors, training | described(recipe, {}), time.process_time() - began)


def _share_of(rows: Rows, share: float, trial: int) -> Rows:
    """A random share of the rows of a trial; a smaller share is part of a larger one."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"share {trial}".encode()))
    kept = torch.randperm(len(rows[0]), generator=generator)[: int(share * len(rows[0]))]
    return rows[0][kept], rows[1][kept]


class Shuffled:
    """Batches of rows in memory, in another order with every pass."""

    def __init__(self, rows: Rows, batch_size: int, seed: int) -> None:
        self.rows, self.batch_size = rows, batch_size
        self.generator = torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        inputs, targets = self.rows
        for places in torch.randperm(len(inputs), generator=self.generator).split(self.batch_size):
            yield inputs[places], targets[places]


def cost(work: Work) -> float:
    """Rows of all trials, times fits; those of joint training take longest."""
    each = 10 if work.group == JOINT else len(work.methods)
    return TABLES[work.dataset].rows * len(work.trials) * each


UCI_ABLATION = Suite(
    name="uci-ablation",
    title="UCI ablations",
    help="what every choice of the method is worth, on UCI sets",
    trials=20,
    options=(
        Option("datasets", "names of sets", lambda: list(TABLES), DATASETS),
        Option("ablations", "what is varied", lambda: list(ABLATIONS)),
    ),
    cells=cells,
    settings=uci.settings,
    cost=cost,
    trial=uci.trial,
    fit=fit,
    judge=judge_rows,
    one_by_one=lambda work: work.group == JOINT,
    variants=VARIANTS,
    obstacles=uci.obstacles,
)
