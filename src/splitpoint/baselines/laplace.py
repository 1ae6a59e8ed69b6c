"""Last-layer Laplace approximation: a Gaussian posterior of the last layer's weights (Daxberger et al. 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from splitpoint.baselines.answers import normal_answer, softmax_answer
from splitpoint.baselines.posthoc import AtOutput, BaselinePredictor, Fitted, PostHocBaseline
from splitpoint.baselines.settings import EitherMethod
from splitpoint.cache import Table
from splitpoint.consistency import entropy, square_dtype
from splitpoint.errors import SettingsError, TrainingError
from splitpoint.hooks import INPUT, find_module
from splitpoint.recording import Recording
from splitpoint.tasks import Answer

LARGEST_FULL = 8192
DRAWS = 16
SMALLEST_PRECISION, LARGEST_PRECISION = 1e-6, 1e8
TINY = 1e-250
"""Stands for squares that are 0."""


def mutual_information(logits: Tensor, variance: Tensor) -> Tensor:
    """What the weights say about the label, ``H(mean p) - mean H(p)``, for independent logits ``N(logits, variance)``.

    The means are over pairs of opposite draws, the same for all rows, in float64: the difference can be tiny.

    Args:
        logits: (N, K, ...).
        variance: (N, K, ...), or (N, 1, ...) where one logit stands beside a constant 0.

    >>> round(mutual_information(torch.tensor([[3.0, 0.0]]), torch.zeros(1, 2)).item(), 6)
    0.0
    """
    kind, logits = logits.dtype, logits.double()
    sure = torch.zeros_like(logits[:, variance.shape[1] :])
    spread = torch.cat([sure, variance.double().sqrt()], 1)
    draws = torch.randn(DRAWS, logits.shape[1], generator=torch.Generator().manual_seed(0)).to(logits)
    mean, within = torch.zeros_like(logits), torch.zeros_like(logits[:, 0])
    for draw in torch.cat([draws, -draws]):
        probs = (logits + spread * draw.reshape(-1, *[1] * (logits.dim() - 2))).softmax(1)
        mean += probs / (2 * DRAWS)
        within += entropy(probs, 1) / (2 * DRAWS)
    return (entropy(mean, 1) - within).clamp(min=0).to(kind)


@dataclass(frozen=True, kw_only=True)
class Laplace(PostHocBaseline, EitherMethod[BaselinePredictor]):
    """Gaussian posterior ``N(theta, (GGN + delta I)^-1)`` of the last linear layer's weights and biases.

    Regression: every output has its own noise variance and prior precision; ``aleatoric = sigma^2``, ``epistemic``
    the variance of the output under the posterior, which is exact for a linear model with Gaussian noise.
    Classification: ``softmax(f / sqrt(1 + pi/8 v))`` with logit variances v.

    Attributes:
        hessian: "kron" approximates the GGN of a classifier's weights by a Kronecker product, biases apart; "full" is
            exact. For regression they are the same.
        prior_precision: delta; None for the one with the largest marginal likelihood.
        noise: standard deviation of regression targets; None for the one with the largest marginal likelihood.
        score: epistemic score of a classifier: "information" is `mutual_information`, as ensembles have it; "variance"
            the sum of the logit variances, which grows with the features, whether the label is in doubt or not.
    """

    hessian: Literal["kron", "full"] = "kron"
    prior_precision: float | None = None
    noise: float | None = None
    score: Literal["information", "variance"] = "information"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("prior_precision", "noise"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise SettingsError(f"Expected {name} > 0 or None, but got {value}.")

    def _learn(self, rows: Recording, held_out: Recording | None, seed: int) -> dict[str, Tensor]:  # noqa: ARG002
        layer = _last_linear(rows)
        if self.task == "regression":
            return self._regression(rows.table, layer)
        return self._full(rows.table, layer) if self.hessian == "full" else self._kron(rows.table, layer)

    def _answer(self, fitted: Fitted, at_output: AtOutput, output: Tensor) -> Answer:
        if self.task == "regression":
            variance = at_output(lambda rows: _quadratic(_extended(rows, fitted), fitted["root"]))
            wide = [-1, *[1] * (output.dim() - 2)]
            noise = fitted["noise_variance"].reshape(wide).expand_as(output)
            return normal_answer(output, noise, variance, self.levels)
        if self.hessian == "full":
            variance = at_output(lambda rows: _quadratic(_extended(rows, fitted), fitted["root"]))
        else:
            variance = at_output(lambda rows: _kron_variance(rows, fitted))
        scaled = output / (1 + math.pi / 8 * variance).sqrt()
        score = variance.sum(1) if self.score == "variance" else mutual_information(output, variance)
        return replace(softmax_answer(scaled, output), epistemic=score)

    def _regression(self, table: Table, layer: nn.Linear) -> dict[str, Tensor]:
        """Root of the posterior covariance and noise variance of every output."""
        features, residual = _with_bias(table.column("features").double(), layer), table.column("residual").double()
        _check_last(features, table.column("output").double(), layer)
        roots, noises = [], []
        for number, own in enumerate(residual.T):
            seen = ~own.isnan()
            values, axes = _axes(features[seen].T @ features[seen])
            evidence = LinearEvidence(
                values, float(own[seen].square().sum()), int(seen.sum()), _squared_norm(layer, number)
            )
            precision, noise = evidence.best(self.prior_precision, self.noise)
            roots.append(axes / (values / noise + precision).sqrt())
            noises.append(noise)
        variance = torch.tensor(noises, dtype=torch.float64)
        wide = square_dtype(variance.sqrt())
        return {"root": torch.stack(roots).to(wide), "noise_variance": variance.to(wide), **_bias_flag(layer)}

    def _full(self, table: Table, layer: nn.Linear) -> dict[str, Tensor]:
        """Roots of the posterior covariance's diagonal blocks, one for each logit."""
        features, probs = _with_bias(table.column("features").double(), layer), _probs(table, layer)
        classes, width = layer.out_features, features.shape[1]
        if classes * width > LARGEST_FULL:
            raise SettingsError(
                f"Expected at most {LARGEST_FULL} weights for hessian='full', but the last layer has "
                f"{classes * width}; use hessian='kron'."
            )
        blocks = [
            torch.cat([features.T @ (_curvature(probs, k, j)[:, None] * features) for j in range(classes)], 1)
            for k in range(classes)
        ]
        values, axes = _axes(torch.cat(blocks))
        precision = self._precision(lambda delta: (values + delta).log().sum() - len(values) * math.log(delta), layer)
        covariance = (axes / (values + precision)) @ axes.T
        own = [covariance[k * width : (k + 1) * width, k * width : (k + 1) * width] for k in range(classes)]
        return {"root": torch.stack([_root(block) for block in own]).float(), **_bias_flag(layer)}

    def _kron(self, table: Table, layer: nn.Linear) -> dict[str, Tensor]:
        """Axes and eigenvalues of the two factors, and of the biases' own block."""
        features, probs = table.column("features").double(), _probs(table, layer)
        values_in, axes_in = _axes(features.T @ features)
        values_out, axes_out = _axes(torch.diag(probs.mean(0)) - probs.T @ probs / len(probs))
        joint = values_in[:, None] * values_out
        bias = len(features) * values_out if layer.bias is not None else joint.new_zeros(0)

        def cost(delta: float) -> Tensor:
            size = joint.numel() + len(bias)
            return (joint + delta).log().sum() + (bias + delta).log().sum() - size * math.log(delta)

        precision = self._precision(cost, layer)
        return {
            "axes_in": axes_in.float(),
            "axes_out": axes_out.float(),
            "weight_variance": (1 / (joint + precision)).float(),
            "bias_variance": (1 / (bias + precision)).float() if len(bias) else torch.zeros(layer.out_features),
        }

    def _precision(self, log_determinant: Callable[[float], Tensor], layer: nn.Linear) -> float:
        """The prior precision that minimises ``delta |theta|^2 + log det(GGN + delta I) - P log delta``."""
        if self.prior_precision is not None:
            return self.prior_precision
        norm = sum(_squared_norm(layer, number) for number in range(layer.out_features))
        return _smallest(lambda delta: delta * norm + float(log_determinant(delta)))


