"""Image classification: every method on the same images and networks, post-hoc ones on rows recorded once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from splitpoint.baselines import METHODS
from splitpoint.baselines.splitpoint import SplitPoint
from splitpoint.baselines.trained import NetworkPredictor
from splitpoint.bench.drawings import drawing
from splitpoint.bench.image_experiments import (
    attack_unit,
    base_network,
    evidence_of,
    head_epochs,
    image_cells,
    image_inputs,
    image_options,
    member_seeds,
    obstacles,
    row_inputs,
    schedule,
    settings,
    training,
    training_images,
    trial,
)
from splitpoint.bench.image_rows import LabelledRows, RowFits
from splitpoint.bench.image_trials import ImageTrial, batches
from splitpoint.bench.networks import NETWORKS
from splitpoint.bench.suite import Fit, Option, Request, Result, Suite, Work
from splitpoint.bench.training import Schedule, cross_entropy
from splitpoint.classification import SplitPointClassifier
from splitpoint.metrics import measured

POST_HOC = "post_hoc"
"""Group of the methods that stand on one base network; others train networks of their own."""

LEFT_OUT = ("mc_dropout", "conformal", "rcml")
"""Methods for classifiers that are not run: the paper has no dropout on images and no metric of prediction sets, and
there is one view."""

CALIBRATED: dict[str, dict[str, Any]] = {
    "oc": {"temperature": "nll"},
    "ddu": {"temperature": "nll"},
    "deep_ensemble": {"temperature": "nll"},
    "splitpoint_layers": {},
}
"""Methods that can do without calibration images but are given them here, and the settings with which they use them:
the paper scales the probabilities of its rivals."""

UNTAUGHT = ("softmax", "energy", "temperature_scaling")
"""Methods that learn nothing from the training images, whose rows are not recorded for them."""

PLAIN = ("deep_ensemble",)
"""Methods with networks of their own that are trained as the base network is, which is one of them."""

DRAWN_TRIAL, SHOWN_METHOD = 0, "splitpoint_conformal"
"""Trial that pages draw, and the method whose most and least certain images they show."""

SHORT_HEAD_EPOCHS = 60
"""Of heads with the paper's recipe, which has 300, where networks have a short schedule too."""

PAPER_HEADS: dict[str, dict[str, Any]] = {"imagenet": {"epochs": 100, "learning_rate": 1e-5}}
"""What the paper states for the heads of data sets that differ from the others."""


def image_methods() -> tuple[str, ...]:
    """Methods that classify, by their ids, in the order of the table."""
    return tuple(name for name, recipe in METHODS.items() if "classification" in recipe.tasks and name not in LEFT_OUT)


def groups(methods: Sequence[str] | None, network: str) -> dict[str, list[str]]:
    """Methods to run on a network by what they stand on; None for all that can be."""
    found: dict[str, list[str]] = {}
    for name in image_methods() if methods is None else methods:
        group = POST_HOC if METHODS[name].start == "model" else name
        if group == POST_HOC or not NETWORKS[network].trained:
            found.setdefault(group, []).append(name)
    return found


def cells(request: Request) -> list[Work]:
    """The work of a request; networks that come trained serve post-hoc methods only."""
    asked = request["methods"]
    if asked is not None and all(NETWORKS[name].trained for name in request["network"]):
        allowed = [name for name in image_methods() if METHODS[name].start == "model"]
        Option("methods", "", lambda: allowed).checked(asked)
    return image_cells(request, lambda network: groups(asked, network))


def cost(work: Work) -> float:
    """Epochs of networks to train."""
    if NETWORKS[work.network].trained:
        return 1.0
    networks = 1 if work.group == POST_HOC else method_of(work.group, work)._members
    return float(networks * schedule(work).epochs)


def fit(works: Sequence[Work], data: Sequence[ImageTrial]) -> Iterator[Fit]:
    """Every method of some work on one trial."""
    (work,), (images,) = works, data
    return (_post_hoc if work.group == POST_HOC else _trained)(work, images)


