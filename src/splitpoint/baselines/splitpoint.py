"""Split-point uncertainty behind the interface of the baselines, so that one word changes the method."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import nn

from splitpoint.baselines.method import Baseline, first_batch
from splitpoint.baselines.plain import train_plain
from splitpoint.baselines.settings import About
from splitpoint.batches import Data, output_tensor
from splitpoint.classification import SplitPointClassifier
from splitpoint.errors import SettingsError
from splitpoint.hooks import frozen
from splitpoint.method import Method
from splitpoint.predictor import Predictor
from splitpoint.regression import SplitPointRegressor
from splitpoint.surgery import Factory


@dataclass(frozen=True, kw_only=True)
class SplitPoint(Baseline):
    """Split-point heads on a trained model: `SplitPointRegressor` or `SplitPointClassifier`, as the task asks.

    Attributes:
        recipe: "default", the best recipe that we measured, or "paper".
    """

    about: ClassVar[About] = About(
        tasks=("regression", "classification"),
        post_hoc=True,
        passes="1",
        needs="trained model",
        epistemic="self-consistency discrepancy (SDS)",
        reference="Zhao & Chen 2025",
    )

    recipe: Literal["default", "paper"] = "default"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recipe not in ("default", "paper"):
            raise SettingsError(f"Expected recipe to be 'default' or 'paper', but got {self.recipe!r}.")
        if self.temperature is not None:
            raise SettingsError(
                "Expected temperature=None for split-point methods, which calibrate in their own way, but got "
                f"{self.temperature!r}; use splitpoint_calibrated."
            )

    def _interval(self, calibrated: bool) -> str:  # noqa: ARG002
        """How intervals are calibrated."""
        return "split"

    def _held_out(self, calibration: Sequence[Data] | None) -> Sequence[Data] | None:  # noqa: ARG002
        """Calibration data for the heads."""
        return None

    def _heads(self, calibrated: bool) -> Method[Any]:
        places: dict[str, Any] = {
            "layer": self.layer,
            "output_key": self.output_key,
            "rows_per_call": self.rows_per_call,
            "positions": self.positions,
        }
        if self.task == "classification":
            settings: dict[str, Any] = places | {"output": self.output, "ignore_index": self.ignore_index}
            return (
                SplitPointClassifier.paper(**settings) if self.recipe == "paper" else SplitPointClassifier(**settings)
            )
        settings = places | {"interval": self._interval(calibrated)}
        make = SplitPointRegressor.paper if self.recipe == "paper" else SplitPointRegressor
        return make(self.confidence_level, **settings)

    def _fit_many(
        self,
        models_or_factories: Sequence[nn.Module | Factory],
        data: Sequence[Data],
        calibration: Sequence[Data] | None,
        seeds: Sequence[int],
        progress: bool,
    ) -> list[Predictor[Any]]:
        given = [model for model in models_or_factories if isinstance(model, nn.Module)]
        untrained = not given
        if len(given) < len(models_or_factories):
            factories = [own for own in models_or_factories if not isinstance(own, nn.Module)]
            if given:
                raise SettingsError(
                    "Expected either trained models or functions that build networks, but got both in one list; "
                    "fit them apart."
                )
            given = train_plain(self, factories, data, seeds, progress=progress)
        held_out = self._held_out(calibration)
        batch = first_batch(data[0], self.rows_per_call).to(given[0])
        assert batch.target is not None
        with frozen(given[0]):
            output = output_tensor(given[0](*batch.args, **batch.kwargs), self.output_key)
        heads = self._resolved(output, batch.target)._heads(held_out is not None)
        predictors = heads.fit_many(given, data, calibration=held_out, seeds=seeds, progress=progress)
        for predictor in predictors:
            predictor.owns_base = untrained
        return list(predictors)


@dataclass(frozen=True, kw_only=True)
class SplitPointCalibrated(SplitPoint):
    """Calibrated split-point heads: consistency factors or conformal intervals, corrected class probabilities.

    Regression intervals are widened by the consistency factors (E30), or, with the default recipe and calibration
    data, made conformal. Classification needs calibration data.
    """

    about: ClassVar[About] = About(
        tasks=("regression", "classification"),
        post_hoc=True,
        passes="1",
        needs="trained model, calibration data (classification)",
        epistemic="self-consistency discrepancy (SDS)",
        reference="Zhao & Chen 2025",
    )

    def _interval(self, calibrated: bool) -> str:
        return "conformal" if calibrated and self.recipe == "default" else "consistent"

    def _held_out(self, calibration: Sequence[Data] | None) -> Sequence[Data] | None:
        return calibration

    def _heads(self, calibrated: bool) -> Method[Any]:
        if self.task == "classification" and not calibrated:
            raise SettingsError(
                "Expected calibration data for calibrated probabilities, but got none; pass calibration= to fit."
            )
        return super()._heads(calibrated)
