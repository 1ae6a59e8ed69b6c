"""What a page is made of: parts with questions, findings, figures, drawings and tables, whatever they are about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from splitpoint.verdicts.judging import Finding, Question


@dataclass(frozen=True)
class Bar:
    """One number of a chart with its 95% error bar; `promise` is what it should be, NaN for nothing."""

    label: str
    value: float
    low: float
    high: float
    promise: float
    rows: int


@dataclass(frozen=True)
class Chart:
    """Numbers with error bars side by side; `name` is for programs, `axis` says what the labels are."""

    name: str
    title: str
    axis: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Curve:
    """A line of a plot."""

    title: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Plot:
    """Lines over the same axes."""

    name: str
    title: str
    axis: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Table:
    """Rows of text under a head; cells of the first column may be images, as base64 text of PNG files."""

    name: str
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    images: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """A section of a page before its questions are judged.

    Attributes:
        name: stable, for programs.
        title: for people.
        about: what is measured, and against what.
        questions: numbers held against promises.
        findings: what needs no test.
        figures: flat numbers by stable names.
        charts: numbers with error bars.
        plots: lines.
        tables: rows of text.
        reliability: confidence, accuracy and count by bin, of the base model and of the predictor.
        histogram: logarithm, edges, shares and threshold of scores in and out of distribution.
        note: what the figures show.
    """

    name: str
    title: str
    about: str
    questions: Sequence[Question] = ()
    findings: Sequence[Finding] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    charts: Sequence[Chart] = ()
    plots: Sequence[Plot] = ()
    tables: Sequence[Table] = ()
    reliability: Mapping[str, Any] | None = None
    histogram: Mapping[str, Any] | None = None
    note: str = ""
