"""Orthonormal certificates on the features of a trained model (Tagasovska & Lopez-Paz 2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from splitpoint.baselines.answers import constant_answer, softmax_answer
from splitpoint.baselines.posthoc import AtOutput, BaselinePredictor, FeatureBaseline, Fitted
from splitpoint.baselines.settings import EitherMethod
from splitpoint.cache import Table, feature_moments
from splitpoint.calibration import quantiles
from splitpoint.errors import SettingsError
from splitpoint.recording import Recording
from splitpoint.tasks import Answer, Levels


def check_certificates(count: int, penalty: float) -> None:
    """Refuse a number of certificates or a weight of their orthonormality that makes no sense."""
    if count < 1 or not 0 < penalty < float("inf"):
        raise SettingsError(f"Expected certificates >= 1 and penalty > 0, but got {count} and {penalty}.")


def fit_certificates(table: Table, count: int, penalty: float) -> dict[str, Tensor]:
    """Certificates ``C`` (C, k) that minimise ``E |C^T h|^2 + penalty |C^T C - I|^2`` over standardised features h.

    In the basis of the principal axes of h, with variances s, the loss falls apart into ``s g + penalty (g - 1)^2``
    for the squared gain g of every certificate, so that certificates are the axes of the k smallest variances with
    ``g = max(0, 1 - s / (2 penalty))``. This is the limit that training by gradient descent approaches. There are no
    more certificates than features: others would add nothing to the score.

    Args:
        table: rows with a column "features".
        count: most certificates k.
        penalty: weight of the orthonormality.
    """
    center, spread = feature_moments(table)
    scatter = torch.zeros(len(center), len(center), dtype=torch.float64)
    for part in table.slices():
        rows = ((part["features"] - center) / spread).double()
        scatter += rows.T @ rows
    variance, axes = torch.linalg.eigh(scatter / table.rows)
    gain = (1 - variance[:count] / (2 * penalty)).clamp(min=0).sqrt()
    return {"center": center, "spread": spread, "certificates": (axes[:, :count] * gain).float()}


def certificate_score(rows: Tensor, center: Tensor, spread: Tensor, certificates: Tensor) -> Tensor:
    """``|C^T h|^2 / k`` of feature rows (R, C) -> (R, 1)."""
    return (((rows - center) / spread) @ certificates).square().mean(1, keepdim=True)


def residual_quantiles(table: Table, levels: Levels) -> Tensor:
    """Lower and upper residual quantiles (D, 2, L) at the central levels, NaN residuals left out."""
    residual = table.column("residual").double()
    tails = torch.tensor([[(1 - level) / 2 for level in levels], [(1 + level) / 2 for level in levels]]).double()
    found = [
        quantiles(own[~own.isnan()].sort().values[None], tails.double().flatten()).reshape(tails.shape)
        for own in residual.T
    ]
    return torch.stack(found).float()


@dataclass(frozen=True, kw_only=True)
class OrthonormalCertificates(FeatureBaseline, EitherMethod[BaselinePredictor]):
    """Epistemic score ``|C^T h(x)|^2 / k`` of certificates that vanish on the training features.

    Probabilities are the model's own. Regression intervals are the model's output plus residual quantiles, of the
    calibration data where given, else of the training data: certificates say nothing about noise.

    Attributes:
        certificates: most certificates k; there are no more than features.
        penalty: weight of the orthonormality.
    """

    certificates: int = 100
    penalty: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_certificates(self.certificates, self.penalty)

    def _learn(self, rows: Recording, held_out: Recording | None, seed: int) -> dict[str, Tensor]:  # noqa: ARG002
        learned = fit_certificates(rows.table, self.certificates, self.penalty)
        if self.task == "regression":
            learned["quantiles"] = residual_quantiles((held_out or rows).table, self.levels)
        return learned

    def _answer(self, fitted: Fitted, at_output: AtOutput, output: Tensor) -> Answer:
        names = ("center", "spread", "certificates")
        score = at_output(lambda rows: certificate_score(rows, *(fitted[name] for name in names)))
        if self.task == "classification":
            return replace(softmax_answer(output), epistemic=score.squeeze(1))
        return constant_answer(output, fitted["quantiles"], self.levels, score.expand_as(output))