def judge(work: Work, fitted: Fit, place: int, data: ImageTrial) -> Result:
    """Metrics of a fitted method, and what a page draws of it, where the trial is the drawn one."""
    evidence, seconds = evidence_of(fitted)
    drawn = None
    if work.trials[place] == DRAWN_TRIAL:
        shown = data if fitted.method == SHOWN_METHOD else None
        calibrated = calibrates(fitted.method)
        drawn = drawing(IMAGES.cell(work, fitted.method), evidence, calibrated=calibrated, shown=shown)
    return Result(measured(evidence, recorded=True), seconds, drawn)


def calibrates(name: str) -> bool:
    """Whether a method is given calibration images."""
    return name in CALIBRATED or "classification" in METHODS[name].held_out


# Methods on one base network


def _post_hoc(work: Work, data: ImageTrial) -> Iterator[Fit]:
    base = base_network(work, data)
    inputs = row_inputs(base, data)
    calibration = LabelledRows("calibration", inputs.calibration, data.calibration.labels)
    fits = RowFits(base.recorder, calibration, work.seeds[0])
    train, reading = calibration, 0.0
    if not set(work.methods) <= set(UNTAUGHT):
        images = training_images(data)
        train = LabelledRows("train", base.rows("train", images), images.labels)
        reading = train.rows.seconds
    for name in work.methods:
        taught, method = name not in UNTAUGHT, method_of(name, work)
        layers = bool(METHODS[name].preset.get("layers"))
        rows = train if taught else calibration
        predictor, seconds = fits.fit(method, rows, calibrated=calibrates(name), layers=layers)
        seconds += base.seconds + (reading if taught else 0.0)
        yield Fit(name, [predictor], settings(work) | head_epochs(method), seconds, inputs)


def method_of(name: str, work: Work) -> Any:
    """A method with the settings that it has in these experiments; split-point heads as those of a classifier."""
    recipe = METHODS[name]
    if recipe.method is not SplitPoint:
        return recipe(task="classification", **CALIBRATED.get(name, {}))
    if not recipe.preset.get("paper"):
        return SplitPointClassifier()
    changes = PAPER_HEADS.get(work.dataset, {}) if work.protocol == "paper" else {"epochs": SHORT_HEAD_EPOCHS}
    return SplitPointClassifier.paper(**changes)


# Methods with networks of their own


class LogProbabilities(nn.Module):
    """What an attack looks at where a method has networks of its own: the logarithm of its probabilities."""

    def __init__(self, predictor: NetworkPredictor) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, K)."""
        probs: Tensor = self.predictor.live_answer(images)[0].probs  # type: ignore[union-attr]
        return probs.clamp(min=torch.finfo(probs.dtype).tiny).log()


def _trained(work: Work, data: ImageTrial) -> Iterator[Fit]:
    (name,) = work.methods
    method = method_of(name, work)
    steps = evidential_schedule(work) if name == "evidential_classification" else schedule(work)
    loss = cross_entropy if name in PLAIN else method._loss
    seeds = member_seeds(work.seeds[0], method._members)
    trainings = [training(work, data, seed, steps, loss) for seed in seeds]
    networks = [once.network(progress=False) for once in trainings]
    seconds = sum(once.seconds() for once in trainings)
    began = time.process_time()
    some, calibration = next(iter(batches(data.train))), batches(data.calibration)
    predictor = method.assemble(networks, some, calibration=calibration, progress=False)
    seconds += time.process_time() - began
    inputs = image_inputs(data, LogProbabilities(predictor), attack_unit(networks[0]))
    yield Fit(name, [predictor], settings(work) | asdict(steps), seconds, inputs)


def evidential_schedule(work: Work) -> Schedule:
    """How an evidential network is trained: with a rate of its own where its short schedule has one."""
    rate = NETWORKS[work.network].evidential_rate if work.protocol == "short" else None
    return schedule(work) if rate is None else replace(schedule(work), learning_rate=rate)


IMAGES = Suite(
    name="images",
    title="Image classification",
    help="image classifiers: calibration, errors, attacks, out of distribution",
    trials=5,
    options=(
        *image_options(("mnist", "fashion_mnist")),
        Option("methods", "ids of methods, all where none are named", image_methods, default=None),
    ),
    epochs="the networks",
    cells=cells,
    settings=settings,
    fixed=("epochs", "ood"),
    cost=cost,
    trial=trial,
    fit=fit,
    judge=judge,
    one_by_one=lambda _: True,
    obstacles=obstacles,
)
