"""The split-point method as pure tensor functions: MARs, the harmonic identity, SDS, calibration factors.

Symbols follow the paper (Zhao & Chen 2025): ``r = y - f(x)`` is a residual, MAR the conditional mean of ``|r|``
over all rows, ``MAR+`` over rows with ``r > 0``, ``MAR-`` over rows with ``r < 0``. All functions broadcast, keep
float32 or float64, and return finite values for every finite input (all but `implied_sides`, the paper's own form).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

SQUARES = (1e-12, 1e12)
"""Sizes between which squares are safely numbers of float32, those of a thousandth and of a thousand times as well."""


class Mars(NamedTuple):
    """Total, upper-side and lower-side mean absolute residual, all of one shape."""

    total: Tensor
    up: Tensor
    down: Tensor


def _tiny(x: Tensor) -> float:
    return torch.finfo(x.dtype).tiny


def _saturate(x: Tensor) -> Tensor:
    return x.clamp(max=torch.finfo(x.dtype).max)


def _safe_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    return numerator / denominator.clamp(min=_tiny(denominator))


def square_dtype(size: Tensor) -> torch.dtype:
    """In what squares of numbers of about this `size` are kept: float32 where it holds them with room to spare.

    The least of its normal numbers is 1e-38, so that squares of 1e-20 are gone, and those of 1e20 too large. float64
    holds squares of all numbers of float32.

    >>> square_dtype(torch.tensor([0.0, 1e-3, 2.0])), square_dtype(torch.tensor([1.0, 1e-15]))
    (torch.float32, torch.float64)
    """
    used = size[size != 0].double().abs()
    near = bool(((used > SQUARES[0]) & (used < SQUARES[1])).all())
    return torch.float32 if near else torch.float64


def sample_mars(residual: Tensor, dim: int = -1) -> Mars:
    """MARs of a sample of residuals (E5): means of ``|r|`` over ``r != 0``, ``r > 0`` and ``r < 0`` along `dim`.

    Zero and NaN residuals belong to no side. An empty side has MAR 0.

    >>> mars = sample_mars(torch.tensor([3.0, 1.0, -4.0, 0.0]))
    >>> [round(m.item(), 3) for m in mars]
    [2.667, 2.0, 4.0]
    """
    size = residual.abs()

    def mean_where(mask: Tensor) -> Tensor:
        count = mask.sum(dim)
        return _saturate(torch.where(mask, size / count.clamp(min=1).unsqueeze(dim), 0.0).sum(dim))

    return Mars(mean_where(size > 0), mean_where(residual > 0), mean_where(residual < 0))


def harmonic_mean(a: Tensor, b: Tensor) -> Tensor:
    """``H(a, b) = 2ab / (a + b)`` for ``a, b >= 0``, and 0 where both are 0 (E10).

    Theorem 1 of the paper: split at the mean, the total MAR equals the harmonic mean of the two sides.

    >>> harmonic_mean(torch.tensor(2.0), torch.tensor(6.0))
    tensor(3.)
    """
    small, large = torch.minimum(a, b), torch.maximum(a, b)
    return _saturate(small * (2 / (1 + _safe_ratio(small, large))))


def discrepancy(mars: Mars) -> Tensor:
    """``|MAR - H(MAR+, MAR-)|`` (E11): zero at the mean and where both sides are equal; same units as the target."""
    return (mars.total - harmonic_mean(mars.up, mars.down)).abs()


def sds(mars: Mars) -> Tensor:
    """Self-consistency discrepancy score ``|2 MAR+ MAR- - MAR (MAR+ + MAR-)|`` (E22, E23), in squared target units.

    Homogeneous of degree two: multiplying every residual by `a` multiplies the score by `a**2`.

    >>> sds(Mars(torch.tensor(3.0), torch.tensor(2.0), torch.tensor(6.0)))
    tensor(0.)
    """
    size = torch.maximum(mars.total.abs(), torch.maximum(mars.up.abs(), mars.down.abs()))
    total, up, down = (_safe_ratio(mar, size) for mar in mars)
    return _saturate(size * (2 * up * down - total * (up + down)).abs() * size)


def plain_sds(total: Tensor, sides: Tensor, product: Tensor) -> Tensor:
    """The same of MARs whose squares are numbers of their type, see `square_dtype`, in few operations.

    Args:
        total: MAR.
        sides: MAR+ + MAR-.
        product: 2 MAR+ MAR-.
    """
    return _saturate(torch.addcmul(product, total, sides, value=-1).abs_())


def implied_sides(mars: Mars) -> tuple[Tensor, Tensor]:
    """Side MARs that the harmonic identity implies from the other two (E28): ``z z- / (2 z- - z)`` and its mirror.

    Infinite where the denominator is zero and negative where it is negative: the paper's own form, for comparison.
    """
    total, up, down = mars
    return total * down / (2 * down - total), total * up / (2 * up - total)


def scale_factors(mars: Mars, limit: float | None = 2.0) -> tuple[Tensor, Tensor]:
    """Consistency calibration factors ``(s+, s-)`` that widen the two sides of an interval (E29).

    With ``u = z / z-`` and ``v = z / z+`` the paper's factor is ``s+ = max(1, v / (2 - u))``; it has no bound as
    `u` rises to 2 and drops to 1 beyond, exactly where the heads disagree most. Ours is

        ``s+ = min(limit, max(1, v / (2 - u)))`` for ``u < 2``, and ``limit`` beyond,

    which equals the paper's up to `limit`, never exceeds it, and is monotone: non-decreasing in `z`, non-increasing
    in ``z+`` and ``z-``. ``limit=None`` gives the paper's form (1 where ``u >= 2``).

    >>> up, down = scale_factors(Mars(torch.tensor(1.5), torch.tensor(1.0), torch.tensor(1.5)))
    >>> up, down
    (tensor(1.5000), tensor(2.))
    """
    total, up, down = (mar.clamp(min=0) for mar in mars)
    over_up, over_down = _safe_ratio(total, up), _safe_ratio(total, down)
    if limit is None:
        return _unbounded_factor(over_up, over_down), _unbounded_factor(over_down, over_up)
    return _bounded_factor(over_up, over_down, limit), _bounded_factor(over_down, over_up, limit)


def _bounded_factor(own: Tensor, other: Tensor, limit: float) -> Tensor:
    denominator = 2 - other
    return torch.where(denominator > 0, _safe_ratio(own, denominator).clamp(1.0, float(limit)), limit)


def _unbounded_factor(own: Tensor, other: Tensor) -> Tensor:
    denominator = 2 - other
    factor = _saturate(_safe_ratio(own, denominator)).clamp(min=1)
    return torch.where(denominator > 0, factor, 1.0)


def class_mars(probs: Tensor, frequency: Tensor) -> Mars:
    """Classification MARs of softmax `probs` p where the classes occur with `frequency` P (E6).

    ``MAR = P (1 - p) + (1 - P) p``, ``MAR+ = 1 - p``, ``MAR- = p``.
    """
    return Mars(frequency * (1 - probs) + (1 - frequency) * probs, 1 - probs, probs)


def class_sds(probs: Tensor, mar: Tensor, dim: int = -1) -> Tensor:
    """Classification SDS ``sum_k |2 p_k (1 - p_k) - z_k|`` over the class axis `dim` (E25).

    >>> class_sds(torch.tensor([0.9, 0.1]), torch.tensor([0.18, 0.28]))
    tensor(0.1000)
    """
    return _saturate((2 * probs * (1 - probs) - mar).abs().sum(dim))


def zero_included_residuals(probs: Tensor, one_hot: Tensor) -> Mars:
    """Targets of the calibration networks (E7): ``|r|``, ``max(r, 0)`` and ``-min(r, 0)`` for ``r = one_hot - p``."""
    residual = one_hot - probs
    return Mars(residual.abs(), residual.clamp(min=0), (-residual).clamp(min=0))


def zero_included_mars(probs: Tensor, frequency: Tensor) -> Mars:
    """Zero-included MARs (E8): ``P(1-p) + (1-P)p``, ``P(1-p)``, ``(1-P)p``; the first is the sum of the others."""
    up, down = frequency * (1 - probs), (1 - frequency) * probs
    return Mars(up + down, up, down)


def calibration_gap(mars: Mars, dim: int = -1) -> Tensor:
    """Quality-assurance factor ``||z_C - z_C+ - z_C-||_1`` over the class axis (E32)."""
    return _saturate((mars.total - mars.up - mars.down).abs().sum(dim))


def project_to_simplex(scores: Tensor, fallback: Tensor, dim: int = -1) -> Tensor:
    """Clip `scores` to [0, 1] and renormalise along `dim`; rows with nothing left take `fallback`."""
    clipped = scores.clamp(0, 1)
    mass = clipped.sum(dim, keepdim=True)
    return torch.where(mass >= _tiny(mass), _safe_ratio(clipped, mass), fallback)


def corrected_probs(probs: Tensor, mars: Mars, delta0: float, dim: int = -1) -> Tensor:
    """Calibrated softmax ``p + 1[delta_C < delta0] (z_C+ - z_C-)`` (E33), projected back to the simplex.

    The paper's form leaves the simplex; ours clips and renormalises. Rows whose gate stays shut keep `probs`.

    >>> mars = Mars(*(torch.tensor(v) for v in ([0.3, 0.3], [0.0, 0.3], [0.3, 0.0])))
    >>> corrected_probs(torch.tensor([0.9, 0.1]), mars, delta0=0.01)
    tensor([0.6000, 0.4000])
    """
    opened = (calibration_gap(mars, dim) < delta0).unsqueeze(dim)
    projected = project_to_simplex(probs + mars.up - mars.down, probs, dim)
    return torch.where(opened, projected, probs)


def entropy(probs: Tensor, dim: int = -1) -> Tensor:
    """Predictive entropy ``-sum_k p_k log p_k`` in nats, with ``0 log 0 = 0`` (E31)."""
    return torch.xlogy(probs, probs).sum(dim).neg()
