"""The cubic experiment: a curve with known noise, learned in [-4, 4] and tested in [-6, 6].

Coverage and error are judged where training rows are; the epistemic score by how well it tells the rest from it.
Inputs and targets come in their own units: methods that train networks standardise the targets by themselves.
Published: ``tab:cubic-results``.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from splitpoint.bench.artefacts import Curve
from splitpoint.bench.fitting import Methods, predicted
from splitpoint.bench.protocols import Budget, trial_of
from splitpoint.bench.record import Cell
from splitpoint.bench.suite import Fit, Option, Request, Result, Suite, Trial, Work
from splitpoint.bench.suites import uci
from splitpoint.datasets import NOISE_LAWS
from splitpoint.datasets import cubic as rows
from splitpoint.datasets.cubic import side_quantiles
from splitpoint.metrics import Evidence, measured
from splitpoint.predictor import Predictor
from splitpoint.tasks import Regression

HIDDEN = 64
TRAIN_ROWS, TEST_ROWS = 2000, 1000
LEARNED, TESTED = 4.0, 6.0
"""Reach of the training and of the test inputs."""

BUDGET = Budget(learning_rate=1e-3, batch_size=TRAIN_ROWS, epochs=5000)
SETTINGS: dict[str, dict[str, Any]] = {"sqr_oc": {"certificates": 20}}
"""Settings that the paper states for this experiment and that are not defaults."""

DRAWN_TRIAL, GRID, DOTS = 0, 241, 200
"""Trial whose predictions are kept as a curve, points of the curve, and training rows shown with it."""


def cells(request: Request) -> list[Work]:
    """Every law of noise and group of methods."""
    return [
        request.work(noise=noise, dataset="cubic", group=group, methods=methods)
        for noise in request["noise"]
        for group, methods in RIVALS.groups(request["methods"]).items()
    ]


def settings(work: Work) -> dict[str, Any]:
    """How networks are trained."""
    return asdict(BUDGET if work.epochs is None else replace(BUDGET, epochs=work.epochs))


def changes(work: Work) -> Mapping[str, Mapping[str, Any]]:
    """Settings of the paper for this experiment, and of heads as in the UCI experiments."""
    return SETTINGS | uci.head_settings(settings(work), work.epochs)


def trial(work: Work, number: int) -> Trial:
    """Rows of one trial; they depend on the noise and the trial's number only."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"cubic {work.noise} {number}".encode()))
    train = rows(TRAIN_ROWS, work.noise, LEARNED, generator=generator)
    test = rows(TEST_ROWS, work.noise, TESTED, generator=generator)
    return trial_of((train.x, train.y), (test.x, test.y), generator)


def network() -> nn.Module:
    """Two hidden layers of 64 with ReLU."""
    layers = [nn.Linear(1, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)]
    return nn.Sequential(*layers)


def judge(work: Work, fit: Fit, place: int, own: Trial) -> Result:
    """Metrics on the test rows in the range of the training rows, beside those out of it; a curve of one trial."""
    inputs, target = own.test
    prediction, seconds = predicted(fit.predictors[place], inputs)
    known = inputs[:, 0].abs() <= LEARNED
    evidence = Evidence(prediction[known], target[known], own.scale, ood=prediction[~known])
    drawn = work.trials[place] == DRAWN_TRIAL
    drawing = curve(work.cell(fit.method), fit.predictors[place], own) if drawn else None
    return Result(measured(evidence, recorded=True), seconds, drawing)


def curve(cell: Cell, predictor: Predictor[Any], own: Trial) -> Curve:
    """What a method predicts along the input."""
    grid = torch.linspace(-TESTED, TESTED, GRID)
    prediction, _ = predicted(predictor, grid[:, None])
    down, up = true_half_widths(cell.noise, prediction.levels[-1])
    truth = grid**3

    def numbers(values: Tensor) -> tuple[float, ...]:
        return tuple(round(value, 6) for value in values.flatten().tolist())

    return Curve(
        cell,
        x=numbers(grid),
        mean=numbers(prediction.mean),
        lower=numbers(prediction.lower),
        upper=numbers(prediction.upper),
        epistemic=tuple(prediction.epistemic.flatten().tolist()),
        truth=numbers(truth),
        true_lower=numbers(truth - down),
        true_upper=numbers(truth + up),
        train_x=numbers(own.train[0][:DOTS]),
        train_y=numbers(own.train[1][:DOTS]),
    )


true_half_widths = cache(side_quantiles)
"""`side_quantiles`, simulated once for every law and level."""


def cost(work: Work) -> float:
    """Networks or fits of all trials."""
    return len(work.trials) * RIVALS.effort(work)


RIVALS = Methods(Regression(), lambda _: network, settings, changes, uci.WITHOUT)

CUBIC = Suite(
    name="cubic",
    title="Cubic regression",
    help="a cubic with three kinds of noise, all methods, and curves to draw",
    trials=3,
    options=(
        Option("noise", "law of the noise", lambda: list(NOISE_LAWS)),
        Option("methods", "ids of methods", RIVALS.names),
    ),
    cells=cells,
    settings=settings,
    cost=cost,
    trial=trial,
    fit=RIVALS,
    judge=judge,
)
