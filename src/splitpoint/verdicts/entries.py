"""What is kept of predictions: a few numbers of every entry, gathered batch by batch.

An entry is a row, or one output or position of it that has a target. Of a row with many of them, such as an image, some
are drawn, so that memory stays at a few vectors. Nothing but the public fields of a `Prediction` is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import torch
from torch import Tensor

from splitpoint.consistency import entropy
from splitpoint.errors import SettingsError
from splitpoint.metrics import row_scores
from splitpoint.metrics.classification import class_axis, without_class_axis
from splitpoint.prediction import ClassificationPrediction, Prediction, RegressionPrediction, aligned

MOST_OF_ROW = 64
"""Entries that are drawn of a row with more."""

D = TypeVar("D", bound="Numbers | Classes | Rows")


@dataclass(frozen=True, eq=False)
class Numbers:
    """Entries (M,) of regression.

    Attributes:
        row: which row an entry belongs to.
        channel: which output.
        target: what was observed.
        mean: what was predicted.
        lowers: (M, L) lower bounds; `uppers` likewise.
        uppers: (M, L) upper bounds.
        aleatoric: score; `epistemic`, `support` and `total` likewise.
        epistemic: score.
        support: score.
        total: score that errors are ranked with.
    """

    row: Tensor
    channel: Tensor
    target: Tensor
    mean: Tensor
    lowers: Tensor
    uppers: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    support: Tensor
    total: Tensor

    @property
    def error(self) -> Tensor:
        """Observed less predicted."""
        return self.target - self.mean

    @property
    def width(self) -> Tensor:
        """Of the interval at the highest level."""
        return self.uppers[:, -1] - self.lowers[:, -1]

    @property
    def finite(self) -> Tensor:
        """Whether prediction and score are numbers; bounds may be infinite, but not NaN."""
        bounds = torch.cat([self.lowers, self.uppers], 1)
        return self.mean.isfinite() & self.total.isfinite() & ~bounds.isnan().any(1)


@dataclass(frozen=True, eq=False)
class Classes:
    """Entries (M,) of classification.

    Attributes:
        row: which row an entry belongs to.
        label: the right class; `choice` is the predicted one.
        choice: the most probable class.
        confidence: its probability.
        likelihood: probability of the right class.
        brier: squared distance of the probabilities from the right answer.
        base_confidence: largest probability of the base model; `base_entropy` is that of its probabilities.
        base_entropy: entropy of them.
        base_choice: the class that the base model finds most probable.
        total: score that errors are ranked with.
        held: 1 where the set at the level of the prediction holds the label, NaN where there are no sets.
        size: of that set.
    """

    row: Tensor
    label: Tensor
    choice: Tensor
    confidence: Tensor
    likelihood: Tensor
    brier: Tensor
    base_confidence: Tensor
    base_entropy: Tensor
    base_choice: Tensor
    total: Tensor
    held: Tensor
    size: Tensor

    @property
    def wrong(self) -> Tensor:
        """Whether the predicted class is not the label."""
        return self.choice != self.label

    @property
    def finite(self) -> Tensor:
        """Whether prediction and score are numbers."""
        return self.confidence.isfinite() & self.total.isfinite()


@dataclass(frozen=True, eq=False)
class Rows:
    """Scores (N,) of whole rows, each the mean over the entries of the row; NaN where a score does not exist.

    Attributes:
        support: how little the training data say about the row, or about the image where it has a score of its own.
        flags: share of the entries that are flagged, or whether the image is.
        width: of the interval at the highest level (regression).
        entropy: of the base model's probabilities (classification).
        doubt: one less their maximum.
        energy: minus the log of the summed exponentials of the logits, where the model can be asked for them.
        key: digest of inputs and target, by which equal rows are known; 0 where it was not asked for.
    """

    support: Tensor
    flags: Tensor
    width: Tensor
    entropy: Tensor
    doubt: Tensor
    energy: Tensor
    key: Tensor


def joined(parts: Sequence[D]) -> D:
    """One of several, in order."""
    first = parts[0]
    names = [field.name for field in fields(first)]
    return type(first)(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def chosen(part: D, places: Tensor) -> D:
    """Some of the entries."""
    return type(part)(**{field.name: getattr(part, field.name)[places] for field in fields(part)})


# Of one batch


def numbers(
    prediction: RegressionPrediction, target: Tensor, start: int, axis: int | None, generator: torch.Generator
) -> Numbers:
    """Entries of a batch of regression.

    Args:
        prediction: of N rows.
        target: as in the data.
        start: number of the first row.
        axis: of the outputs; None where there is none.
        generator: for the entries that are drawn.
    """
    mean = prediction.mean
    target = aligned(mean, target)
    rows, entries = _drawn(~target.reshape(len(mean), -1).isnan(), generator)
    kept = _keeper(rows, entries)

    def levels(bounds: Tensor) -> Tensor:
        return torch.stack([kept(bound) for bound in bounds.unbind(-1)], 1)

    return Numbers(
        row=rows + start,
        channel=channels(tuple(mean.shape[1:]), axis)[entries],
        target=kept(target),
        mean=kept(mean),
        lowers=levels(prediction.lowers),
        uppers=levels(prediction.uppers),
        aleatoric=kept(prediction.aleatoric),
        epistemic=kept(prediction.epistemic),
        support=kept(prediction.support),
        total=kept(prediction.total),
    )


def channels(shape: tuple[int, ...], axis: int | None) -> Tensor:
    """Number of the output that each of the flat entries of a row belongs to.

    >>> channels((2, 3), 1), channels((2, 3), -1), channels((), 1)
    (tensor([0, 0, 0, 1, 1, 1]), tensor([0, 1, 2, 0, 1, 2]), tensor([0]))
    """
    if axis is None or not shape:
        return torch.zeros(shape, dtype=torch.long).flatten()
    place = axis - 1 if axis > 0 else len(shape) + axis
    view = [-1 if own == place else 1 for own in range(len(shape))]
    return torch.arange(shape[place]).view(view).expand(shape).flatten()


def classes(
    prediction: ClassificationPrediction, target: Tensor, start: int, ignored: int | None, generator: torch.Generator
) -> Classes:
    """Entries of a batch of classification; `ignored` is a label that does not count, besides negative ones and NaN."""
    target = without_class_axis(prediction.probs, target)
    axis = class_axis(prediction.probs, target)
    label = target.reshape(len(target), -1)
    seen = label >= 0 if ignored is None else (label >= 0) & (label != ignored)
    rows, entries = _drawn(seen, generator)
    kept = _keeper(rows, entries)

    def probabilities(values: Tensor) -> Tensor:
        return (
            values.movedim(axis, -1).flatten(1, -2)[rows, entries].double()
            if values.dim() > 2
            else values.double()[rows]
        )

    probs, base = probabilities(prediction.probs), probabilities(prediction.base_probs)
    right = label[rows, entries].long()
    if len(right) and int(right.max()) >= probs.shape[1]:
        raise SettingsError(
            f"Expected labels from 0 to {probs.shape[1] - 1}, but got {int(right.max())}; check the targets."
        )
    confidence, choice = probs.max(1)
    base_confidence, base_choice = base.max(1)
    likelihood = probs.gather(1, right[:, None])[:, 0]
    held = size = torch.full_like(confidence, torch.nan)
    if prediction.set_level is not None:
        sets = probabilities(prediction.sets(prediction.set_level))
        held, size = sets.gather(1, right[:, None])[:, 0], sets.sum(1)
    return Classes(
        row=rows + start,
        label=right,
        choice=choice,
        confidence=confidence,
        likelihood=likelihood,
        brier=probs.square().sum(1) - 2 * likelihood + 1,
        base_confidence=base_confidence,
        base_entropy=entropy(base, 1),
        base_choice=base_choice,
        total=kept(prediction.total),
        held=held,
        size=size,
    )


def row_parts(prediction: Prediction, energy: Tensor | None, key: Tensor | None) -> Rows:
    """Scores of the rows of a batch."""
    image = None if prediction.image_epistemic is None else prediction.image
    support = row_scores(prediction).support if image is None else image.epistemic.double()
    nothing = torch.full_like(support, torch.nan)
    flags = nothing
    if prediction.reference is not None:
        asked = prediction.flagged if prediction.image_reference is None or image is None else image.flagged
        flags = _row_means(asked)
    width = spread = doubt = nothing
    if isinstance(prediction, RegressionPrediction):
        width = _row_means(prediction.upper - prediction.lower)
    elif isinstance(prediction, ClassificationPrediction):
        base = prediction.base_probs
        axis = 1 if base.dim() == 2 else class_axis(base, prediction.label)
        spread, doubt = _row_means(entropy(base, axis)), _row_means(1 - base.amax(axis))
    zero = torch.zeros(len(support), dtype=torch.long)
    return Rows(
        support,
        flags,
        width,
        spread,
        doubt,
        nothing if energy is None else energy.double(),
        zero if key is None else key,
    )


def _row_means(values: Tensor) -> Tensor:
    return values.double().unsqueeze(1).flatten(1).mean(1)


def _drawn(seen: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows and flat places (M,) of the entries (N, P) that are kept: those with a target, some where there are many."""
    if seen.shape[1] <= MOST_OF_ROW:
        rows, places = seen.nonzero(as_tuple=True)
        return rows, places
    order = torch.rand(seen.shape, generator=generator).masked_fill(~seen, 2.0)
    drawn, places = order.topk(MOST_OF_ROW, 1, largest=False)
    rows, columns = (drawn < 2).nonzero(as_tuple=True)
    return rows, places[rows, columns]


def _keeper(rows: Tensor, entries: Tensor) -> Callable[[Any], Tensor]:
    return lambda values: values.reshape(len(values), -1)[rows, entries].double()
