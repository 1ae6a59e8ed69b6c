"""The ablations on pictures: joint training, shares of the rows for heads and calibration, and depth of the heads.

A variant is named as in the published tables, ``key=value;key=value``. Variants that need the same base network share
it, and those that differ only in whether calibration is used share a fit.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor

from splitpoint.bench.images import (
    Subject,
    attack_unit,
    base_network,
    head_epochs,
    heads_of,
    on_pictures,
    recorded,
    staged,
    training_pictures,
    uncalibrated,
)
from splitpoint.bench.networks import NETWORKS, factory
from splitpoint.bench.picture_piece import PicturePiece
from splitpoint.bench.pictures import CALIBRATION_SHARE, Trial, batches
from splitpoint.bench.piece import Done, left_of, sheltered, single_trials
from splitpoint.bench.record import Cell, Record
from splitpoint.classification import ClassificationPredictor, SplitPointClassifier
from splitpoint.surgery import build

JOINT_LEARNING_RATE = 1e-3
"""Of the base network when it is trained together with the heads, by Adam."""


@dataclass(frozen=True)
class Variant:
    """One way to fit a method.

    Attributes:
        method: id of the method, with or without calibration.
        name: of the variant, as in the published tables.
        share: of the training pictures that serve calibration; the network learns from the others.
        rows: what the heads learn from, "train" or "calibration" pictures.
        fraction: of those rows.
        joint: whether network and heads are trained together.
        changes: settings of the heads that differ.
    """

    method: str
    name: str
    share: float = CALIBRATION_SHARE
    rows: str = "train"
    fraction: float = 1.0
    joint: bool = False
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The variant and its method in one word."""
        return f"{self.method} {self.name}"

    @property
    def family(self) -> str:
        """What its base network is."""
        return "joint" if self.joint else f"calibration {self.share}"

    @property
    def trains(self) -> bool:
        """Whether it says how the network is trained, and on which pictures."""
        return self.joint or self.name.startswith("calib_fraction")

    def recipe(self, protocol: str, pictures: str) -> SplitPointClassifier:
        """The settings of the heads."""
        return replace(heads_of(self.method, protocol, pictures), **self.changes)


ABLATIONS: dict[str, tuple[Variant, ...]] = {
    "training": (
        *(
            Variant(method, f"training=stagewise;train_fraction={fraction}", fraction=fraction)
            for method in ("splitpoint", "splitpoint_default")
            for fraction in (0.2, 0.4, 0.6, 0.8, 1.0)
        ),
        Variant("splitpoint", "training=joint", joint=True),
    ),
    "calibration": tuple(
        Variant(method, f"calib_fraction={share};uq_train_set={rows}", share=share, rows=rows)
        for method in ("splitpoint", "splitpoint_calibrated", "splitpoint_default", "splitpoint_default_calibrated")
        for share in (0.1, 0.2, 0.3, 0.4, 0.5)
        for rows in ("train", "calibration")
    ),
    "hidden_layers": tuple(
        Variant(method, f"hidden_layers={count}", changes={"mar_layers": count})
        for method in ("splitpoint_calibrated", "splitpoint_default_calibrated")
        for count in (1, 2, 3)
    ),
}
"""Variants by what is ablated, on the paper's recipe and on ours."""

VARIANTS = {variant.key: variant for variants in ABLATIONS.values() for variant in variants}
FAMILIES = {
    family: tuple(key for key, variant in VARIANTS.items() if variant.family == family)
    for family in dict.fromkeys(variant.family for variant in VARIANTS.values())
}
"""Variants by key, and keys by base network."""


@final
class Unit(PicturePiece):
    """Some variants on one base network of one trial."""

    suite: ClassVar[str] = "images-ablation"

    @property
    def cost(self) -> float:
        """A rough measure of the work."""
        return float(5 + len(self.methods))

    def cell(self, method: str) -> Cell:
        """The cell that a variant's trials belong to."""
        variant = VARIANTS[method]
        return super().cell(variant.method)._replace(variant=variant.name)


