"""The fitted regression predictor: from features and output to a prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from splitpoint.cache import Table
from splitpoint.calibration import conformal_factor
from splitpoint.consistency import Mars, plain_sds, scale_factors, square_dtype
from splitpoint.features import Tap
from splitpoint.groups import Owners
from splitpoint.heads import Heads
from splitpoint.layout import Layout
from splitpoint.marginals import without
from splitpoint.operators import running_max, traced
from splitpoint.posthoc import PostHocPredictor
from splitpoint.prediction import RegressionPrediction
from splitpoint.regression.checks import Judged
from splitpoint.regression.folded import FoldedRegression
from splitpoint.regression.held_out import HeldOut, HeldOutRows, Mixed, mixed
from splitpoint.regression.objective import shaped_bounds
from splitpoint.regression.support import JointLeverage
from splitpoint.selfcheck import some
from splitpoint.tasks import RegressionAnswer, Rows

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
        self.heads = Heads(_part(tensors, "heads.")).eval()
        held_out = _part(tensors, "held_out.")
        self.held_out = HeldOut(held_out).eval() if held_out else None
        self.joint = JointLeverage(_part(tensors, "joint.")).eval() if tap is not None and tap.context else None
        for name in ("scale", "shape", "factors"):
            self.register_buffer(name, tensors[name])
        self.register_module("folded", None)
        self._squares = square_dtype(self.scale)
        self._one_sided = bool((self.shape == 0).all(-1).any())

    def _features(self, tensors: Sequence[Tensor]) -> Tensor | list[Tensor]:
        """Maps each at their own resolution: heads up-sample less than there are features."""
        return self.layout.parts(tensors) if self.layout.dense else self.layout.features(tensors)

    def _predict(self, features: Any, output: Tensor, context: Tensor | None = None) -> RegressionPrediction:
        if self.layout.dense or self.held_out is not None:
            return super()._predict(features, output, context)
        parts: list[Tensor] = [features]
        if self.joint is not None:
            extra = self.joint.center.shape[1] - features.shape[1]
            parts.insert(0, features.new_zeros(features.shape[0], extra) if context is None else context)
        wide, mars, found = self._folded().forward(parts, self.method.widen)
        mean = self.task.canonical(self.layout.output(output))
        if found.leverages is None:
            answer = self._answered(mean, wide, mars)
        else:
            *support, leverage = found.leverages.split(1, 1)
            if support and context is None:
                support = [torch.full_like(leverage, torch.nan)]
            answer = self._answered(mean, wide, mars, leverage, found.far, *support)
        prediction: Any = answer.prediction(self.layout, output, self.reference)
        return prediction  # type: ignore[no-any-return]

    def work_ahead(self) -> None:
        """Fold the heads, see `FoldedRegression`."""
        if not self.layout.dense and self.held_out is None:
            self._folded()

    def _folded(self) -> FoldedRegression:
        """What predictions of vectors are made of, again where a tensor has changed since."""
        fold = self._modules["folded"]
        if isinstance(fold, FoldedRegression) and (
            traced() or (fold.current and fold.parts == (self.heads, self.joint))
        ):
            return fold
        if traced():
            return FoldedRegression(self.heads, self.joint, self.outputs, self._buffers)
        with torch.inference_mode(False):
            fold = FoldedRegression(self.heads, self.joint, self.outputs, self._buffers)
        self._modules["folded"] = fold
        return fold

    def _answer(self, features: Tensor | Sequence[Tensor], output: Tensor) -> RegressionAnswer:
        raw = {name: self.layout.heads(v, output) for name, v in self.heads.pointwise(features).items()}
        mean = self.task.canonical(self.layout.output(output))
        place = self.layout.places(output)[None] if self.held_out is not None else None
        bounds, mars = self.half_widths(raw, mean, place)
        if "leverage" not in raw:
            return self._answered(mean, bounds, mars)
        far = self._far(raw["leverage"])
        return self._answered(mean, self._widened(bounds, far), mars, raw["leverage"], far)

    def _answered(
        self,
        mean: Tensor,
        wide: Tensor,
        mars: Mars,
        leverage: Tensor | None = None,
        far: Tensor | None = None,
        support: Tensor | None = None,
    ) -> RegressionAnswer:
        """The answer from uncalibrated half-widths and MARs.

        Without leverage, or where the scores are to be "sds", as the paper has it: SDS, and ``z+ + z- + sqrt(SDS)``
        (E22, E24). With it the identity is imposed before the total MAR grows, ``z = H(z+, z-) sqrt(growth)``, so that
        SDS is ``2 z+ z- (sqrt(growth) - 1)``: the noise times what leverage adds to it, free of the errors of separate
        estimates of the three MARs. The lack of support is the leverage itself, or that of several layers where they
        are read (`JointLeverage`), and the total score is the width of the uncalibrated interval plus both side MARs,
        grown alike.

        Args:
            mean: (N, D, ...) predictions.
            wide: (N, D, 2, L, ...) half-widths, see `widened`.
            mars: (N, D, ...) before the total one grows.
            leverage: (N, 1, ...), None where the heads have none.
            far: (N, 1, ...) see `_far`.
            support: (N, 1) leverage of several layers, where they are read.
        """
        if leverage is not None and far is not None:
            gain, root = _gain(leverage, far)
            mars = Mars(mars.total * root, mars.up, mars.down)
        down, up = self._calibrated(wide, mars).unbind(2)
        if mean.dim() > 2:
            down, up = down.movedim(2, -1), up.movedim(2, -1)
        total, up_mar, down_mar = self._squared(mars)
        product, sides = up_mar * down_mar * 2, up_mar + down_mar
        consistency, centre = plain_sds(total, sides, product), mean.unsqueeze(-1)
        width = wide.select(3, -1).sum(2)
        if leverage is None or self.method.scores == "sds":
            support, epistemic = consistency, consistency
            score = (sides + consistency.sqrt()).to(mars.up.dtype)
        else:
            epistemic = product * gain
            score = (width + mars.up + mars.down) * root if sides.dtype != width.dtype else (width + sides) * root
            support = leverage if support is None else support
            support = support if support.shape == epistemic.shape else support.expand_as(epistemic)
        return RegressionAnswer(
            levels=self.outputs.levels,
            mean=mean,
            lowers=centre - down,
            uppers=centre + up,
            aleatoric=width,
            epistemic=epistemic,
            total=score,
            mar=mars.total,
            mar_up=mars.up,
            mar_down=mars.down,
            support=support,
            sds=consistency,
        )

    def _squared(self, mars: Mars) -> Mars:
        """The same in a type that holds their squares."""
        return mars if self._squares == torch.float32 else Mars(*(mar.to(self._squares) for mar in mars))

    def _marginal(self, tensors: dict[str, Tensor], features: Tensor, context: Tensor) -> dict[str, Tensor]:
        changed = dict(tensors)
        if "heads.whiten" in tensors:
            changed["heads.whiten"] = without(tensors["heads.whiten"][0], features.to(tensors["heads.whiten"].device))[
                None
            ]
        if "joint.whiten" in tensors:
            gone = torch.cat([context, features]).to(tensors["joint.whiten"].device)
            changed["joint.whiten"] = without(tensors["joint.whiten"], gone)
        return changed

    def _far(self, leverage: Tensor) -> Tensor:
        """Logarithm of the squared distance from the data over that of the reach of the training rows, at least 0."""
        return (leverage / self.heads.reach.squeeze(0)).log().clamp(min=0)

    def widened(self, bounds: Tensor, raw: Mapping[str, Tensor]) -> Tensor:
        """Half-widths (N, D, 2, L, ...) that grow with the distance from the data beyond the reach of training rows.

        They grow by one plus the logarithm of distance over reach: in proportion at first, and with measure where a
        feature that training rows hardly moved makes the distance huge.
        """
        return self._widened(bounds, self._far(raw["leverage"])) if "leverage" in raw else bounds

    def _widened(self, bounds: Tensor, far: Tensor) -> Tensor:
        return bounds.addcmul(bounds, far[:, None, None], value=0.5) if self.method.widen else bounds

    def _growth(self, raw: Mapping[str, Tensor]) -> Tensor | None:
        """How many times as wide (N, 1, ...) half-widths become; None where they stay."""
        if "leverage" not in raw or not self.method.widen:
            return None
        return 1 + self._far(raw["leverage"]) / 2

    @property
    def unit(self) -> Tensor:
        """(D,) size of a residual, in which heads think; 1 where all are 0."""
        return torch.where(self.scale > 0, self.scale, 1.0)

    def judged(self, table: Table, rows: str) -> Judged:
        """Intervals of some recorded rows, in the units of the target; residuals as the heads were to see them."""
        part = some(table)
        with torch.no_grad():
            raw, bounds, mars = self._of_rows(part)
            down, up = self._calibrated(self.widened(bounds, raw), mars)[..., -1].cpu().unbind(2)
        return Judged(down, up, part["residual"] / part.get("shrink", torch.ones(())), rows)

    def _of_rows(self, part: Rows) -> tuple[dict[str, Tensor], Tensor, Mars]:
        """Raw head outputs of recorded rows, their uncalibrated half-widths, and MARs with the growth by leverage."""
        device = self.scale.device
        raw = self.heads.pointwise(part["features"].to(device))
        place = part["place"].to(device) if self.held_out is not None else None
        bounds, mars = self.half_widths(raw, part["output"].to(device), place)
        if "leverage" in raw:
            _, root = _gain(raw["leverage"], self._far(raw["leverage"]))
            mars = mars._replace(total=mars.total * root)
        return raw, bounds, mars

    def half_widths(self, raw: Mapping[str, Tensor], mean: Tensor, place: Tensor | None = None) -> tuple[Tensor, Mars]:
        """Uncalibrated half-widths (N, D, 2, L, ...) and MARs (N, D, ...).

        A side whose coefficients are all 0 had no residuals, and has the half-widths of the other.

        Args:
            raw: outputs (N, M, ...) of the heads.
            mean: (N, D, ...) predictions.
            place: (N, A, ...) or (1, A, ...) where in its map a row lies, where that has a part in the half-widths.
        """
        quantiles, mars = self.outputs.decode(raw, axis=1)
        more: list[Tensor] = []
        if self.held_out is not None:
            assert place is not None
            more = [self.relative(mean), self.held_out(mean, place, len(self.outputs.levels))]
        bounds = shaped_bounds(quantiles, mars, self.shape, more)
        if self._one_sided:
            empty = (self.shape == 0).all(-1)
            bounds = torch.where(empty.reshape(1, *empty.shape, *[1] * (bounds.dim() - 4)), bounds.flip(2), bounds)
        scale = self.scale.reshape(-1, *[1] * (bounds.dim() - 4))
        return bounds * scale[:, None, None], Mars(*(mar * scale for mar in mars))

    def relative(self, mean: Tensor) -> Tensor:
        """Size (N, D, 1, 1, ...) of the prediction in units of the residual scale."""
        return (mean.abs() / self.unit.reshape(-1, *[1] * (mean.dim() - 2))).float()[:, :, None, None]

    def _calibrated(self, bounds: Tensor, mars: Mars) -> Tensor:
        """Half-widths (N, D, 2, L, ...) after the calibration that the method asks for."""
        kind = self.method.interval
        if kind == "split":
            return bounds
        if kind == "consistent":
            up, down = scale_factors(mars, self.method.factor_limit)
            return bounds * torch.stack([down, up], 2).unsqueeze(3)
        factors = self.factors.reshape(1, *self.factors.shape, *[1] * (bounds.dim() - 4))
        return running_max(bounds * factors, 3)


def _gain(leverage: Tensor, far: Tensor) -> tuple[Tensor, Tensor]:
    """``sqrt(growth) - 1`` without the rounding of ``growth = (1 + lev) max(1, lev / reach)``, and ``sqrt(growth)``.

    The first factor is the growth of a linear layer's squared error, the second, whose logarithm is `far`, that of the
    squared distance from the data beyond the reach of the training rows.
    """
    beyond = far.exp()
    excess = (beyond - 1).addcmul_(leverage, beyond)
    root = (excess + 1).sqrt_()
    return excess.div_(root + 1), root


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def learned_from(predictor: RegressionPredictor, table: Table, seed: int, progress: bool) -> Mixed | None:
    """Half-widths that calibration rows of maps or sequences teach, where they are better; see `held_out.mixed`."""
    groups = table.groups()
    if groups is None or "place" not in table.columns:
        return None
    found: list[list[Tensor]] = []
    scale = predictor.unit.cpu()
    for part in table.slices():
        with torch.no_grad():
            raw, bounds, _ = predictor._of_rows(part)
            quantile, mars = predictor.outputs.decode(raw, axis=1)
            growth = predictor._growth(raw)
            ones = torch.ones_like(quantile)
            sides = torch.stack([mars.down, mars.up], 2).unsqueeze(3) * ones
            size = predictor.relative(part["output"].to(quantile.device)) * ones
        parts = torch.stack([quantile, sides, ones, size], -1).cpu()
        residual = part["residual"] / scale / (1 if growth is None else growth.cpu())
        current = (bounds.cpu() / scale[:, None, None]).float()
        found.append([parts, current, residual.float(), part["output"].float(), part["place"]])
    parts, bounds, residual, prediction, place = (torch.cat(values) for values in zip(*found, strict=True))
    rows = HeldOutRows(parts, bounds, residual, prediction, place, groups)
    generator = torch.Generator().manual_seed(seed)
    return mixed(rows, predictor.outputs.levels, generator, predictor.scale.device, progress)


def conformal_factors(predictor: RegressionPredictor, table: Table, left_out: Tensor | None = None) -> Tensor:
    """Per-side factors (D, 2, L) from calibration rows, or from groups of them; see `conformal.group_factor`.

    A side on which no calibration row lies takes the factors of the other.

    Args:
        predictor: whose half-widths they multiply.
        table: the rows.
        left_out: (n, D, 2, L) half-widths of the rows in units of the residual scale, by heads that have not seen their
            group, where half-widths were learned from these rows.
    """
    ratios, groups, start = [], table.groups(), 0
    for part in table.slices():
        with torch.no_grad():
            raw, bounds, _ = predictor._of_rows(part)
            if left_out is not None:
                own = left_out[start : start + len(bounds)].to(bounds.device)
                bounds, start = own * predictor.scale[:, None, None], start + len(own)
            bounds = predictor.widened(bounds, raw)
        size = part["residual"].abs()[:, :, None, None]
        ratios.append(size / bounds.cpu().clamp(min=torch.finfo(bounds.dtype).tiny))
    ratio, residual = torch.cat(ratios), table.column("residual")
    factors = torch.ones(ratio.shape[1:], dtype=torch.float32)
    for output in range(ratio.shape[1]):
        known = (~residual[:, output].isnan()).nonzero()[:, 0]
        owners = None if groups is None else Owners.of(groups[known])
        signs = residual[known, output].sign()
        for side, value in enumerate((-1, 1)):
            taken = side if bool((signs == value).any()) else 1 - side
            own = (signs == (1 if taken else -1)).nonzero()[:, 0]
            of_side = None if owners is None else owners.at(own)
            for index, level in enumerate(predictor.outputs.levels):
                sizes = ratio[known[own], output, taken, index]
                factors[output, side, index] = conformal_factor(sizes, level, owners=of_side)
    return factors