@dataclass(frozen=True)
class LinearEvidence:
    """Marginal likelihood of a linear model with Gaussian noise and prior, at fixed weights.

    Attributes:
        values: (P,) eigenvalues of ``Phi^T Phi``.
        squares: sum of squared residuals.
        rows: number of rows.
        norm: squared norm of the weights.
    """

    values: Tensor
    squares: float
    rows: int
    norm: float

    def best(self, precision: float | None, deviation: float | None) -> tuple[float, float]:
        """Prior precision and noise variance: as given, or where the marginal likelihood is largest.

        Both follow the units of the targets; a perfect fit has a noise of about 1e-6 of the outputs' size.
        """
        floor = max(1e-12 * self.norm * float(self.values.sum()) / max(self.rows, 1), TINY)
        noise = max(self.squares / max(self.rows, 1), floor) if deviation is None else deviation**2
        delta = 1 / max(self.norm, TINY) if precision is None else precision
        for _ in range(100):
            before = (delta, noise)
            known = float((self.values / (self.values + noise * delta)).sum())
            if precision is None:
                delta = max(known, 1e-12) / max(self.norm, TINY)
            if deviation is None:
                noise = max(self.squares / max(self.rows - known, 1.0), floor)
            if abs(math.log(delta / before[0])) + abs(math.log(noise / before[1])) < 1e-10:
                break
        return delta, noise


