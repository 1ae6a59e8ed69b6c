"""Fitting the methods of an experiment, with base networks that are trained once for all who stand on them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from typing import Any

from torch import Tensor, nn

from splitpoint.baselines import METHODS
from splitpoint.baselines.plain import train_plain
from splitpoint.baselines.settings import Settings
from splitpoint.bench.protocols import Budget, Rows, Trial
from splitpoint.prediction import RegressionPrediction
from splitpoint.predictor import Predictor
from splitpoint.regression import RegressionPredictor, SplitPointRegressor
from splitpoint.surgery import Factory

FAMILIES: dict[str, tuple[str, ...]] = {
    "mc_dropout": ("mc_dropout",),
    "deep_ensemble": ("deep_ensemble",),
    "evidential_regression": ("evidential_regression",),
    "evidential_quantile": ("evidential_quantile",),
    "sqr_oc": ("sqr_oc",),
    "gaussian": ("gaussian",),
    "post_hoc": ("laplace", "splitpoint", "splitpoint_calibrated", "splitpoint_default"),
    "held_out": ("conformal", "splitpoint_conformal"),
}
"""Methods by what they are trained on together: alone, on base networks of all training rows, or on base networks of
the training rows that do not serve calibration."""

OUR_METHODS = ("splitpoint_default", "splitpoint_conformal")
"""Methods with heads of our recipe."""

EFFORT = {"deep_ensemble": 5, "post_hoc": 3, "held_out": 3}
"""Rough work of the families in networks of one trial, where it is not one."""


@dataclass(frozen=True)
class Setup:
    """What the methods of an experiment have in common.

    Attributes:
        factory: builds the untrained base network.
        budget: how every network is trained.
        changes: settings of methods that differ from their defaults, by method.
    """

    factory: Factory
    budget: Budget
    changes: Mapping[str, dict[str, Any]] = field(default_factory=dict)

    def changed(self, method: str) -> dict[str, Any]:
        """The settings of a method that differ."""
        return self.changes.get(method, {})

    def described(self, method: str) -> dict[str, Any]:
        """Settings of the networks for the records."""
        return asdict(self.budget) | self.changed(method)

    def with_heads(self, recipe: SplitPointRegressor, **more: Any) -> dict[str, Any]:
        """Settings of base networks and of the heads on them for the records."""
        heads = {name: value for name, value in asdict(recipe).items() if value is not None}
        return asdict(self.budget) | more | {"heads": heads}


@dataclass(frozen=True)
class Fitted:
    """Predictors of one method, one for each trial, the settings they had and the CPU seconds they took together."""

    predictors: Sequence[Predictor[Any]]
    settings: dict[str, Any]
    seconds: float

    def parts(self, sizes: Iterable[int]) -> Iterator[Fitted]:
        """The predictors in runs of the given sizes, each with its share of the time."""
        rest = iter(self.predictors)
        for size in sizes:
            share = self.seconds * size / len(self.predictors)
            yield replace(self, predictors=list(islice(rest, size)), seconds=share)

    def predict(self, place: int, inputs: Tensor) -> tuple[RegressionPrediction, dict[str, float]]:
        """The prediction of one trial's predictor, and what it cost to fit and to predict.

        What a method does once, such as solving for the quantiles of a law, is done before the clock starts.
        """
        self.predictors[place].predict(inputs[:2])
        began = time.process_time()
        prediction = self.predictors[place].predict(inputs)
        seconds = time.process_time() - began
        assert isinstance(prediction, RegressionPrediction)
        timing = {
            "train_cpu_s": self.seconds / len(self.predictors),
            "infer_us_per_row": 1e6 * seconds / len(prediction),
        }
        return prediction, timing


Fits = Iterator[tuple[str, Fitted]]


def fit_family(
    family: str, methods: Sequence[str], setup: Setup, trials: Sequence[Trial], seeds: Sequence[int]
) -> Fits:
    """Fit methods of one of the `FAMILIES`, each with its trials as one stack; yields them one by one."""
    fit = {"post_hoc": _post_hoc, "held_out": _held_out}.get(family, _trained)
    return fit(methods, setup, trials, seeds)


def _trained(methods: Sequence[str], setup: Setup, trials: Sequence[Trial], seeds: Sequence[int]) -> Fits:
    (name,) = methods
    method = METHODS[name](**asdict(setup.budget), **setup.changed(name))
    began = time.process_time()
    predictors = method.fit_many([setup.factory] * len(trials), [t.train for t in trials], seeds=seeds, progress=False)
    yield name, Fitted(predictors, setup.described(name), time.process_time() - began)


def _post_hoc(methods: Sequence[str], setup: Setup, trials: Sequence[Trial], seeds: Sequence[int]) -> Fits:
    data = [trial.train for trial in trials]
    networks, cost = base_networks(setup, data, seeds)
    if "laplace" in methods:
        began = time.process_time()
        predictors = METHODS["laplace"](**setup.changed("laplace")).fit_many(
            networks, data, seeds=seeds, progress=False
        )
        yield "laplace", Fitted(predictors, setup.described("laplace"), cost + time.process_time() - began)
    if {"splitpoint", "splitpoint_calibrated"} & set(methods):
        heads = SplitPointRegressor.paper(**setup.described("splitpoint"))
        settings = setup.with_heads(heads)
        began = time.process_time()
        plain = heads.fit_many(networks, data, seeds=seeds, progress=False)
        seconds = cost + time.process_time() - began
        if "splitpoint" in methods:
            yield "splitpoint", Fitted(plain, settings, seconds)
        if "splitpoint_calibrated" in methods:
            calibrated = [consistent(uq) for uq in plain]
            yield "splitpoint_calibrated", Fitted(calibrated, setup.with_heads(calibrated[0].method), seconds)
    if "splitpoint_default" in methods:
        began = time.process_time()
        recipe = SplitPointRegressor(**setup.changed("splitpoint_default"))
        ours = recipe.fit_many(networks, data, seeds=seeds, progress=False)
        yield "splitpoint_default", Fitted(ours, setup.with_heads(recipe), cost + time.process_time() - began)


def _held_out(methods: Sequence[str], setup: Setup, trials: Sequence[Trial], seeds: Sequence[int]) -> Fits:
    data, calibration = [trial.proper for trial in trials], [trial.calibration for trial in trials]
    networks, cost = base_networks(setup, data, seeds)
    classes: dict[str, Any] = {"conformal": METHODS["conformal"], "splitpoint_conformal": SplitPointRegressor}
    for name in methods:
        began = time.process_time()
        method = classes[name](**setup.changed(name))
        predictors = method.fit_many(networks, data, calibration=calibration, seeds=seeds, progress=False)
        held = {"calibration_rows": len(calibration[0][0])}
        ours = isinstance(method, SplitPointRegressor)
        settings = setup.with_heads(method, **held) if ours else setup.described(name) | held
        yield name, Fitted(predictors, settings, cost + time.process_time() - began)


def base_networks(setup: Setup, data: Sequence[Rows], seeds: Sequence[int]) -> tuple[list[nn.Module], float]:
    """Base networks, one for each data set, and the CPU seconds of all of them."""
    began = time.process_time()
    networks = train_plain(Settings(**asdict(setup.budget)), [setup.factory] * len(data), data, seeds, progress=False)
    return networks, time.process_time() - began


def consistent(predictor: RegressionPredictor) -> RegressionPredictor:
    """The same heads with intervals that the consistency factors calibrate."""
    method = replace(predictor.method, interval="consistent")
    return RegressionPredictor(method, predictor.tap, predictor.layout, predictor.inputs, predictor.own_tensors())
