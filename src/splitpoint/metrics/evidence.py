"""What a metric is, and what it is computed from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from splitpoint.metrics.ranking import Score, aurc, spearman
from splitpoint.prediction import ClassificationPrediction, Prediction, RegressionPrediction

LEVEL = 0.95
"""Level of every interval in the published tables and in the suites that are compared with them."""

Task: TypeAlias = Literal["regression", "classification"]


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
        attack: "accuracy" and mean "epistemic" score under attacks of growing strength.
        threshold: epistemic score above which a row is flagged.
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

    def mean(score: Tensor) -> Tensor:
        return score.double().unsqueeze(1).flatten(1).mean(1)

    return Prediction(mean(prediction.aleatoric), mean(prediction.epistemic), mean(prediction.total), reference=None)


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
        needs: attributes of the evidence that must not be None, such as "ood" or "prediction.sets".
        recorded: whether benchmarks keep it.
    """

    name: str
    function: Callable[[Evidence], float] | None
    title: str
    better: Literal["lower", "higher", "level", "none"]
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
    metric: Separation, group: Literal["ood", "adversarial"], score: Score = "epistemic"
) -> Callable[[Evidence], float]:
    """How well a score tells the rows of a group from test rows."""
    return lambda evidence: metric(getattr(evidence.known, score), getattr(getattr(evidence, group), score))


def error_risk(evidence: Evidence) -> float:
    """Area under the risk-coverage curve of wrong classes by the total score."""
    return aurc(evidence.prediction.total, _wrong(evidence).double())


def flagged(group: Literal["known", "ood"]) -> Callable[[Evidence], float]:
    """Share of the rows of a group whose epistemic score is above the threshold."""
    return lambda evidence: float((getattr(evidence, group).epistemic > evidence.threshold).double().mean())


def attack_correlation(evidence: Evidence) -> float:
    """Rank correlation of accuracy and mean epistemic score over the strengths of the attack."""
    assert evidence.attack is not None
    return spearman(torch.tensor(evidence.attack["accuracy"]), torch.tensor(evidence.attack["epistemic"]))


def _wrong(evidence: Evidence) -> Tensor:
    """Whether the most probable class of every entry is not its label."""
    assert isinstance(evidence.prediction, ClassificationPrediction)
    return evidence.prediction.label != evidence.target
