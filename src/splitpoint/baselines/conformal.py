"""Split conformal prediction: intervals and prediction sets whose coverage is a theorem (Vovk et al. 2005)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from splitpoint.baselines.answers import softmax_answer
from splitpoint.baselines.posthoc import AtOutput, BaselinePredictor, FeatureBaseline, Fitted
from splitpoint.baselines.settings import EitherMethod
from splitpoint.cache import Table, feature_moments
from splitpoint.calibration import tempered
from splitpoint.conformal import Conformity, SetScore, calibration_scores, check_set_score, conformal_factor
from splitpoint.errors import SettingsError
from splitpoint.groups import Owners
from splitpoint.recording import Recording
from splitpoint.tasks import Answer, ClassAnswer, RegressionAnswer

RIDGE = 1e-2

SPAN = 15.0
"""Most that features move the logarithm of a residual size away from its mean, a factor of three million."""


def fit_sizes(table: Table) -> dict[str, Tensor]:
    """A ridge regression of log residual sizes on standardised features: ``log |r| ~ h w + b``, weights (C + 1, D)."""
    center, spread = feature_moments(table)
    features = torch.cat([(table.column("features") - center) / spread, torch.ones(table.rows, 1)], 1).double()
    sizes = table.column("residual").double().abs()
    weights = []
    for own in sizes.T:
        seen = ~own.isnan()
        floor = 1e-3 * own[seen].mean() + torch.finfo(torch.float32).tiny
        rows, target = features[seen], (own[seen] + floor).log()
        penalty = RIDGE * len(rows) * torch.eye(rows.shape[1], dtype=torch.float64)
        penalty[-1, -1] = 0
        weights.append(torch.linalg.solve(rows.T @ rows + penalty, rows.T @ target))
    return {"center": center, "spread": spread, "weights": torch.stack(weights, 1).float()}


def predicted_sizes(rows: Tensor, center: Tensor, spread: Tensor, weights: Tensor) -> Tensor:
    """Residual sizes (R, D) of feature rows (R, C)."""
    return ((((rows - center) / spread) @ weights[:-1]).clamp(-SPAN, SPAN) + weights[-1]).exp()


@dataclass(frozen=True, kw_only=True)
class Conformal(FeatureBaseline, EitherMethod[BaselinePredictor]):
    """Split conformal prediction with the ``ceil((n + 1) level)``-th smallest score of n calibration rows.

    Regression: ``f(x) -+ q`` from absolute residuals, or ``f(x) -+ q s(x)`` from residuals over a predicted size s,
    which is fitted on the training rows. Classification: prediction sets by `ClassificationPrediction.sets`, at any
    level; probabilities are the model's own. It has no epistemic part of its own.

    Attributes:
        residual: "absolute" or "normalised".
        score: of the classes of a set, "lac", "aps" or "raps"; see `conformal.class_scores`.
    """

    residual: Literal["absolute", "normalised"] = "absolute"
    score: SetScore = "lac"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_set_score(self.score, "score")

    def _learn(self, rows: Recording, held_out: Recording | None, seed: int) -> dict[str, Tensor]:  # noqa: ARG002
        if held_out is None:
            raise SettingsError(
                "Expected calibration data for conformal prediction, but got none; pass calibration= to fit."
            )
        table = held_out.table
        if self.task == "classification":
            return {}
        learned = fit_sizes(rows.table) if self.residual == "normalised" else {}
        sizes = predicted_sizes(table.column("features"), **learned) if learned else torch.ones(())
        ratios, groups = table.column("residual").abs() / sizes, table.groups()
        radius = []
        for own in ratios.T:
            known = ~own.isnan()
            owners = None if groups is None else Owners.of(groups[known])
            radius.append([conformal_factor(own[known], level, "rows", owners) for level in self.levels])
        return learned | {"radius": torch.stack([torch.stack(own) for own in radius])}

    @torch.no_grad()
    def _fit_one(self, rows: Recording, held_out: Recording | None, seed: int) -> BaselinePredictor:
        """As every rival; then the calibration rows are scored by the probabilities of predictions."""
        predictor = super()._fit_one(rows, held_out, seed)
        if self.task == "classification" and held_out is not None:
            table = held_out.table
            answer = softmax_answer(table.column("logits"))
            if "temperature" in predictor.fitted:
                answer = tempered(answer, predictor.fitted["temperature"].cpu())
            scores = calibration_scores(answer.probs, table.column("label")[:, 0], table.groups())
            conformal_factor(scores[0], self.levels[-1], "rows")
            predictor.fitted.add("scores", scores.to(rows.device))
        return predictor

    def _answer(self, fitted: Fitted, at_output: AtOutput, output: Tensor) -> Answer:
        if self.task == "classification":
            return self._class_answer(fitted, output)
        size = torch.ones_like(output)
        if self.residual == "normalised":
            learned = [fitted[name] for name in ("center", "spread", "weights")]
            size = at_output(lambda rows: predicted_sizes(rows, *learned))
        radius = fitted["radius"].reshape(len(fitted["radius"]), *[1] * (output.dim() - 2), -1)
        half = size.unsqueeze(-1) * radius
        width = 2 * half[..., -1]
        return RegressionAnswer(
            levels=self.levels,
            mean=output,
            lowers=output.unsqueeze(-1) - half,
            uppers=output.unsqueeze(-1) + half,
            aleatoric=width,
            epistemic=torch.zeros_like(width),
            total=width,
        )

    def _class_answer(self, fitted: Fitted, output: Tensor) -> ClassAnswer:
        answer = softmax_answer(output)
        conformity = None
        if "scores" in fitted:
            conformity = Conformity(fitted["scores"], score=self.score, level=self.levels[-1])
        return replace(answer, conformity=conformity, epistemic=torch.zeros_like(answer.epistemic))
