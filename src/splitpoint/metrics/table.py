"""What metrics are computed from, what a metric is, and the table of them all.

What `evaluate` returns, what benchmarks record and what reports show are read from the table: a metric is a function
and an entry there. The order is that of the tabs of a report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from splitpoint.errors import DataError
from splitpoint.metrics import classification, regression
from splitpoint.metrics.given import predicted
from splitpoint.metrics.ranking import Score, aupr, aurc, auroc, ause, fpr95, spearman
from splitpoint.prediction import ClassificationPrediction, Prediction, RegressionPrediction
from splitpoint.settings import shown

LEVEL = 0.95
"""Level of every interval in the published tables and in the suites that are compared with them."""

DRIVING = {"apolloscape": "ApolloScape", "camvid": "CamVid", "kitti_road": "KITTI road"}
"""Sets of driving scenes that the depth suite tells from rooms one by one, and how columns call them."""

Task: TypeAlias = Literal["regression", "classification"]
Better: TypeAlias = Literal["lower", "higher", "level", "none"]


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that is known of a predictor on test data; parts that are None were not asked for.

    Attributes:
        prediction: of test entries that have a target: rows, or outputs and positions one by one.
        target: of the same entries.
        scale: units of the target in one unit of the prediction, for targets that were standardised.
        rows: scores of every test row, one each (see `row_scores`); None where those of `prediction` are.
        ood: scores of inputs out of distribution, one for each row; a whole prediction has them too.
        adversarial: the same of attacked inputs, or of natural adversarial ones.
        attack: "accuracy" of classes or "rmse" of numbers, mean "epistemic" score, and mean root of "sds" if there
            is one, under attacks of growing strength.
        threshold: `support` above which a row is flagged.
        coverage: of dense targets, the share of the entries of every row that are inside their interval.
    """

    prediction: Prediction
    target: Tensor
    scale: float = 1.0
    _: KW_ONLY
    rows: Prediction | None = None
    ood: Prediction | None = None
    adversarial: Prediction | None = None
    attack: Mapping[str, Sequence[float]] | None = None
    threshold: float | None = None
    coverage: Tensor | None = None

    @property
    def attack_sds(self) -> Sequence[float] | None:
        """Mean root of SDS under attacks of growing strength, None where there is none."""
        return None if self.attack is None else self.attack.get("sds")

    @property
    def task(self) -> Task:
        """What is predicted."""
        return "regression" if isinstance(self.prediction, RegressionPrediction) else "classification"

    @property
    def known(self) -> Prediction:
        """Scores of every test row."""
        return self.prediction if self.rows is None else self.rows


def row_scores(prediction: Prediction) -> Prediction:
    """The scores alone, (N,) in float64: the mean over the outputs or positions of every row."""
    predicted(prediction, Prediction)

    def mean(score: Tensor) -> Tensor:
        return score.double().unsqueeze(1).flatten(1).mean(1)

    own: dict[str, Any] = {
        name: mean(getattr(prediction, name)) for name in ("aleatoric", "epistemic", "total", "support")
    }
    return Prediction(**own, reference=None)


