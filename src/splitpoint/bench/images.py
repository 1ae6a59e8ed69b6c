"""The image experiments: every method on the same pictures and networks, post-hoc ones on rows recorded once."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn

from splitpoint.baselines import METHODS
from splitpoint.baselines.trained import NetworkPredictor
from splitpoint.bench.architectures import Normalise
from splitpoint.bench.judging import Views, measured, sheet, under_attack
from splitpoint.bench.networks import NETWORKS, factory
from splitpoint.bench.picture_piece import PicturePiece
from splitpoint.bench.pictures import TABLE_STRENGTH, Sweep, Trial, batches, trial_of
from splitpoint.bench.piece import Done, left_of, sheltered, single_trials
from splitpoint.bench.record import Record
from splitpoint.bench.rows import Recorded, Recorder, whole_row
from splitpoint.bench.training import Schedule, Training, cross_entropy
from splitpoint.classification import ClassificationPredictor, SplitPointClassifier
from splitpoint.datasets.images import ImageSet
from splitpoint.predictor import Predictor

FAMILIES: dict[str, tuple[str, ...]] = {
    "post_hoc": (
        "softmax",
        "energy",
        "temperature_scaling",
        "oc",
        "ddu",
        "laplace",
        "splitpoint",
        "splitpoint_calibrated",
        "splitpoint_default",
        "splitpoint_default_calibrated",
        "splitpoint_layers",
    ),
    "deep_ensemble": ("deep_ensemble",),
    "evidential_classification": ("evidential_classification",),
}
"""Methods by what they stand on: one base network, or networks of their own."""

IMAGE_METHODS = tuple(method for methods in FAMILIES.values() for method in methods)

NETWORKS_OF = {"post_hoc": 1, "deep_ensemble": 5, "evidential_classification": 1}
"""Networks that a family trains."""

DRAWN_TRIAL, DRAWN_METHOD = 0, "splitpoint_default_calibrated"
"""Trial that pages draw, and the method whose most and least certain pictures they show."""

SHORT_HEAD_EPOCHS = 60
"""Of heads with the paper's recipe, which has 300, where networks have a short schedule too."""

PAPER_HEADS: dict[str, dict[str, Any]] = {"imagenet": {"epochs": 100, "learning_rate": 1e-5}}
"""What the paper states for the heads of data sets that differ from the others."""

UNTAUGHT = ("softmax", "energy", "temperature_scaling")
"""Methods that learn nothing from the training pictures, whose rows are not recorded for them."""

MOST_ROWS = 100_000
"""Training pictures whose rows are read by post-hoc methods, which hold them in memory."""

THRESHOLD_QUANTILE = 0.95

EVIDENTIAL_RATES = {"lenet": 0.4}
"""Highest learning rates for the evidential loss in short schedules, by network: its gradients are smaller than those
of the cross entropy, and the usual rate leaves a LeNet far behind. The best of 0.05, 0.1, 0.2 and 0.4 by the accuracy
on pictures held out from training, on MNIST and on Fashion-MNIST."""


@final
class Unit(PicturePiece):
    """A piece of the experiments."""

    suite: ClassVar[str] = "images"

    @property
    def cost(self) -> float:
        """Epochs of networks to train."""
        trained = NETWORKS[self.network].trained
        return 1.0 if trained else float(NETWORKS_OF[self.family] * self.schedule.epochs)


class Outcome(NamedTuple):
    """The record of a method, and what a page draws of it, where the trial is the drawn one."""

    records: list[Record]
    sheet: dict[str, Any] | None = None


def run(unit: Unit) -> Iterator[Outcome]:
    """What comes of a unit, method by method; what fails is tried again method by method."""
    return sheltered(unit, _run, lambda record: Outcome([record]))


def _run(unit: Unit) -> Iterator[Outcome]:
    fit = _post_hoc if unit.family == "post_hoc" else _trained
    trial = unit.trial()
    for subject in fit(unit, trial):
        record, views = subject.judged(unit, trial)
        if unit.trials[0] != DRAWN_TRIAL:
            yield Outcome([record])
        else:
            shown = (trial.test, trial.outside) if subject.method == DRAWN_METHOD else (None, None)
            yield Outcome([record], sheet(unit.protocol, unit.dataset, subject.method, views, *shown))


@dataclass(frozen=True)
class Stage:
    """The pictures of a trial in the form that a predictor takes, pictures or recorded rows.

    Attributes:
        sweep: test pictures under attack, of which `stream` is the form to predict on.
        stream: see `sweep`.
        calibration: see `Trial`; `outside` and `natural` likewise.
        outside: out of distribution.
        natural: natural adversarial.
        seconds_per_row: of what came before the predictor, such as a network whose rows were recorded.
    """

    sweep: Sweep
    stream: Any
    calibration: Any
    outside: Any
    natural: Any
    seconds_per_row: float = 0.0


