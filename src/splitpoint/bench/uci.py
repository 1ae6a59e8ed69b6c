"""The UCI experiments: every method on the same splits, architecture and budget, all trials of a cell as one stack."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from torch import nn

from splitpoint.baselines import METHODS
from splitpoint.baselines.plain import train_plain
from splitpoint.baselines.settings import Settings
from splitpoint.bench.measures import measured
from splitpoint.bench.protocols import Budget, Protocol, Trial, protocol_of
from splitpoint.bench.record import Cell, Record, versions
from splitpoint.prediction import RegressionPrediction
from splitpoint.predictor import Predictor
from splitpoint.regression import RegressionPredictor, SplitPointRegressor

HIDDEN = 50

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

UCI_METHODS = tuple(method for methods in FAMILIES.values() for method in methods)

AUTHORS_SETTINGS: dict[str, dict[str, Any]] = {
    "evidential_regression": {"regulariser": 0.0},
    "sqr_oc": {"tau": "outputs"},
}
"""Settings that the published code uses in place of the published ones."""


@dataclass(frozen=True)
class Unit:
    """A piece of work: some methods of one family on some trials of one data set."""

    protocol: str
    noise: str
    dataset: str
    family: str
    methods: tuple[str, ...]
    trials: tuple[int, ...]
    seed: int = 0
    epochs: int | None = None

    @property
    def label(self) -> str:
        """The unit in words."""
        return f"{self.dataset} {self.family}" + ("" if self.noise == "clean" else f" {self.noise}")

    @property
    def cost(self) -> float:
        """A rough measure of the work, to begin with the largest."""
        rows = {"protein": 45730, "naval": 11934, "power": 9568, "kin8nm": 8192}.get(self.dataset, 1000)
        return rows * len(self.trials) * {"deep_ensemble": 5, "post_hoc": 3, "held_out": 3}.get(self.family, 1)


@dataclass(frozen=True)
class Fitted:
    """Predictors of one method, one for each trial, the settings they had and the CPU seconds they took together."""

    predictors: Sequence[Predictor[Any]]
    settings: dict[str, Any]
    seconds: float


def run(unit: Unit) -> Iterator[list[Record]]:
    """The records of a unit, one list for each method; what fails is tried again method by method, trial by trial."""
    try:
        yield from list(_run(unit))
    except Exception as error:
        if len(unit.methods) > 1:
            parts = [replace(unit, methods=(method,)) for method in unit.methods]
        elif len(unit.trials) > 1:
            parts = [replace(unit, trials=(trial,)) for trial in unit.trials]
        else:
            yield [_record(unit, unit.methods[0], unit.trials[0], error=f"{type(error).__name__}: {error}")]
            return
        for part in parts:
            yield from run(part)


def _run(unit: Unit) -> Iterator[list[Record]]:
    protocol = protocol_of(unit.protocol)
    table = protocol.table(unit.dataset)
    trials = [protocol.trial(table, unit.noise, number) for number in unit.trials]
    seeds = [1000 * unit.seed + number for number in unit.trials]
    budget = protocol.budget(unit.dataset)
    budget = budget if unit.epochs is None else replace(budget, epochs=unit.epochs)
    fits = {"post_hoc": _post_hoc, "held_out": _held_out}.get(unit.family, _trained)
    for method, fitted in fits(unit, protocol, trials, seeds, budget):
        yield [_judged(unit, method, fitted, place, trial, protocol) for place, trial in enumerate(trials)]


def factory_for(features: int) -> Callable[[], nn.Module]:
    """The base network of the UCI experiments: one hidden layer of 50 with ReLU."""
    return lambda: nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


Fits = Iterator[tuple[str, Fitted]]


def _trained(unit: Unit, protocol: Protocol, trials: Sequence[Trial], seeds: Sequence[int], budget: Budget) -> Fits:
    (name,) = unit.methods
    extra = AUTHORS_SETTINGS.get(name, {}) if protocol.name == "authors" else {}
    method = METHODS[name](**asdict(budget), **extra)
    factory = factory_for(trials[0].train[0].shape[1])
    began = time.process_time()
    predictors = method.fit_many([factory] * len(trials), [t.train for t in trials], seeds=seeds, progress=False)
    yield name, Fitted(predictors, asdict(budget) | extra, time.process_time() - began)


def _post_hoc(unit: Unit, _: Protocol, trials: Sequence[Trial], seeds: Sequence[int], budget: Budget) -> Fits:
    data = [trial.train for trial in trials]
    networks, cost = _base_networks(data, seeds, budget)
    if "laplace" in unit.methods:
        began = time.process_time()
        predictors = METHODS["laplace"]().fit_many(networks, data, seeds=seeds, progress=False)
        yield "laplace", Fitted(predictors, asdict(budget), cost + time.process_time() - began)
    if {"splitpoint", "splitpoint_calibrated"} & set(unit.methods):
        heads = SplitPointRegressor.paper(**asdict(budget))
        began = time.process_time()
        plain = heads.fit_many(networks, data, seeds=seeds, progress=False)
        seconds = cost + time.process_time() - began
        if "splitpoint" in unit.methods:
            yield "splitpoint", Fitted(plain, asdict(budget), seconds)
        if "splitpoint_calibrated" in unit.methods:
            yield "splitpoint_calibrated", Fitted([_consistent(uq) for uq in plain], asdict(budget), seconds)
    if "splitpoint_default" in unit.methods:
        began = time.process_time()
        ours = SplitPointRegressor().fit_many(networks, data, seeds=seeds, progress=False)
        yield "splitpoint_default", Fitted(ours, asdict(budget), cost + time.process_time() - began)


def _held_out(unit: Unit, _: Protocol, trials: Sequence[Trial], seeds: Sequence[int], budget: Budget) -> Fits:
    data, calibration = [trial.proper for trial in trials], [trial.calibration for trial in trials]
    networks, cost = _base_networks(data, seeds, budget)
    methods: dict[str, Any] = {"conformal": METHODS["conformal"](), "splitpoint_conformal": SplitPointRegressor()}
    for name in unit.methods:
        began = time.process_time()
        predictors = methods[name].fit_many(networks, data, calibration=calibration, seeds=seeds, progress=False)
        yield name, Fitted(predictors, asdict(budget), cost + time.process_time() - began)


def _base_networks(data: Sequence[Any], seeds: Sequence[int], budget: Budget) -> tuple[list[nn.Module], float]:
    """Base networks, one for each trial, and the CPU seconds of all of them."""
    began = time.process_time()
    factory = factory_for(data[0][0].shape[1])
    networks = train_plain(Settings(**asdict(budget)), [factory] * len(data), data, seeds, progress=False)
    return networks, time.process_time() - began


def _consistent(predictor: RegressionPredictor) -> RegressionPredictor:
    """The same heads with the paper's calibrated interval."""
    method = replace(predictor.method, interval="consistent")
    return RegressionPredictor(method, predictor.tap, predictor.layout, predictor.inputs, predictor.own_tensors())


