"""What a fit found out about itself: each check has a value, a verdict and, where it fails, one warning."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from splitpoint.errors import SplitPointWarning

Verdict = Literal["ok", "warn", "unknown"]


@dataclass(frozen=True)
class Check:
    """One thing that `fit` looked at.

    Attributes:
        name: what was looked at, in a few words.
        value: what was found; NaN where it could not be measured.
        verdict: "ok", "warn" where the figures of the predictor may be wrong, "unknown" where nothing can be said.
        advice: what the value means, and what to do about it.
    """

    name: str
    value: float
    verdict: Verdict
    advice: str

    def __str__(self) -> str:
        """One line: verdict, name, value and advice."""
        return f"{self.verdict:<7} {self.name} ({self.value:.3g}): {self.advice}"


def warn_of(checks: Sequence[Check]) -> None:
    """One `SplitPointWarning` for each check that failed, attributed to whoever called the library."""
    for check in checks:
        if check.verdict == "warn":
            warnings.warn(f"{check.name}: {check.advice}", SplitPointWarning, stacklevel=_outside())


def _outside() -> int:
    """Levels up the stack to the first frame that is not of this package, as `warnings.warn` counts them."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "splitpoint":
        level, frame = level + 1, frame.f_back
    return level
