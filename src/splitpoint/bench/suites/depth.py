"""Depth of every pixel of an image: the paper's U-Net, all rivals on one schedule, and controls that need no method."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from splitpoint.baselines import METHODS
from splitpoint.baselines.trained import NetworkBaseline, NetworkPredictor
from splitpoint.bench.depth_controls import CONTROLS, STATISTICS, WIDTHS, Widths, separations
from splitpoint.bench.depth_evidence import Predict, judged
from splitpoint.bench.depth_trials import STRENGTHS, DepthTrial, depth_trial
from splitpoint.bench.image_experiments import machine_options
from splitpoint.bench.map_drawings import map_drawing
from splitpoint.bench.map_training import MapSchedule, MapTraining
from splitpoint.bench.record import Record
from splitpoint.bench.suite import Fit, Option, Request, Result, Suite, Work
from splitpoint.bench.suites.images import DRAWN_TRIAL, POST_HOC, member_seeds
from splitpoint.bench.unet import DECODER, UNet
from splitpoint.bench.workers import check_device
from splitpoint.datasets.scene_set import Size
from splitpoint.datasets.scenes import SCENES
from splitpoint.errors import SettingsError
from splitpoint.metrics import auroc, ause, measured
from splitpoint.networks import Factory, NetworkTraining, Prepared, fold_units, prepared_plain
from splitpoint.prediction import RegressionPrediction
from splitpoint.predictor import Predictor

NETWORK = "unet"

RIVALS: Mapping[str, Mapping[str, Any]] = {
    "mc_dropout": {"dropout": 0.1, "passes": 5},
    "deep_ensemble": {"members": 5},
    "evidential_regression": {"regulariser": 0.1},
    "evidential_quantile": {},
    "sqr_oc": {"certificates": 100},
    "gaussian": {},
    "conformal": {},
    "splitpoint_paper": {},
    "splitpoint_paper_calibrated": {},
    "splitpoint": {},
    "splitpoint_conformal": {},
    "splitpoint_layers": {"layer": list(DECODER)},
}
"""Methods that are run and the settings of theirs that the paper states, or that name places in the U-Net."""

MEMBERS = {"deep_ensemble": "gaussian"}
"""Methods whose networks are trained as those of another are, one of them being the other's own."""

PAPER_HEADS = ("splitpoint_paper", "splitpoint_paper_calibrated")
PIXEL_BATCH = 32 * 256
"""Rows of a step of heads with the paper's recipe: as many pixels of 32 images as are recorded."""

ROWS_PER_CALL = 32


@dataclass(frozen=True)
class Setting:
    """What a protocol says where no option says otherwise.

    Attributes:
        width: of the U-Net.
        norm: of the U-Net.
        schedule: of all networks.
        heads: settings of heads with the paper's recipe.
        inverse: whether targets are inverse depths, as in the authors' files, and not metres.
        ood: sets out of distribution; empty for those that the paper takes for a data set.
    """

    width: int
    norm: str
    schedule: MapSchedule
    heads: Mapping[str, Any]
    inverse: bool
    ood: tuple[str, ...] = ()


PROTOCOLS: dict[str, Setting] = {
    "short": Setting(
        16,
        "batch",
        MapSchedule(30, 2e-3, 16),
        {"epochs": 40, "batch_size": 1024, "learning_rate": 1e-3},
        inverse=False,
        ood=("camvid", "kitti_road"),
    ),
    "paper": Setting(
        32,
        "none",
        MapSchedule(None, 5e-5, 32, rise=0.0, iterations=60_000),
        {"epochs": 89, "batch_size": PIXEL_BATCH, "learning_rate": 5e-5},
        inverse=True,
    ),
}
"""By name. The heads of "paper" take about 60,000 steps on 21,600 images."""


# What can be asked for


def sizes(text: str) -> Size:
    """Height and width from text such as ``64x80``."""
    parts = text.lower().split("x")
    if len(parts) != 2 or not all(part.isdecimal() and int(part) and int(part) % 16 == 0 for part in parts):
        raise SettingsError(
            f"Expected size as height x width in multiples of 16, such as 64x80, but got {text!r}; change it."
        )
    return int(parts[0]), int(parts[1])


