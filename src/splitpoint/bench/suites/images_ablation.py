"""Ablations on images: joint training, shares of the rows for heads and calibration, and depth of the heads.

A variant is named as in the published tables, ``key=value;key=value``. Variants that need the same base network share
it, and those that differ only in whether calibration is used share a fit.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from splitpoint.bench.image_experiments import (
    attack_unit,
    base_network,
    evidence_of,
    head_epochs,
    image_cells,
    image_inputs,
    image_options,
    network_factory,
    obstacles,
    row_inputs,
    schedule,
    settings,
    training_images,
    trial,
)
from splitpoint.bench.image_rows import LabelledRows, RowFits
from splitpoint.bench.image_trials import CALIBRATION_SHARE, ImageTrial, batches
from splitpoint.bench.networks import NETWORKS
from splitpoint.bench.suite import Fit, Option, Request, Result, Suite, Work
from splitpoint.bench.suites.images import calibrates, method_of
from splitpoint.classification import SplitPointClassifier
from splitpoint.metrics import measured
from splitpoint.networks import build

JOINT_LEARNING_RATE = 1e-3
"""Of the base network when it is trained together with the heads, by Adam."""


@dataclass(frozen=True)
class Variant:
    """One way to fit a method.

    Attributes:
        method: id of the method, with or without calibration.
        name: of the variant, as in the published tables.
        share: of the training images that serve calibration; the network learns from the others.
        rows: what the heads learn from, "train" or "calibration" images.
        fraction: of those rows.
        joint: whether network and heads are trained together.
        trains: whether it says how the network is trained, and on which images.
        changes: settings of the heads that differ.
    """

    method: str
    name: str
    share: float = CALIBRATION_SHARE
    rows: str = "train"
    fraction: float = 1.0
    joint: bool = False
    trains: bool = False
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The variant and its method in one word."""
        return f"{self.method} {self.name}"

    @property
    def group(self) -> str:
        """What its base network is."""
        return "joint" if self.joint else f"calibration {self.share}"

    def heads(self, work: Work) -> SplitPointClassifier:
        """The settings of the heads."""
        heads: SplitPointClassifier = replace(method_of(self.method, work), **self.changes)
        return heads


ABLATIONS: dict[str, tuple[Variant, ...]] = {
    "training": (
        *(
            Variant(method, f"training=stagewise;train_fraction={fraction}", fraction=fraction)
            for method in ("splitpoint_paper", "splitpoint")
            for fraction in (0.2, 0.4, 0.6, 0.8, 1.0)
        ),
        Variant("splitpoint_paper", "training=joint", joint=True, trains=True),
    ),
    "calibration": tuple(
        Variant(method, f"calib_fraction={share};uq_train_set={rows}", share=share, rows=rows, trains=True)
        for method in ("splitpoint_paper", "splitpoint_paper_calibrated", "splitpoint", "splitpoint_conformal")
        for share in (0.1, 0.2, 0.3, 0.4, 0.5)
        for rows in ("train", "calibration")
    ),
    "hidden_layers": tuple(
        Variant(method, f"hidden_layers={count}", changes={"mar_layers": count})
        for method in ("splitpoint_paper_calibrated", "splitpoint_conformal")
        for count in (1, 2, 3)
    ),
}
"""Variants by what is ablated, on the paper's recipe and on ours."""

VARIANTS = {variant.key: variant for variants in ABLATIONS.values() for variant in variants}
"""Variants by the name under which work lists them."""


def cells(request: Request) -> list[Work]:
    """The work of a request; with a network that comes trained, only what changes the heads."""

    def groups(network: str) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for variant in (variant for ablation in request["ablations"] for variant in ABLATIONS[ablation]):
            if not (NETWORKS[network].trained and variant.trains):
                found.setdefault(variant.group, []).append(variant.key)
        return found

    return image_cells(request, groups)


def data_of(work: Work, number: int) -> ImageTrial:
    """The images of a trial; all variants of some work share the calibration images."""
    return trial(work, number, share=VARIANTS[work.methods[0]].share)


def fit(works: Sequence[Work], data: Sequence[ImageTrial]) -> Iterator[Fit]:
    """Every variant of some work on one trial."""
    (work,), (images,) = works, data
    variants = [VARIANTS[key] for key in work.methods]
    return (_joint if variants[0].joint else _stagewise)(work, variants, images)


def judge(work: Work, fitted: Fit, place: int, data: ImageTrial) -> Result:  # noqa: ARG001
    """Metrics of a fitted variant."""
    evidence, seconds = evidence_of(fitted)
    return Result(measured(evidence, recorded=True), seconds)


def _stagewise(work: Work, variants: Sequence[Variant], data: ImageTrial) -> Iterator[Fit]:
    base = base_network(work, data)
    inputs, images = row_inputs(base, data), training_images(data)
    calibration = LabelledRows("calibration", inputs.calibration, data.calibration.labels)
    train = LabelledRows("train", base.rows("train", images), images.labels)
    fits = RowFits(base.recorder, calibration, work.seeds[0])
    for variant in variants:
        heads = variant.heads(work)
        rows = fraction_of(train if variant.rows == "train" else calibration, variant.fraction, work.seeds[0])
        predictor, seconds = fits.fit(heads, rows, calibrated=calibrates(variant.method))
        seconds += base.seconds + train.rows.seconds
        yield Fit(variant.key, [predictor], settings(work) | head_epochs(heads), seconds, inputs)


def _joint(work: Work, variants: Sequence[Variant], data: ImageTrial) -> Iterator[Fit]:
    steps, (seed,) = schedule(work), work.seeds
    for variant in variants:
        began = time.process_time()
        network = build(network_factory(work, data), seed).to(work.options["device"])
        predictor = variant.heads(work).fit_jointly(
            network,
            batches(data.train, steps.batch_size, seed),
            base_epochs=steps.epochs,
            base_learning_rate=JOINT_LEARNING_RATE,
            seed=seed,
            progress=False,
        )
        seconds = time.process_time() - began
        inputs = image_inputs(data, predictor.base, attack_unit(predictor.base))
        kept = ("epochs", "batch_size", "ood", "device")
        shared = {name: value for name, value in settings(work).items() if name in kept}
        used = {"optimiser": "adam", "learning_rate": JOINT_LEARNING_RATE, "augment": False}
        yield Fit(variant.key, [predictor], shared | used, seconds, inputs)


def fraction_of(data: LabelledRows, fraction: float, seed: int) -> LabelledRows:
    """A random fraction of the rows; a smaller one is part of a larger one."""
    if fraction == 1:
        return data
    generator = torch.Generator().manual_seed(zlib.crc32(f"fraction {seed}".encode()))
    kept = torch.randperm(len(data.rows), generator=generator)[: int(fraction * len(data.rows))]
    return data.at(kept, f"{fraction} of {data.source}")


IMAGES_ABLATION = Suite(
    name="images-ablation",
    title="Image ablations",
    help="what every choice of the method is worth, on images",
    trials=3,
    options=(
        *image_options(("fashion_mnist",)),
        Option("ablations", "what is changed", lambda: list(ABLATIONS)),
    ),
    epochs="the networks",
    cells=cells,
    settings=settings,
    fixed=("epochs", "ood"),
    cost=lambda work: float(5 + len(work.methods)),
    trial=data_of,
    fit=fit,
    judge=judge,
    one_by_one=lambda _: True,
    variants=VARIANTS,
    obstacles=obstacles,
)
