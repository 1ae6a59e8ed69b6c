"""What every method returns and everything downstream reads: two frozen prediction types.

Rows are the first axis of every tensor field. Scores grow with uncertainty.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from splitpoint.conformal import Conformity, SetScore
from splitpoint.errors import SettingsError, ShapeError
from splitpoint.operators import count_below

P = TypeVar("P", bound="Rowwise")
Own = TypeVar("Own", bound="Prediction")

UNSET = torch.empty(0)
"""Stands for a score of support that a method does not have."""


@dataclass(frozen=True, eq=False)
class Reference:
    """In-distribution scores of the lack of support, and the threshold above which a score is flagged.

    Attributes:
        quantiles: (*S, G) ascending scores of n in-distribution rows, all of them, or where there are more than G those
            of rank ``ceil(i (n + 1) / (G + 1))``, i = 1 to G. The channel shape S broadcasts against the rows of the
            score: () for one reference in all, (D,) for D outputs, (D, 1, 1) for maps.
        threshold: (*S) scores above this are flagged.
    """

    quantiles: Tensor
    threshold: Tensor

    def flagged(self, score: Tensor) -> Tensor:
        """True above the threshold, and for NaN: a score that is not a number deserves no trust."""
        kind = torch.promote_types(score.dtype, self.threshold.dtype)
        return ~(score.to(kind) <= self.threshold.to(score.device, kind))

    def percentile(self, score: Tensor) -> Tensor:
        """``100 (1 - p)`` with the conformal p-value ``p = (1 + #{reference >= score}) / (n + 1)``; NaN stays NaN.

        The share ``#{reference < score} / (n + 1)`` in percent, from 0 to ``100 n / (n + 1)``: of an ordinary row it
        reaches a percentage q with a probability of at most ``1 - q / 100``. Where not all scores are kept it is
        rounded down, by less than ``100 / (G + 1)``.
        """
        shape = self.threshold.shape
        order = channel_order(shape, score.dim())
        moved = score.permute(order)
        kind = torch.promote_types(score.dtype, self.quantiles.dtype)
        flat = moved.reshape(shape.numel(), -1).to(kind)
        known = self.quantiles.to(score.device, kind).reshape(shape.numel(), -1).contiguous()
        below = count_below(known, flat.contiguous())
        percent = torch.where(flat.isnan(), torch.nan, 100 * below.to(kind) / (known.shape[1] + 1)).to(score.dtype)
        return percent.reshape(moved.shape).permute([order.index(axis) for axis in range(score.dim())])

    def described(self) -> dict[str, Any]:
        """Both tensors as JSON has them: type, shape, and the bytes in base64."""
        arrays = {name: getattr(self, name).cpu().numpy() for name in ("quantiles", "threshold")}
        return {
            name: [str(own.dtype), list(own.shape), base64.b64encode(own.tobytes()).decode()]
            for name, own in arrays.items()
        }

    @staticmethod
    def read(described: Mapping[str, Any]) -> Reference:
        """The reference that was `described`."""

        def tensor(dtype: str, shape: list[int], content: str) -> Tensor:
            return torch.from_numpy(np.frombuffer(base64.b64decode(content), dtype).reshape(shape).copy())

        return Reference(*(tensor(*described[name]) for name in ("quantiles", "threshold")))


def channel_order(shape: Sequence[int], dims: int) -> list[int]:
    """Axes of a score of `dims` axes with those first that have a reference of their own in the channel shape."""
    own = [axis for axis, size in enumerate(shape, 1) if size > 1]
    return own + [axis for axis in range(dims) if axis not in own]


@dataclass(frozen=True, eq=False)
class ImageScore:
    """What is said about whole images (or sequences), where every pixel has an answer of its own.

    Attributes:
        epistemic: (N,) how little the training images say about the image; it finds strange images. Pixels are ranked
            by the `total` of the prediction.
        reference: in-distribution reference of that score, set by ``set_threshold``, or None.
    """

    epistemic: Tensor
    reference: Reference | None

    @property
    def flagged(self) -> Tensor:
        """(N,) True where the score exceeds the threshold (or is NaN)."""
        return _known(self.reference).flagged(self.epistemic)

    @property
    def percentile(self) -> Tensor:
        """(N,) in-distribution percentile (0 to 100) of the score."""
        return _known(self.reference).percentile(self.epistemic)


def _known(reference: Reference | None) -> Reference:
    """The reference, or an error where none was set."""
    if reference is None:
        raise SettingsError(
            "Expected a threshold, but none was set; call uq.set_threshold(in_distribution_data) first."
        )
    return reference


class Rowwise:
    """What all predictions can do, whatever they are about: rows are picked, moved and ranked."""

    reference: Reference | None

    def _scores(self) -> tuple[Tensor, Tensor | None]:
        """What ``set_threshold`` learns a reference of: a score of every row, and one of whole images if there is."""
        raise NotImplementedError

    def _lost(self) -> Tensor | None:
        """Where there is no answer, since it could not be computed, in the shape of the score; None where there is."""
        return None

    @property
    def flagged(self) -> Tensor:
        """True where the score exceeds the threshold, and where score or answer is no number."""
        above, lost = _known(self.reference).flagged(self._scores()[0]), self._lost()
        return above if lost is None else above | lost

    @property
    def percentile(self) -> Tensor:
        """In-distribution percentile (0 to 100) of the score."""
        return _known(self.reference).percentile(self._scores()[0])

    def __len__(self) -> int:
        return len(self._scores()[0])

    def __getitem__(self: P, rows: slice | Tensor | Sequence[int]) -> P:
        """The same prediction for some of the rows (a slice, a list or a tensor of indices, or a boolean mask)."""
        return self._map(lambda tensor: tensor[rows])

    def to(self: P, device: torch.device | str) -> P:
        """The same prediction with every tensor on `device`."""
        return self._map(lambda tensor: tensor.to(device))

    def _map(self: P, function: Callable[[Tensor], Tensor]) -> P:
        own: Any = self
        tensors = {f.name: getattr(own, f.name) for f in fields(own)}
        changed = {name: function(value) for name, value in tensors.items() if isinstance(value, Tensor)}
        found: P = replace(own, **changed)
        return found


@dataclass(frozen=True, eq=False)
class Prediction(Rowwise):
    """Fields that regression and classification share; see the two subclasses.

    Attributes:
        aleatoric: noise that no better model would remove.
        epistemic: what the training data leave open about the answer; it never falls as support weakens.
        total: the score to rank errors with.
        reference: in-distribution reference set by ``set_threshold``, or None.
        support: how little the training data say about the input, larger for less; `flagged` and `percentile` are
            made of it. The epistemic score of methods that have no other.
        sds: the paper's self-consistency score, None for other methods.
        image_epistemic: (N,) score of whole images, None where there is none; see `image`.
        image_reference: its in-distribution reference, set by ``set_threshold`` too.
        missing: (N, M) whether a branch of the model did not run for a row, which the others then score; None where
            one place is read, or several that are no branches.
        branches: names of the M branches: the modalities as they were named, or the last layer of each.
    """

    aleatoric: Tensor
    epistemic: Tensor
    total: Tensor
    reference: Reference | None
    support: Tensor = field(default_factory=lambda: UNSET, kw_only=True)
    sds: Tensor | None = field(default=None, kw_only=True)
    image_epistemic: Tensor | None = field(default=None, kw_only=True)
    image_reference: Reference | None = field(default=None, kw_only=True)
    missing: Tensor | None = field(default=None, kw_only=True)
    branches: tuple[str, ...] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if self.support is UNSET:
            object.__setattr__(self, "support", self.epistemic)

    def _scores(self) -> tuple[Tensor, Tensor | None]:
        return self.support, self.image_epistemic

    @property
    def image(self) -> ImageScore:
        """Score of every image as a whole: ``image.epistemic``, ``image.flagged`` and ``image.percentile``, (N,) each.

        Split-point methods have it for outputs that are maps or sequences.
        """
        if self.image_epistemic is None:
            raise SettingsError(
                "Expected a prediction with a score for whole images, but got one without; fit SplitPointRegressor or "
                "SplitPointClassifier on ten or more images to a model that answers with maps or sequences."
            )
        return ImageScore(self.image_epistemic, self.image_reference)

    def __getitem__(self: Own, rows: slice | Tensor | Sequence[int]) -> Own:
        """The same prediction for some of the rows (a slice, a list or a tensor of indices, or a boolean mask).

        A mask of the shape of the scores picks single entries, which no longer make up rows and images: `missing` and
        `image` have no part in that.
        """
        entries = isinstance(rows, Tensor) and rows.dtype == torch.bool and rows.dim() > 1
        part = replace(self, image_epistemic=None, image_reference=None, missing=None) if entries else self
        return part._map(lambda tensor: tensor[rows])


@dataclass(frozen=True, eq=False)
class RegressionPrediction(Prediction):
    """Prediction of a regression method; every tensor but `lowers` and `uppers` has the shape of the target.

    Attributes:
        mean: the base model's own output.
        levels: fitted confidence levels, ascending.
        lowers: (..., L) lower bounds, one for each level; `uppers` likewise.
        uppers: (..., L) upper bounds.
        aleatoric: width of the uncalibrated interval at the highest level.
        mar: total mean absolute residual, None for methods without MARs; `mar_up` and `mar_down` likewise.
        scale: scale of the predictive distribution around `mean`, None for methods that have intervals only.
        freedom: its degrees of freedom where it is a Student t, None where it is normal.
    """

    mean: Tensor
    levels: tuple[float, ...]
    lowers: Tensor
    uppers: Tensor
    mar: Tensor | None = None
    mar_up: Tensor | None = None
    mar_down: Tensor | None = None
    scale: Tensor | None = None
    freedom: Tensor | None = None

    @property
    def lower(self) -> Tensor:
        """Lower bound at the highest fitted level."""
        return self.lowers[..., -1]

    @property
    def upper(self) -> Tensor:
        """Upper bound at the highest fitted level."""
        return self.uppers[..., -1]

    def _lost(self) -> Tensor:
        return ~(self.mean.isfinite() & self.aleatoric.isfinite())

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """``(lower, upper)`` at one of the fitted levels."""
        if isinstance(level, bool) or not isinstance(level, int | float):
            raise SettingsError(f"Expected one of the fitted confidence levels {self.levels}, but got {level!r}.")
        for index, fitted in enumerate(self.levels):
            if abs(fitted - level) < 1e-9:
                return self.lowers[..., index], self.uppers[..., index]
        raise SettingsError(
            f"Expected one of the fitted confidence levels {self.levels}, but got {level}; "
            f"fit with confidence_level={tuple(sorted({*self.levels, level}))} to have it."
        )


@dataclass(frozen=True, eq=False)
class ClassificationPrediction(Prediction):
    """Prediction of a classification method.

    Attributes:
        probs: calibrated class probabilities, classes on the axis where the model has them; they sum to 1.
        base_probs: the base model's own probabilities.
        aleatoric: entropy of `probs`, without the class axis; `epistemic`, `total` and `label` alike.
        label: most probable class of `probs`.
        mar: total mean absolute residual of every class, None for methods without MARs.
        conformity: what `sets` are made of; None without calibration data, and for methods without sets.
        conflict: how much the views of a row disagree, None for methods that do not compare any.
        blame: how far each of them is from the others, views on the axis of the classes.
    """

    probs: Tensor
    base_probs: Tensor
    label: Tensor
    mar: Tensor | None = None
    conformity: Conformity | None = None
    conflict: Tensor | None = None
    blame: Tensor | None = None

    def _lost(self) -> Tensor:
        return ~self.aleatoric.isfinite()

    def sets(self, level: float, method: SetScore | None = None) -> Tensor:
        """Prediction sets that hold the true class with probability of at least `level`: bool, shaped like `probs`.

        A class is in the set where its score is at most the ``ceil((n + 1) level)``-th smallest among the true
        classes of n calibration rows. That holds on average over inputs, for rows exchangeable with those.

        Args:
            level: in (0, 1); n has to be at least ``level / (1 - level)``.
            method: the score (see `conformal.class_scores`). "lac" is ``1 - p_k``: the smallest sets on average, and
                none at all where the model is less sure of every class than it is of the true ones on most
                calibration rows. "aps" is the sum of what is more probable, "raps" the same with a price on classes
                beyond the fifth: never empty, and larger where the model is in doubt. None for that of the fit, "lac"
                unless it was set.

        The sets are those of MAPIE for the same probabilities ("aps" and "raps" with the uniform draws of the
        calibration scores held at 1, which makes them the smallest and leaves nothing to chance).
        """
        if self.conformity is None:
            raise SettingsError(
                "Expected a prediction with calibration scores to make sets of, but got one without; fit "
                "SplitPointClassifier or the conformal baseline with calibration= data."
            )
        return self.conformity.sets(self.probs, level, method)

    @property
    def set_level(self) -> float | None:
        """The level at which metrics judge `sets`; None where there are none, or too few calibration rows for it."""
        return self.conformity.level if self.conformity is not None and self.conformity.enough else None


def aligned(output: Tensor, target: Tensor) -> Tensor:
    """The target in the shape of the output: (N,) and (N, 1) are the same, anything else is a ShapeError."""
    if target.shape == output.shape:
        return target
    if {tuple(target.shape), tuple(output.shape)} == {(len(output),), (len(output), 1)}:
        return target.reshape(output.shape)
    raise ShapeError(
        f"Expected targets of the shape of the model's output, {tuple(output.shape)}, but got {tuple(target.shape)}; "
        "reshape the targets."
    )


def with_fields(prediction: P, **changes: Any) -> P:
    """The same prediction with other values of some fields."""
    known: Any = prediction
    found: P = replace(known, **changes)
    return found


def concatenate(parts: Sequence[P]) -> P:
    """One prediction out of several, in order."""
    first: Any = parts[0]
    names = [f.name for f in fields(first) if isinstance(getattr(first, f.name), Tensor)]
    for name in names:
        shapes = {tuple(getattr(part, name).shape[1:]) for part in parts}
        if len(shapes) > 1:
            raise ShapeError(
                f"Expected batches of one size to join their predictions, but got {sorted(shapes)}; "
                "predict them one by one."
            )
    joined: Any = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    whole: P = replace(first, **joined)
    return whole
