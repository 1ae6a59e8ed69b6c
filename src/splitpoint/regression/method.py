"""Settings and fitting of split-point uncertainty for regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from splitpoint.cache import Table, feature_moments
from splitpoint.checks import Check
from splitpoint.errors import SettingsError
from splitpoint.features import Tap
from splitpoint.head_method import MOMENTUM, PAPER_STEPS, Companion, HeadMethod, follow_features
from splitpoint.heads import Heads, fit_leverage, inverse_softplus
from splitpoint.layout import Layout
from splitpoint.method import GivenRows, generators_for
from splitpoint.networks.copies import check_retrain
from splitpoint.networks.refit import Retrain
from splitpoint.recording import Recording, Source
from splitpoint.regression.checks import Judged, coverage, every_output, ranking, sides
from splitpoint.regression.objective import Objective, Outputs, empty_sides, summary
from splitpoint.regression.predictor import RegressionPredictor, conformal_factors, learned_from
from splitpoint.regression.residuals import Chooser, at_input
from splitpoint.regression.support import JointLeverage
from splitpoint.selfcheck import row_checks, some
from splitpoint.tasks import Levels, Regression, Rows, TaskName, ascending
from splitpoint.training import Member, folded, held_back, train

Interval = Literal["split", "consistent", "conformal", "auto"]

CROSS_FITTED = 20_000
"""Most rows with which heads are cross-fitted; beyond, a held-back slice says as much."""

SKETCHED = 16
"""Columns of the leverage's matrix where features are several maps."""


