"""What the numbers in a file of depths mean: metres, steps of some centimetres, or inverse depth.

Two quantities can be made of all of them: the depth in metres, NaN where the file does not say it, and the inverse
depth that the authors' networks learn, ``min(1, 1 / metres)``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

Maps = NDArray[np.float32]

HIGHEST = 255
"""The largest number of a byte, which stands for itself and everything beyond."""


class DepthScale(ABC):
    """Turns stored numbers, of any shape, into depths of the same shape."""

    @abstractmethod
    def metres(self, stored: NDArray[Any]) -> Maps:
        """Depth in metres; NaN where there is none, or where the file says no more than a limit of it."""

    def inverse(self, stored: NDArray[Any]) -> Maps:
        """``min(1, 1 / metres)``; NaN where there is no depth."""
        return np.minimum(1 / self.metres(stored), np.float32(1))


@final
@dataclass(frozen=True)
class Metres(DepthScale):
    """Metres as they are; what is not a positive number is no reading."""

    def metres(self, stored: NDArray[Any]) -> Maps:
        """The stored numbers."""
        depth = stored.astype(np.float32)
        return np.where((depth > 0) & np.isfinite(depth), depth, np.float32(np.nan))


@final
@dataclass(frozen=True)
class Steps(DepthScale):
    """Bytes that count steps of `step` metres: 0 is no reading, 255 the end of the range or farther; both are NaN."""

    step: float

    def metres(self, stored: NDArray[Any]) -> Maps:
        """``step * stored``."""
        valid = (stored > 0) & (stored < HIGHEST)
        return np.where(valid, stored * np.float32(self.step), np.float32(np.nan))


@final
@dataclass(frozen=True)
class InverseBytes(DepthScale):
    """Bytes ``clip(255 / metres, 0, 255)``, rounded: the files of Amini et al. (2020), which the authors train on.

    0 is farther than any room and 255 is 1 m or nearer, or no reading at all; neither says how far, and both are NaN in
    metres. In inverse depth they are 0 and 1, as the authors have them: nothing is left out there.
    """

    def metres(self, stored: NDArray[Any]) -> Maps:
        """``255 / stored``."""
        valid = (stored > 0) & (stored < HIGHEST)
        return np.where(valid, np.float32(HIGHEST) / np.maximum(stored, 1), np.float32(np.nan))

    def inverse(self, stored: NDArray[Any]) -> Maps:
        """``stored / 255``."""
        return stored.astype(np.float32) / np.float32(HIGHEST)