def _last_linear(rows: Recording) -> nn.Linear:
    tap = rows.tap
    single = tap is not None and len(tap.names) == 1 and tap.names[0].endswith(INPUT)
    layer = find_module(tap.model, tap.names[0]) if tap is not None and single else None
    if not isinstance(layer, nn.Linear):
        source = "rows without a model" if tap is None else tap.label
        raise SettingsError(
            f"Expected a model that ends in a Linear layer, but features come from {source}; use another method."
        )
    return layer


def _check_last(features: Tensor, output: Tensor, layer: nn.Linear) -> None:
    """Refuse a model that changes the last layer's output: its variance would be that of another quantity."""
    weight = layer.weight.detach().cpu().double()
    weight = weight if layer.bias is None else torch.cat([weight, layer.bias.detach().cpu().double()[:, None]], 1)
    expected = features @ weight.T
    if expected.shape != output.shape or not torch.allclose(
        expected, output, rtol=1e-2, atol=1e-2 * float(output.std())
    ):
        raise SettingsError(
            "Expected a model whose output is that of its last Linear layer, but something after it changes the "
            "numbers; leave it out, or use another method."
        )


def _squared_norm(layer: nn.Linear, output: int) -> float:
    """Squared norm of the weights and the bias of one output."""
    bias = 0.0 if layer.bias is None else float(layer.bias.detach()[output].double().square())
    return float(layer.weight.detach()[output].double().square().sum()) + bias


def _bias_flag(layer: nn.Linear) -> dict[str, Tensor]:
    return {"has_bias": torch.tensor(layer.bias is not None)}


def _with_bias(features: Tensor, layer: nn.Linear) -> Tensor:
    return features if layer.bias is None else torch.cat([features, features.new_ones(len(features), 1)], 1)


def _extended(rows: Tensor, fitted: Fitted) -> Tensor:
    return torch.cat([rows, rows.new_ones(len(rows), 1)], 1) if bool(fitted["has_bias"]) else rows


def _quadratic(rows: Tensor, root: Tensor) -> Tensor:
    """``h^T R_k R_k^T h`` for rows (R, P) and roots (K, P, P) -> (R, K)."""
    return torch.stack([(rows.to(root) @ own).square().sum(1) for own in root], 1)


def _root(covariance: Tensor) -> Tensor:
    values, axes = _axes(covariance)
    return axes * values.sqrt()


def _axes(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, none below 0, and eigenvectors of a positive semi-definite matrix."""
    try:
        values, axes = torch.linalg.eigh(matrix)
    except RuntimeError as error:  # no decomposition converged
        raise TrainingError(
            "Expected a curvature that can be decomposed, but the features have one that cannot; bring them to a usual "
            "scale or use another method."
        ) from error
    return values.clamp(min=0), axes


def _probs(table: Table, layer: nn.Linear) -> Tensor:
    """Probabilities (n, K) of the layer's outputs; (n, 1) of the second class for one logit.

    The log loss has curvature ``diag(p) - p p^T`` in the outputs, which is ``p (1 - p)`` for one logit.
    """
    probs = table.column("logits").double().softmax(1)
    return probs[:, 1:] if layer.out_features == 1 else probs


def _curvature(probs: Tensor, k: int, j: int) -> Tensor:
    """Entry (k, j) of every row's curvature (n,)."""
    return probs[:, k] * (float(k == j) - probs[:, j])


def _kron_variance(rows: Tensor, fitted: Fitted) -> Tensor:
    """Variances of the logits (R, K) under the Kronecker-factored posterior."""
    weights = (rows.to(fitted["axes_in"]) @ fitted["axes_in"]).square() @ fitted["weight_variance"] + fitted[
        "bias_variance"
    ]
    return weights @ fitted["axes_out"].square().T


def _smallest(cost: Callable[[float], float]) -> float:
    """Where a cost of a positive number with one minimum is smallest, by a grid on the logarithm that closes in."""
    low, high = math.log(SMALLEST_PRECISION), math.log(LARGEST_PRECISION)
    for _ in range(6):
        grid = [low + (high - low) * step / 30 for step in range(31)]
        costs = [cost(math.exp(point)) for point in grid]
        best = costs.index(min(costs))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, 30)]
    return math.exp(grid[best])
