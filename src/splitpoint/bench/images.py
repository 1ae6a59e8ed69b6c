"""The image experiments: every method on the same pictures and networks, post-hoc ones on rows recorded once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn

from splitpoint.baselines import METHODS
from splitpoint.baselines.trained import NetworkPredictor
from splitpoint.bench.judging import Views, measured, sheet, under_attack
from splitpoint.bench.networks import NETWORKS, Normalise, factory
from splitpoint.bench.pictures import TABLE_STRENGTH, Sweep, Trial, trial_of
from splitpoint.bench.piece import Done, Piece, left_of, sheltered
from splitpoint.bench.record import Record
from splitpoint.bench.rows import Recorder, whole_row
from splitpoint.bench.training import PAPER, Schedule, Training, cross_entropy
from splitpoint.classification import ClassificationPredictor, SplitPointClassifier
from splitpoint.datasets.images import Batches
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

UNMIRRORED = ("mnist", "svhn", "notmnist")
"""Data sets of digits and letters, which are not mirrored."""

SHORT_HEAD_EPOCHS = 60
"""Of heads with the paper's recipe, which has 300, where networks have a short schedule too."""

THRESHOLD_QUANTILE = 0.95
SOME_ROWS = 512


@dataclass(frozen=True, kw_only=True)
class PicturePiece(Piece):
    """Some methods of one family on one trial; `dataset` names data set and network, as in ``mnist/lenet``.

    Attributes:
        outside: names of the sets out of distribution.
        cache: folder of checkpoints and recorded rows.
    """

    outside: tuple[str, ...]
    cache: Path

    @property
    def pictures(self) -> str:
        """Name of the data set."""
        return self.dataset.partition("/")[0]

    @property
    def network(self) -> str:
        """Name of the network."""
        return self.dataset.partition("/")[2]

    @property
    def schedule(self) -> Schedule:
        """How networks are trained."""
        return schedule_of(self.protocol, self.pictures, self.network, self.epochs)

    def trial(self, share: float | None = None) -> Trial:
        """The pictures; `share` of the training pictures serve calibration, a tenth by default."""
        trained = NETWORKS[self.network].trained
        given = {} if share is None else {"share": share}
        return trial_of(self.pictures, self.outside, self.trials[0], trained=trained, **given)


@final
class Unit(PicturePiece):
    """A piece of the experiments."""

    suite: ClassVar[str] = "images"

    @property
    def cost(self) -> float:
        """Networks to train."""
        return float(NETWORKS_OF[self.family])


class Outcome(NamedTuple):
    """The record of a method, and what a page draws of it, where the trial is the drawn one."""

    records: list[Record]
    sheet: dict[str, Any] | None = None


def schedule_of(protocol: str, pictures: str, network: str, epochs: int | None = None) -> Schedule:
    """How a network is trained: as the paper states, or shorter; digits and letters are never mirrored."""
    own = NETWORKS[network].schedule
    chosen = PAPER if protocol == "paper" or own is None else own
    if pictures in UNMIRRORED:
        chosen = replace(chosen, augment=False)
    return chosen if epochs is None else replace(chosen, epochs=epochs)


def run(unit: Unit) -> Iterator[Outcome]:
    """What comes of a unit, method by method; what fails is tried again method by method."""
    return sheltered(unit, _run, lambda record: Outcome([record]))


def _run(unit: Unit) -> Iterator[Outcome]:
    fit = _post_hoc if unit.family == "post_hoc" else _trained
    trial = unit.trial()
    for subject in fit(unit, trial):
        yield subject.judged(unit, trial)


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

    def judged(self, unit: PicturePiece, trial: Trial) -> Outcome:
        """The record, and the sheet of the trial that is drawn."""
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
        number = unit.trials[0]
        record = unit.record(self.method, number, metrics=measured(views), timing=timing, settings=dict(self.settings))
        if number != DRAWN_TRIAL:
            return Outcome([record])
        shown = (trial.test, trial.outside) if self.method == DRAWN_METHOD else (None, None)
        return Outcome([record], sheet(unit.protocol, unit.dataset, self.method, views, *shown))


# Methods on one base network


class Base(NamedTuple):
    """A trained base network, the CPU seconds of its training, and where its rows are recorded."""

    network: nn.Module
    seconds: float
    recorder: Recorder


def base_network(unit: PicturePiece, trial: Trial) -> Base:
    """The base network of a trial: from the cache, trained now, or one that comes trained."""
    spec = NETWORKS[unit.network]
    build = factory(unit.network, trial.train.classes, trial.train.shape)
    rows = unit.cache / "rows"
    if spec.trained:
        network = build()
        return Base(network, 0.0, Recorder(network, spec.stages, rows / f"{unit.network}-{unit.pictures}"))
    training = _training(unit, trial, build, unit.seeds[0])
    network = training.network(progress=False)
    seconds = sum(epoch["cpu_seconds"] for epoch in training.log())
    return Base(network, seconds, Recorder(network, spec.stages, rows / training.name))


def _training(unit: PicturePiece, trial: Trial, build: Any, seed: int, loss: Any = cross_entropy) -> Training:
    return Training(
        build, trial.train, unit.schedule, seed, unit.cache / "networks", {"network": unit.network}, loss=loss
    )