def options() -> tuple[Option, ...]:
    """Options of the suite."""
    return (
        Option("datasets", "data sets", lambda: _scenes(depth=True), ("nyu_depth",)),
        Option("methods", "ids of methods, beside which controls are always run", lambda: list(RIVALS)),
        Option("size", "height x width of all images", default="64x80", many=False),
        Option("width", "channels of the first stage of the U-Net (default: that of the protocol)", default=None,
               kind=int, many=False),
        Option("norm", "of the U-Net, where not that of the protocol", lambda: ("batch", "none"), None, many=False),
        Option("ood", "sets out of distribution, where not those of the protocol", lambda: _scenes(depth=False), None),
        Option("attack_eps", "steps of the attack", default=STRENGTHS, kind=float),
        Option("images", "most training images, and of every part that tests (default: all)", default=None, kind=int,
               many=False),
        Option("protocol", "how long networks are trained", lambda: tuple(PROTOCOLS), "short", many=False),
        *machine_options(),
    )  # fmt: skip


def _scenes(*, depth: bool) -> list[str]:
    """Sets of scenes with or without depths, by name."""
    return [name for name, entry in SCENES.items() if entry.depth == depth]


def cells(request: Request) -> list[Work]:
    """The work of a request: controls stand with the methods on the base network."""
    check_device(request["device"])
    strengths = tuple(sorted({0.0, *map(float, request["attack_eps"])}))
    if not all(0 <= strength <= 1 for strength in strengths):
        raise SettingsError(f"Expected attack_eps from 0 to 1, but got {' '.join(map(str, request['attack_eps']))}.")
    groups: dict[str, tuple[str, ...]] = {}
    for name in request["methods"]:
        group = POST_HOC if METHODS[name].start == "model" else name
        groups[group] = (*groups.get(group, ()), name)
    groups[POST_HOC] = (*groups.get(POST_HOC, ()), *CONTROLS)
    setting = PROTOCOLS[request["protocol"]]
    found = []
    for dataset in request["datasets"]:
        ood = tuple(request["ood"] or setting.ood or SCENES[dataset].ood)
        own = {
            "ood": ood,
            "size": sizes(request["size"]),
            "width": request["width"] or setting.width,
            "norm": request["norm"] or setting.norm,
            "strengths": strengths,
            "images": request["images"],
            "cache": request["cache"] or request.folder / "cache",
            "device": request["device"],
        }
        place = {"protocol": request["protocol"], "dataset": dataset, "network": NETWORK, "options": own}
        found += [request.work(**place, group=group, methods=methods) for group, methods in groups.items()]
        trial(found[-1], 0)  # images that are missing are an error now
    return found


def schedule(work: Work) -> MapSchedule:
    """How the networks of some work are trained, all of them alike."""
    usual = PROTOCOLS[work.protocol].schedule
    return usual if work.epochs is None else replace(usual, epochs=work.epochs, iterations=None)


def settings(work: Work) -> dict[str, Any]:
    """What the records tell of networks and images."""
    own = work.options
    found = asdict(schedule(work)) | {"width": own["width"], "norm": own["norm"], "images": own["images"]}
    found |= {"size": "{}x{}".format(*own["size"]), "ood": " + ".join(own["ood"])}
    return found if own["device"] == "cpu" else found | {"device": own["device"]}


def trial(work: Work, number: int) -> DepthTrial:
    """The scenes of a trial."""
    own, inverse = work.options, PROTOCOLS[work.protocol].inverse
    return depth_trial(
        work.dataset, own["ood"], number, size=own["size"], seed=work.seed, images=own["images"], inverse=inverse
    )


def cost(work: Work) -> float:
    """Networks to train."""
    return 1.0 if work.group == POST_HOC else float(method_of(work.group, work)._members)


# Fitting


def method_of(name: str, work: Work) -> Any:
    """A method with the settings that it has in these experiments."""
    own = {**RIVALS[name], "rows_per_call": ROWS_PER_CALL}
    return METHODS[name](**own, **(PROTOCOLS[work.protocol].heads if name in PAPER_HEADS else {}))


def factory(work: Work) -> Factory:
    """Builds the network of some work."""
    return partial(UNet, work.options["width"], work.options["norm"])


