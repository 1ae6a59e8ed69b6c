"""Fitting the methods of a suite, with base networks that are trained once for all who stand on them, and judging them.

What a method is fitted on follows from the table of methods: it starts from a factory and is trained alone, or from
base networks; those have seen all training rows, or where the method needs calibration rows, all but these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from typing import Any

from torch import nn

from splitpoint.baselines import METHODS
from splitpoint.bench.suite import Fit, Result, Trial, Work
from splitpoint.metrics import Evidence, measured
from splitpoint.networks import Factory, NetworkTraining, train_networks
from splitpoint.prediction import Prediction
from splitpoint.predictor import Predictor
from splitpoint.regression import RegressionPredictor, SplitPointRegressor
from splitpoint.tasks import Task

POST_HOC, CALIBRATED = "post_hoc", "calibrated"
"""Groups of methods on base networks of all training rows, and of those that do not serve calibration."""


@dataclass(frozen=True)
class Methods:
    """The methods of a suite: all in the table that can do its task, as `Suite.fit`.

    Attributes:
        task: what is learned.
        network: from a trial to a function that builds the untrained base network.
        training: settings of the training of some work's networks.
        changes: settings of methods that differ from their defaults in some work, by id.
        without: ids of methods that are left out, and why.
    """

    task: Task
    network: Callable[[Trial], Factory]
    training: Callable[[Work], dict[str, Any]]
    changes: Callable[[Work], Mapping[str, Mapping[str, Any]]]
    without: Mapping[str, str] = field(default_factory=dict)

    def names(self) -> list[str]:
        """Ids in the order of the table."""
        return [name for name, recipe in METHODS.items() if self.task.name in recipe.tasks and name not in self.without]

    def groups(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Methods by what they are trained on together; one that trains its own networks is a group of its own."""
        found: dict[str, tuple[str, ...]] = {}
        for name in names:
            recipe = METHODS[name]
            shared = CALIBRATED if self.task.name in recipe.held_out else POST_HOC
            group = name if recipe.start == "factory" else shared
            found[group] = (*found.get(group, ()), name)
        return found

    def effort(self, work: Work) -> int:
        """Rough size of some work on one trial, in networks to train."""
        first = METHODS[work.methods[0]]
        return getattr(first(), "members", 1) if first.start == "factory" else min(3, len(work.methods))

    def __call__(self, works: Sequence[Work], trials: Sequence[Trial]) -> Iterator[Fit]:
        """Fit every method of one group, all trials as one stack."""
        first = METHODS[works[0].methods[0]]
        training, changes = self.training(works[0]), self.changes(works[0])
        base = Base.of(works, trials, self.network(trials[0]), calibrated=self.task.name in first.held_out)
        if first.start == "model":
            base = base.trained(self.task, training)
        for name in works[0].methods:
            own = dict(changes.get(name, {}))
            method = METHODS[name](**(training | own if first.start == "factory" else own))._of_task(self.task)
            predictors, seconds = base.fit(method)
            yield Fit(name, predictors, training | base.settings | described(method, own), seconds)


def described(method: Any, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a method for the records: those of split-point heads all, of others what differs."""
    if not isinstance(method, SplitPointRegressor):
        return dict(changes)
    return {"heads": {name: value for name, value in asdict(method).items() if value is not None}}


@dataclass(frozen=True)
class Base:
    """What methods are fitted on, one of each for every trial.

    Attributes:
        starts: trained networks, or functions that build some.
        data: training rows.
        calibration: calibration rows, for methods that need them.
        seeds: of initial weights and row order.
        seconds: CPU seconds of the training of the networks.
        known: fits that were made on it, with their CPU seconds.
    """

    starts: Sequence[nn.Module | Factory]
    data: Sequence[Any]
    calibration: Sequence[Any] | None
    seeds: Sequence[int]
    seconds: float = 0.0
    known: dict[Any, tuple[list[Predictor[Any]], float]] = field(default_factory=dict)

    @staticmethod
    def of(works: Sequence[Work], trials: Sequence[Trial], network: Factory, *, calibrated: bool = False) -> Base:
        """Factories and rows of trials, those for calibration apart where they are needed."""
        return Base(
            [network] * len(trials),
            [trial.proper if calibrated else trial.train for trial in trials],
            [trial.calibration for trial in trials] if calibrated else None,
            list(chain.from_iterable(work.seeds for work in works)),
        )

    def trained(self, task: Task, settings: Mapping[str, Any]) -> Base:
        """The same with networks that were trained as one stack."""
        began = time.process_time()
        networks = train_networks(
            self.starts, self.data, self.seeds, NetworkTraining(**settings), decide=lambda *_: task, progress=False
        )
        return replace(self, starts=networks, seconds=time.process_time() - began, known={})

    @property
    def settings(self) -> dict[str, Any]:
        """What the records tell of the rows."""
        return {} if self.calibration is None else {"calibration_rows": len(self.calibration[0][0])}

    def fit(self, method: Any) -> tuple[Sequence[Predictor[Any]], float]:
        """Predictors of a method and the CPU seconds of all of them, networks included.

        Split-point methods that differ in how they read intervals from the same heads share a fit.
        """
        heads = isinstance(method, SplitPointRegressor) and self.calibration is None
        fitted = replace(method, interval="split") if heads and method.interval in ("auto", "consistent") else method
        if fitted not in self.known:
            began = time.process_time()
            rest: dict[str, Any] = {"calibration": self.calibration, "seeds": self.seeds, "progress": False}
            predictors = fitted.fit_many(self.starts, self.data, **rest)
            self.known[fitted] = predictors, self.seconds + time.process_time() - began
        predictors, seconds = self.known[fitted]
        return [
            consistent(uq) for uq in predictors
        ] if heads and method.interval == "consistent" else predictors, seconds


def consistent(predictor: Any) -> RegressionPredictor:
    """The same split-point heads with intervals that the consistency factors calibrate."""
    method = replace(predictor.method, interval="consistent")
    return RegressionPredictor(method, predictor.tap, predictor.layout, predictor.inputs, predictor.own_tensors())


def predicted(predictor: Predictor[Any], inputs: Any) -> tuple[Any, float]:
    """A prediction and its CPU seconds per row.

    What a method does once, such as solving for the quantiles of a law, is done before the clock starts.
    """
    predictor.predict(inputs[:2])
    began = time.process_time()
    prediction: Prediction = predictor.predict(inputs)
    return prediction, (time.process_time() - began) / len(prediction)


def judge_rows(work: Work, fit: Fit, place: int, trial: Trial) -> Result:  # noqa: ARG001
    """All metrics of a predictor on the test rows of a trial, as `Suite.judge`."""
    inputs, target = trial.test
    prediction, seconds = predicted(fit.predictors[place], inputs)
    shifted = None if trial.shifted is None else fit.predictors[place].predict(trial.shifted)
    return Result(measured(Evidence(prediction, target, trial.scale, ood=shifted), recorded=True), seconds)
