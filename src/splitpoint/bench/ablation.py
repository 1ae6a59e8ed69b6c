"""The ablations on UCI sets: the paper's own for its recipe, and one for every choice that our recipe makes.

A variant is named as in the published tables, ``key=value;key=value``; equal fits of two variants are made once. The
base networks of a data set are the same for all variants but those that train them otherwise: joint training, and
conformal calibration, which holds rows back.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from splitpoint.bench.families import Fitted, Setup, base_networks, consistent
from splitpoint.bench.piece import Done, Piece, left_of, sheltered, single_trials
from splitpoint.bench.protocols import CALIBRATION_SHARE, Rows
from splitpoint.bench.record import Cell, Record
from splitpoint.bench.uci import ROWS, budget_of, judged, setup_of, trials_of
from splitpoint.regression import RegressionPredictor, SplitPointRegressor
from splitpoint.surgery import build

DATASETS = ("concrete", "energy", "kin8nm", "naval", "power", "wine")
"""Sets of the published ablations."""


@dataclass(frozen=True)
class Variant:
    """One way to fit a method.

    Attributes:
        name: of the variant, as in the published tables.
        method: "splitpoint", the paper's recipe, or "splitpoint_default", ours.
        family: how base networks come about: "post_hoc" on all training rows, "held_out" on those that do not serve
            calibration, "joint" together with the heads.
        share: of the training rows that the heads see, or that serve calibration where rows are held out.
        changes: settings that differ from those of the method.
    """

    name: str
    method: str
    family: str = "post_hoc"
    share: float = 1.0
    changes: dict[str, Any] = field(default_factory=dict)

    def recipe(self, setup: Setup, epochs: int | None) -> SplitPointRegressor:
        """The settings of the heads; `epochs` replace those of our recipe, which has its own else."""
        if self.method == "splitpoint":
            return SplitPointRegressor.paper(**(asdict(setup.budget) | self.changes))
        return SplitPointRegressor(**(self.changes if epochs is None else self.changes | {"epochs": epochs}))


def _ours(changes: dict[str, Any]) -> Variant:
    return Variant(";".join(f"{key}={value}" for key, value in changes.items()), "splitpoint_default", changes=changes)


def _calibrated(kind: str, family: str, interval: str, share: float = 1.0) -> Variant:
    return Variant(f"calibration={kind}", "splitpoint_default", family, share, {"interval": interval})


ABLATIONS: dict[str, tuple[Variant, ...]] = {
    "training": (
        *(
            Variant(f"training=stagewise;train_fraction={share}", "splitpoint", share=share)
            for share in (0.2, 0.4, 0.6, 0.8, 1.0)
        ),
        Variant("training=joint", "splitpoint", "joint"),
    ),
    "hidden_layers": tuple(
        Variant(f"hidden_layers={count}", "splitpoint", changes={"mar_layers": count}) for count in (1, 2, 3)
    ),
    "residuals": tuple(_ours({"residuals": kind}) for kind in ("train", "loo")),
    "quantile_loss": tuple(_ours({"quantile_loss": kind}) for kind in ("pinball", "coverage", "coverage_paper")),
    "head_layers": tuple(
        _ours({"quantile_layers": quantile, "mar_layers": mar}) for quantile in (1, 3) for mar in (1, 3)
    ),
    "calibration": (
        _calibrated("none", "post_hoc", "split"),
        _calibrated("consistent", "post_hoc", "consistent"),
        _calibrated("conformal", "held_out", "conformal", CALIBRATION_SHARE),
    ),
    "calibration_share": tuple(
        Variant(f"calibration_share={share}", "splitpoint_default", "held_out", share, {"interval": "conformal"})
        for share in (0.1, 0.2, 0.3, 0.4, 0.5)
    ),
}
"""Variants by what is ablated; the first two are the paper's, on its recipe, whose only trunk has `mar_layers`."""

VARIANTS = {variant.name: variant for variants in ABLATIONS.values() for variant in variants}
"""Variants by name."""

FAMILIES = {
    family: tuple(name for name, variant in VARIANTS.items() if variant.family == family)
    for family in ("post_hoc", "held_out", "joint")
}
"""Names of variants by how their base networks come about."""


@final
class Unit(Piece):
    """Some variants of one family on some trials of one data set."""

    suite: ClassVar[str] = "uci-ablation"

    @property
    def cost(self) -> float:
        """A rough measure of the work, to begin with the largest."""
        each = 10 if self.family == "joint" else len(self.methods)
        return ROWS.get(self.dataset, 1000) * len(self.trials) * each

    @property
    def settings(self) -> dict[str, Any]:
        """The budget of the networks."""
        return asdict(budget_of(self))

    def cell(self, method: str) -> Cell:
        """The cell that a variant's trials belong to."""
        return super().cell(VARIANTS[method].method)._replace(variant=method)