def run(unit: Unit) -> Iterator[list[Record]]:
    """The records of a unit, variant by variant; what fails is tried again variant by variant."""
    return sheltered(unit, _run, lambda record: [record])


def _run(unit: Unit) -> Iterator[list[Record]]:
    variants = [VARIANTS[key] for key in unit.methods]
    trial = unit.trial(variants[0].share)
    fit = _joint if unit.family == "joint" else _stagewise
    for subject in fit(unit, variants, trial):
        yield [subject.judged(unit, trial)[0]]


class Rows(NamedTuple):
    """Recorded rows and their labels."""

    rows: Tensor
    labels: Tensor


def _stagewise(unit: Unit, variants: Sequence[Variant], trial: Trial) -> Iterator[Subject]:
    base = base_network(unit, trial)
    stage, pictures = staged(base, trial), training_pictures(trial)
    train = recorded(base, "train", pictures)
    calibration = Rows(stage.calibration, trial.calibration.labels)
    sources = {"train": Rows(train.rows, pictures.labels), "calibration": calibration}
    known: dict[tuple[SplitPointClassifier, str, float], tuple[ClassificationPredictor, float]] = {}
    for variant in variants:
        recipe = variant.recipe(unit.protocol, unit.pictures)
        key = recipe, variant.rows, variant.fraction
        if key not in known:
            began = time.process_time()
            data = _fraction_of(sources[variant.rows], variant.fraction, unit.seeds[0])
            fitted = recipe.fit(
                base.recorder.tail, tuple(data), calibration=tuple(calibration), seed=unit.seeds[0], progress=False
            )
            known[key] = fitted, time.process_time() - began
        predictor, seconds = known[key]
        if not variant.method.endswith("calibrated"):
            predictor = uncalibrated(predictor)
        seconds += base.seconds + train.seconds
        yield Subject(variant.key, predictor, stage, seconds, unit.settings | head_epochs(recipe))


def _joint(unit: Unit, variants: Sequence[Variant], trial: Trial) -> Iterator[Subject]:
    schedule = unit.schedule
    for variant in variants:
        began = time.process_time()
        network = build(factory(unit.network, trial.train.classes, trial.train.shape), unit.seeds[0]).to(unit.device)
        predictor = variant.recipe(unit.protocol, unit.pictures).fit_jointly(
            network,
            batches(trial.train, schedule.batch_size, unit.seeds[0]),
            base_epochs=schedule.epochs,
            base_learning_rate=JOINT_LEARNING_RATE,
            seed=unit.seeds[0],
            progress=False,
        )
        seconds = time.process_time() - began
        stage = on_pictures(trial, predictor.base, attack_unit(predictor.base))
        used = {"optimiser": "adam", "learning_rate": JOINT_LEARNING_RATE, "augment": False}
        kept = ("epochs", "batch_size", "outside", "device")
        shared = {name: value for name, value in unit.settings.items() if name in kept}
        yield Subject(variant.key, predictor, stage, seconds, shared | used)


def _fraction_of(data: Rows, fraction: float, seed: int) -> Rows:
    """A random fraction of the rows; a smaller one is part of a larger one."""
    if fraction == 1:
        return data
    generator = torch.Generator().manual_seed(zlib.crc32(f"fraction {seed}".encode()))
    kept = torch.randperm(len(data.rows), generator=generator)[: int(fraction * len(data.rows))]
    return Rows(data.rows[kept], data.labels[kept])


def units(wholes: Sequence[Unit], ablations: Sequence[str], trials: int, done: Done) -> list[Unit]:
    """The work that is left, trial by trial; with a network that comes trained, only what changes the heads.

    Args:
        wholes: for every data set and network a unit whose family, methods and trials are filled in.
        ablations: those that are wanted.
        trials: how many are wanted.
        done: what there is already.
    """
    wanted = [variant.key for ablation in ablations for variant in ABLATIONS[ablation]]
    found = []
    for whole in wholes:
        fits = [key for key in wanted if not (NETWORKS[whole.network].trained and VARIANTS[key].trains)]
        found += left_of(whole, FAMILIES, fits, trials, done)
    return single_trials(found)
