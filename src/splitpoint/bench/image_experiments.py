"""What the image suites share: options, networks, what fitted methods predict, and when published figures compare.

A post-hoc method is fitted and tested on recorded rows of its network, on the CPU; a method with networks of its own on
images, on the device of the networks.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from splitpoint.bench.architectures import Normalise
from splitpoint.bench.image_rows import Recorder, Rows
from splitpoint.bench.image_trials import ImageTrial, Sweep, batches, image_trial, under_attack
from splitpoint.bench.networks import NETWORKS, comes_trained, factory, schedule_of
from splitpoint.bench.record import Record
from splitpoint.bench.suite import Fit, Option, Request, Work
from splitpoint.bench.training import PAPER, Loss, Schedule, Training, cross_entropy
from splitpoint.bench.workers import check_device
from splitpoint.classification import SplitPointClassifier
from splitpoint.datasets.images import IMAGE_SETS, ImageSet
from splitpoint.errors import SettingsError
from splitpoint.metrics import Evidence
from splitpoint.networks import Factory
from splitpoint.prediction import ClassificationPrediction

MOST_ROWS = 100_000
"""Training images whose rows are read by post-hoc methods, which hold them in memory."""

FLAG_QUANTILE = 0.95
"""Of the epistemic score of calibration images: the threshold above which an image is flagged."""

PUBLISHED_TRAINED = ("imagenet",)
"""Data sets whose published networks were trained by others than the authors."""


# What can be asked for


def image_options(datasets: Sequence[str]) -> tuple[Option, ...]:
    """The options of a suite that takes these data sets where none are named."""
    return (
        Option("datasets", "data sets", lambda: [name for name, entry in IMAGE_SETS.items() if entry.ood], datasets),
        Option("network", "base networks", lambda: list(NETWORKS), ("lenet",)),
        Option("ood", "sets out of distribution, where not those of the paper", lambda: list(IMAGE_SETS), None),
        Option("protocol", "how long networks are trained", lambda: ("short", "paper"), "short", many=False),
        *machine_options(),
    )


def machine_options() -> tuple[Option, ...]:
    """Where trained networks are kept, and what they run on."""
    return (
        Option(
            "cache", "folder of trained networks and rows (default: cache in OUT)", default=None, kind=Path, many=False
        ),
        Option("device", "where networks run, such as cuda, cuda:1 or mps", default="cpu", many=False),
        Option("threads", "CPU threads of every process", default=1, kind=int, many=False),
    )


def image_cells(request: Request, groups: Callable[[str], Mapping[str, Sequence[str]]]) -> list[Work]:
    """The work of a request: `groups` gives the methods to run on a network by what they are trained on together."""
    check_device(request["device"])
    ready = [name for name in request["network"] if NETWORKS[name].trained]
    if ready and request.epochs is not None:
        raise SettingsError(
            f"Expected no epochs with networks that come trained ({', '.join(ready)}), but got {request.epochs}."
        )
    found = []
    for dataset in request["datasets"]:
        ood = tuple(request["ood"] or IMAGE_SETS[dataset].ood)
        if dataset in ood:
            raise SettingsError(f"Expected ood to name other sets than {dataset} itself, but got {', '.join(ood)}.")
        for network in request["network"]:
            _check_data(dataset, network, ood)
            options = {"ood": ood, "cache": request["cache"] or request.folder / "cache", "device": request["device"]}
            place = {"protocol": request["protocol"], "dataset": dataset, "network": network, "options": options}
            found += [
                request.work(**place, group=group, methods=tuple(methods)) for group, methods in groups(network).items()
            ]
    return found


def _check_data(dataset: str, network: str, ood: Sequence[str]) -> None:
    """An error now where images are missing, or a trained network does not take them."""
    trained = NETWORKS[network].trained
    train = image_trial(dataset, ood, 0, trained=trained).train
    if trained:
        factory(network, train.classes, train.shape)()


def schedule(work: Work) -> Schedule:
    """How networks of some work are trained."""
    return schedule_of(work.protocol, work.dataset, work.network, work.epochs)


def settings(work: Work) -> dict[str, Any]:
    """What the records tell of networks and images."""
    found: dict[str, Any] = {} if NETWORKS[work.network].trained else asdict(schedule(work))
    found["ood"] = " + ".join(work.options["ood"])
    device = work.options["device"]
    return found if device == "cpu" else found | {"device": device}


def trial(work: Work, number: int, **changes: Any) -> ImageTrial:
    """The images of a trial; `changes` as in `image_trial`."""
    trained = NETWORKS[work.network].trained
    return image_trial(work.dataset, work.options["ood"], number, seed=work.seed, trained=trained, **changes)


# Networks


def network_factory(work: Work, data: ImageTrial) -> Factory:
    """Builds the network of some work."""
    return factory(work.network, data.train.classes, data.train.shape)


def training(work: Work, data: ImageTrial, seed: int, steps: Schedule, loss: Loss = cross_entropy) -> Training:
    """The training of a network of some work."""
    build, folder, key = network_factory(work, data), work.options["cache"] / "networks", {"network": work.network}
    return Training(build, data.train, steps, seed, folder, key, loss=loss, device=work.options["device"])


class Base(NamedTuple):
    """A trained base network on its device, the CPU seconds of its training, and where its rows are recorded."""

    network: nn.Module
    seconds: float
    recorder: Recorder

    def rows(self, name: str, images: ImageSet) -> Rows:
        """The rows of a part of a trial."""
        return self.recorder.rows(name, images.digest(), batches(images), len(images))


def base_network(work: Work, data: ImageTrial) -> Base:
    """The base network of a trial: from the cache, trained now, or one that comes trained."""
    spec = NETWORKS[work.network]
    if spec.trained:
        network, seconds = network_factory(work, data)().to(work.options["device"]), 0.0
    else:
        once = training(work, data, work.seeds[0], schedule(work))
        network, seconds = once.network(progress=False), once.seconds()
    return Base(network, seconds, Recorder(network, spec.stages, work.options["cache"] / "rows"))


def member_seeds(seed: int, count: int) -> list[int]:
    """Seeds of the networks of an ensemble; the last one is the base network, which others may be training now."""
    return [*(zlib.crc32(f"{seed} member {member}".encode()) for member in range(1, count)), seed]


def training_images(data: ImageTrial) -> ImageSet:
    """The training images whose rows post-hoc methods learn from: all of them, or as many as fit in memory."""
    count = len(data.train)
    if count <= MOST_ROWS:
        return data.train
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    return data.train.at(order[:MOST_ROWS].sort().values)


def head_epochs(method: Any) -> dict[str, Any]:
    """What the records tell of split-point heads, where their number of epochs is fixed."""
    fixed = isinstance(method, SplitPointClassifier) and method.epochs is not None
    return {"head_epochs": method.epochs} if fixed else {}


# What fitted methods see


@dataclass(frozen=True)
class Inputs:
    """The images of a trial in the form that a predictor takes, images or recorded rows.

    Attributes:
        predict: from a predictor and one of the parts to the prediction, on the CPU.
        sweep: test images under attack, of which `stream` has the form to predict on, batch by batch.
        stream: see `sweep`.
        calibration: calibration images; `ood` and `natural` as in `ImageTrial`.
        ood: out of distribution.
        natural: natural adversarial.
        seconds_per_row: of what came before the predictor, such as a network whose rows were recorded.
    """

    predict: Callable[[Any, Any], ClassificationPrediction]
    sweep: Sweep
    stream: Iterable[Any]
    calibration: Any
    ood: Any
    natural: Any
    seconds_per_row: float = 0.0


def row_inputs(base: Base, data: ImageTrial) -> Inputs:
    """The images of a trial as rows of its base network."""
    sweep = Sweep(data.test, base.network, attack_unit(base.network))
    attacked = base.recorder.rows("attacked", sweep.digest(), sweep, len(sweep))
    return Inputs(
        lambda predictor, rows: rows.predicted_by(predictor),
        sweep,
        list(attacked.split(part.stop - part.start for _, part in sweep.parts())),
        base.rows("calibration", data.calibration),
        base.rows("ood", data.ood),
        None if data.natural is None else base.rows("natural", data.natural),
        attacked.seconds / len(sweep),
    )


def image_inputs(data: ImageTrial, attacked: nn.Module, unit: Tensor) -> Inputs:
    """The images of a trial as they are, for predictors that run a network themselves; `attacked` is the target."""
    sweep = Sweep(data.test, attacked, unit)
    natural = None if data.natural is None else batches(data.natural)
    calibration, ood = batches(data.calibration), batches(data.ood)
    return Inputs(lambda predictor, part: predictor.predict(part), sweep, sweep, calibration, ood, natural)


def attack_unit(network: nn.Module) -> Tensor:
    """Pixel values (C, 1, 1) of a step of 1 in the normalised input of a network."""
    return next(part.std for part in network.modules() if isinstance(part, Normalise))


def evidence_of(fit: Fit) -> tuple[Evidence, float]:
    """All that a fitted method predicts on a trial, and the CPU seconds of a prediction for one image."""
    (predictor,), inputs = fit.predictors, fit.context
    seen = under_attack(lambda part: inputs.predict(predictor, part), inputs.sweep, inputs.stream)
    began = time.process_time()
    ood = inputs.predict(predictor, inputs.ood)
    seconds = time.process_time() - began
    calibration = inputs.predict(predictor, inputs.calibration)
    evidence = Evidence(
        seen.clean,
        inputs.sweep.labels,
        ood=ood,
        adversarial=seen.attacked if inputs.natural is None else inputs.predict(predictor, inputs.natural),
        attack=seen.curves,
        threshold=float(calibration.epistemic.double().quantile(FLAG_QUANTILE)),
    )
    return evidence, seconds / len(ood) + inputs.seconds_per_row


# Published figures


def obstacles(record: Record) -> tuple[str, ...]:
    """All reasons why a record leaves the published question open; none where it answers it."""
    spec = NETWORKS.get(record.network)
    trained = comes_trained(record)
    epochs = record.settings.get("epochs", PAPER.epochs if record.protocol == "paper" else 0)
    few, other = epochs < PAPER.epochs and not trained, record.dataset in PUBLISHED_TRAINED and not trained
    found = (
        f"the network is {spec.differs} than the published one" if spec is not None and spec.differs else "",
        "the network is trained for fewer epochs than the published one" if few else "",
        "the published network was trained elsewhere" if other else "",
        _other_ood(record),
        "half of the published test images serve calibration" if trained else "",
    )
    return tuple(filter(None, found))


def _other_ood(record: Record) -> str:
    """What is out of distribution in place of the published sets, where both are known; their order says nothing."""
    ours = [name.strip() for name in record.settings.get("ood", "").split("+") if name.strip()]
    published = IMAGE_SETS[record.dataset].ood if record.dataset in IMAGE_SETS else ()
    if not ours or not published or set(ours) == set(published):
        return ""
    titles, theirs = (" + ".join(_title(name) for name in names) for names in (ours, published))
    alone = " alone" if set(ours) < set(published) else ""
    return f"{titles}{alone} in place of {theirs} is out of distribution"


def _title(name: str) -> str:
    return IMAGE_SETS[name].title if name in IMAGE_SETS else name.replace("_", " ")