@dataclass(frozen=True)
class Metric:
    """A number that says how good a predictor is, and how to read it.

    Attributes:
        name: in records and in what `evaluate` returns.
        function: from the evidence to the number; None for what benchmarks write by themselves, such as times.
        title: for people.
        better: which values are preferred: lower, higher, close to `LEVEL`, or none of these.
        about: one sentence.
        task: the only task that has it; None for both.
        unit: "target" where it has the units of the target, and is multiplied with the scale of the evidence.
        needs: attributes of the evidence that must not be None, such as "ood" or "prediction.scale".
        recorded: whether benchmarks keep it.
    """

    name: str
    function: Callable[[Evidence], float] | None
    title: str
    better: Better
    about: str = ""
    _: KW_ONLY
    task: Task | None = None
    unit: Literal["target", ""] = ""
    needs: tuple[str, ...] = ()
    recorded: bool = True

    @property
    def preference(self) -> str:
        """Which way is better, in words."""
        words = {"lower": "lower is better", "higher": "higher is better", "level": f"closest to {LEVEL} is best"}
        return words.get(self.better, "not ranked")

    @property
    def sign(self) -> str:
        """Which way is better, as an arrow."""
        return {"lower": "↓", "higher": "↑", "level": f"→ {LEVEL}"}.get(self.better, "")

    def loss(self, value: float) -> float:
        """The value turned such that smaller is better.

        >>> Metric("picp", None, "PICP", "level").loss(0.90), Metric("auroc", None, "AUROC", "higher").loss(0.4)
        (0.05, -0.4)
        """
        turned = {"higher": -value, "level": abs(value - LEVEL)}.get(self.better, value)
        return round(turned, 12)

    def suits(self, evidence: Evidence) -> bool:
        """Whether the evidence is of its task and has all that it needs."""
        if self.task not in (None, evidence.task):
            return False
        return all(attrgetter(part)(evidence) is not None for part in self.needs)


def on_targets(metric: Callable[[Any, Tensor], float]) -> Callable[[Evidence], float]:
    """The function of the evidence that a function of a prediction and its targets makes."""
    return lambda evidence: metric(evidence.prediction, evidence.target)


Separation: TypeAlias = Callable[[Tensor, Tensor], float]
"""How well scores tell two groups apart, such as `auroc`: a function of those that should be low and of the others."""


def of_errors(metric: Separation, score: Score = "total") -> Callable[[Evidence], float]:
    """How well a score tells wrong classes from right ones, entry by entry."""

    def function(evidence: Evidence) -> float:
        values = getattr(evidence.prediction, score)
        wrong = _wrong(evidence)
        return metric(values[~wrong], values[wrong])

    return function


def of_group(
    metric: Separation, group: Literal["ood", "adversarial"], score: Score = "support"
) -> Callable[[Evidence], float]:
    """How well a score tells the rows of a group from test rows."""
    return lambda evidence: metric(getattr(evidence.known, score), getattr(getattr(evidence, group), score))


def error_risk(evidence: Evidence) -> float:
    """Area under the risk-coverage curve of wrong classes by the total score."""
    return aurc(evidence.prediction.total, _wrong(evidence).double())


def flagged(group: Literal["known", "ood"]) -> Callable[[Evidence], float]:
    """Share of the rows of a group whose lack of support is above the threshold."""
    return lambda evidence: float((getattr(evidence, group).support > evidence.threshold).double().mean())


def attack_correlation(evidence: Evidence) -> float:
    """Rank correlation of accuracy and mean epistemic score over the strengths of the attack."""
    assert evidence.attack is not None
    return spearman(torch.tensor(evidence.attack["accuracy"]), torch.tensor(evidence.attack["epistemic"]))


def sweep_correlation(score: Literal["epistemic", "sds"]) -> Callable[[Evidence], float]:
    """Rank correlation of the error of numbers and a mean score over the strengths of the attack."""

    def function(evidence: Evidence) -> float:
        assert evidence.attack is not None
        return spearman(torch.tensor(evidence.attack["rmse"]), torch.tensor(evidence.attack[score]))

    return function


def of_rows(summary: Callable[[Tensor], Tensor]) -> Callable[[Evidence], float]:
    """A summary of the coverages of rows, those without any target left out."""

    def function(evidence: Evidence) -> float:
        assert evidence.coverage is not None
        return float(summary(evidence.coverage[~evidence.coverage.isnan()].double()))

    return function


def _wrong(evidence: Evidence) -> Tensor:
    """Whether the most probable class of every entry is not its label."""
    assert isinstance(evidence.prediction, ClassificationPrediction)
    return evidence.prediction.label != evidence.target


# The table


def _regression(
    function: Callable[[RegressionPrediction, Tensor], float], title: str, better: Better, about: str, **more: Any
) -> Metric:
    """An entry of regression, with the name of its function of a prediction and its targets."""
    return Metric(function.__name__, on_targets(function), title, better, about, task="regression", **more)


