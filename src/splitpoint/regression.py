"""Split-point uncertainty for regression networks: asymmetric intervals and the self-consistency score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitpoint.batches import Data
from splitpoint.cache import Table
from splitpoint.calibration import conformal_factor, leverage, moments
from splitpoint.consistency import Mars, scale_factors, sds
from splitpoint.errors import DataError, SettingsError, ShapeError
from splitpoint.features import Tap
from splitpoint.heads import Heads
from splitpoint.layout import Layout
from splitpoint.losses import coverage_loss, masked_mse, pinball_loss
from splitpoint.method import Method, Predictor, generators_for
from splitpoint.prediction import RegressionPrediction
from splitpoint.recording import Recording, Source, Targets
from splitpoint.training import Losses, Rows, train

Interval = Literal["split", "consistent", "conformal", "auto"]


def regression_targets(layout: Layout, output: Tensor, target: Tensor) -> Targets:
    """Residuals ``y - f(x)`` in canonical form; NaN targets are missing entries."""
    if target.shape != output.shape:
        vectors = {tuple(target.shape), tuple(output.shape)} == {(len(output),), (len(output), 1)}
        if not vectors:
            raise ShapeError(
                f"Expected targets of the shape of the model's output, {tuple(output.shape)}, but got "
                f"{tuple(target.shape)}; reshape the targets."
            )
        target = target.reshape(output.shape)
    if torch.isinf(target).any():
        raise DataError("Expected finite targets (NaN marks a missing one), but got inf; clean the targets.")
    residual = layout.output(target.double() - output.double()).float()
    return Targets({"residual": residual}, ~residual.isnan().all(1))


class RegressionPredictor(Predictor[RegressionPrediction]):
    """What `SplitPointRegressor.fit` returns: `uq(x)` is a `RegressionPrediction`."""

    method: SplitPointRegressor
    scale: Tensor
    factors: Tensor

    def __init__(
        self,
        method: SplitPointRegressor,
        tap: Tap,
        layout: Layout,
        inputs: int,
        tensors: Mapping[str, Tensor],
    ) -> None:
        super().__init__(method, tap, layout, inputs, tensors)
        self.heads = Heads.from_state(tensors, "heads.")
        self.register_buffer("scale", tensors["scale"])
        self.register_buffer("factors", tensors["factors"])

    def _predict(self, features: Tensor, output: Tensor) -> RegressionPrediction:
        raw = {name: self.layout.heads(v, output) for name, v in self.heads.pointwise(features).items()}
        unit_bounds, unit_mars = self.method._decode(raw, axis=1)
        scale = self.scale.reshape(-1, *[1] * (unit_bounds.dim() - 4))
        bounds, mars = unit_bounds * scale[:, None, None], Mars(*(mar * scale for mar in unit_mars))
        levels = self.method.levels
        aleatoric = bounds[:, :, :, -1].sum(2)
        calibrated = self._calibrated(bounds, mars)

        def shaped(values: Tensor) -> Tensor:
            return self.layout.restore(values, output)

        mean = output if output.dtype == torch.float64 else output.float()
        down, up = (
            torch.stack([shaped(calibrated[:, :, side, level]) for level in range(len(levels))], -1)
            for side in (0, 1)
        )
        score = sds(mars)
        return RegressionPrediction(
            mean=mean,
            levels=levels,
            lowers=mean.unsqueeze(-1) - down,
            uppers=mean.unsqueeze(-1) + up,
            aleatoric=shaped(aleatoric),
            epistemic=shaped(score),
            total=shaped(mars.up + mars.down + score.sqrt()),
            reference=self.reference,
            mar=shaped(mars.total),
            mar_up=shaped(mars.up),
            mar_down=shaped(mars.down),
        )

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

    def _channels(self, score: Tensor) -> tuple[int, ...]:
        shape = tuple(score.shape[1:])
        if not self.layout.dense:
            return shape
        if self.layout.axis is None:
            return ()
        own = score.dim() - 1 if self.layout.axis == -1 else 1
        return tuple(size if axis == own else 1 for axis, size in enumerate(shape, 1))


@dataclass(frozen=True)
class SplitPointRegressor(Method):
    """Split-point uncertainty for a trained regression network.

    `fit` needs the model and data like those it was trained on; it returns a predictor and leaves the model as it
    was. Targets may be vectors, several outputs or maps; NaN targets are ignored.

    Attributes:
        confidence_level: share of the targets on each side of the prediction that the interval should cover; a
            tuple fits several levels at once, which never cross.
        residuals: what the heads learn from: "train" residuals, or "loo" residuals of a last layer refitted without
            the row, which undoes its overfitting.
        interval: how bounds are calibrated: "split" not at all (E27), "consistent" by the bounded consistency
            factors (E30), "conformal" on calibration data, "auto" conformal with calibration data, else "split".
        factor_limit: largest consistency factor; None for the paper's unbounded one.
        quantile_loss: "coverage" (the authors' form), "coverage_paper" (the printed form) or "pinball".
        quantile_layers: hidden layers of the quantile heads.
        mar_layers: hidden layers of the MAR heads.
        shared: one trunk for all heads, with `mar_layers` layers, in place of two.
        standardise: features and residuals are brought to unit size inside the head.
    """

    confidence_level: float | tuple[float, ...] = 0.95
    _: KW_ONLY
    residuals: Literal["train", "loo"] = "loo"
    interval: Interval = "auto"
    factor_limit: float | None = 2.0
    quantile_loss: Literal["coverage", "coverage_paper", "pinball"] = "coverage"
    quantile_layers: int = 1
    mar_layers: int = 3
    shared: bool = False
    standardise: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.levels or not all(0 < level < 1 for level in self.levels):
            raise SettingsError(f"Expected confidence levels in (0, 1), but got {self.confidence_level}.")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise SettingsError(
                    f"Expected {name} to be one of {allowed}, but got {getattr(self, name)!r}."
                )
        if self.factor_limit is not None and self.factor_limit < 1:
            raise SettingsError(f"Expected factor_limit >= 1 or None, but got {self.factor_limit}.")
        if min(self.quantile_layers, self.mar_layers) < 0:
            raise SettingsError("Expected quantile_layers and mar_layers >= 0, but got a negative number.")

    @classmethod
    def paper(cls, confidence_level: float | tuple[float, ...] = 0.95, **changes: Any) -> SplitPointRegressor:
        """The paper's recipe: one shared hidden layer on raw features, training residuals, Adam at 1e-4, 400 epochs.

        The interval is the uncalibrated one; ``interval="consistent"`` gives the paper's calibrated interval.
        """
        recipe: dict[str, Any] = {
            "residuals": "train",
            "interval": "split",
            "factor_limit": None,
            "mar_layers": 1,
            "shared": True,
            "standardise": False,
            "width": 1_000_000,
            "epochs": 400,
            "learning_rate": 1e-4,
            "batch_size": 64,
            "held_back": 0.0,
        }
        return cls(confidence_level, **(recipe | changes))

    @property
    def levels(self) -> tuple[float, ...]:
        """Confidence levels, ascending."""
        level = self.confidence_level
        return tuple(sorted({float(v) for v in (level if isinstance(level, Sequence) else (level,))}))

    def fit(
        self,
        model: nn.Module,
        data: Data,
        *,
        calibration: Data | None = None,
        seed: int = 0,
        progress: bool = True,
    ) -> RegressionPredictor:
        """Fit the heads on one pass of the frozen model over `data`.

        Args:
            model: the trained base model; left bit for bit as it was.
            data: what it was trained on, or more of the same: a DataLoader, an iterable of batches, a Dataset or a
                pair (X, y).
            calibration: held-out data for conformal intervals.
            seed: of everything random.
            progress: whether to show progress bars.
        """
        held_out = None if calibration is None else [calibration]
        return self.fit_many([model], [data], calibration=held_out, seeds=[seed], progress=progress)[0]

    def fit_many(
        self,
        models: Sequence[nn.Module],
        data: Sequence[Data],
        *,
        calibration: Sequence[Data] | None = None,
        seeds: Sequence[int] | None = None,
        progress: bool = True,
    ) -> list[RegressionPredictor]:
        """Fit several models of one shape at once; each ends up as `fit` alone would leave it, at a fraction of the cost."""
        method = replace(self, interval=self._resolved(calibration is not None))
        recordings = self._record_many(models, data, "train", progress)
        generators = generators_for(range(len(models)) if seeds is None else seeds)
        objective, heads = method._prepared(recordings, generators)
        train(
            heads,
            [recording.table for recording in recordings],
            objective.loss,
            objective.score,
            self._training(),
            generators,
            label="fitting heads",
            progress=progress,
        )
        held_out = None if calibration is None or method.interval != "conformal" else calibration
        return [
            method._predictor(r, heads.member(i), objective.scale[i], held_out and held_out[i], progress)
            for i, r in enumerate(recordings)
        ]

    def _resolved(self, calibrated: bool) -> Interval:
        if self.interval == "conformal" and not calibrated:
            raise SettingsError(
                "Expected calibration data for interval='conformal', but got none; "
                "pass calibration= to fit, or another interval=."
            )
        if self.interval != "auto":
            return self.interval
        return "conformal" if calibrated else "split"

    def _source(self) -> Source:
        return Source(
            self.layer,
            self.output_key,
            2,
            regression_targets,
            "regression",
            self.rows_per_call,
            self.positions,
        )

    def _trunks(self, features: int, outputs: int) -> dict[str, list[int]]:
        hidden, quantiles, mars = self._hidden(features), outputs * 2 * len(self.levels), outputs * 3
        if self.shared:
            return {"shared": [hidden] * self.mar_layers + [quantiles + mars]}
        return {
            "quantile": [hidden] * self.quantile_layers + [quantiles],
            "mar": [hidden] * self.mar_layers + [mars],
        }

    def _decode(self, raw: Mapping[str, Tensor], axis: int) -> tuple[Tensor, Mars]:
        """Half-widths (..., D, 2, L, ...) and MARs (..., D, ...) in units of the residual scale.

        Sides are (down, up). Half-widths of rising levels add up positive steps, so they never cross.
        """
        levels = len(self.levels)
        if self.shared:
            outputs = raw["shared"].shape[axis] // (2 * levels + 3)
            quantile, mar = raw["shared"].split([outputs * 2 * levels, outputs * 3], axis)
        else:
            quantile, mar = raw["quantile"], raw["mar"]
        steps = F.softplus(quantile.unflatten(axis, (-1, 2, levels)))
        bounds = steps if levels == 1 else steps.cumsum(axis + 2)
        return bounds, Mars(*F.softplus(mar.unflatten(axis, (-1, 3))).unbind(axis + 1))

    def _prepared(
        self, recordings: Sequence[Recording], generators: Sequence[torch.Generator]
    ) -> tuple[Objective, Heads]:
        """Loss in units of the residual scale, and heads that start at the marginal quantiles and MARs."""
        tables = [recording.table for recording in recordings]
        if self.residuals == "loo":
            for table in tables:
                table.attach("shrink", 1 - leverage(table)[:, None])
        summaries = [_summary(table, self.levels) for table in tables]
        features, outputs = tables[0].width("features"), tables[0].width("residual")
        ones = torch.ones(len(tables), outputs)
        scale = torch.stack([s["scale"] for s in summaries]) if self.standardise else ones
        spread = [moments(table) for table in tables]
        center = torch.stack([s[0] for s in spread])[:, None]
        deviation = torch.stack([s[1] for s in spread])[:, None]
        if not self.standardise:
            center, deviation = torch.zeros_like(center), torch.ones_like(deviation)
        heads = Heads.random(center, deviation, self._trunks(features, outputs), generators)
        if self.standardise:
            steps, mars = (torch.stack([s[key] for s in summaries]).flatten(1) for key in ("steps", "mars"))
            if self.shared:
                heads.start_at("shared", torch.cat([steps, mars], 1))
            else:
                heads.start_at("quantile", steps)
                heads.start_at("mar", mars)
        device = recordings[0].tap.device
        return Objective(self, scale.to(device)), heads.to(device)

    def _predictor(
        self, recording: Recording, heads: Heads, scale: Tensor, calibration: Data | None, progress: bool
    ) -> RegressionPredictor:
        factors = torch.ones(len(scale), 2, len(self.levels), device=scale.device)
        tensors = {"scale": scale, "factors": factors, **heads.state_dict(prefix="heads.")}
        predictor = RegressionPredictor(self, recording.tap, recording.layout, recording.inputs, tensors)
        if calibration is not None:
            same_layer = replace(self, layer=recording.tap.spec)
            held_out = same_layer._record(recording.tap.model, calibration, "calibration", progress)
            predictor.factors.copy_(_conformal_factors(predictor, held_out.table))
        return predictor


_CHOICES: dict[str, tuple[str, ...]] = {
    "residuals": ("train", "loo"),
    "interval": ("split", "consistent", "conformal", "auto"),
    "quantile_loss": ("coverage", "coverage_paper", "pinball"),
}


@dataclass(frozen=True)
class Objective:
    """Losses of a stack of regression heads; `scale` (E, D) is the size of a residual."""

    method: SplitPointRegressor
    scale: Tensor

    def loss(self, heads: Heads, rows: Rows) -> Losses:
        """Training loss (E,) of every trunk: quantile loss of both sides and squared error of the three MARs (E21)."""
        return self._losses(heads, rows, self.method.quantile_loss)

    def score(self, heads: Heads, rows: Rows) -> Losses:
        """The same with the pinball loss, which unlike the coverage loss ranks bounds properly."""
        return self._losses(heads, rows, "pinball")

    def _losses(self, heads: Heads, rows: Rows, kind: str) -> Losses:
        bounds, mars = self.method._decode(heads(rows["features"]), axis=2)
        residual = rows["residual"] / torch.where(self.scale > 0, self.scale, 1.0)[:, None]
        residual = residual / rows["shrink"] if "shrink" in rows else residual
        size, up, down = residual.abs(), residual > 0, residual < 0
        level = torch.tensor(self.method.levels, device=size.device)
        quantile = sum(
            _quantile_loss(kind, size.unsqueeze(-1), bounds[:, :, :, side], level, mask.unsqueeze(-1)).mean(
                (1, 2)
            )
            for side, mask in enumerate((down, up))
        )
        squared = sum(
            masked_mse(mar, size, mask, dim=1).mean(1)
            for mar, mask in zip(mars, (up | down, up, down), strict=True)
        )
        assert isinstance(quantile, Tensor)
        assert isinstance(squared, Tensor)
        return (
            {"shared": quantile + squared} if self.method.shared else {"quantile": quantile, "mar": squared}
        )


def _quantile_loss(kind: str, size: Tensor, bound: Tensor, level: Tensor, mask: Tensor) -> Tensor:
    if kind == "pinball":
        return pinball_loss(size, bound, level, mask, dim=1)
    return coverage_loss(
        size, bound, level, mask, dim=1, form="paper" if kind == "coverage_paper" else "authors"
    )


def _summary(table: Table, levels: tuple[float, ...]) -> dict[str, Tensor]:
    """Scale (D,) of the residuals, and where heads start: steps (D, 2, L) and MARs (D, 3) in units of it."""
    parts = [window["residual"] / window.get("shrink", 1.0) for window in table.slices()]
    residual = torch.cat(parts)
    scale = residual.abs().nanmean(0).nan_to_num(0.0)
    unit = residual / torch.where(scale > 0, scale, 1.0)
    shares = torch.tensor(levels)
    steps, mars = torch.ones(len(scale), 2, len(levels)), torch.ones(len(scale), 3)
    for output, column in enumerate(unit.T):
        sides = [-column[column < 0], column[column > 0]]
        both = torch.cat(sides)
        for side, sizes in enumerate(sides):
            chosen = sizes if len(sizes) else both
            if len(chosen):
                ordered = chosen.sort().values
                bounds = ordered[(shares * len(ordered)).long().clamp(max=len(ordered) - 1)]
                steps[output, side] = torch.diff(bounds, prepend=torch.zeros(1))
                mars[output, 2 - side] = chosen.mean()
    return {"scale": scale, "steps": steps.clamp(min=1e-3), "mars": mars.clamp(min=1e-3)}


def _conformal_factors(predictor: RegressionPredictor, table: Table) -> Tensor:
    """Per-side factors (D, 2, L) from calibration rows."""
    ratios, signs = [], []
    for window in table.slices():
        raw = predictor.heads.pointwise(window["features"].to(predictor.scale.device))
        with torch.no_grad():
            bounds = predictor.method._decode(raw, axis=1)[0].cpu() * predictor.scale.cpu()[:, None, None]
        size = window["residual"].abs()[:, :, None, None]
        ratios.append(size / bounds.clamp(min=torch.finfo(bounds.dtype).tiny))
        signs.append(window["residual"].sign())
    ratio, sign = torch.cat(ratios), torch.cat(signs)
    factors = torch.ones(ratio.shape[1:])
    for output in range(ratio.shape[1]):
        for side, value in enumerate((-1, 1)):
            rows = sign[:, output] == value
            for index, level in enumerate(predictor.method.levels):
                factors[output, side, index] = conformal_factor(ratio[rows, output, side, index], level)
    return factors
