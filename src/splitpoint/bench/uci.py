"""The UCI experiments: every method on the same splits, architecture and budget, all trials of a cell as one stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from typing import Any, ClassVar, final

from torch import nn

from splitpoint.bench.families import EFFORT, FAMILIES, OUR_METHODS, Fitted, Setup, fit_family
from splitpoint.bench.piece import Done, Piece, left_of, sheltered
from splitpoint.bench.protocols import Budget, Trial, as_published, protocol_of
from splitpoint.bench.record import Record
from splitpoint.metrics import Evidence, measured

HIDDEN = 50

UCI_METHODS = tuple(method for methods in FAMILIES.values() for method in methods)

AUTHORS_SETTINGS: dict[str, dict[str, Any]] = {
    "evidential_regression": {"regulariser": 0.0},
    "sqr_oc": {"tau": "outputs"},
}
"""Settings that the published code uses in place of the published ones."""

ROWS = {"protein": 45730, "naval": 11934, "power": 9568, "kin8nm": 8192}
"""Rows of the large sets."""


RANDOM_INSIDE = ("mc_dropout", "sqr_oc")
"""Families whose networks draw random numbers as they train: from one stream for a stack, so that laws of noise which
are asked for together or apart must not share one."""


@final
class Unit(Piece):
    """Some methods of one family on some trials of one data set."""

    suite: ClassVar[str] = "uci"

    @property
    def cost(self) -> float:
        """A rough measure of the work, to begin with the largest."""
        return ROWS.get(self.dataset, 1000) * len(self.trials) * EFFORT.get(self.family, 1)

    @property
    def settings(self) -> dict[str, Any]:
        """The budget of the networks."""
        return asdict(budget_of(self))


@dataclass(frozen=True)
class Bundle:
    """Units that differ in the law of noise alone, trained as one stack, which takes less time than one after another.

    Their trials have equally many rows, so that an epoch has the same steps for all of them.
    """

    units: tuple[Unit, ...]

    @property
    def label(self) -> str:
        """The units in words."""
        return ", ".join(unit.label for unit in self.units)

    @property
    def cost(self) -> float:
        """See `Unit`."""
        return sum(unit.cost for unit in self.units)


def run(bundle: Bundle) -> Iterator[list[Record]]:
    """The records of a bundle, one list for each method.

    What fails is tried again unit by unit, then method by method, then trial by trial.
    """
    try:
        yield from list(_run(bundle.units))
    except Exception:
        for unit in bundle.units:
            yield from sheltered(unit, lambda part: _run((part,)), lambda record: [record])


def _run(units: tuple[Unit, ...]) -> Iterator[list[Record]]:
    first, trials = units[0], [trials_of(unit) for unit in units]
    together, seeds = list(chain(*trials)), list(chain(*(unit.seeds for unit in units)))
    setup = setup_of(first, together[0].train[0].shape[1])
    for method, fitted in fit_family(first.family, first.methods, setup, together, seeds):
        parts = zip(units, fitted.parts(map(len, trials)), trials, strict=True)
        yield [record for unit, part, own in parts for record in judged(unit, method, part, own)]


def trials_of(piece: Piece, share: float | None = None) -> list[Trial]:
    """The rows of every trial of a piece of work on a UCI set; see `Protocol.trial` for the share."""
    protocol = protocol_of(piece.protocol)
    table = protocol.table(piece.dataset)
    return [protocol.trial(table, piece.noise, number, share) for number in piece.trials]


def setup_of(piece: Piece, features: int) -> Setup:
    """How the networks of a piece of work on a UCI set are built and trained; given epochs hold for heads too."""
    changes = AUTHORS_SETTINGS if piece.protocol == "authors" else {}
    given = {} if piece.epochs is None else {"epochs": piece.epochs}
    return Setup(factory_for(features), budget_of(piece), changes | dict.fromkeys(OUR_METHODS, given))


def budget_of(piece: Piece) -> Budget:
    """How networks of a piece of work on a UCI set are trained."""
    budget = protocol_of(piece.protocol).budget(piece.dataset)
    return budget if piece.epochs is None else replace(budget, epochs=piece.epochs)


def factory_for(features: int) -> Callable[[], nn.Module]:
    """The base network of the UCI experiments: one hidden layer of 50 with ReLU."""
    return lambda: nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


def judged(piece: Piece, method: str, fitted: Fitted, trials: Sequence[Trial]) -> list[Record]:
    """The records of a method, judged on the test rows of every trial."""
    records = []
    for place, (number, trial) in enumerate(zip(piece.trials, trials, strict=True)):
        prediction, timing = fitted.predict(place, trial.test[0])
        if piece.protocol == "authors":
            prediction = as_published(method, prediction)
        metrics = measured(Evidence(prediction, trial.test[1], trial.scale), recorded=True)
        records.append(piece.record(method, number, metrics=metrics, timing=timing, settings=fitted.settings))
    return records


def bundles(
    protocol: str,
    noises: Sequence[str],
    datasets: Sequence[str],
    methods: Sequence[str],
    trials: int,
    seed: int,
    epochs: int | None,
    done: Done,
) -> list[Bundle]:
    """The work that is left: for every family the trials that some of its methods lack, all laws of noise at once."""
    alike: dict[tuple[Any, ...], list[Unit]] = {}
    for noise in noises:
        for dataset in datasets:
            whole = Unit(protocol, noise, dataset, "", (), (), seed, epochs)
            for unit in left_of(whole, FAMILIES, methods, trials, done):
                shape = protocol_of(protocol).copies(noise), unit.family, unit.methods, unit.trials
                apart = noise if unit.family in RANDOM_INSIDE else None
                alike.setdefault((dataset, *shape, apart), []).append(unit)
    return [Bundle(tuple(units)) for units in alike.values()]
