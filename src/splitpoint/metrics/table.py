"""The table of metrics: what `evaluate` returns, what benchmarks record and what reports show are read from it.

A metric is a function and an entry here; the order is that of the tabs of a report.
"""

from __future__ import annotations

from collections.abc import Iterable

from splitpoint.metrics import classification, regression
from splitpoint.metrics.distributions import crps
from splitpoint.metrics.evidence import (
    Evidence,
    Metric,
    attack_correlation,
    error_risk,
    flagged,
    of_errors,
    of_group,
    on_targets,
)
from splitpoint.metrics.ranking import aupr, auroc, ause, fpr95

# fmt: off
METRICS: dict[str, Metric] = {entry.name: entry for entry in (
    Metric("rmse", on_targets(regression.rmse), "RMSE", "lower",
        task="regression", unit="target", about="Root mean squared error of the mean, in units of the target."),
    Metric("winkler", on_targets(regression.winkler), "Winkler score", "lower",
        task="regression", unit="target", about="Width of the interval plus 2 / (1 - level) times every miss."),
    Metric("picp", on_targets(regression.picp), "PICP", "level",
        task="regression", about="Share of test targets inside the interval."),
    Metric("mpiw", on_targets(regression.mpiw), "MPIW", "none",
        task="regression", unit="target", about="Mean width of the interval; only worth comparing at equal coverage."),
    Metric("piece_authors", on_targets(regression.piece_authors), "PIECE (authors' bins)", "lower",
        task="regression", about="Coverage error over ten bins of equal width."),
    Metric("piece", on_targets(regression.piece), "PIECE (equal counts)", "lower",
        task="regression", about="Coverage error over bins that hold equally many rows."),
    Metric("piece_plus", on_targets(regression.piece_plus), "PIECE+", "lower",
        task="regression", about="Coverage error of the upper side."),
    Metric("piece_minus", on_targets(regression.piece_minus), "PIECE-", "lower",
        task="regression", about="Coverage error of the lower side."),
    Metric("spearman_total", on_targets(regression.spearman_total), "Spearman, total score", "higher",
        task="regression", about="Rank correlation of |error| and the total score."),
    Metric("spearman_epistemic", on_targets(regression.spearman_epistemic), "Spearman, epistemic score", "higher",
        task="regression", about="The same of the epistemic score alone."),
    Metric("picp_up", on_targets(regression.picp_up), "PICP above", "level",
        task="regression", recorded=False, about="Share of targets above the mean that stay below the upper bound."),
    Metric("picp_down", on_targets(regression.picp_down), "PICP below", "level",
        task="regression", recorded=False, about="Share of targets below the mean that stay above the lower bound."),
    Metric("crps", on_targets(crps), "CRPS", "lower",
        task="regression", unit="target", needs=("prediction.scale",), about="Continuous ranked probability score."),
    Metric("pinball", on_targets(regression.pinball), "Pinball loss", "lower",
        task="regression", unit="target", recorded=False, about="Mean pinball loss of both bounds."),
    Metric("accuracy", on_targets(classification.accuracy), "Accuracy", "higher",
        task="classification", about="Share of test images whose most probable class is the right one."),
    Metric("ece", on_targets(classification.ece), "ECE", "lower",
        task="classification", about="Mean gap of confidence and accuracy over 15 bins of confidence, equally wide."),
    Metric("adaptive_ece", on_targets(classification.adaptive_ece), "ECE (equal counts)", "lower",
        task="classification", recorded=False, about="The same over bins that hold equally many rows."),
    Metric("classwise_ece", on_targets(classification.classwise_ece), "ECE (classwise)", "lower",
        task="classification", recorded=False,
        about="The same of the probability of every class, averaged over the classes."),
    Metric("nll", on_targets(classification.nll), "NLL", "lower",
        task="classification", about="Negative log likelihood."),
    Metric("brier", on_targets(classification.brier), "Brier score", "lower",
        task="classification", about="Squared distance of the probabilities from the right answer."),
    Metric("mae", on_targets(regression.mae), "MAE", "lower",
        task="regression", unit="target", recorded=False, about="Mean absolute error."),
    Metric("ause", on_targets(ause), "AUSE", "lower",
        task="regression", recorded=False, about="Area between the sparsification curve and the oracle's."),
    Metric("aurc", error_risk, "AURC", "lower",
        task="classification", recorded=False, about="Area under the risk-coverage curve of the total score."),
    Metric("set_coverage", on_targets(classification.set_coverage), "Set coverage", "none",
        task="classification", needs=("prediction.sets",), recorded=False,
        about="Share of labels in their prediction set."),
    Metric("set_size", on_targets(lambda prediction, _: classification.set_size(prediction)), "Set size", "none",
        task="classification", needs=("prediction.sets",), recorded=False,
        about="Mean number of classes in a set; only worth comparing at equal coverage."),
    Metric("auroc_error", of_errors(auroc), "AUROC errors", "higher",
        task="classification", about="How well the total score tells wrong answers from right ones."),
    Metric("auroc_error_epistemic", of_errors(auroc, "epistemic"), "AUROC errors, epistemic", "higher",
        task="classification", about="The same of the epistemic score alone."),
    Metric("auroc_error_entropy", of_errors(auroc, "aleatoric"), "AUROC errors, entropy", "higher",
        task="classification", about="The same of the entropy of the probabilities."),
    Metric("aupr_error", of_errors(aupr), "AUPR errors", "higher",
        task="classification", recorded=False, about="Average precision of the total score for wrong answers."),
    Metric("fpr95_error", of_errors(fpr95), "FPR95 errors", "lower",
        task="classification", recorded=False,
        about="Share of right answers that score as high as 95% of the wrong ones do."),
    Metric("auroc_adversarial", of_group(auroc, "adversarial"), "AUROC adversarial", "higher",
        needs=("adversarial",),
        about="How well the epistemic score tells attacked or natural adversarial images from test images."),
    Metric("auroc_adversarial_entropy", of_group(auroc, "adversarial", "aleatoric"), "AUROC adversarial, entropy",
        "higher", task="classification", needs=("adversarial",), about="The same of the entropy."),
    Metric("aupr_adversarial", of_group(aupr, "adversarial"), "AUPR adversarial", "higher",
        needs=("adversarial",), recorded=False,
        about="Average precision of the epistemic score for adversarial inputs."),
    Metric("fpr95_adversarial", of_group(fpr95, "adversarial"), "FPR95 adversarial", "lower",
        needs=("adversarial",), recorded=False,
        about="Share of test rows that score as high as 95% of the adversarial ones do."),
    Metric("auroc_ood", of_group(auroc, "ood"), "AUROC out of distribution", "higher",
        needs=("ood",),
        about="How well the epistemic score tells inputs out of distribution: out of the training range, or of other "
              "data sets."),
    Metric("auroc_ood_entropy", of_group(auroc, "ood", "aleatoric"), "AUROC out of distr., entropy", "higher",
        task="classification", needs=("ood",), about="The same of the entropy."),
    Metric("aupr_ood", of_group(aupr, "ood"), "AUPR out of distribution", "higher",
        needs=("ood",), recorded=False,
        about="Average precision of the epistemic score for inputs out of distribution."),
    Metric("fpr95_ood", of_group(fpr95, "ood"), "FPR95 out of distribution", "lower",
        needs=("ood",), recorded=False,
        about="Share of test rows that score as high as 95% of those out of distribution do."),
    Metric("spearman_attack", attack_correlation, "Spearman under attack", "lower",
        needs=("attack",),
        about="Rank correlation of accuracy and mean epistemic score over growing attacks; -1 where doubt rises as "
              "accuracy falls."),
    Metric("flagged_test", flagged("known"), "Flagged, test", "none",
        needs=("threshold",),
        about="Share of test images with more epistemic score than 95% of the calibration images; 0.05 is expected."),
    Metric("flagged_ood", flagged("ood"), "Flagged, out of distribution", "none",
        needs=("threshold", "ood"), about="The same of images out of distribution."),
    Metric("ece_floor", on_targets(classification.ece_floor), "ECE floor", "none",
        task="classification", about="What chance alone would leave these probabilities if they were right."),
    Metric("piece_floor_plus", on_targets(regression.piece_floor_plus), "PIECE+ floor", "none",
        task="regression", about="Coverage error of the upper side that chance alone leaves perfect bounds."),
    Metric("piece_floor_minus", on_targets(regression.piece_floor_minus), "PIECE- floor", "none",
        task="regression", about="The same of the lower side."),
    Metric("train_cpu_s", None, "Training, CPU seconds", "none",
        about="Of one trial: networks and what is learned on top of them, an equal share where trials were trained "
              "together. Networks that come trained cost nothing here. Depends on the machine."),
    Metric("infer_us_per_row", None, "Inference, µs per row", "none",
        about="CPU time; depends on the machine."),
)}
# fmt: on
"""Metrics by name. Those that are not `recorded` only `evaluate` gives; those without a function only records carry."""


def measured(evidence: Evidence, *, recorded: bool = False) -> dict[str, float]:
    """Every metric of the table that the evidence is enough for, by name; those with units in units of the target.

    Args:
        evidence: what is known of a predictor.
        recorded: only those that benchmarks keep.
    """
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
