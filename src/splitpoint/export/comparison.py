"""How far what a graph says is from what the predictor says."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from splitpoint.export.graph import named_fields
from splitpoint.prediction import Prediction, Reference

Array = np.ndarray[Any, Any]

PERCENT = 0.1
"""Points by which a percentile may differ: one of its steps where there are as many reference rows as are kept."""

NATS = ("aleatoric", "epistemic", "total", "support")
"""Scores of classifiers that are made of logarithms of probabilities."""

FAR = float("inf")


class Comparison:
    """A prediction that others are compared with, field by field.

    Args:
        prediction: what the predictor says.
        tolerance: largest relative difference that counts as rounding.
    """

    def __init__(self, prediction: Prediction, tolerance: float) -> None:
        self.prediction, self.tolerance = prediction, tolerance
        self.expected = {name: own.cpu().numpy() for name, own in named_fields(prediction).items()}

    def difference(self, name: str, found: Array) -> float:
        """How far a field is from that of the prediction, at most: infinity where labels, flags or shapes are others.

        The difference of two numbers is divided by the size of the expected one, or by the mean size in the field where
        that is larger: numbers next to zero have no digits of their own. For the same reason a self-consistency score,
        a difference of products that are nearly equal, is measured by these products, and the epistemic score of a
        regressor, beyond the reach of the training rows, by the product that leverage adds it to. Entropies, which know
        probabilities near 1 by their last digits, and sums of surprises have units of their own, nats: where they are
        below 1 they are measured by 1. A percentile may move by one of its steps, 0.1 or ``100 / (n + 1)`` with
        n < 999 reference rows. Entries on the very threshold, or with two classes as probable as each other, to within
        the tolerance, may fall on either side.
        """
        wanted = self.expected[name]
        if found.shape != wanted.shape or found.dtype != wanted.dtype:
            return FAR
        if wanted.dtype.kind != "f":
            return FAR if bool(((found != wanted) & ~self._undecided(name)).any()) else 0.0
        finite = np.isfinite(wanted)
        if not np.array_equal(np.isfinite(found), finite):
            return FAR
        if name.endswith("percentile"):
            step = max(PERCENT, 100 / (self._reference(name).quantiles.shape[-1] + 1))
            return 0.0 if bool((np.abs(found - wanted)[finite] <= 1.01 * step).all()) else FAR
        values = found.astype(np.float64), wanted.astype(np.float64), self._size(name)
        got, true, size = (value[finite] for value in values)
        if not len(got):
            return 0.0
        if name == "total" and self._is_sds("epistemic") and "mar_up" in self.expected:  # up + down + sqrt(sds)
            sides = (self.expected["mar_up"] + self.expected["mar_down"]).astype(np.float64)[finite]
            got, true, size = (got - sides) ** 2, (true - sides) ** 2, size**2
        least = max(float(np.abs(true).mean()), float(np.finfo(np.float32).tiny))
        return float((np.abs(got - true) / np.maximum(size, least)).max())

    def _size(self, name: str) -> Array:
        """What the differences of a field are measured by."""
        wanted = np.abs(self.expected[name].astype(np.float64))
        if self._is_sds(name):
            known = self.expected
            if "mar_up" in known:
                return np.asarray(wanted + 2 * known["mar_up"].astype(np.float64) * known["mar_down"])
            if "mar" in known:
                return np.asarray(wanted + known["mar"].astype(np.float64).sum(self._class_axis))
        if name == "epistemic" and "mar_up" in self.expected:
            product = 2 * self.expected["mar_up"].astype(np.float64) * self.expected["mar_down"]
            growth = (1 + wanted / np.maximum(product, np.finfo(np.float64).tiny)) ** 2
            return np.asarray(wanted + np.where(growth - 1 > 1.001 * self.expected["support"], product, 0))
        if name == "image_epistemic" or (name in NATS and "probs" in self.expected):
            return np.asarray(np.maximum(wanted, 1.0))
        return wanted

    def _is_sds(self, name: str) -> bool:
        """Whether a field is the self-consistency score."""
        return "sds" in self.expected and np.array_equal(self.expected[name], self.expected["sds"], equal_nan=True)

    @property
    def _class_axis(self) -> int:
        """The axis of the classes."""
        shape, scores = self.expected["probs"].shape, self.expected["label"].shape
        return 1 if (shape[0], *shape[2:]) == scores else -1

    def _undecided(self, name: str) -> Array:
        """Where rounding decides on a label or a flag."""
        if name == "label":
            top = torch.from_numpy(self.expected["probs"]).topk(2, self._class_axis).values.numpy()
            first, second = (np.take(top, place, self._class_axis) for place in (0, 1))
            return np.asarray(first - second <= self.tolerance * first)
        score = self.expected["image_epistemic" if name.startswith("image") else "support"]
        threshold = self._reference(name).threshold.cpu().numpy()
        return np.asarray(np.abs(score - threshold) <= self.tolerance * np.abs(threshold))

    def _reference(self, name: str) -> Reference:
        """What a percentile or a flag was made with."""
        found = self.prediction.image_reference if name.startswith("image") else self.prediction.reference
        assert found is not None
        return found
