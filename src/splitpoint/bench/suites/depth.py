"""Depth of every pixel of an image: the paper's U-Net, all rivals on one schedule, and controls that need no method."""

from __future__ import annotations

from splitpoint.baselines import METHODS
from splitpoint.bench.depth_conformal import image_factor, scaled
from splitpoint.bench.depth_controls import CONTROLS, STATISTICS, separations
from splitpoint.bench.depth_evidence import judged
from splitpoint.bench.depth_experiments import (
    NETWORK,
    PROTOCOLS,
    method_of,
    obstacles,
    options,
    settings,
    sizes,
    trial,
)
from splitpoint.bench.depth_fitting import Answering, fit
from splitpoint.bench.depth_trials import DepthTrial
from splitpoint.bench.fitting import POST_HOC
from splitpoint.bench.map_drawings import map_drawing
from splitpoint.bench.suite import Fit, Request, Result, Suite, Work
from splitpoint.bench.workers import check_device
from splitpoint.datasets.scenes import SCENES
from splitpoint.errors import SettingsError
from splitpoint.metrics import auroc, ause, measured, winkler
from splitpoint.prediction import RegressionPrediction

DRAWN_TRIAL = 0
"""Trial that pages draw."""


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


def cost(work: Work) -> float:
    """Networks to train."""
    return 1.0 if work.group == POST_HOC else float(method_of(work.group, work)._members)


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
    conformalised = scaled(said.evidence.prediction, image_factor(asked.predict, data.calibration))
    metrics |= {"winkler_conformal": winkler(conformalised, said.evidence.target)}
    metrics |= {f"auroc_ood_{name}": auroc(known, scores.support) for name, scores in said.ood.items()}
    metrics |= asked.figures
    drawing = None
    if work.trials[place] == DRAWN_TRIAL:
        cell, unit = DEPTH.cell(work, fitted.method), data.test.unit
        drawing = map_drawing(cell, said, asked.predict, asked.attacked, data, unit)
    return Result(metrics, said.seconds_per_image, drawing)


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