def staged(base: Base, trial: Trial, half: str) -> Stage:
    """The pictures of a trial as recorded rows; `half` names them where the network serves several trials."""
    record = base.recorder.rows
    sweep = Sweep(trial.test, base.network, attack_unit(base.network))
    stream = record(f"attacked{half}", sweep, len(sweep))
    natural = trial.natural
    return Stage(
        sweep,
        sweep.slices(stream.rows),
        record(f"calibration{half}", Batches(trial.calibration), len(trial.calibration)).rows,
        record(f"outside{half}", Batches(trial.outside), len(trial.outside)).rows,
        None if natural is None else record("natural", Batches(natural), len(natural)).rows,
        stream.seconds / len(sweep),
    )


def attack_unit(network: nn.Module) -> Tensor:
    """Pixel values (C, 1, 1) of a step of 1 in the normalised input of a network."""
    return next(part.std for part in network.modules() if isinstance(part, Normalise))


def _post_hoc(unit: PicturePiece, trial: Trial) -> Iterator[Subject]:
    base = base_network(unit, trial)
    half = f"-{unit.trials[0]}-{'-'.join(unit.outside)}"
    stage = staged(base, trial, half)
    train = base.recorder.rows("train", Batches(trial.train), len(trial.train))
    data = train.rows, trial.train.labels
    calibration = stage.calibration, trial.calibration.labels
    known: dict[SplitPointClassifier, tuple[ClassificationPredictor, float]] = {}
    for name in unit.methods:
        began = time.process_time()
        method, calibrated = recipe(name, unit.protocol)
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
            predictor = method.fit(base.recorder.tail, data, calibration=given, seed=unit.seeds[0], progress=False)
            seconds = time.process_time() - began
        yield Subject(name, predictor, stage, base.seconds + train.seconds + seconds, settings_of(unit, method))


def recipe(name: str, protocol: str) -> tuple[Any, bool]:
    """The settings of a post-hoc method, and whether it is given calibration pictures."""
    if name.startswith("splitpoint"):
        return heads_of(name, protocol), name == "splitpoint_layers" or name.endswith("calibrated")
    if name in ("oc", "ddu"):
        return METHODS[name](temperature="nll"), True
    return METHODS[name](), name == "temperature_scaling"


def heads_of(name: str, protocol: str) -> SplitPointClassifier:
    """The settings of split-point heads: the paper's, ours, or ours on the features of several layers."""
    if name in ("splitpoint", "splitpoint_calibrated"):
        return SplitPointClassifier.paper(**({} if protocol == "paper" else {"epochs": SHORT_HEAD_EPOCHS}))
    return SplitPointClassifier(layer=whole_row if name == "splitpoint_layers" else None)


def uncalibrated(predictor: ClassificationPredictor) -> ClassificationPredictor:
    """The same without what it learned from calibration pictures."""
    kept = {
        name: tensor
        for name, tensor in predictor.own_tensors().items()
        if not name.startswith(("calibrator.", "correction."))
    }
    return ClassificationPredictor(predictor.method, predictor.tap, predictor.layout, predictor.inputs, kept)


def settings_of(unit: PicturePiece, method: Any = None) -> dict[str, Any]:
    """What the records tell of networks, pictures and heads that have a fixed number of epochs."""
    found: dict[str, Any] = {"outside": " + ".join(unit.outside)}
    if isinstance(method, SplitPointClassifier) and method.epochs is not None:
        found["head_epochs"] = method.epochs
    return found if NETWORKS[unit.network].trained else asdict(unit.schedule) | found


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
    loss = method._loss if name == "evidential_classification" else cross_entropy
    trainings = [_training(unit, trial, build, seed, loss) for seed in member_seeds(unit.seeds[0], NETWORKS_OF[name])]
    networks = [training.network(progress=False) for training in trainings]
    seconds = sum(epoch["cpu_seconds"] for training in trainings for epoch in training.log())
    began = time.process_time()
    some = next(iter(Batches(trial.train, SOME_ROWS)))
    calibration = Batches(trial.calibration)
    predictor = method.assemble(networks, some, calibration=calibration, progress=False)
    seconds += time.process_time() - began
    stage = on_pictures(trial, LogProbabilities(predictor), attack_unit(networks[0]))
    yield Subject(name, predictor, stage, seconds, settings_of(unit))


def on_pictures(trial: Trial, attacked: nn.Module, unit: Tensor) -> Stage:
    """The pictures of a trial as they are, for predictors that run a network themselves; `attacked` is the target."""
    sweep = Sweep(trial.test, attacked, unit)
    natural = None if trial.natural is None else Batches(trial.natural)
    return Stage(sweep, sweep, Batches(trial.calibration), Batches(trial.outside), natural)


def member_seeds(seed: int, count: int) -> list[int]:
    """Seeds of the networks of an ensemble; the last one is the base network, which others may be training now."""
    return [seed + 1_000_000 * member for member in reversed(range(count))]


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
    return [replace(unit, trials=(trial,)) for unit in found for trial in unit.trials]