@dataclass(frozen=True)
class SplitPointRegressor(HeadMethod[RegressionPredictor]):
    """Split-point uncertainty for a trained regression network.

    `fit` needs the model and data like those it was trained on; it returns a predictor and leaves the model as it
    was. Targets may be vectors, several outputs or maps; NaN targets are ignored.

    Attributes:
        confidence_level: share of the targets on each side of the prediction that the interval should cover; a
            tuple fits several levels at once, which never cross.
        residuals: what the heads learn from: "train" residuals; "loo" residuals of a last layer refitted without
            the row, which undoes its overfitting; "refit" residuals of five reset copies of the network, each trained
            without a fifth of the rows until it fits the others as well, which undoes that of all layers; "auto"
            refit where the network memorised its rows, there are no calibration data and it is cheap, else "loo".
        retrain: how copies are trained, from a reset copy and the rows that it may see to the trained network; None
            for Adam at 1e-3 with batches of 64.
        interval: how bounds are calibrated: "split" not at all (E27), "consistent" by the bounded consistency
            factors (E30), "conformal" on calibration data, "auto" conformal with calibration data, else "split".
        factor_limit: largest consistency factor; None for the paper's unbounded one.
        quantile_loss: "pinball", "coverage" (the authors' form) or "coverage_paper" (the printed form).
        quantile_layers: hidden layers of the quantile heads.
        mar_layers: hidden layers of the MAR heads.
        shared: one trunk for all heads, with `mar_layers` layers, in place of two.
        standardise: features and residuals are brought to unit size inside the head.
        leverage: heads see the log-leverage of a row and never extrapolate beyond the reach of 99% of the training
            rows (see `Heads`), and the total MAR is multiplied by ``sqrt((1 + lev) max(1, lev / reach))``: by the
            growth of a linear layer's error, and beyond that reach by the distance from the data. `support` is that
            leverage; without a `layer`, and where all layers read vectors, that of several of them (`JointLeverage`).
        widen: half-widths grow beyond that reach by ``1 + log(sqrt(lev / reach))``, in place of staying as they are at
            the edge of the data.
        scores: "leverage" for scores that are made of it (see `RegressionPredictor`), "sds" for the paper's: epistemic
            score and support are SDS, and the total is ``z+ + z- + sqrt(SDS)``. Without leverage both are the latter.
        folds: copies of the heads that leave out a part of the rows each; the half-widths are shaped and scaled on
            the rows left out. Above 20,000 rows the `held_back` ones serve instead. Of maps and sequences, conformal
            intervals also learn their half-widths from calibration data, see `held_out.mixed`; not with ``folds=0``.
    """

    tasks: ClassVar[tuple[TaskName, ...]] = ("regression",)

    confidence_level: float | tuple[float, ...] = 0.95
    _: KW_ONLY
    residuals: Literal["auto", "refit", "loo", "train"] = "auto"
    retrain: Retrain | None = None
    interval: Interval = "auto"
    factor_limit: float | None = 2.0
    quantile_loss: Literal["pinball", "coverage", "coverage_paper"] = "pinball"
    quantile_layers: int = 1
    mar_layers: int = 3
    shared: bool = False
    standardise: bool = True
    leverage: bool = True
    widen: bool = True
    scores: Literal["leverage", "sds"] = "leverage"
    folds: int = 5
    learning_rate: float = 2e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        ascending(self.confidence_level)
        if self.leverage and not self.standardise:
            raise SettingsError(
                "Expected leverage=False with standardise=False, but got leverage=True; set one of them."
            )
        for name in ("folds", "quantile_layers", "mar_layers"):
            if getattr(self, name) < 0:
                raise SettingsError(f"Expected {name} >= 0, but got {getattr(self, name)}.")
        check_retrain(self.retrain, self.residuals, ("auto", "refit"))
        if self.factor_limit is not None and not self.factor_limit >= 1:
            raise SettingsError(f"Expected factor_limit >= 1 or None, but got {self.factor_limit}.")

    @classmethod
    def paper(cls, confidence_level: float | tuple[float, ...] = 0.95, **changes: Any) -> SplitPointRegressor:
        """The paper's recipe: one shared hidden layer on raw features, training residuals, Adam at 1e-4, 400 epochs.

        The interval is the uncalibrated one; ``interval="consistent"`` gives the paper's calibrated interval. On maps
        the hidden layer has as many units as there are features, and training is at most 60,000 steps long, the
        paper's number of iterations for depth maps: 400 passes over 256 pixels of every image would be a million.
        """
        recipe: dict[str, Any] = {
            "residuals": "train",
            "interval": "split",
            "factor_limit": None,
            "mar_layers": 1,
            "shared": True,
            "standardise": False,
            "leverage": False,
            "widen": False,
            "scores": "sds",
            "quantile_loss": "coverage",
            "width": None,
            "epochs": 400,
            "dense_steps": PAPER_STEPS,
            "learning_rate": 1e-4,
            "decay": False,
            "batch_size": 64,
            "folds": 0,
            "held_back": 0.0,
        }
        return cls(confidence_level, **(recipe | changes))

    @property
    def levels(self) -> Levels:
        """Confidence levels, ascending."""
        return ascending(self.confidence_level)

    @property
    def outputs(self) -> Outputs:
        """Meaning of the heads' outputs."""
        return Outputs(self.levels, self.shared)

    @property
    def _task(self) -> Regression:
        return Regression()

    @property
    def _reads_calibration(self) -> bool:
        return self.interval in ("conformal", "auto")

    def _source(self) -> Source:
        ours = self.leverage and self.scores == "leverage"
        return replace(super()._source(), context=ours and self.layer is None, images=ours)

    def _fit_recorded(self, given: GivenRows) -> list[RegressionPredictor]:
        self._check_alike(given.rows)
        learned = Chooser(self.residuals, self.retrain, self._source()).learned(given)
        recordings, calibration = [own.recording for own in learned], given.calibration
        if calibration is not None:
            pairs = zip(learned, calibration, strict=True)
            calibration = [(at_input(rows) if own.moved else None) or rows for own, rows in pairs]
        generators = generators_for(given.seeds)
        method = self._resolved(calibration is not None)
        prepared = [
            self._prepared(
                own.recording.table.without("context").without("place"),
                own.residual,
                own.recording.layout.several,
                own.recording.parts,
            )
            for own in learned
        ]
        groups = self._members([own.table for own in prepared], generators)
        size = len(groups[0])
        objective, heads = self._untrained(prepared, size, generators, recordings[0].device)
        scored = train(
            heads,
            [member for group in groups for member in group],
            objective.loss,
            objective.score if bool(groups[0][0].scored.any()) else None,
            self._schedule(prepared[0].table),
            generators_for([seed for g in generators for seed in _seeds(g, size)]),
            group=size,
            label="fitting heads",
            progress=given.progress,
        )
        left_out = objective.left_out(heads, scored)
        shapes = objective.shapes(left_out, [own.blind for own in learned])
        for shape, rows in zip(shapes, prepared, strict=True):
            shape[empty_sides(rows.table).to(shape.device)] = 0
        predictors = [
            method._fitted(
                recording,
                heads.member((i + 1) * size - 1),
                {"scale": objective.scale[i * size], "shape": shapes[i], "factors": torch.ones_like(shapes[i][..., 0])},
                None if calibration is None else calibration[i],
                given.seeds[i],
                given.progress,
            )
            for i, recording in enumerate(recordings)
        ]
        for i, (predictor, own) in enumerate(zip(predictors, learned, strict=True)):
            predictor.widths = own.recording.widths
            held_out = None if calibration is None else calibration[i]
            unseen = None if left_out is None else left_out.of(i, shapes[i].cpu())
            predictor.checks = (*own.checks, *self._checks(predictor, own.recording, prepared[i], unseen, held_out))
        return predictors

    def _checks(
        self,
        predictor: RegressionPredictor,
        recording: Recording,
        prepared: Prepared,
        unseen: Judged | None,
        calibration: Recording | None,
    ) -> tuple[Check, ...]:
        """What is found out on calibration rows, on rows that heads left out, or else on their own."""
        if calibration is not None:
            judged = predictor.judged(calibration.table, "calibration")
        else:
            judged = unseen or predictor.judged(prepared.table, "training")
        level = self.levels[-1]
        found = (*row_checks(recording, calibration), sides(prepared.table, level), coverage(judged, level))
        output = some(recording.table)["output"]
        if unseen is None:
            return (*found, ranking(judged, output))
        return (*found, ranking(unseen, output / predictor.unit.cpu()))

    def _members(self, tables: Sequence[Table], generators: Sequence[torch.Generator]) -> list[list[Member]]:
        """For every table, the members that are trained on it; the last one is deployed."""
        pairs = list(zip(tables, generators, strict=True))
        in_memory = all(table.window >= table.rows for table in tables)
        most = max(table.rows for table in tables)
        if self.folds > 1 and in_memory and most <= CROSS_FITTED and all(map(self._enough, tables)):
            return [folded(table, self.folds, generator) for table, generator in pairs]
        return [[held_back(table, self.held_back, generator)] for table, generator in pairs]

    def _enough(self, table: Table) -> bool:
        """Whether every fold has two rows, or a group."""
        groups = table.groups()
        return table.rows >= 2 * self.folds and (groups is None or int(groups.max()) + 1 >= self.folds)

    def _check_calibration(self, given: bool) -> None:
        self._resolved(given)

    def _companion(self, rows: Rows, seed: int, device: torch.device) -> Companion:
        method = replace(self, leverage=False, residuals="train")
        prepared = method._prepared(Table.in_memory(rows))
        objective, heads = method._untrained([prepared], 1, generators_for([seed]), device)

        def follow(batch: Rows) -> None:
            if not self.standardise:
                return
            follow_features(heads, batch)
            size = batch["residual"].abs().nanmean(1).to(objective.scale)
            objective.scale.lerp_(torch.where(size.isnan(), objective.scale, size), MOMENTUM)

        return Companion(heads, objective.loss, follow, {"scale": objective.scale})

    def _after_joint(
        self,
        recording: Recording,
        companion: Companion,
        calibration: Recording | None,
        seed: int,
        progress: bool,
    ) -> RegressionPredictor:
        scale = companion.extras["scale"][0]
        shape = scale.new_tensor([1.0, 0.0, 0.0]).repeat(len(scale), 2, len(self.levels), 1)
        fitted = {"scale": scale, "shape": shape, "factors": torch.ones_like(shape[..., 0])}
        method = self._resolved(calibration is not None)
        return method._fitted(recording, companion.heads.member(0), fitted, calibration, seed, progress)

    def _resolved(self, calibrated: bool) -> SplitPointRegressor:
        """The same settings with the kind of interval decided."""
        if self.interval == "conformal" and not calibrated:
            raise SettingsError(
                "Expected calibration data for interval='conformal', but got none; "
                "pass calibration= to fit, or another interval=."
            )
        if self.interval != "auto":
            return self
        return replace(self, interval="conformal" if calibrated else "split")

    def _prepared(
        self, table: Table, residual: Tensor | None = None, several: bool = False, parts: Sequence[int] = ()
    ) -> Prepared:
        """Standardisation and leverage of the features, and rows with residuals that can be made leave-one-out.

        Those of copies that left the row out, `residual` (n, D), are so already. For `several` maps, which the columns
        of the leverage's matrix are up-sampled for, it is that of a sketch with few of them.
        """
        every_output(table)
        center, spread = feature_moments(table)
        inputs, more = {"center": center[None], "spread": spread[None]}, Rows()
        if self.leverage or self.residuals != "train":
            found = fit_leverage(table, center, spread, SKETCHED if several else None, parts)
            more["left_out"] = found.left_out
            if self.residuals != "train":
                more["shrink"] = found.shrink
            inputs = found.inputs if self.leverage else inputs
        if not self.standardise:
            inputs = {"center": torch.zeros_like(inputs["center"]), "spread": torch.ones_like(inputs["spread"])}
        if residual is not None:
            more |= {"residual": residual, "shrink": torch.ones_like(more["shrink"])}
        return Prepared(table.joined(more), inputs, several)

    def _untrained(
        self, prepared: Sequence[Prepared], size: int, generators: Sequence[torch.Generator], device: torch.device
    ) -> tuple[Objective, Heads]:
        """Loss in units of the residual scale, and heads that start at the marginal quantiles and MARs.

        Every table serves a group of `size` consecutive members.
        """
        inputs, tables = [own.inputs for own in prepared], [own.table for own in prepared]
        summaries = [summary(table, self.levels) for table in tables]
        outputs = tables[0].width("residual")

        def stacked(parts: list[dict[str, Tensor]], key: str) -> Tensor:
            return torch.stack([part[key] for part in parts]).repeat_interleave(size, 0)

        sizes = self.outputs.trunks(
            self._hidden(tables[0], prepared[0].several), self.quantile_layers, self.mar_layers, outputs
        )
        seeded = generators_for([seed for g in generators for seed in _seeds(g, size)])
        heads = Heads.random({key: stacked(inputs, key) for key in inputs[0]}, sizes, seeded)
        scale = stacked(summaries, "scale")
        if not self.standardise:
            plain = Objective(self.outputs, self.quantile_loss, torch.ones_like(scale).to(device), size)
            return plain, heads.to(device)
        steps, mars = (inverse_softplus(stacked(summaries, key).flatten(1)) for key in ("steps", "mars"))
        if self.shared:
            heads.start_at("shared", torch.cat([steps, mars], 1))
        else:
            heads.start_at("quantile", steps)
            heads.start_at("mar", mars)
        return Objective(self.outputs, self.quantile_loss, scale.to(device), size), heads.to(device)

    def _fitted(
        self,
        recording: Recording,
        heads: Heads,
        fitted: dict[str, Tensor],
        calibration: Recording | None,
        seed: int,
        progress: bool,
    ) -> RegressionPredictor:
        tensors, tap = fitted | dict(heads.state_dict(prefix="heads.")), recording.tap
        tensors |= self._describe(recording, calibration)
        if tap is not None and tap.context:
            if heads.whiten is None or self.scores == "sds":
                tap = tap.without_context()
            else:
                tensors |= JointLeverage.fit(recording.table).state_dict(prefix="joint.")
        predictor = self._predictor(tap, recording.layout, recording.inputs, tensors).heads_to(recording.device)
        if calibration is None or self.interval != "conformal":
            return predictor
        table = calibration.table.without("context")
        found = learned_from(predictor, table, seed, progress) if self.folds > 1 else None
        if found is not None:
            tensors |= {"shape": found.shape} | {f"held_out.{name}": value for name, value in found.state.items()}
            predictor = self._predictor(tap, recording.layout, recording.inputs, tensors).heads_to(recording.device)
        predictor.factors.copy_(conformal_factors(predictor, table, None if found is None else found.bounds))
        return predictor

    def _predictor(
        self, tap: Tap | None, layout: Layout, inputs: int, tensors: Mapping[str, Tensor]
    ) -> RegressionPredictor:
        return RegressionPredictor(self, tap, layout, inputs, tensors)


class Prepared(NamedTuple):
    """Rows that heads are trained on, how these standardise their features, and whether those are several maps."""

    table: Table
    inputs: dict[str, Tensor]
    several: bool


def _seeds(generator: torch.Generator, count: int) -> list[int]:
    return torch.randint(2**62, (count,), generator=generator).tolist()
