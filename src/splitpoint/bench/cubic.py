"""The cubic experiment: a curve with known noise, learned in [-4, 4] and asked about in [-6, 6].

Coverage and error are judged where training rows are; the epistemic score by how well it tells the rest from it.
Inputs and targets come in their own units: methods that train networks standardise the targets by themselves.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn

from splitpoint.bench.curves import Curve
from splitpoint.bench.families import EFFORT, FAMILIES, Fitted, Setup, fit_family
from splitpoint.bench.piece import Done, Piece, left_of, sheltered
from splitpoint.bench.protocols import Budget, Trial, held_out_rows
from splitpoint.bench.record import Record
from splitpoint.datasets import NOISE_LAWS, cubic
from splitpoint.datasets.cubic import side_quantiles
from splitpoint.metrics import Evidence, measured

HIDDEN = 64
TRAIN_ROWS, TEST_ROWS = 2000, 1000
SEEN, ASKED = 4.0, 6.0
"""Reach of the training and of the test inputs."""

BUDGET = Budget(learning_rate=1e-3, batch_size=TRAIN_ROWS, epochs=5000)
SETTINGS: dict[str, dict[str, Any]] = {"sqr_oc": {"certificates": 20}}
"""Settings that the paper states for this experiment and that are not defaults."""

CUBIC_METHODS = tuple(method for methods in FAMILIES.values() for method in methods)
CUBIC_NOISES = tuple(NOISE_LAWS)

DRAWN_TRIAL, GRID, DOTS = 0, 241, 200
"""Trial whose predictions are kept as a curve, points of the curve, and training rows shown with it."""


@final
class Unit(Piece):
    """Some methods of one family on some trials with one law of noise."""

    suite: ClassVar[str] = "cubic"

    @property
    def cost(self) -> float:
        """A rough measure of the work, to begin with the largest."""
        return len(self.trials) * EFFORT.get(self.family, 1)

    @property
    def settings(self) -> dict[str, Any]:
        """The budget of the networks."""
        return asdict(_setup(self.epochs).budget)


class Outcome(NamedTuple):
    """The records of a method and its curve, where the trial that is drawn is among them."""

    records: list[Record]
    curve: Curve | None = None


def network() -> nn.Module:
    """The base network of the cubic experiment: two hidden layers of 64 with ReLU."""
    layers = [nn.Linear(1, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)]
    return nn.Sequential(*layers)


def trial(noise: str, number: int) -> Trial:
    """Rows of one trial; they depend on the noise and the trial's number only."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"cubic {noise} {number}".encode()))
    train = cubic(TRAIN_ROWS, noise, SEEN, generator=generator)
    test = cubic(TEST_ROWS, noise, ASKED, generator=generator)
    return Trial((train.x, train.y), (test.x, test.y), 1.0, held_out_rows(TRAIN_ROWS, generator))


def run(unit: Unit) -> Iterator[Outcome]:
    """What comes of a unit, method by method; what fails is tried again method by method, trial by trial."""
    return sheltered(unit, _run, lambda record: Outcome([record]))


def _run(unit: Unit) -> Iterator[Outcome]:
    trials = [trial(unit.noise, number) for number in unit.trials]
    for method, fitted in fit_family(unit.family, unit.methods, _setup(unit.epochs), trials, unit.seeds):
        records = [_judged(unit, method, fitted, place, own) for place, own in enumerate(trials)]
        drawn = unit.trials.index(DRAWN_TRIAL) if DRAWN_TRIAL in unit.trials else None
        yield Outcome(records, None if drawn is None else _curve(unit.noise, method, fitted, drawn, trials[drawn]))


def _setup(epochs: int | None) -> Setup:
    """How networks are built and trained; other `epochs` are those of our own heads too, which have their own else."""
    if epochs is None:
        return Setup(network, BUDGET, SETTINGS)
    heads = {method: {"epochs": epochs} for method in ("splitpoint_default", "splitpoint_conformal")}
    return Setup(network, replace(BUDGET, epochs=epochs), SETTINGS | heads)


def _judged(unit: Unit, method: str, fitted: Fitted, place: int, own: Trial) -> Record:
    inputs, target = own.test
    prediction, timing = fitted.predict(place, inputs)
    seen = inputs[:, 0].abs() <= SEEN
    found = measured(Evidence(prediction[seen], target[seen], own.scale, ood=prediction[~seen]), recorded=True)
    return unit.record(method, unit.trials[place], metrics=found, timing=timing, settings=fitted.settings)


def _curve(noise: str, method: str, fitted: Fitted, place: int, own: Trial) -> Curve:
    grid = torch.linspace(-ASKED, ASKED, GRID)
    prediction, _ = fitted.predict(place, grid[:, None])
    down, up = true_half_widths(noise, prediction.levels[-1])
    truth = grid**3

    def numbers(values: Tensor) -> list[float]:
        return [round(value, 6) for value in values.flatten().tolist()]

    return Curve(
        noise,
        method,
        x=numbers(grid),
        mean=numbers(prediction.mean),
        lower=numbers(prediction.lower),
        upper=numbers(prediction.upper),
        epistemic=prediction.epistemic.flatten().tolist(),
        truth=numbers(truth),
        true_lower=numbers(truth - down),
        true_upper=numbers(truth + up),
        train_x=numbers(own.train[0][:DOTS]),
        train_y=numbers(own.train[1][:DOTS]),
    )


true_half_widths = cache(side_quantiles)
"""`side_quantiles`, simulated once for every law and level."""


def units(
    noises: Sequence[str], methods: Sequence[str], trials: int, seed: int, epochs: int | None, done: Done
) -> list[Unit]:
    """The work that is left: for every family the trials that some of its methods lack."""
    return [
        unit
        for noise in noises
        for unit in left_of(Unit("paper", noise, "cubic", "", (), (), seed, epochs), FAMILIES, methods, trials, done)
    ]