@dataclass(frozen=True)
class Subject:
    """A fitted method, where it is judged, and what it cost."""

    method: str
    predictor: Predictor[Any]
    stage: Stage
    seconds: float
    settings: Mapping[str, Any]

    def judged(self, unit: PicturePiece, trial: Trial) -> tuple[Record, Views]:
        """The record, and what it was made of."""
        stage, predictor = self.stage, self.predictor
        kept, attack = under_attack(predictor, stage.sweep, stage.stream, trial.test.labels)
        began = time.process_time()
        outside = predictor.predict(stage.outside)
        seconds = time.process_time() - began
        calibration = predictor.predict(stage.calibration)
        views = Views(
            trial.test.labels,
            kept[0.0],
            kept[TABLE_STRENGTH] if stage.natural is None else predictor.predict(stage.natural),
            outside,
            attack,
            float(calibration.epistemic.double().quantile(THRESHOLD_QUANTILE)),
        )
        timing = {
            "train_cpu_s": self.seconds,
            "infer_us_per_row": 1e6 * (seconds / len(outside) + stage.seconds_per_row),
        }
        parts = {"metrics": measured(views), "timing": timing, "settings": dict(self.settings)}
        return unit.record(self.method, unit.trials[0], **parts), views


# Methods on one base network


class Base(NamedTuple):
    """A trained base network on its device, the CPU seconds of its training, and where its rows are recorded."""

    network: nn.Module
    seconds: float
    recorder: Recorder


def base_network(unit: PicturePiece, trial: Trial) -> Base:
    """The base network of a trial: from the cache, trained now, or one that comes trained."""
    spec = NETWORKS[unit.network]
    build = factory(unit.network, trial.train.classes, trial.train.shape)
    if spec.trained:
        network, seconds = build().to(unit.device), 0.0
    else:
        training = _training(unit, trial, build, unit.seeds[0], unit.schedule)
        network = training.network(progress=False)
        seconds = sum(epoch["cpu_seconds"] for epoch in training.log())
    return Base(network, seconds, Recorder(network, spec.stages, unit.cache / "rows"))


def _training(
    unit: PicturePiece, trial: Trial, build: Any, seed: int, schedule: Schedule, loss: Any = cross_entropy
) -> Training:
    folder, key = unit.cache / "networks", {"network": unit.network}
    return Training(build, trial.train, schedule, seed, folder, key, loss=loss, device=unit.device)


def staged(base: Base, trial: Trial) -> Stage:
    """The pictures of a trial as recorded rows."""
    sweep = Sweep(trial.test, base.network, attack_unit(base.network))
    stream = base.recorder.rows("attacked", sweep.digest(), sweep, len(sweep))
    return Stage(
        sweep,
        sweep.slices(stream.rows),
        recorded(base, "calibration", trial.calibration).rows,
        recorded(base, "outside", trial.outside).rows,
        None if trial.natural is None else recorded(base, "natural", trial.natural).rows,
        stream.seconds / len(sweep),
    )


def recorded(base: Base, name: str, pictures: ImageSet) -> Recorded:
    """The rows of a part of a trial."""
    return base.recorder.rows(name, pictures.digest(), batches(pictures), len(pictures))


def attack_unit(network: nn.Module) -> Tensor:
    """Pixel values (C, 1, 1) of a step of 1 in the normalised input of a network."""
    return next(part.std for part in network.modules() if isinstance(part, Normalise))


def _post_hoc(unit: PicturePiece, trial: Trial) -> Iterator[Subject]:
    base = base_network(unit, trial)
    stage = staged(base, trial)
    calibration = stage.calibration, trial.calibration.labels
    data, reading = calibration, 0.0
    if not set(unit.methods) <= set(UNTAUGHT):
        pictures = training_pictures(trial)
        train = recorded(base, "train", pictures)
        data, reading = (train.rows, pictures.labels), train.seconds
    known: dict[SplitPointClassifier, tuple[ClassificationPredictor, float]] = {}
    for name in unit.methods:
        began = time.process_time()
        method, calibrated = recipe(name, unit.protocol, unit.pictures)
        if isinstance(method, SplitPointClassifier):
            if method not in known:
                fitted = method.fit(
                    base.recorder.tail, data, calibration=calibration, seed=unit.seeds[0], progress=False
                )
                known[method] = fitted, time.process_time() - began
            fitted, seconds = known[method]
            predictor: Predictor[Any] = fitted if calibrated else uncalibrated(fitted)
        else:
            given = calibration if calibrated else None
            rows = calibration if name in UNTAUGHT else data
            predictor = method.fit(base.recorder.tail, rows, calibration=given, seed=unit.seeds[0], progress=False)
            seconds = time.process_time() - began
        cost = base.seconds + seconds + (0.0 if name in UNTAUGHT else reading)
        yield Subject(name, predictor, stage, cost, unit.settings | head_epochs(method))


def training_pictures(trial: Trial) -> ImageSet:
    """The training pictures whose rows post-hoc methods learn from: all of them, or as many as fit in memory."""
    count = len(trial.train)
    if count <= MOST_ROWS:
        return trial.train
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return trial.train.at(order[:MOST_ROWS].sort().values)


