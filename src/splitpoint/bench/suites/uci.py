"""The UCI experiments: every method on the same splits, architecture and budget, all trials of a cell as one stack.

Published: ``tab:UCI-results1`` (no added noise), ``tab:UCI-results2`` (log-normal) and ``tab:UCI-results3`` (trimodal).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from torch import nn

from splitpoint.bench.fitting import Methods, predicted
from splitpoint.bench.protocols import NOISES, PROTOCOLS, Budget
from splitpoint.bench.record import Record
from splitpoint.bench.suite import Fit, Option, Request, Result, Suite, Trial, Work
from splitpoint.datasets import TABLES
from splitpoint.metrics import Evidence, measured
from splitpoint.networks import Factory
from splitpoint.tasks import Regression

HIDDEN = 50

AUTHORS_SETTINGS: dict[str, dict[str, Any]] = {
    "evidential_regression": {"regulariser": 0.0},
    "sqr_oc": {"tau": "outputs"},
}
"""Settings that the published code uses in place of the published ones."""

RANDOM_INSIDE = ("mc_dropout", "sqr_oc")
"""Methods whose networks draw random numbers as they train: from one stream for a stack, so that laws of noise which
are asked for together or apart must not share one."""


def cells(request: Request) -> list[Work]:
    """Every law of noise, data set and group of methods; a set that is not there is an error."""
    protocol = PROTOCOLS[request["protocol"]]
    for dataset in request["datasets"]:
        protocol.table(dataset)
    return [
        request.work(protocol=protocol.name, noise=noise, dataset=dataset, group=group, methods=methods)
        for noise in request["noise"]
        for dataset in request["datasets"]
        for group, methods in RIVALS.groups(request["methods"]).items()
    ]


def stack(work: Work) -> tuple[Any, ...]:
    """Laws of noise are trained as one stack, which takes less time than one after another.

    Their trials must have equally many rows, so that an epoch has the same steps for all of them.
    """
    apart = work.noise if work.group in RANDOM_INSIDE else None
    return work.dataset, PROTOCOLS[work.protocol].copies(work.noise), apart


def settings(work: Work) -> dict[str, Any]:
    """How networks are trained."""
    budget = PROTOCOLS[work.protocol].budget(work.dataset)
    return asdict(budget if work.epochs is None else replace(budget, epochs=work.epochs))


def changes(work: Work) -> Mapping[str, Mapping[str, Any]]:
    """Settings of methods that are not their defaults."""
    heads = head_settings(settings(work), work.epochs)
    return heads | (AUTHORS_SETTINGS if work.protocol == "authors" else {})


def head_settings(training: Mapping[str, Any], epochs: int | None) -> dict[str, Mapping[str, Any]]:
    """Heads of the paper's recipe are trained as networks are, ours in their own way but for `epochs`, if given."""
    ours = {} if epochs is None else {"epochs": epochs}
    paper = dict.fromkeys(("splitpoint_paper", "splitpoint_paper_calibrated"), training)
    return paper | dict.fromkeys(("splitpoint", "splitpoint_conformal"), ours)


def trial(work: Work, number: int, share: float | None = None) -> Trial:
    """Rows of one trial; see `Protocol.trial` for the share."""
    protocol = PROTOCOLS[work.protocol]
    return protocol.trial(protocol.table(work.dataset), work.noise, number, share)


def network(own: Trial) -> Factory:
    """One hidden layer of 50 with ReLU."""
    features = own.train[0].shape[1]
    return lambda: nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))


def judge(work: Work, fit: Fit, place: int, own: Trial) -> Result:
    """Metrics on the test rows, of ensembles as the protocol has them."""
    inputs, target = own.test
    prediction, seconds = predicted(fit.predictors[place], inputs)
    prediction = PROTOCOLS[work.protocol].as_published(fit.method, prediction)
    return Result(measured(Evidence(prediction, target, own.scale), recorded=True), seconds)


def cost(work: Work) -> float:
    """Rows of all trials, times networks or fits."""
    return TABLES[work.dataset].rows * len(work.trials) * RIVALS.effort(work)


def obstacles(record: Record) -> tuple[str, ...]:
    """Networks trained for another time, noise of another law, or the other target."""
    usual, found = Budget().epochs, []
    if record.settings.get("epochs", usual) != usual:
        found.append(f"networks are trained for {record.settings['epochs']} epochs in place of {usual}")
    if record.protocol == "paper" and record.noise != "clean":
        found.append("the published tables were made with other noise than the paper states")
    if record.protocol == "paper" and record.dataset in PROTOCOLS["authors"].targets:
        found.append("the published tables predict the second target")
    return tuple(found)


WITHOUT = {
    "oc": "regression has its certificates beside quantiles, as in the published tables: `sqr_oc`",
    "splitpoint_layers": "networks of tables have one or two hidden layers, of which `splitpoint` reads the last",
}
"""Methods that experiments on tables leave out, and why."""

RIVALS = Methods(Regression(), network, settings, changes, WITHOUT)

UCI = Suite(
    name="uci",
    title="UCI regression",
    help="nine UCI regression sets, all methods",
    trials=20,
    options=(
        Option("protocol", "how the experiment is set up", lambda: list(PROTOCOLS), "paper", many=False),
        Option("noise", "law of the noise that is added to the targets", lambda: NOISES, ("clean",)),
        Option("datasets", "names of sets", lambda: list(TABLES)),
        Option("methods", "ids of methods", RIVALS.names),
    ),
    cells=cells,
    settings=settings,
    cost=cost,
    trial=trial,
    fit=RIVALS,
    judge=judge,
    stack=stack,
    obstacles=obstacles,
)
