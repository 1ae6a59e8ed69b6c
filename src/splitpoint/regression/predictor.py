"""The fitted regression predictor: from features and output to a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from splitpoint.cache import Table
from splitpoint.calibration import conformal_factor
from splitpoint.consistency import Mars, scale_factors, sds
from splitpoint.features import Tap
from splitpoint.heads import Heads
from splitpoint.layout import Layout
from splitpoint.prediction import RegressionPrediction
from splitpoint.predictor import PostHocPredictor
from splitpoint.tasks import RegressionAnswer

if TYPE_CHECKING:
    from splitpoint.regression.method import SplitPointRegressor


class RegressionPredictor(PostHocPredictor[RegressionPrediction]):
    """What `SplitPointRegressor.fit` returns: `uq(x)` is a `RegressionPrediction`."""

    method: SplitPointRegressor
    scale: Tensor
    shape: Tensor
    factors: Tensor

    def __init__(
        self,
        method: SplitPointRegressor,
        tap: Tap | None,
        layout: Layout,
        inputs: int,
        tensors: Mapping[str, Tensor],
    ) -> None:
        super().__init__(method, tap, layout, inputs, tensors)
        self.outputs = method.outputs
        self.heads = Heads({k.removeprefix("heads."): v for k, v in tensors.items() if k.startswith("heads.")}).eval()
        for name in ("scale", "shape", "factors"):
            self.register_buffer(name, tensors[name])

    def _answer(self, features: Tensor, output: Tensor) -> RegressionAnswer:
        raw = {name: self.layout.heads(v, output) for name, v in self.heads.pointwise(features).items()}
        bounds, mars = self.half_widths(raw)
        down, up = self._calibrated(bounds, mars).movedim(3, -1).unbind(2)
        mean, score = self.task.canonical(self.layout.output(output)), sds(mars)
        return RegressionAnswer(
            levels=self.outputs.levels,
            mean=mean,
            lowers=mean.unsqueeze(-1) - down,
            uppers=mean.unsqueeze(-1) + up,
            aleatoric=bounds[:, :, :, -1].sum(2),
            epistemic=score,
            total=mars.up + mars.down + score.sqrt(),
            mar=mars.total,
            mar_up=mars.up,
            mar_down=mars.down,
        )

    def half_widths(self, raw: Mapping[str, Tensor]) -> tuple[Tensor, Mars]:
        """Raw head outputs (N, M, ...) -> uncalibrated half-widths (N, D, 2, L, ...) and MARs (N, D, ...)."""
        quantiles, mars = self.outputs.decode(raw, axis=1)
        bounds = shaped_bounds(quantiles, mars, self.shape)
        scale = self.scale.reshape(-1, *[1] * (bounds.dim() - 4))
        if "leverage" in raw:
            leverage = raw["leverage"]
            growth = (1 + leverage) * (leverage / self.heads.reach.squeeze(0)).clamp(min=1)
            mars = mars._replace(total=mars.total * growth.sqrt())
        return bounds * scale[:, None, None], Mars(*(mar * scale for mar in mars))

    def _calibrated(self, bounds: Tensor, mars: Mars) -> Tensor:
        """Half-widths (N, D, 2, L, ...) after the calibration that the method asks for."""
        kind = self.method.interval
        if kind == "split":
            return bounds
        if kind == "consistent":
            up, down = scale_factors(mars, self.method.factor_limit)
            return bounds * torch.stack([down, up], 2).unsqueeze(3)
        factors = self.factors.reshape(1, *self.factors.shape, *[1] * (bounds.dim() - 4))
        return (bounds * factors).cummax(3).values


def shaped_bounds(bounds: Tensor, mars: Mars, shape: Tensor) -> Tensor:
    """Half-widths ``c0 quantile + c1 MAR of the side + c2`` that never cross.

    Args:
        bounds: (N, D, 2, L, ...) predicted quantiles of the sides (down, up).
        mars: (N, D, ...) predicted MARs.
        shape: (D, 2, L, 3) coefficients, see `objective.fit_shape`.
    """
    c0, c1, c2 = (c.reshape(1, *c.shape, *[1] * (bounds.dim() - 4)) for c in shape.unbind(-1))
    sides = torch.stack([mars.down, mars.up], 2).unsqueeze(3)
    mixed = c0 * bounds + c1 * sides + c2
    return mixed if bounds.shape[3] == 1 else mixed.cummax(3).values


def conformal_factors(predictor: RegressionPredictor, table: Table) -> Tensor:
    """Per-side factors (D, 2, L) from calibration rows."""
    ratios = []
    for part in table.slices():
        with torch.no_grad():
            bounds, _ = predictor.half_widths(predictor.heads.pointwise(part["features"].to(predictor.scale.device)))
        size = part["residual"].abs()[:, :, None, None]
        ratios.append(size / bounds.cpu().clamp(min=torch.finfo(bounds.dtype).tiny))
    ratio, sign = torch.cat(ratios), table.column("residual").sign()
    factors = torch.ones(ratio.shape[1:], dtype=torch.float32)
    for output in range(ratio.shape[1]):
        for side, value in enumerate((-1, 1)):
            rows = sign[:, output] == value
            for index, level in enumerate(predictor.outputs.levels):
                factors[output, side, index] = conformal_factor(ratio[rows, output, side, index], level)
    return factors