def recipe(name: str, protocol: str, pictures: str) -> tuple[Any, bool]:
    """The settings of a post-hoc method, and whether it is given calibration pictures."""
    if name.startswith("splitpoint"):
        return heads_of(name, protocol, pictures), name == "splitpoint_layers" or name.endswith("calibrated")
    if name in ("oc", "ddu"):
        return METHODS[name](temperature="nll"), True
    return METHODS[name](), name == "temperature_scaling"


def heads_of(name: str, protocol: str, pictures: str) -> SplitPointClassifier:
    """The settings of split-point heads: the paper's, ours, or ours on the features of several layers."""
    if name in ("splitpoint", "splitpoint_calibrated"):
        changes = PAPER_HEADS.get(pictures, {}) if protocol == "paper" else {"epochs": SHORT_HEAD_EPOCHS}
        return SplitPointClassifier.paper(**changes)
    return SplitPointClassifier(layer=whole_row if name == "splitpoint_layers" else None)


def uncalibrated(predictor: ClassificationPredictor) -> ClassificationPredictor:
    """The same without what it learned from calibration pictures."""
    kept = {
        name: tensor
        for name, tensor in predictor.own_tensors().items()
        if not name.startswith(("calibrator.", "correction."))
    }
    return ClassificationPredictor(predictor.method, predictor.tap, predictor.layout, predictor.inputs, kept)


def head_epochs(method: Any) -> dict[str, Any]:
    """What the records tell of heads, where their number of epochs is fixed."""
    fixed = isinstance(method, SplitPointClassifier) and method.epochs is not None
    return {"head_epochs": method.epochs} if fixed else {}


# Methods with networks of their own


class LogProbabilities(nn.Module):
    """What an attack looks at where a method has networks of its own: the logarithm of its probabilities."""

    def __init__(self, predictor: NetworkPredictor) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, pictures: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, K)."""
        probs: Tensor = self.predictor.live_answer(pictures)[0].probs  # type: ignore[union-attr]
        return probs.clamp(min=torch.finfo(probs.dtype).tiny).log()


def _trained(unit: PicturePiece, trial: Trial) -> Iterator[Subject]:
    (name,) = unit.methods
    method: Any = METHODS[name](task="classification", temperature="nll" if name == "deep_ensemble" else None)
    build = factory(unit.network, trial.train.classes, trial.train.shape)
    loss, schedule = cross_entropy, unit.schedule
    if name == "evidential_classification":
        loss, schedule = method._loss, evidential_schedule(unit)
    seeds = member_seeds(unit.seeds[0], NETWORKS_OF[name])
    trainings = [_training(unit, trial, build, seed, schedule, loss) for seed in seeds]
    networks = [training.network(progress=False) for training in trainings]
    seconds = sum(epoch["cpu_seconds"] for training in trainings for epoch in training.log())
    began = time.process_time()
    some = next(iter(batches(trial.train)))
    calibration = batches(trial.calibration)
    predictor = method.assemble(networks, some, calibration=calibration, progress=False)
    seconds += time.process_time() - began
    stage = on_pictures(trial, LogProbabilities(predictor), attack_unit(networks[0]))
    yield Subject(name, predictor, stage, seconds, unit.settings | asdict(schedule))


def evidential_schedule(unit: PicturePiece) -> Schedule:
    """How an evidential network is trained: with a rate of its own where a short schedule has one."""
    rate = EVIDENTIAL_RATES.get(unit.network) if unit.protocol == "short" else None
    return unit.schedule if rate is None else replace(unit.schedule, learning_rate=rate)


def on_pictures(trial: Trial, attacked: nn.Module, unit: Tensor) -> Stage:
    """The pictures of a trial as they are, for predictors that run a network themselves; `attacked` is the target."""
    sweep = Sweep(trial.test, attacked, unit)
    natural = None if trial.natural is None else batches(trial.natural)
    return Stage(sweep, sweep, batches(trial.calibration), batches(trial.outside), natural)


def member_seeds(seed: int, count: int) -> list[int]:
    """Seeds of the networks of an ensemble; the last one is the base network, which others may be training now."""
    return [*(zlib.crc32(f"{seed} member {member}".encode()) for member in range(1, count)), seed]


def check(dataset: str, network: str, outside: Sequence[str]) -> None:
    """An error now where pictures are missing, or a trained network does not take them."""
    trial = trial_of(dataset, outside, 0, trained=NETWORKS[network].trained)
    if NETWORKS[network].trained:
        factory(network, trial.train.classes, trial.train.shape)()


def units(wholes: Sequence[Unit], methods: Sequence[str], trials: int, done: Done) -> list[Unit]:
    """The work that is left, trial by trial; networks that come trained serve post-hoc methods only.

    Args:
        wholes: for every data set and network a unit whose family, methods and trials are filled in.
        methods: those that are wanted.
        trials: how many are wanted.
        done: what there is already.
    """
    found = []
    for whole in wholes:
        trained = NETWORKS[whole.network].trained
        families = {"post_hoc": FAMILIES["post_hoc"]} if trained else FAMILIES
        found += left_of(whole, families, methods, trials, done)
    return single_trials(found)
