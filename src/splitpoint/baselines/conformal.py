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
from splitpoint.calibration import conformal_factor
from splitpoint.errors import SettingsError
from splitpoint.recording import Recording
from splitpoint.tasks import Answer, RegressionAnswer

RIDGE = 1e-2


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
    return (((rows - center) / spread) @ weights[:-1] + weights[-1]).clamp(-60, 60).exp()


def cumulative_scores(probs: Tensor) -> Tensor:
    """APS score of every class (R, K, ...): the probability of all classes at least as probable, itself included.

    >>> cumulative_scores(torch.tensor([[0.5, 0.125, 0.375]]))
    tensor([[0.5000, 1.0000, 0.8750]])
    """
    ordered, order = probs.sort(dim=1, descending=True, stable=True)
    sums = ordered.cumsum(1).clamp(max=1)
    sums[:, -1] = 1
    return torch.zeros_like(probs).scatter_(1, order, sums)


@dataclass(frozen=True, kw_only=True)
class Conformal(FeatureBaseline, EitherMethod[BaselinePredictor]):
    """Split conformal prediction with the ``ceil((n + 1) level)``-th smallest score of n calibration rows.

    Regression: ``f(x) -+ q`` from absolute residuals, or ``f(x) -+ q s(x)`` from residuals over a predicted size s,
    which is fitted on the training rows. Classification: adaptive prediction sets (APS, Romano et al. 2020) without
    randomisation, in `sets`; probabilities are the model's own. It has no epistemic part of its own.

    Attributes:
        residual: "absolute" or "normalised".
    """

    residual: Literal["absolute", "normalised"] = "absolute"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.residual not in ("absolute", "normalised"):
            raise SettingsError(f"Expected residual to be 'absolute' or 'normalised', but got {self.residual!r}.")

    def _learn(self, rows: Recording, held_out: Recording | None, seed: int) -> dict[str, Tensor]:  # noqa: ARG002
        if held_out is None:
            raise SettingsError(
                "Expected calibration data for conformal prediction, but got none; pass calibration= to fit."
            )
        table = held_out.table
        if self.task == "classification":
            scores = cumulative_scores(table.column("logits").softmax(1)).gather(1, table.column("label"))
            return {"radius": torch.stack([conformal_factor(scores[:, 0], level, "rows") for level in self.levels])}
        learned = fit_sizes(rows.table) if self.residual == "normalised" else {}
        sizes = predicted_sizes(table.column("features"), **learned) if learned else torch.ones(())
        ratios = table.column("residual").abs() / sizes
        radius = [[conformal_factor(own[~own.isnan()], level, "rows") for level in self.levels] for own in ratios.T]
        return learned | {"radius": torch.tensor(radius)}

    def _answer(self, fitted: Fitted, at_output: AtOutput, output: Tensor) -> Answer:
        if self.task == "classification":
            answer = softmax_answer(output)
            scores = cumulative_scores(answer.probs)
            top = answer.probs == answer.probs.amax(1, keepdim=True)
            return replace(
                answer, sets=(scores <= fitted["radius"][-1]) | top, epistemic=torch.zeros_like(answer.epistemic)
            )
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