@dataclass(frozen=True)
class Answering:
    """How a fitted method is asked.

    Attributes:
        predict: from images to the prediction; None for a statistic of the image.
        attacked: what an attack on it looks at, from images to depths.
        epoch_seconds: CPU seconds of one pass over the images in the training of its networks.
    """

    predict: Predict | None
    attacked: nn.Module
    epoch_seconds: float


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
    return MapTraining(prepared, data.parts, schedule(work), seed, own["cache"] / "networks", key, own["device"])


def _post_hoc(work: Work, data: DepthTrial) -> Iterator[Fit]:
    device = work.options["device"]
    prepared = prepared_plain(factory(work), data.train, NetworkTraining(batch_size=ROWS_PER_CALL))
    once = _training(work, data, prepared, work.seeds[0], "squared_error", "")
    base = once.network(progress=False)
    fold_units(base.get_submodule(prepared.trainer.architecture.last), **prepared.trainer.targets[0])
    trained, epoch = _seconds([once])
    for name in work.methods:
        began = time.process_time()
        found: Any = base
        if name in STATISTICS:
            yield Fit(name, [found], settings(work), 0.0, Answering(None, base, 0.0))
            continue
        if name in WIDTHS:
            found = Widths.of(base, WIDTHS[name], data, device)
            predict: Predict = found
        else:
            held_out = data.calibration if "regression" in METHODS[name].held_out else None
            found = method_of(name, work).fit(
                base, data.train, calibration=held_out, seed=work.seeds[0], progress=False
            )
            found.set_threshold(data.calibration)
            predict = predicting(found)
        seconds = trained + time.process_time() - began
        yield Fit(name, [found], settings(work), seconds, Answering(predict, base, epoch))


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
    yield Fit(name, [predictor], settings(work), seconds, Answering(predicting(predictor), Depths(predictor), epoch))


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


# Judging


def judge(work: Work, fitted: Fit, place: int, data: DepthTrial) -> Result:
    """Metrics of a fitted method or a control."""
    asked: Answering = fitted.context
    strengths = work.options["strengths"]
    if asked.predict is None:
        return Result(separations(STATISTICS[fitted.method], asked.attacked, data, strengths), 0.0)
    said = judged(asked.predict, asked.attacked, data, strengths)
    metrics = measured(said.evidence, recorded=True)
    known = said.evidence.known.support
    assert isinstance(said.evidence.prediction, RegressionPrediction)
    metrics |= {"ause": ause(said.evidence.prediction, said.evidence.target)}
    metrics |= {f"auroc_ood_{name}": auroc(known, scores.support) for name, scores in said.ood.items()}
    metrics |= {"train_s_per_epoch": asked.epoch_seconds}
    drawing = None
    if work.trials[place] == DRAWN_TRIAL:
        cell, unit = DEPTH.cell(work, fitted.method), data.test.unit
        drawing = map_drawing(cell, said, asked.predict, asked.attacked, data, unit)
    return Result(metrics, said.seconds_per_image, drawing)


def obstacles(record: Record) -> tuple[str, ...]:
    """All reasons why a record leaves the published question open; none where it answers it."""
    paper, own = PROTOCOLS["paper"], record.settings
    ood = " + ".join(SCENES[record.dataset].ood) if record.dataset in SCENES else own.get("ood")
    found = (
        "" if own.get("width") == paper.width and own.get("norm") == paper.norm else "the U-Net is another",
        "" if own.get("iterations") == paper.schedule.iterations else "networks take fewer steps",
        "" if own.get("size") == "128x160" and own.get("images") is None else "images are smaller or fewer",
        "" if PROTOCOLS[record.protocol].inverse else "depths are in metres, the published ones inverse",
        "" if own.get("ood") == ood else "other sets are out of distribution",
    )
    return tuple(filter(None, found))


DEPTH = Suite(
    name="depth",
    title="Monocular depth",
    help="depth maps: intervals and scores of every pixel, attacks, out of distribution",
    trials=5,
    options=options(),
    epochs="the networks",
    cells=cells,
    settings=settings,
    fixed=("epochs", "iterations", "width", "norm", "size", "images", "ood"),
    cost=cost,
    trial=trial,
    fit=fit,
    judge=judge,
    one_by_one=lambda _: True,
    obstacles=obstacles,
)
