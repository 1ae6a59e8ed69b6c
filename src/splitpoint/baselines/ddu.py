"""Deep deterministic uncertainty: a Gaussian for every class in feature space (Mukhoti et al. 2023)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from splitpoint.baselines.answers import softmax_answer
from splitpoint.baselines.posthoc import AtOutput, BaselinePredictor, FeatureBaseline, Fitted
from splitpoint.baselines.settings import ClassificationMethod
from splitpoint.cache import Table
from splitpoint.errors import SettingsError
from splitpoint.networks.surgery import with_spectral_norm
from splitpoint.recording import Recording
from splitpoint.tasks import Answer

LARGEST = 2**29
"""Numbers in the covariances of all classes: 4 GB."""

JITTERS = [0.0, *(10.0**power for power in range(-9, 1))]
"""Shares of the mean variance that are added to a covariance until it can be factored."""


def fit_densities(table: Table, classes: int) -> dict[str, Tensor]:
    """Means (K, C), inverse Cholesky factors (K, C, C) and log-weights (K,) of one Gaussian per class.

    A class with fewer than two rows gets the covariance of all rows around their class means; one without any row has
    weight 0. Covariances that cannot be factored get the smallest jitter with which they can.
    """
    width = table.width("features")
    if classes * width**2 > LARGEST:
        raise SettingsError(
            f"Expected densities of at most {LARGEST:,} numbers, but {classes} classes of {width} features need "
            f"{classes * width**2:,}; choose a narrower layer."
        )
    count = torch.zeros(classes, dtype=torch.float64)
    total = torch.zeros(classes, width, dtype=torch.float64)
    for part in table.slices():
        label = part["label"][:, 0]
        count += torch.bincount(label, minlength=classes)
        total.index_add_(0, label, part["features"].double())
    mean = total / count.clamp(min=1)[:, None]
    scatter = torch.zeros(classes, width, width, dtype=torch.float64)
    for part in table.slices():
        label = part["label"][:, 0]
        rows = part["features"].double() - mean[label]
        for k in label.unique().tolist():
            own = rows[label == k]
            scatter[k] += own.T @ own
    pooled = scatter.sum(0) / count.sum()
    covariance = torch.where((count > 1)[:, None, None], scatter / (count - 1).clamp(min=1)[:, None, None], pooled)
    factors = torch.stack([_factor(own, pooled) for own in covariance])
    eye = torch.eye(width, dtype=torch.float64)
    return {
        "mean": mean.float(),
        "inverse": torch.linalg.solve_triangular(factors, eye.expand_as(factors), upper=False).float(),
        "log_weight": (count / count.sum()).log().float(),
    }


def _factor(covariance: Tensor, pooled: Tensor) -> Tensor:
    """Cholesky factor of a covariance with the smallest jitter that makes its factor sound."""
    size = float(covariance.diagonal().mean()) or float(pooled.diagonal().mean()) or 1.0
    eye = torch.eye(len(covariance), dtype=covariance.dtype)
    factor = eye
    for jitter in JITTERS:
        factor, failed = torch.linalg.cholesky_ex(covariance + jitter * size * eye)
        if not int(failed) and float(factor.diagonal().min()) ** 2 > 1e-12 * size:
            break
    return factor


def negative_log_density(rows: Tensor, mean: Tensor, inverse: Tensor, log_weight: Tensor) -> Tensor:
    """``-log sum_k pi_k N(h; mu_k, Sigma_k)`` without its constant, of feature rows (R, C) -> (R, 1)."""
    parts = []
    for k in range(len(mean)):
        distance = ((rows - mean[k]) @ inverse[k].T).square().sum(1)
        parts.append(log_weight[k] + inverse[k].diagonal().log().sum() - distance / 2)
    return -torch.stack(parts, 1).logsumexp(1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class Ddu(FeatureBaseline, ClassificationMethod[BaselinePredictor]):
    """Feature density as epistemic score, ``-log p(h(x))``; entropy of the softmax as aleatoric score.

    Attributes:
        spectral_norm: largest spectral norm of the layers of a network that is trained from a factory, which keeps
            distances in feature space meaningful; None for no bound.
    """

    spectral_norm: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.spectral_norm is not None and not 0 < self.spectral_norm < float("inf"):
            raise SettingsError(f"Expected spectral_norm > 0 or None, but got {self.spectral_norm}.")

    @property
    def _spectral_bound(self) -> float | None:
        return self.spectral_norm

    def _rebuilt(self, network: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
        if self.spectral_norm is None:
            return network
        suffix = ".parametrizations.weight.original"
        places = [name.removesuffix(suffix) for name in tensors if name.endswith(suffix)]
        return with_spectral_norm(network, places, self.spectral_norm)

    def _learn(self, rows: Recording, held_out: Recording | None, seed: int) -> dict[str, Tensor]:  # noqa: ARG002
        return fit_densities(rows.table, rows.table.width("logits"))

    def _answer(self, fitted: Fitted, at_output: AtOutput, output: Tensor) -> Answer:
        tensors = [fitted[name] for name in ("mean", "inverse", "log_weight")]
        score = at_output(lambda rows: negative_log_density(rows, *tensors))
        return replace(softmax_answer(output), epistemic=score.squeeze(1))