def run(unit: Unit) -> Iterator[list[Record]]:
    """The records of a unit, variant by variant; what fails is tried again variant by variant, trial by trial."""
    return sheltered(unit, _run, lambda record: [record])


def _run(unit: Unit) -> Iterator[list[Record]]:
    trials = trials_of(unit)
    setup = setup_of(unit, trials[0].train[0].shape[1])
    fit = {"post_hoc": _post_hoc, "held_out": _held_out, "joint": _joint}[unit.family]
    for name, fitted in fit(unit, setup):
        yield judged(unit, name, fitted, trials)


Fits = Iterator[tuple[str, Fitted]]


def _post_hoc(unit: Unit, setup: Setup) -> Fits:
    """Heads on base networks of all training rows; variants that differ in name or interval alone share a fit."""
    trials = trials_of(unit)
    networks, cost = base_networks(setup, [trial.train for trial in trials], unit.seeds)
    known: dict[tuple[SplitPointRegressor, float], tuple[list[RegressionPredictor], float]] = {}
    for variant in (VARIANTS[name] for name in unit.methods):
        recipe = variant.recipe(setup, unit.epochs)
        key = replace(recipe, interval="split"), variant.share
        if key not in known:
            began = time.process_time()
            pairs = zip(trials, unit.trials, strict=True)
            data = [_share_of(trial.train, variant.share, number) for trial, number in pairs]
            fitted = key[0].fit_many(networks, data, seeds=unit.seeds, progress=False)
            known[key] = fitted, cost + time.process_time() - began
        predictors, seconds = known[key]
        if recipe.interval == "consistent":
            predictors = [consistent(predictor) for predictor in predictors]
        yield variant.name, Fitted(predictors, setup.with_heads(recipe, share=variant.share), seconds)


def _held_out(unit: Unit, setup: Setup) -> Fits:
    """Heads on base networks that have not seen the calibration rows; variants with equal shares share a fit."""
    known: dict[float, tuple[list[RegressionPredictor], dict[str, Any], float]] = {}
    for variant in (VARIANTS[name] for name in unit.methods):
        if variant.share not in known:
            parts = trials_of(unit, variant.share)
            data, calibration = [trial.proper for trial in parts], [trial.calibration for trial in parts]
            networks, cost = base_networks(setup, data, unit.seeds)
            began = time.process_time()
            recipe = variant.recipe(setup, unit.epochs)
            fitted = recipe.fit_many(networks, data, calibration=calibration, seeds=unit.seeds, progress=False)
            settings = setup.with_heads(recipe, calibration_rows=len(calibration[0][0]))
            known[variant.share] = fitted, settings, cost + time.process_time() - began
        yield variant.name, Fitted(*known[variant.share])


def _joint(unit: Unit, setup: Setup) -> Fits:
    """Base networks and heads trained together, with the budget of the base networks."""
    budget, trials = setup.budget, trials_of(unit)
    for variant in (VARIANTS[name] for name in unit.methods):
        began = time.process_time()
        recipe = variant.recipe(setup, unit.epochs)
        predictors = [
            recipe.fit_jointly(
                build(setup.factory, seed),
                Shuffled(trial.train, budget.batch_size, seed),
                base_epochs=budget.epochs,
                base_learning_rate=budget.learning_rate,
                seed=seed,
                progress=False,
            )
            for seed, trial in zip(unit.seeds, trials, strict=True)
        ]
        yield variant.name, Fitted(predictors, setup.with_heads(recipe), time.process_time() - began)


def _share_of(rows: Rows, share: float, trial: int) -> Rows:
    """A random share of the rows of a trial; a smaller share is part of a larger one."""
    if share == 1:
        return rows
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


def units(
    datasets: Sequence[str], ablations: Sequence[str], trials: int, seed: int, epochs: int | None, done: Done
) -> list[Unit]:
    """The work that is left; joint training, which knows no stacks, in single trials."""
    names = [variant.name for ablation in ablations for variant in ABLATIONS[ablation]]
    found = [
        unit
        for dataset in datasets
        for unit in left_of(Unit("paper", "clean", dataset, "", (), (), seed, epochs), FAMILIES, names, trials, done)
    ]
    joint = single_trials([unit for unit in found if unit.family == "joint"])
    return [unit for unit in found if unit.family != "joint"] + joint
