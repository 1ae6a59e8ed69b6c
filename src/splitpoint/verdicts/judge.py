"""The verdict on a predictor: its predictions are gathered batch by batch, measured, and judged together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from splitpoint.batches import Batch, Data
from splitpoint.errors import DataError, SettingsError
from splitpoint.metrics import Evidence, measured
from splitpoint.prediction import ClassificationPrediction, Prediction, Reference, RegressionPrediction
from splitpoint.predictor import Predictor
from splitpoint.runtime import Runtime
from splitpoint.verdicts import coverage, probabilities, ranking
from splitpoint.verdicts.entries import Classes, Numbers, Rows, chosen, classes, joined, numbers, row_parts
from splitpoint.verdicts.estimates import Share
from splitpoint.verdicts.identity import identity
from splitpoint.verdicts.judging import Finding, of_check
from splitpoint.verdicts.parts import Part
from splitpoint.verdicts.result import Verdict, conclude
from splitpoint.verdicts.rows import Known, row_part
from splitpoint.verdicts.separation import flag_part, ood_part
from splitpoint.verdicts.stream import Seen, seen
from splitpoint.verdicts.subject import subject_of
from splitpoint.verdicts.worst import Worst, images_of


@dataclass(frozen=True, eq=False)
class Gathered:
    """What is kept of labelled rows.

    Attributes:
        entries: those with a target and an answer that is a number.
        rows: scores of all rows.
        lost: answers that are no numbers, among all with a target.
        first: the first batch, for measuring time; None where the rows did not come from a predictor.
        worst: the most surprising entries.
        levels: of the intervals, or of the sets; empty without any.
        reference: what flags are made of, None without a threshold.
    """

    entries: Numbers | Classes
    rows: Rows
    lost: Share
    first: Batch | None
    worst: Worst
    levels: tuple[float, ...]
    reference: Reference | None


@dataclass
class Reading:
    """How outputs are read: the axis of several outputs, and the label that does not count."""

    axis: int | None = 1
    ignored: int | None = None
    generator: torch.Generator = field(default_factory=lambda: torch.Generator().manual_seed(0))

    def entries(self, prediction: Prediction, target: Tensor, start: int) -> Numbers | Classes:
        """Entries of a batch."""
        if isinstance(prediction, RegressionPrediction):
            return numbers(prediction, target, start, self.axis, self.generator)
        if isinstance(prediction, ClassificationPrediction):
            return classes(prediction, target, start, self.ignored, self.generator)
        raise SettingsError(
            "Expected a predictor of numbers or classes, such as SplitPointRegressor or SplitPointClassifier fit, but "
            f"it answers with {type(prediction).__name__}; a verdict needs answers with targets."
        )


def verdict(
    uq: Predictor[Any] | Runtime,
    test: Data,
    train: Data | None = None,
    ood: Data | None = None,
    *,
    calibration: Data | None = None,
    cost: bool = True,
    progress: bool = False,
) -> Verdict:
    """Judge a predictor on rows that neither its model nor its fit has seen: one page, a light, and its reasons.

    Each of the data is read once, batch by batch, and a few numbers of every row are kept. Every statement has a number
    and an error bar; lights are such that chance alone turns any of a page without faults yellow or red with
    probability of at most 5%.

    Args:
        uq: a fitted predictor of any method, or a loaded one; or an ONNX file that `splitpoint.runtime.load` opened.
        test: with targets, held out from training, fitting and calibration.
        train: the model's training rows with their targets: are test rows among them, were they memorised?
        ood: inputs out of distribution, with or without targets: does the score see them?
        calibration: the rows that were calibrated on, with targets: are they among training or test rows, and are the
            test rows like them? A predictor does not keep them.
        cost: whether to measure the time of a prediction, which takes some seconds.
        progress: whether to show progress bars.
    """
    subject = subject_of(uq)
    ignored = getattr(subject.method, "ignore_index", None)

    def gather(data: Data, what: str, energy: bool = False) -> Gathered:
        reading = Reading(subject.layout.axis, ignored)
        return gathered(seen(subject, data, what, targets=True, energy=energy, progress=progress), reading)

    found = gather(test, "test", ood is not None)
    known = {
        name: gather(data, name) for name, data in (("train", train), ("calibration", calibration)) if data is not None
    }
    strange = None
    if ood is not None:
        batches = seen(subject, ood, "ood", targets=False, energy=True, progress=progress)
        strange = joined([row_parts(one.prediction, one.energy, None) for one in batches])
    checks = [of_check(check, "fit") for check in subject.checks()]
    checks.append(of_check(subject.verify(), "since the fit"))
    parts = measure(found, known, strange, checks)
    if cost and found.first is not None:
        parts.insert(-1, subject.cost(found.first, _rows(found.first)))
    rows = {"test": len(found.rows.support)} | {name: len(one.rows.support) for name, one in known.items()}
    rows |= {} if strange is None else {"out-of-distribution": len(strange.support)}
    figures = {"rows": float(rows["test"]), "entries": float(len(found.entries.row)), **_metrics(found)}
    return conclude(parts, identity(subject.described(), rows, len(found.entries.row)), figures)


def gathered(batches: Iterable[Seen], reading: Reading) -> Gathered:
    """What is kept of labelled batches; no more than predictions, targets and digests is read."""
    entries, rows, worst, start, lost, first = [], [], Worst(), 0, 0, None
    levels: tuple[float, ...] = ()
    reference = None
    for one in batches:
        assert one.target is not None
        part = reading.entries(one.prediction, one.target, start)
        whole = chosen(part, part.finite)
        lost += len(part.row) - len(whole.row)
        worst.add(whole, images_of(one.batch.inputs()), start)
        entries.append(whole)
        rows.append(row_parts(one.prediction, one.energy, one.key))
        start += len(one.key)
        first, levels, reference = first or one.batch, _levels(one.prediction), _reference(one.prediction)
    joint = joined(entries)
    if not len(joint.row) and not lost:
        raise DataError("Expected rows with targets, but all of them are missing; give rows that have some.")
    answers = Share(float(lost), float(lost + len(joint.row)))
    return Gathered(joint, joined(rows), answers, first, worst, levels, reference)


def measure(test: Gathered, known: dict[str, Gathered], strange: Rows | None, checks: list[Finding]) -> list[Part]:
    """All parts but the cost of a prediction: a function of predictions and targets alone.

    Args:
        test: test rows.
        known: rows of "train" and "calibration", as far as they were given.
        strange: scores of rows out of distribution.
        checks: what the fit said of itself.
    """
    entries = test.entries
    parts = list(_answers(entries, test.levels)) if len(entries.row) else []
    calibration = known.get("calibration")
    flags = flag_part(test.rows, test.reference, None if calibration is None else calibration.rows)
    parts += [] if flags is None else [flags]
    parts += [] if strange is None else [ood_part(test.rows, strange, test.reference)]
    train = known.get("train")
    keys = {name: one.rows.key for name, one in {"test": test, **known}.items()}
    seen_before = None if train is None else Known(train.entries, train.rows.key)
    parts.append(row_part(entries, keys, seen_before, test.lost, checks))
    return [*parts, test.worst.part()] if len(entries.row) else parts


def _answers(entries: Numbers | Classes, levels: tuple[float, ...]) -> Iterator[Part]:
    """Parts about answers and their errors."""
    if isinstance(entries, Numbers):
        yield coverage.coverage_part(entries, levels)
        yield coverage.width_part(entries, coverage.flat(entries, levels), levels)
        yield ranking.number_part(entries, levels)
        return
    yield probabilities.probability_part(entries)
    if levels:
        yield probabilities.set_part(entries, levels[-1])
    yield ranking.class_part(entries)


def _levels(prediction: Prediction) -> tuple[float, ...]:
    if isinstance(prediction, RegressionPrediction):
        return prediction.levels
    assert isinstance(prediction, ClassificationPrediction)
    return () if prediction.set_level is None else (prediction.set_level,)


def _reference(prediction: Prediction) -> Reference | None:
    """The reference of what is flagged: of images where they have one."""
    return prediction.reference if prediction.image_reference is None else prediction.image_reference


def _rows(batch: Batch) -> int:
    return max((len(value) for value in batch.inputs().values() if value.dim()), default=1)


def _metrics(found: Gathered) -> dict[str, float]:
    """Figures of the table `metrics.METRICS` on the test entries."""
    entries = found.entries
    if not len(entries.row) or isinstance(entries, Classes):
        return {}
    return measured(Evidence(coverage.flat(entries, found.levels), entries.target))
