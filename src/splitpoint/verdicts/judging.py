"""From measured numbers to lights, so that a page rarely cries wolf.

A number is off where its bounds exclude what was promised **and** it is off by enough to matter. Bounds are wide enough
for all questions of a page together (Bonferroni): with m questions each may err with probability ``0.05 / m``, so that
a page without any fault has a red or yellow light from chance alone with probability of at most 5%.
A number is fine where its own 95% bounds exclude that it is badly off. Where neither can be said, nobody can tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from splitpoint.checks import Check
from splitpoint.verdicts.estimates import Estimate

FALSE_ALARMS = 0.05
"""Probability that chance alone turns any light of a page without faults yellow or red, at most."""

Light: TypeAlias = Literal["green", "yellow", "red", "unknown"]
LIGHTS: Mapping[Light, str] = {"red": "red", "yellow": "yellow", "unknown": "cannot tell", "green": "green"}
"""Lights, the gravest first, and how pages call them."""


@dataclass(frozen=True, eq=False)
class Question:
    """A number that is held against a promise.

    Attributes:
        name: stable, for programs.
        estimate: what was measured.
        promise: what it should be.
        worse: on which side of the promise it is wrong.
        yellow: how far off it matters; infinite where it never does.
        red: how far off it matters a lot; infinite where that is not asked.
        says: what was measured, a sentence without number and full stop, such as "coverage at level 0.95".
        trouble: what it means where it is off, and what to do.
        over: how far off on the other side of the promise deserves yellow; `over_trouble` is what it means.
        over_trouble: the same of the other side.
        key: whether nothing can be said of the predictor as long as this cannot be told.
        minor: whether it is one of many alike, which pages fold where they are fine.
        proof: what the 95% bounds have to exceed for green, for numbers that are worth nothing below.
    """

    name: str
    estimate: Estimate
    promise: float
    worse: Literal["low", "high"]
    yellow: float
    red: float
    says: str
    trouble: str
    over: float = math.inf
    over_trouble: str = ""
    key: bool = False
    minor: bool = False
    proof: float = -math.inf

    def light(self, alpha: float) -> Light:
        """The light where a false alarm may have probability `alpha`."""
        off, least, _ = self._off(alpha)
        if not math.isfinite(off):
            return "unknown"
        if least > 0 and off >= self.yellow:
            return "red" if off >= self.red else "yellow"
        if self.is_over(alpha):
            return "yellow"
        bad = self.red if math.isfinite(self.red) else 2 * self.yellow
        proven = self.estimate.shown[0] > self.proof
        return "green" if proven and self._off()[2] < bad else "unknown"

    def is_over(self, alpha: float) -> bool:
        """Whether the number is off on the other side."""
        off, _, most = self._off(alpha)
        return most < 0 and -off >= self.over

    def _off(self, alpha: float | None = None) -> tuple[float, float, float]:
        """How far the number is on the wrong side of the promise, and its bounds."""
        low, high = self.estimate.shown if alpha is None else self.estimate.bounds(alpha)
        if self.worse == "low":
            return self.promise - self.estimate.value, self.promise - high, self.promise - low
        return self.estimate.value - self.promise, low - self.promise, high - self.promise


@dataclass(frozen=True)
class Finding:
    """One statement of a page.

    Attributes:
        name: stable, for programs.
        light: whether it is fine.
        statement: what was measured, with its number and error bar.
        advice: what it means and what to do; empty where there is nothing to do.
        value: the number; NaN where there is none.
        low: end of the 95% interval; `high` likewise.
        high: the other end.
        promise: what it should be; NaN where nothing is promised.
        key: see `Question`; `minor` likewise.
        minor: the same.
    """

    name: str
    light: Light
    statement: str
    advice: str = ""
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    promise: float = math.nan
    key: bool = False
    minor: bool = False


def answered(question: Question, alpha: float) -> Finding:
    """A question with its light."""
    light, (low, high) = question.light(alpha), question.estimate.shown
    trouble = question.over_trouble if question.is_over(alpha) else question.trouble
    advice = {"green": "", "unknown": "Cannot tell with so few rows."}.get(light, trouble)
    return Finding(
        question.name,
        light,
        f"{question.says}: {with_bounds(question.estimate)}.",
        advice,
        question.estimate.value,
        low,
        high,
        question.promise,
        question.key,
        question.minor,
    )


def of_check(check: Check, source: str) -> Finding:
    """What a fit, or a comparison with the model of the fit, found out: a check as a finding."""
    lights: dict[str, Light] = {"ok": "green", "warn": "yellow", "unknown": "unknown"}
    measured = "" if math.isnan(check.value) else f", {short(check.value)}"
    name = f"{source} {check.name}".replace(" ", "_")
    says = f"{source.capitalize()}, {check.name}{measured}:"
    return Finding(name, lights[check.verdict], f"{says} {check.advice}", "", check.value)


def short(value: float) -> str:
    """A number for people.

    >>> short(0.95432), short(-0.0041), short(1234.5), short(float("nan"))
    ('0.954', '-0.004', '1,234', 'unknown')
    """
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "infinite" if value > 0 else "-infinite"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.3g}"
    if 0.0005 <= abs(value) < 10:
        return f"{value:.3f}"
    return f"{value + 0.0:.3g}"


def with_bounds(estimate: Estimate) -> str:
    """A number with its 95% error bar."""
    low, high = estimate.shown
    return f"{short(estimate.value)} ({short(low)} to {short(high)})"


def overall(findings: Sequence[Finding]) -> Light:
    """The gravest light; "cannot tell" only where that is so of what matters, or of everything there is."""
    lights = [one.light for one in findings]
    for light in ("red", "yellow"):
        if light in lights:
            return light
    lost = any(one.key and one.light == "unknown" for one in findings) or (lights and "green" not in lights)
    return "unknown" if lost else "green"
