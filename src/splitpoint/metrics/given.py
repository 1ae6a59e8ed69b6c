"""What metrics are given, as they compute with it: predictions, and numbers as tensors, arrays or lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor

from splitpoint.errors import DataError, SettingsError, ShapeError
from splitpoint.prediction import ClassificationPrediction, Prediction, RegressionPrediction
from splitpoint.settings import shown
from splitpoint.tensors import numbers

P = TypeVar("P", bound=Prediction)

Given: TypeAlias = "Tensor | NDArray[Any] | Sequence[Any]"
"""Numbers as a tensor, as an array or as a list."""

ROUNDING = {torch.float16: 2e-2, torch.bfloat16: 2e-2}
"""How far probabilities of few digits may be from a sum of one; others by 0.001."""


def predicted(prediction: Any, kind: type[P]) -> P:
    """The prediction, where it is one of the `kind` that is asked for."""
    if not isinstance(prediction, kind):
        raise DataError(
            f"Expected a {kind.__name__}, as a fitted predictor returns it, but got {_kind(prediction)}; call uq(x) or "
            "uq.predict(data)."
        )
    return prediction


def classes_of(prediction: Any) -> Tensor:
    """Probabilities of a prediction, or given as a tensor, an array or a list."""
    if isinstance(prediction, RegressionPrediction):
        return predicted(prediction, ClassificationPrediction).probs
    known = prediction.probs if isinstance(prediction, ClassificationPrediction) else prediction
    probs = numbers(known, "probabilities")
    if probs.dim() < 2 or not probs.shape[1]:
        raise ShapeError(
            f"Expected probabilities (N, K), (N, K, ...) or (N, ..., K), but got {tuple(probs.shape)}; give one column "
            "for each class."
        )
    return probs


def beside(like: Tensor, value: Any, name: str) -> Tensor:
    """Numbers on the device of what they are compared with."""
    return numbers(value, name).to(like.device)


def check_probabilities(rows: Tensor, given: torch.dtype, *, order_only: bool = False) -> None:
    """Refuse rows (M, K) that are no probabilities, beyond what rounding in the type they were `given` in explains.

    Only NaN is refused where nothing but the order of the classes counts.
    """
    strange = rows.isnan().any(1)
    if bool(strange.any()):
        raise DataError(
            f"Expected probabilities, but got NaN in {int(strange.sum())} of {len(rows)} rows; leave these rows out, "
            "or see why the model returns them."
        )
    if order_only or not len(rows):
        return
    most = ROUNDING.get(given, 1e-3)
    sums = rows.sum(1)
    off = (sums - 1).abs().max() if bool(sums.isfinite().all()) else sums.new_tensor(torch.inf)
    low, high = rows.min(), rows.max()
    if not (off <= most and low >= -most and high <= 1 + most):
        raise DataError(
            f"Expected probabilities in [0, 1] that sum to 1, but got numbers from {low.item():.4g} to "
            f"{high.item():.4g} with sums off by up to {off.item():.4g}; take the softmax of logits first."
        )


def whole_number(value: Any, name: str, least: int) -> int:
    """A whole number of at least `least`."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
        raise SettingsError(f"Expected {name} >= {least}, but got {shown(value)}; give a whole number.")
    found: int = value.__index__()
    return found


def share(value: Any, name: str) -> float:
    """A number between 0 and 1, both left out."""
    try:
        found = float("nan") if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        found = float("nan")
    if not 0 < found < 1:
        raise SettingsError(f"Expected {name} in (0, 1), but got {shown(value)}; give a number such as 0.95.")
    return found


def named(values: Any, name: str) -> Mapping[str, Any]:
    """A mapping from names to something, with an entry."""
    if not isinstance(values, Mapping) or not values:
        raise DataError(f"Expected {name} by name in a mapping, but got {_kind(values)}; give one entry or more.")
    return values


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return "an empty mapping" if not value else "a mapping"
    return "nothing" if value is None else f"a {type(value).__name__}"
