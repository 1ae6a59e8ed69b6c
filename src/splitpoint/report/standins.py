"""What the numbers of a record mean: their titles, and which way is better."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from splitpoint.bench.networks import NETWORKS

LEVEL = 0.95
"""Level of every interval in the published tables and in the suites that are compared with them."""


@dataclass(frozen=True)
class Metric:
    """A column of numbers.

    Attributes:
        name: as in the records.
        title: for people.
        better: which values are preferred: lower, higher, close to `LEVEL`, or none of these.
        about: one sentence.
    """

    name: str
    title: str
    better: Literal["lower", "higher", "level", "none"]
    about: str = ""


_ALL = (
    Metric("rmse", "RMSE", "lower", "Root mean squared error of the mean, in units of the target."),
    Metric("winkler", "Winkler score", "lower", "Width of the interval plus 2 / (1 - level) times every miss."),
    Metric("picp", "PICP", "level", "Share of test targets inside the interval."),
    Metric("mpiw", "MPIW", "none", "Mean width of the interval; only worth comparing at equal coverage."),
    Metric("piece_authors", "PIECE (authors' bins)", "lower", "Coverage error over ten bins of equal width."),
    Metric("piece", "PIECE (equal counts)", "lower", "Coverage error over bins that hold equally many rows."),
    Metric("piece_plus", "PIECE+", "lower", "Coverage error of the upper side."),
    Metric("piece_minus", "PIECE-", "lower", "Coverage error of the lower side."),
    Metric("spearman_total", "Spearman, total score", "higher", "Rank correlation of |error| and the total score."),
    Metric("spearman_epistemic", "Spearman, epistemic score", "higher", "The same of the epistemic score alone."),
    Metric("picp_up", "PICP above", "level", "Share of targets above the mean that stay below the upper bound."),
    Metric("picp_down", "PICP below", "level", "Share of targets below the mean that stay above the lower bound."),
    Metric("crps", "CRPS", "lower", "Continuous ranked probability score."),
    Metric("pinball", "Pinball loss", "lower", "Mean pinball loss of both bounds."),
    Metric("accuracy", "Accuracy", "higher", "Share of test images whose most probable class is the right one."),
    Metric("ece", "ECE", "lower", "Mean gap of confidence and accuracy over 15 bins of confidence, equally wide."),
    Metric("nll", "NLL", "lower", "Negative log likelihood."),
    Metric("brier", "Brier score", "lower", "Squared distance of the probabilities from the right answer."),
    Metric("mae", "MAE", "lower", "Mean absolute error."),
    Metric("ause", "AUSE", "lower", "Area between the sparsification curve and the oracle's."),
    Metric("auroc_error", "AUROC errors", "higher", "How well the total score tells wrong answers from right ones."),
    Metric("auroc_error_epistemic", "AUROC errors, epistemic", "higher", "The same of the epistemic score alone."),
    Metric("auroc_error_entropy", "AUROC errors, entropy", "higher", "The same of the entropy of the probabilities."),
    Metric(
        "auroc_adversarial",
        "AUROC adversarial",
        "higher",
        "How well the epistemic score tells attacked or natural adversarial images from test images.",
    ),
    Metric("auroc_adversarial_entropy", "AUROC adversarial, entropy", "higher", "The same of the entropy."),
    Metric(
        "auroc_ood",
        "AUROC out of distribution",
        "higher",
        "How well the epistemic score tells inputs out of distribution: out of the training range, or of other data sets.",
    ),
    Metric("auroc_ood_entropy", "AUROC out of distr., entropy", "higher", "The same of the entropy."),
    Metric(
        "spearman_attack",
        "Spearman under attack",
        "lower",
        "Rank correlation of accuracy and mean epistemic score over growing attacks; -1 where doubt rises as accuracy "
        "falls.",
    ),
    Metric(
        "flagged_test",
        "Flagged, test",
        "none",
        "Share of test images with more epistemic score than 95% of the calibration images; 0.05 is expected.",
    ),
    Metric("flagged_ood", "Flagged, out of distribution", "none", "The same of images out of distribution."),
    Metric("ece_floor", "ECE floor", "none", "What chance alone would leave these probabilities if they were right."),
    Metric("piece_floor", "PIECE floor", "none", "Coverage error that chance alone leaves perfect bounds."),
    Metric("piece_floor_plus", "PIECE+ floor", "none", "The same of the upper side."),
    Metric("piece_floor_minus", "PIECE- floor", "none", "The same of the lower side."),
    Metric(
        "train_cpu_s",
        "Training, CPU seconds",
        "none",
        "Of one trial: networks and what is learned on top of them, an equal share where trials were trained together. "
        "Networks that come trained cost nothing here. Depends on the machine.",
    ),
    Metric("infer_us_per_row", "Inference, µs per row", "none", "CPU time; depends on the machine."),
)
METRICS = {metric.name: metric for metric in _ALL}
"""Known measures in the order of the tabs."""


class Titled:
    def __init__(self, title):
        self.title = title


METHODS = {
    name: Titled(title)
    for name, title in {
        "softmax": "Softmax",
        "temperature_scaling": "Temperature scaling",
        "energy": "Energy score",
        "oc": "OC",
        "ddu": "DDU",
        "mc_dropout": "MC dropout",
        "deep_ensemble": "Deep ensemble",
        "evidential_regression": "Evidential regression",
        "evidential_classification": "Evidential classification",
        "evidential_quantile": "Evidential quantiles",
        "sqr_oc": "SQR-OC",
        "gaussian": "Gaussian",
        "laplace": "Laplace",
        "conformal": "Conformal",
        "splitpoint_paper": "Split-point (paper)",
        "splitpoint_paper_calibrated": "Split-point calibrated (paper)",
        "splitpoint": "Split-point (ours)",
        "splitpoint_conformal": "Split-point calibrated (ours)",
        "splitpoint_layers": "Split-point layers (ours)",
    }.items()
}
SETS = {
    name: Titled(title)
    for name, title in {
        "mnist": "MNIST",
        "fashion_mnist": "Fashion-MNIST",
        "cifar10": "CIFAR-10",
        "cifar100": "CIFAR-100",
        "imagenet": "ImageNet",
        "notmnist": "notMNIST",
        "svhn": "SVHN",
        "tiny_imagenet": "Tiny ImageNet",
        "imagenet_o": "ImageNet-O",
    }.items()
}


class Suite(Titled):
    def __init__(self, title, obstacles):
        super().__init__(title)
        self.obstacles = obstacles


SECOND_TARGET = ("energy", "naval")
EPOCHS = {"uci": 400, "images": 350}
OUTSIDE = {"cifar10": "svhn + tiny_imagenet", "cifar100": "svhn + tiny_imagenet", "imagenet": "imagenet_o"}


def _regression(record):
    found = []
    if record.settings.get("epochs", 400) != 400:
        found.append(f"networks are trained for {record.settings['epochs']} epochs in place of {EPOCHS['uci']}")
    if record.protocol == "paper" and record.noise != "clean":
        found.append("the published tables were made with other noise than the paper states")
    if record.protocol == "paper" and record.dataset in SECOND_TARGET:
        found.append("the published tables predict the second target")
    return tuple(found)


def comes_trained(record):
    spec = NETWORKS.get(record.network)
    silent = record.network and record.settings and "epochs" not in record.settings
    return bool(silent or (spec and spec.trained))


def _images(record):
    settings, spec = record.settings, NETWORKS.get(record.network)
    trained = comes_trained(record)
    few = settings.get("epochs", EPOCHS["images"] if record.protocol == "paper" else 0) < EPOCHS["images"]
    return tuple(
        filter(
            None,
            [
                f"the network is {spec.differs} than the published one" if spec and spec.differs else "",
                "the network is trained for fewer epochs than the published one" if few and not trained else "",
                "the published network was trained elsewhere" if record.dataset == "imagenet" and not trained else "",
                _other_ood(settings.get("ood", ""), OUTSIDE.get(record.dataset, "")),
                "half of the published test images serve calibration" if trained else "",
            ],
        )
    )


def _other_ood(ours, published):
    sets, wanted = ([part.strip() for part in text.split("+")] for text in (ours, published))
    if not ours or not published or set(sets) == set(wanted):
        return ""
    told, theirs = (" + ".join(SETS[name].title for name in part) for part in (sets, wanted))
    alone = " alone" if set(sets) < set(wanted) else ""
    return f"{told}{alone} in place of {theirs} is out of distribution"


SUITES = {
    "uci": Suite("UCI regression", _regression),
    "cubic": Suite("Cubic regression", lambda record: ()),
    "images": Suite("Image classification", _images),
    "uci-ablation": Suite("UCI ablations", _regression),
    "images-ablation": Suite("Image ablations", _images),
}
