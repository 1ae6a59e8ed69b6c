"""Rows that are where they should not be, and what a network makes of rows that it has seen."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from splitpoint.verdicts.entries import Classes, Numbers
from splitpoint.verdicts.estimates import Mean, Share, Times, mean_of
from splitpoint.verdicts.judging import Finding, Question
from splitpoint.verdicts.parts import Bar, Chart, Part

LEAKED, MOSTLY_LEAKED = 0.01, 0.10
"""Share of rows among others, above what chance explains, that matters, and that matters a lot."""

GROWN = 0.5
"""Share by which the error on test rows may be larger than on training rows."""

LESS_RIGHT = 0.10
"""How much more often answers may be wrong on test rows than on training rows."""

NOT_FINITE = 0.0
"""Share of answers that may be no numbers."""


@dataclass(frozen=True, eq=False)
class Known:
    """Training or calibration rows.

    Attributes:
        entries: what was said about them.
        keys: (N,) digests.
    """

    entries: Numbers | Classes
    keys: Tensor


def overlap_questions(keys: Mapping[str, Tensor]) -> Iterator[Question]:
    """Whether rows of one kind are rows of another: test, calibration and training rows by their digests.

    Args:
        keys: digests by "test", "calibration" and "train", as far as they are known.
    """
    advice = {
        ("test", "train"): "The model has seen these answers: nothing on this page holds for new rows. Take them out.",
        (
            "calibration",
            "train",
        ): "The model is better on rows that it has seen, so that calibration on them promises too "
        "much: calibrate on fresh rows.",
        ("test", "calibration"): "These rows were calibrated on, so that they flatter the calibration: take them out.",
    }
    for (asked, among), trouble in advice.items():
        if asked not in keys or among not in keys:
            continue
        values, counts = keys[among].unique(return_counts=True)
        found = int(torch.isin(keys[asked], values).sum())
        chance = float(counts[counts > 1].sum()) / len(keys[among])
        if not found:
            continue
        says = f"Share of {asked} rows that are {_called(among)} rows too, input and target alike"
        if chance:
            says += f" ({chance:.1%} of these are there twice)"
        share = Share(float(found), float(len(keys[asked])))
        yield Question(f"{asked}_among_{among}", share, chance, "high", LEAKED, MOSTLY_LEAKED, says, trouble)


def _called(kind: str) -> str:
    return {"train": "training"}.get(kind, kind)


def clean_findings(keys: Mapping[str, Tensor]) -> Iterator[Finding]:
    """Statements of pairs that have no row in common."""
    for asked, among in (("test", "train"), ("calibration", "train"), ("test", "calibration")):
        if asked in keys and among in keys and not torch.isin(keys[asked], keys[among]).any():
            share = Share(0.0, float(len(keys[asked])))
            says = (
                f"None of the {len(keys[asked])} {asked} rows is one of the {len(keys[among])} {_called(among)} rows."
            )
            yield Finding(f"{asked}_among_{among}", "green", says, "", 0.0, *share.shown, 0.0)


def memorised_question(test: Numbers | Classes, train: Numbers | Classes) -> tuple[Question, tuple[Bar, ...]] | None:
    """How much worse the model is on test rows than on training rows; None where it makes no error on either."""
    if isinstance(test, Numbers) and isinstance(train, Numbers):
        errors = {name: mean_of(one.error.square(), one.row) for name, one in (("test", test), ("train", train))}
        if not errors["test"].value > 0:
            return None
        tiny = 1e-12 * errors["test"].value
        logs = {name: math.log(max(one.value, tiny)) for name, one in errors.items()}
        relative = [one.error / max(one.value, tiny) for one in errors.values()]
        ratio = Times(Mean((logs["test"] - logs["train"]) / 2, math.hypot(*relative) / 2, _freedom(errors)))
        says = "RMSE of the model on test rows over that on training rows"
        bars = tuple(_bar(name, one, math.sqrt) for name, one in errors.items())
        return Question("memorised", ratio, 1.0, "high", GROWN, math.inf, says, _memorised("RMSE")), bars
    assert isinstance(test, Classes)
    assert isinstance(train, Classes)
    wrong = {name: mean_of(one.wrong.double(), one.row) for name, one in (("test", test), ("train", train))}
    error = math.hypot(*(one.error for one in wrong.values()))
    gap = Mean(wrong["test"].value - wrong["train"].value, error, _freedom(wrong))
    says = "Share of wrong answers on test rows less that on training rows"
    bars = tuple(_bar(name, one, lambda value: value) for name, one in wrong.items())
    return Question("memorised", gap, 0.0, "high", LESS_RIGHT, math.inf, says, _memorised("error")), bars


def _freedom(found: Mapping[str, Mean]) -> float:
    return min(one.freedom for one in found.values())


def _memorised(error: str) -> str:
    return (
        "The model is far better on rows that it was trained on: it has memorised them, or the test rows are others. "
        f"What is learned from its {error} on training rows does not hold for new ones: it takes `calibration=` rows, "
        "or `residuals='refit'`; a smaller or regularised network would do better."
    )


def _bar(name: str, estimate: Mean, shape: Callable[[float], float]) -> Bar:
    low, high = (shape(max(bound, 0.0)) for bound in estimate.shown)
    return Bar(_called(name), shape(estimate.value), low, high, math.nan, 0)


def row_part(
    test: Numbers | Classes,
    keys: Mapping[str, Tensor],
    train: Known | None,
    lost: Share,
    checks: list[Finding],
) -> Part:
    """Warnings: what the fit said of itself, rows in two places, a memorised base, answers that are no numbers."""
    questions, findings, charts = list(overlap_questions(keys)), [*clean_findings(keys), *checks], []
    memorised = None if train is None or not len(test.row) else memorised_question(test, train.entries)
    figures = {f"{question.name}": question.estimate.value for question in questions}
    if memorised is not None:
        question, bars = memorised
        questions.append(question)
        figures["memorised"] = question.estimate.value
        title = "RMSE of the model" if isinstance(test, Numbers) else "Share of wrong answers"
        charts.append(Chart("errors", title, "rows", bars))
    if lost.hits:
        says = f"{lost.hits:g} of {lost.of:g} answers are no finite numbers; they are left out of everything else here."
        trouble = "Look at the inputs of these rows, and at the model."
        findings.insert(0, Finding("not_finite", "red", says, trouble, lost.value, *lost.shown, NOT_FINITE))
    figures["not_finite"] = lost.value
    return Part(
        "rows",
        "Rows and warnings",
        "Rows that are in two places, errors on rows that the model has seen, and what the fit found out about itself. "
        + ("" if "train" in keys else "Without train= nothing is known of the training rows. ")
        + ("" if "calibration" in keys else "Without calibration= nothing is known of the calibration rows."),
        questions,
        findings,
        figures,
        charts,
    )
