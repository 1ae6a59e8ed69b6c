"""Fitting methods on the rows of a trial with several modalities: those on one base network, and the others."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from splitpoint.agreement import Agreement
from splitpoint.baselines import METHODS
from splitpoint.baselines.trained import NetworkBaseline
from splitpoint.bench.fitting import POST_HOC
from splitpoint.bench.image_experiments import member_seeds
from splitpoint.bench.modal_evidence import Answer, Said, defective
from splitpoint.bench.modal_experiments import (
    AGREEMENT,
    DEFECTIVE,
    ENSEMBLE,
    PAPER_HEADS,
    PROTOCOLS,
    factory,
    method_of,
    schedule,
    settings,
)
from splitpoint.bench.modal_networks import feature_layers
from splitpoint.bench.modal_paper import PaperHeads, given
from splitpoint.bench.modal_training import ModalTraining
from splitpoint.bench.modal_trials import ModalTrial, Rows
from splitpoint.bench.suite import Fit, Work
from splitpoint.networks import Factory, Prepared
from splitpoint.predictor import Predictor

NOTHING: tuple[Any, ...] = (None,)
"""Stands for the predictor of a trial; methods are asked through the context of the fit."""

PLAIN = "cross_entropy"
"""Loss of the base network and of all members of an ensemble, which the base network is one of."""

Fitted = tuple[str, Answer, dict[str, Any], float]
"""Name of a method, how it is asked, what the records tell of it, and CPU seconds."""


def fit(works: Sequence[Work], data: Sequence[ModalTrial]) -> Iterator[Fit]:
    """Every method of some work on one trial; works share networks and fits where they differ in test rows alone."""
    (work, *_), (rows, *_) = works, data
    for name, answer, about, seconds in (_post_hoc if work.group == POST_HOC else _trained)(work, rows):
        yield Fit(name, NOTHING * len(works), settings(work) | about, seconds, answer)


def _training(work: Work, data: ModalTrial, prepared: Prepared, seed: int, loss: str, about: object) -> ModalTraining:
    own = work.options
    key = {"network": f"{work.network}{own['width']}", "loss": loss, "about": repr(about)}
    place = own["cache"] / "networks"
    rows = data.train, data.validation
    return ModalTraining(prepared, seed, place, key, own["device"], work.dataset, *rows, schedule(work))


def _network(work: Work, data: ModalTrial) -> Factory:
    return factory(work, data.train.shapes, data.classes)


def _trainings(work: Work, data: ModalTrial, teacher: NetworkBaseline, loss: str, count: int) -> list[ModalTraining]:
    """The trainings of the networks of a method; the last one is the base network where the loss is cross-entropy."""
    prepared = teacher.prepared(_network(work, data), data.train.data)
    return [
        _training(work, data, prepared, seed, loss, "" if loss == PLAIN else teacher)
        for seed in member_seeds(work.seeds[0], count)
    ]


def _post_hoc(work: Work, data: ModalTrial) -> Iterator[Fitted]:
    (once,) = _trainings(work, data, method_of("deep_ensemble", work), PLAIN, 1)
    base = once.network(progress=False)
    trained = _seconds([once])
    for name in work.methods:
        began = time.process_time()
        answer = _agreeing(work, base, data) if name == AGREEMENT else _on_base(name, work, base, data)
        about = {"heads": dict(PROTOCOLS[work.protocol].heads)} if name in PAPER_HEADS else {}
        yield name, answer, about, trained + time.process_time() - began


def _on_base(name: str, work: Work, base: nn.Module, data: ModalTrial) -> Answer:
    """A method on the base network."""
    held_out = data.calibration if "classification" in METHODS[name].held_out else None
    seed = work.seeds[0]
    if name in PAPER_HEADS:
        heads = PaperHeads.fit(name, base, data.train, held_out, seed, PROTOCOLS[work.protocol].heads)
        return lambda rows: Said(heads(rows))
    (found,) = method_of(name, work).fit_many([base], [data.train.data], **given(data.train, held_out, seed))
    return predicting(found)


def _agreeing(work: Work, base: nn.Module, data: ModalTrial) -> Answer:
    """Probes on the features of every modality."""
    method = Agreement(branches=feature_layers(data.modalities))
    (found,) = method.fit_many([base], [data.train.data], **given(data.train, data.calibration, work.seeds[0]))

    def answer(rows: Rows) -> Said:
        said = found(*rows.arguments)
        return Said(None, said.conflict, said.blame)

    return answer


def _trained(work: Work, data: ModalTrial) -> Iterator[Fitted]:
    method = method_of(work.group, work)
    trainings = _trainings(work, data, method, PLAIN if work.group == ENSEMBLE else work.group, method._members)
    networks = [once.network(progress=False) for once in trainings]
    trained = _seconds(trainings)
    began = time.process_time()
    predictor = method.assemble(networks, data.train.data, pattern=_network(work, data), progress=False)
    seconds = trained + time.process_time() - began
    for name in work.methods:
        yield name, defective(predictor) if name in DEFECTIVE else predicting(predictor), {}, seconds


def predicting(predictor: Predictor[Any]) -> Answer:
    """A predictor as a function of rows; what it says of conflicts where it compares modalities."""

    def answer(rows: Rows) -> Said:
        said = predictor(*rows.arguments)
        return Said(said, getattr(said, "conflict", None), getattr(said, "blame", None))

    return answer


def _seconds(trainings: Sequence[ModalTraining]) -> float:
    """CPU seconds of all trainings together."""
    return sum(epoch["cpu_seconds"] for once in trainings for epoch in once.log())