def _judged(unit: Unit, method: str, fitted: Fitted, place: int, trial: Trial, protocol: Protocol) -> Record:
    began = time.process_time()
    prediction = fitted.predictors[place].predict(trial.test[0])
    seconds = time.process_time() - began
    assert isinstance(prediction, RegressionPrediction)
    timing = {
        "train_cpu_s": fitted.seconds / len(fitted.predictors),
        "infer_us_per_row": 1e6 * seconds / len(prediction),
    }
    metrics = measured(method, prediction, trial.test[1], trial.scale, authors=protocol.name == "authors")
    return _record(unit, method, unit.trials[place], metrics=metrics, timing=timing, settings=fitted.settings)


def _record(unit: Unit, method: str, trial: int, **parts: Any) -> Record:
    cell = Cell("uci", unit.protocol, unit.noise, unit.dataset, method)
    return Record(*cell, trial=trial, stack=unit.trials, seed=unit.seed, versions=versions(), **parts)


def units(
    protocol: str,
    noises: Sequence[str],
    datasets: Sequence[str],
    methods: Sequence[str],
    trials: int,
    seed: int,
    epochs: int | None,
    done: Callable[[Cell, int], set[int]],
) -> list[Unit]:
    """The work that is left: for every family the trials that some of its methods lack."""
    found = []
    for noise in noises:
        for dataset in datasets:
            for family, members in FAMILIES.items():
                lacking: dict[tuple[int, ...], list[str]] = {}
                for method in members:
                    have = done(Cell("uci", protocol, noise, dataset, method), seed) if method in methods else None
                    left = () if have is None else tuple(t for t in range(trials) if t not in have)
                    if left:
                        lacking.setdefault(left, []).append(method)
                found += [
                    Unit(protocol, noise, dataset, family, tuple(own), left, seed, epochs)
                    for left, own in lacking.items()
                ]
    return found