def _classification(
    function: Callable[[ClassificationPrediction, Tensor], float], title: str, better: Better, about: str, **more: Any
) -> Metric:
    """An entry of classification, with the name of its function of a prediction and its targets."""
    return Metric(function.__name__, on_targets(function), title, better, about, task="classification", **more)


# fmt: off
METRICS: dict[str, Metric] = {entry.name: entry for entry in (
    _regression(regression.rmse, "RMSE", "lower", "Root mean squared error of the mean, in units of the target.",
        unit="target"),
    Metric("rmse_authors", on_targets(regression.mae), "RMSE (authors' code)", "lower",
        "Mean absolute error over all pixels, which the published code for depth prints as RMSE.",
        task="regression", unit="target", needs=("coverage",)),
    _regression(regression.winkler, "Winkler score", "lower",
        "Width of the interval plus 2 / (1 - level) times every miss.", unit="target"),
    Metric("winkler_conformal", None, "Winkler, conformalised", "lower",
        "The same once one factor, from the calibration images and image by image, has scaled the interval.",
        task="regression", unit="target"),
    _regression(regression.picp, "PICP", "level", "Share of test targets inside the interval."),
    _regression(regression.mpiw, "MPIW", "none",
        "Mean width of the interval; only worth comparing at equal coverage.", unit="target"),
    Metric("image_coverage", of_rows(torch.mean), "Coverage of images", "level",
        "Mean over images of the share of their pixels inside the interval.", task="regression", needs=("coverage",)),
    Metric("image_coverage_low", of_rows(lambda shares: shares.quantile(0.1)), "Coverage, worst tenth", "higher",
        "The coverage that nine of ten images exceed.", task="regression", needs=("coverage",)),
    _regression(regression.piece_authors, "PIECE (authors' bins)", "lower",
        "Coverage error over ten bins of equal width."),
    _regression(regression.piece, "PIECE (equal counts)", "lower",
        "Coverage error over bins that hold equally many rows."),
    _regression(regression.piece_plus, "PIECE+", "lower", "Coverage error of the upper side."),
    _regression(regression.piece_minus, "PIECE-", "lower", "Coverage error of the lower side."),
    _regression(regression.spearman_total, "Spearman, total score", "higher",
        "Rank correlation of |error| and the total score."),
    _regression(regression.spearman_epistemic, "Spearman, epistemic score", "higher",
        "The same of the epistemic score alone."),
    _regression(regression.picp_up, "PICP above", "level",
        "Share of targets above the mean that stay below the upper bound.", recorded=False),
    _regression(regression.picp_down, "PICP below", "level",
        "Share of targets below the mean that stay above the lower bound.", recorded=False),
    _regression(regression.crps, "CRPS", "lower", "Continuous ranked probability score.",
        unit="target", needs=("prediction.scale",)),
    _regression(regression.pinball, "Pinball loss", "lower", "Mean pinball loss of both bounds.",
        unit="target", recorded=False),
    _classification(classification.accuracy, "Accuracy", "higher",
        "Share of test images whose most probable class is the right one."),
    _classification(classification.ece, "ECE", "lower",
        "Mean gap of confidence and accuracy over 15 bins of confidence, equally wide."),
    _classification(classification.adaptive_ece, "ECE (equal counts)", "lower",
        "The same over bins that hold equally many rows.", recorded=False),
    _classification(classification.classwise_ece, "ECE (classwise)", "lower",
        "The same of the probability of every class, averaged over the classes.", recorded=False),
    _classification(classification.nll, "NLL", "lower", "Negative log likelihood."),
    _classification(classification.brier, "Brier score", "lower",
        "Squared distance of the probabilities from the right answer."),
    _regression(regression.mae, "MAE", "lower", "Mean absolute error.", unit="target", recorded=False),
    _regression(ause, "AUSE", "lower", "Area between the sparsification curve and the oracle's.", recorded=False),
    Metric("aurc", error_risk, "AURC", "lower", "Area under the risk-coverage curve of the total score.",
        task="classification", recorded=False),
    _classification(classification.set_coverage, "Set coverage", "none", "Share of labels in their prediction set.",
        needs=("prediction.set_level",), recorded=False),
    Metric("set_size", on_targets(lambda prediction, _: classification.set_size(prediction)), "Set size", "none",
        "Mean number of classes in a set; only worth comparing at equal coverage.",
        task="classification", needs=("prediction.set_level",), recorded=False),
    Metric("auroc_error", of_errors(auroc), "AUROC errors", "higher",
        "How well the total score tells wrong answers from right ones.", task="classification"),
    Metric("auroc_error_epistemic", of_errors(auroc, "epistemic"), "AUROC errors, epistemic", "higher",
        "The same of the epistemic score alone.", task="classification"),
    Metric("auroc_error_entropy", of_errors(auroc, "aleatoric"), "AUROC errors, entropy", "higher",
        "The same of the entropy of the probabilities.", task="classification"),
    Metric("aupr_error", of_errors(aupr), "AUPR errors", "higher",
        "Average precision of the total score for wrong answers.", task="classification", recorded=False),
    Metric("fpr95_error", of_errors(fpr95), "FPR95 errors", "lower",
        "Share of right answers that score as high as 95% of the wrong ones do.",
        task="classification", recorded=False),
    Metric("auroc_adversarial", of_group(auroc, "adversarial"), "AUROC adversarial", "higher",
        "How well support tells attacked or natural adversarial images from test images.",
        needs=("adversarial",)),
    Metric("auroc_adversarial_map", of_group(auroc, "adversarial", "epistemic"), "AUROC adversarial, map", "higher",
        "The same of the mean of the epistemic map.", task="regression", needs=("adversarial", "coverage")),
    Metric("auroc_adversarial_entropy", of_group(auroc, "adversarial", "aleatoric"), "AUROC adversarial, entropy",
        "higher", "The same of the entropy.", task="classification", needs=("adversarial",)),
    Metric("aupr_adversarial", of_group(aupr, "adversarial"), "AUPR adversarial", "higher",
        "Average precision of support for adversarial inputs.", needs=("adversarial",), recorded=False),
    Metric("fpr95_adversarial", of_group(fpr95, "adversarial"), "FPR95 adversarial", "lower",
        "Share of test rows that score as high as 95% of the adversarial ones do.",
        needs=("adversarial",), recorded=False),
    Metric("auroc_ood", of_group(auroc, "ood"), "AUROC out of distribution", "higher",
        "How well support (the epistemic score of methods that have no other) tells inputs out of distribution: out "
        "of the training range, or of other data sets.", needs=("ood",)),
    *(Metric(f"auroc_ood_{name}", None, f"AUROC {title}", "higher", "The same for this set alone.", task="regression")
        for name, title in DRIVING.items()),
    Metric("auroc_ood_map", of_group(auroc, "ood", "epistemic"), "AUROC out of distr., map", "higher",
        "The same of the mean of the epistemic map, which is all that most methods have.",
        task="regression", needs=("ood", "coverage")),
    Metric("auroc_ood_entropy", of_group(auroc, "ood", "aleatoric"), "AUROC out of distr., entropy", "higher",
        "The same of the entropy.", task="classification", needs=("ood",)),
    Metric("aupr_ood", of_group(aupr, "ood"), "AUPR out of distribution", "higher",
        "Average precision of support for inputs out of distribution.", needs=("ood",), recorded=False),
    Metric("fpr95_ood", of_group(fpr95, "ood"), "FPR95 out of distribution", "lower",
        "Share of test rows that score as high as 95% of those out of distribution do.",
        needs=("ood",), recorded=False),
    Metric("spearman_attack", attack_correlation, "Spearman under attack", "lower",
        "Rank correlation of accuracy and mean epistemic score over growing attacks; -1 where doubt rises as accuracy "
        "falls.", task="classification", needs=("attack",)),
    Metric("spearman_sweep", sweep_correlation("epistemic"), "Spearman of RMSE under attack", "higher",
        "Rank correlation of the RMSE and the mean score of images over growing attacks; 1 where doubt rises with the "
        "error.", task="regression", needs=("attack",)),
    Metric("spearman_sweep_sds", sweep_correlation("sds"), "Spearman of RMSE under attack, SDS", "higher",
        "The same of the root of the self-consistency score.", task="regression", needs=("attack_sds",)),
    Metric("auroc_conflict", None, "AUROC conflict", "higher",
        "How well the conflict, or else support, tells rows with one modality spoilt from the same as they are; the "
        "mean over modalities."),
    Metric("auroc_conflict_entropy", None, "AUROC conflict, entropy", "higher", "The same of the entropy."),
    Metric("right_blame", None, "Right blame", "higher",
        "Share of rows with one modality spoilt in which that one is blamed; the mean over modalities."),
    Metric("mean_aleatoric", None, "Mean aleatoric", "none", "Over the test rows."),
    Metric("mean_epistemic", None, "Mean epistemic", "none", "Over the test rows."),
    Metric("flagged_test", flagged("known"), "Flagged, test", "none",
        "Share of test images with less support than 95% of the calibration images; 0.05 is expected.",
        needs=("threshold",)),
    Metric("flagged_ood", flagged("ood"), "Flagged, out of distribution", "none",
        "The same of images out of distribution.", needs=("threshold", "ood")),
    _classification(classification.ece_floor, "ECE floor", "none",
        "What chance alone would leave these probabilities if they were right."),
    _regression(regression.piece_floor_plus, "PIECE+ floor", "none",
        "Coverage error of the upper side that chance alone leaves perfect bounds."),
    _regression(regression.piece_floor_minus, "PIECE- floor", "none", "The same of the lower side."),
    Metric("train_cpu_s", None, "Training, CPU seconds", "none",
        "Of one trial: networks and what is learned on top of them, an equal share where trials were trained together. "
        "Networks that come trained cost nothing here. Depends on the machine."),
    Metric("overfitting", None, "Overfitting of the base", "none",
        "RMSE of the base network on calibration images over that on training images."),
    Metric("warnings", None, "Warnings of the fit", "none", "Checks of a fit on itself that warn."),
    Metric("train_s_per_epoch", None, "Training, CPU seconds per epoch", "none",
        "Of the networks of one trial, all members together. Depends on the machine."),
    Metric("infer_us_per_row", None, "Inference, µs per row", "none", "CPU time; depends on the machine."),
)}
# fmt: on
"""Metrics by name. Those that are not `recorded` only `evaluate` gives; those without a function only records carry."""


def measured(evidence: Evidence, *, recorded: bool = False) -> dict[str, float]:
    """Every metric of the table that the evidence is enough for, by name; those with units in units of the target.

    Args:
        evidence: what is known of a predictor.
        recorded: only those that benchmarks keep.
    """
    if not isinstance(evidence, Evidence):
        raise DataError(f"Expected an Evidence of predictions and targets, but got {shown(evidence)}; make one first.")
    found = {}
    for name, entry in METRICS.items():
        if entry.function is not None and entry.suits(evidence) and (entry.recorded or not recorded):
            value = entry.function(evidence)
            found[name] = evidence.scale * value if entry.unit == "target" else value
    return found


def metric(name: str) -> Metric:
    """The metric of that name; one that is not in the table is shown, but not ranked."""
    return METRICS.get(name) or Metric(name, None, name.replace("_", " "), "none")


def ordered(names: Iterable[str]) -> tuple[Metric, ...]:
    """Metrics in the order of the table, unknown ones last."""
    places = {name: place for place, name in enumerate(METRICS)}
    return tuple(metric(name) for name in sorted(set(names), key=lambda name: (places.get(name, len(places)), name)))
