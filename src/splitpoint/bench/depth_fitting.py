"""Fitting methods on the scenes of a trial: those on one base network, and those with networks of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from splitpoint.baselines import METHODS
from splitpoint.baselines.trained import NetworkBaseline, NetworkPredictor
from splitpoint.batches import placement
from splitpoint.bench.depth_controls import STATISTICS, WIDTHS, Widths
from splitpoint.bench.depth_evidence import Predict
from splitpoint.bench.depth_experiments import (
    MEMBERS,
    NETWORK,
    PAPER_HEADS,
    PROTOCOLS,
    ROWS_PER_CALL,
    factory,
    method_of,
    schedule,
    settings,
)
from splitpoint.bench.depth_trials import DepthTrial, batches
from splitpoint.bench.fitting import POST_HOC
from splitpoint.bench.image_experiments import member_seeds
from splitpoint.bench.map_training import MapTraining
from splitpoint.bench.suite import Fit, Work
from splitpoint.datasets.scenes import SceneSet
from splitpoint.networks import NetworkTraining, Prepared, fold_units, prepared_plain
from splitpoint.prediction import RegressionPrediction
from splitpoint.predictor import Predictor

NOTHING: tuple[Any, ...] = (None,)
"""Stands for the predictors of controls, which are asked in another way."""


@dataclass(frozen=True)
class Answering:
    """How a fitted method is asked.

    Attributes:
        predict: from images to the prediction; None for a statistic of the image.
        attacked: what an attack on it looks at, from images to depths.
        figures: what is known before it is asked anything, such as what its networks cost, by name of the metric.
    """

    predict: Predict | None
    attacked: nn.Module
    figures: Mapping[str, float]


class Depths(nn.Module):
    """What an attack looks at where a method has networks of its own: its prediction."""

    def __init__(self, predictor: NetworkPredictor) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) -> (N, 1, H, W)."""
        answer, like = self.predictor.live_answer(images)
        prediction = answer.prediction(self.predictor.layout, like, None)
        assert isinstance(prediction, RegressionPrediction)
        return prediction.mean


def fit(works: Sequence[Work], data: Sequence[DepthTrial]) -> Iterator[Fit]:
    """Every method of some work on one trial."""
    (work,), (scenes,) = works, data
    return (_post_hoc if work.group == POST_HOC else _trained)(work, scenes)


def _training(work: Work, data: DepthTrial, prepared: Prepared, seed: int, loss: str, about: object) -> MapTraining:
    own = work.options
    key = {"network": f"{NETWORK}{own['width']}", "loss": loss, "about": repr(about)}
    return MapTraining(prepared, seed, own["cache"] / "networks", key, own["device"], data.parts, schedule(work))


def _post_hoc(work: Work, data: DepthTrial) -> Iterator[Fit]:
    prepared = prepared_plain(factory(work), data.train, NetworkTraining(batch_size=ROWS_PER_CALL))
    once = _training(work, data, prepared, work.seeds[0], "squared_error", "")
    base = once.network(progress=False)
    fold_units(base.get_submodule(prepared.trainer.architecture.last), **prepared.trainer.targets[0])
    trained, epoch = _seconds([once])
    shared = {"train_s_per_epoch": epoch, "overfitting": overfitting(base, data)}
    for name in work.methods:
        began = time.process_time()
        if name in STATISTICS:
            yield Fit(name, NOTHING, settings(work), 0.0, Answering(None, base, {}))
        elif name in WIDTHS:
            answering = Answering(Widths.of(base, WIDTHS[name], data), base, shared)
            yield Fit(name, NOTHING, settings(work), trained + time.process_time() - began, answering)
        else:
            found = _on_base(name, work, base, data)
            seconds = trained + time.process_time() - began
            own: dict[str, Any] = {"checks": {check.name: [check.verdict, check.value] for check in found.checks}}
            if name in PAPER_HEADS:
                own["heads"] = dict(PROTOCOLS[work.protocol].heads)
            figures = shared | {"warnings": float(sum(check.verdict == "warn" for check in found.checks))}
            yield Fit(name, [found], settings(work) | own, seconds, Answering(predicting(found), base, figures))


def _on_base(name: str, work: Work, base: nn.Module, data: DepthTrial) -> Predictor[Any]:
    """A method on the base network, with a threshold by the calibration images."""
    held_out = [data.calibration] if "regression" in METHODS[name].held_out else None
    method = method_of(name, work)
    (found,) = method.fit_many([base], [data.train], calibration=held_out, seeds=work.seeds, progress=False)
    fitted: Predictor[Any] = found.set_threshold(data.calibration)
    return fitted


def _trained(work: Work, data: DepthTrial) -> Iterator[Fit]:
    (name,) = work.methods
    method = method_of(name, work)
    like = MEMBERS.get(name, name)
    teacher: NetworkBaseline = method if like == name else method_of(like, work)
    prepared = teacher.prepared(factory(work), data.train)
    seeds = member_seeds(work.seeds[0], method._members)
    trainings = [_training(work, data, prepared, seed, like, teacher) for seed in seeds]
    networks = [once.network(progress=False) for once in trainings]
    trained, epoch = _seconds(trainings)
    began = time.process_time()
    predictor = method.assemble(networks, data.train, pattern=factory(work), progress=False)
    predictor.set_threshold(data.calibration)
    seconds = trained + time.process_time() - began
    answering = Answering(predicting(predictor), Depths(predictor), {"train_s_per_epoch": epoch})
    yield Fit(name, [predictor], settings(work), seconds, answering)


@torch.no_grad()
def overfitting(network: nn.Module, data: DepthTrial) -> float:
    """Root mean squared error on calibration images over that on training images."""

    def error(scenes: SceneSet) -> float:
        device = placement(network)[0]
        squares = [(network(images.to(device)).cpu() - target).square().flatten() for images, target in batches(scenes)]
        return float(torch.cat(squares).nanmean().sqrt())

    return error(data.calibration) / error(data.train)


def predicting(predictor: Predictor[Any]) -> Predict:
    """A predictor as a function of images on any device, which answers on the CPU."""

    @torch.no_grad()
    def predict(images: Tensor) -> Any:
        return predictor(images.to(next(predictor.base.parameters()).device)).to("cpu")

    return predict


def _seconds(trainings: Sequence[MapTraining]) -> tuple[float, float]:
    """CPU seconds of all trainings together, and of one epoch of each."""
    logs = [[epoch["cpu_seconds"] for epoch in once.log()] for once in trainings]
    return sum(map(sum, logs)), sum(sum(log) / max(len(log), 1) for log in logs)
