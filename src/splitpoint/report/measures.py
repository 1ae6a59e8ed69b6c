"""What the numbers of a record mean: their titles, and which way is better."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

LEVEL = 0.95
"""Level of every interval in the published tables and in the suites that are compared with them."""


@dataclass(frozen=True)
class Measure:
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

    @property
    def preference(self) -> str:
        """Which way is better, in words."""
        said = {"lower": "lower is better", "higher": "higher is better", "level": f"closest to {LEVEL} is best"}
        return said.get(self.better, "not ranked")

    @property
    def sign(self) -> str:
        """Which way is better, as an arrow."""
        return {"lower": "↓", "higher": "↑", "level": f"→ {LEVEL}"}.get(self.better, "")

    def loss(self, value: float) -> float:
        """The value turned such that smaller is better.

        >>> MEASURES["picp"].loss(0.90), MEASURES["spearman_total"].loss(0.4)
        (0.05, -0.4)
        """
        turned = {"higher": -value, "level": abs(value - LEVEL)}.get(self.better, value)
        return round(turned, 12)


_ALL = (
    Measure("rmse", "RMSE", "lower", "Root mean squared error of the mean, in units of the target."),
    Measure("winkler", "Winkler score", "lower", "Width of the interval plus 2 / (1 - level) times every miss."),
    Measure("picp", "PICP", "level", "Share of test targets inside the interval."),
    Measure("mpiw", "MPIW", "none", "Mean width of the interval; only worth comparing at equal coverage."),
    Measure("piece_authors", "PIECE (authors' bins)", "lower", "Coverage error over ten bins of equal width."),
    Measure("piece", "PIECE (equal counts)", "lower", "Coverage error over bins that hold equally many rows."),
    Measure("piece_plus", "PIECE+", "lower", "Coverage error of the upper side."),
    Measure("piece_minus", "PIECE-", "lower", "Coverage error of the lower side."),
    Measure("spearman_total", "Spearman, total score", "higher", "Rank correlation of |error| and the total score."),
    Measure("spearman_epistemic", "Spearman, epistemic score", "higher", "The same of the epistemic score alone."),
    Measure("picp_up", "PICP above", "level", "Share of targets above the mean that stay below the upper bound."),
    Measure("picp_down", "PICP below", "level", "Share of targets below the mean that stay above the lower bound."),
    Measure("crps", "CRPS", "lower", "Continuous ranked probability score."),
    Measure("pinball", "Pinball loss", "lower", "Mean pinball loss of both bounds."),
    Measure("accuracy", "Accuracy", "higher", "Share of test pictures whose most probable class is the right one."),
    Measure("ece", "ECE", "lower", "Mean gap of confidence and accuracy over 15 bins of confidence, equally wide."),
    Measure("nll", "NLL", "lower", "Negative log likelihood."),
    Measure("brier", "Brier score", "lower", "Squared distance of the probabilities from the right answer."),
    Measure("mae", "MAE", "lower", "Mean absolute error."),
    Measure("ause", "AUSE", "lower", "Area between the sparsification curve and the oracle's."),
    Measure("auroc_error", "AUROC errors", "higher", "How well the total score tells wrong answers from right ones."),
    Measure("auroc_error_epistemic", "AUROC errors, epistemic", "higher", "The same of the epistemic score alone."),
    Measure("auroc_error_entropy", "AUROC errors, entropy", "higher", "The same of the entropy of the probabilities."),
    Measure(
        "auroc_adv",
        "AUROC adversarial",
        "higher",
        "How well the epistemic score tells attacked or natural adversarial pictures from test pictures.",
    ),
    Measure("auroc_adv_entropy", "AUROC adversarial, entropy", "higher", "The same of the entropy."),
    Measure(
        "auroc_ood",
        "AUROC out of distribution",
        "higher",
        "How well the epistemic score tells inputs from elsewhere: out of the training range, or of other data sets.",
    ),
    Measure("auroc_ood_entropy", "AUROC out of distr., entropy", "higher", "The same of the entropy."),
    Measure(
        "spearman_attack",
        "Spearman under attack",
        "lower",
        "Rank correlation of accuracy and mean epistemic score over growing attacks; -1 where doubt rises as accuracy "
        "falls.",
    ),
    Measure(
        "flagged_test",
        "Flagged, test",
        "none",
        "Share of test pictures with more epistemic score than 95% of the calibration pictures; 0.05 is expected.",
    ),
    Measure("flagged_ood", "Flagged, out of distribution", "none", "The same of pictures out of distribution."),
    Measure("ece_floor", "ECE floor", "none", "What chance alone would leave these probabilities if they were right."),
    Measure("piece_floor", "PIECE floor", "none", "Coverage error that chance alone leaves perfect bounds."),
    Measure("piece_floor_plus", "PIECE+ floor", "none", "The same of the upper side."),
    Measure("piece_floor_minus", "PIECE- floor", "none", "The same of the lower side."),
    Measure(
        "train_cpu_s",
        "Training, CPU seconds",
        "none",
        "Of one trial: networks and what is learned on top of them, an equal share where trials were trained together. "
        "Networks that come trained cost nothing here. Depends on the machine.",
    ),
    Measure("infer_us_per_row", "Inference, µs per row", "none", "CPU time; depends on the machine."),
)
MEASURES = {measure.name: measure for measure in _ALL}
"""Known measures in the order of the tabs."""


def measure(name: str) -> Measure:
    """The measure of that name; one that is not known is shown, but not ranked."""
    return MEASURES.get(name) or Measure(name, name.replace("_", " "), "none")


def ordered(names: Iterable[str]) -> tuple[Measure, ...]:
    """Measures in the order of the tabs, unknown ones last."""
    places = {name: place for place, name in enumerate(MEASURES)}
    return tuple(measure(name) for name in sorted(set(names), key=lambda name: (places.get(name, len(places)), name)))
