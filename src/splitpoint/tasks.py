"""The two tasks: how targets and outputs are read, what plain networks minimise, and how answers become predictions.

Canonical values are (N, D) or (N, D, P) numbers in regression and (N, K) or (N, K, P) classes in classification, with P
positions of maps and sequences; see `layout`. Every method stands on one of these tasks and knows no other shapes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.conformal import Conformity
from splitpoint.consistency import entropy
from splitpoint.errors import DataError, SettingsError, ShapeError
from splitpoint.layout import Layout, single
from splitpoint.prediction import ClassificationPrediction, Prediction, Reference, RegressionPrediction, aligned
from splitpoint.settings import settle

TaskName = Literal["regression", "classification"]
TASKS: tuple[TaskName, ...] = ("regression", "classification")
ModelOutput = Literal["logits", "probs"]
Levels = tuple[float, ...]
ColumnName = Literal[
    "features", "output", "residual", "logits", "label", "left_out", "shrink", "context", "group", "place"
]
"""What recorded rows can hold: features of every row; output and residual (regression), logits and label
(classification); what regression derives from the leverage of a row, see `leverage`; as `context` what layers before
the last one read; as `group` the number of what the row belongs to, such as its image; and as `place` where in it."""

Rows = dict[ColumnName, Tensor]
"""Columns by name, with rows on the first axis."""

MISSING = -100
"""Canonical label of a row that has none."""


def decided_task(output: Tensor, target: Tensor) -> TaskName:
    """The task of a model's output and targets: classes where targets are integers."""
    if target.is_floating_point():
        return "regression"
    if target.numel() == output.numel():
        raise SettingsError(
            f"Expected task= for integer targets of the output's own shape {tuple(output.shape)}, which may be "
            "labels of a one-logit classifier or numbers; pass task='classification' or task='regression'."
        )
    return "classification"


def ascending(confidence_level: float | Sequence[float]) -> Levels:
    """Confidence levels in (0, 1), each once, in ascending order."""
    given = confidence_level if isinstance(confidence_level, Sequence) else (confidence_level,)
    try:
        levels = tuple(sorted({float(level) for level in given}))
    except (TypeError, ValueError):
        levels = ()
    if not levels or not all(0 < level < 1 for level in levels):
        raise SettingsError(f"Expected confidence levels in (0, 1), but got {confidence_level!r}.")
    return levels


@dataclass(frozen=True)
class Targets:
    """What is kept of a batch, in canonical form.

    Attributes:
        columns: by name, (N, M) or (N, M, P).
        valid: (N,) or (N, P), rows and positions that have a target.
    """

    columns: Rows
    valid: Tensor


class Task(ABC):
    """How the targets of a task are read, and what a plain network learns from them."""

    name: ClassVar[TaskName]
    answers: ClassVar[ColumnName]
    """Column of recorded rows that holds the outputs of the model."""

    squeezable: ClassVar[int]
    """Least number of axes with which an output may lack a channel axis of size one."""

    @property
    def kind(self) -> str:
        """What recorded targets depend on beside the data, for the fingerprint of a cache."""
        return self.name

    def reads_like(self, other: Task) -> bool:
        """Whether the other task reads outputs in the same way."""
        return self.name == other.name

    @abstractmethod
    def canonical(self, output: Tensor) -> Tensor:
        """Canonical outputs (N, D, ...) as methods compute with them: numbers, or logits (N, K, ...)."""

    @abstractmethod
    def targets(self, layout: Layout, output: Tensor, target: Tensor) -> Targets:
        """What is recorded of a batch with this output and target; an error where they do not fit."""

    @abstractmethod
    def plain(self, layout: Layout, tail: tuple[int, ...], outputs: int, target: Tensor, *, known: bool) -> Tensor:
        """Canonical targets of networks in training, marked where there is none.

        Args:
            layout: of the output.
            tail: shape of an output without rows, for outputs without positions.
            outputs: number of output channels.
            target: (N, ...) as in the data.
            known: whether they are known to be sound, so that nothing is checked again.
        """

    @abstractmethod
    def present(self, target: Tensor) -> Tensor:
        """Which canonical targets are there."""

    @abstractmethod
    def errors(self, raw: Tensor, target: Tensor) -> Tensor:
        """Loss of a plain network for every canonical target."""

    @abstractmethod
    def loss(self, layout: Layout, output: Tensor, target: Tensor) -> Tensor:
        """Mean loss of the output of a base network, a scalar."""

    @abstractmethod
    def channels(self, layout: Layout, score: Tensor) -> tuple[int, ...]:
        """Shape of a threshold that broadcasts against a score's rows: sizes above 1 have thresholds of their own."""


@dataclass(frozen=True)
class Regression(Task):
    """Numbers; a NaN target is a missing one."""

    name: ClassVar[TaskName] = "regression"
    answers: ClassVar[ColumnName] = "output"
    squeezable: ClassVar[int] = 2

    def canonical(self, output: Tensor) -> Tensor:
        """The numbers, in float32 or float64."""
        return output if output.dtype == torch.float64 else single(output)

    def targets(self, layout: Layout, output: Tensor, target: Tensor) -> Targets:
        """Residuals ``y - f(x)`` and outputs, in float64 where the model answers so, which may be beyond float32."""
        target = aligned(output, target)
        _check_finite(target)
        answers = self.canonical(layout.output(output))
        residual = layout.output(target.double() - output.double()).to(answers.dtype)
        if torch.isinf(residual).any():
            raise DataError(
                f"Expected residuals within the range of {answers.dtype}, in which they are kept, but got larger ones; "
                "bring the targets to a usual scale, or let the model answer in float64."
            )
        return Targets({"output": answers, "residual": residual}, ~residual.isnan().all(1))

    def plain(self, layout: Layout, tail: tuple[int, ...], outputs: int, target: Tensor, *, known: bool) -> Tensor:  # noqa: ARG002
        """Numbers (N, D) or (N, D, P), NaN where there is none."""
        if not known:
            _check_finite(target)
        if layout.dense:
            return layout.output(target).float()
        return aligned(torch.empty(()).expand(len(target), *tail), target).reshape(len(target), -1).float()

    def present(self, target: Tensor) -> Tensor:
        """Those that are not NaN."""
        return ~target.isnan()

    def errors(self, raw: Tensor, target: Tensor) -> Tensor:
        """Squared errors."""
        return (raw.float() - target).square()

    def loss(self, layout: Layout, output: Tensor, target: Tensor) -> Tensor:  # noqa: ARG002
        """Mean squared error of the targets that are there."""
        error = output - aligned(output, target)
        return error[~error.isnan()].square().mean()

    def channels(self, layout: Layout, score: Tensor) -> tuple[int, ...]:
        """Every output has a threshold of its own, since its scores have a unit of their own."""
        return layout.channel_shape(score)


def _check_finite(target: Tensor) -> None:
    if torch.isinf(target).any():
        raise DataError("Expected finite targets (NaN marks a missing one), but got inf; clean the targets.")


@dataclass(frozen=True)
class Classification(Task):
    """Class indices.

    Attributes:
        output: what the model returns, "logits" or "probs"; never guessed.
        ignore_index: label of rows and pixels that do not count.
    """

    name: ClassVar[TaskName] = "classification"
    answers: ClassVar[ColumnName] = "logits"
    squeezable: ClassVar[int] = 3

    output: ModelOutput = "logits"
    ignore_index: int = MISSING

    def __post_init__(self) -> None:
        settle(self)

    @property
    def kind(self) -> str:
        """See `Task`."""
        return f"classification from {self.output}, ignoring {self.ignore_index}"

    def reads_like(self, other: Task) -> bool:
        """See `Task`; labels that were ignored are no longer there."""
        return isinstance(other, Classification) and self.output == other.output

    def canonical(self, output: Tensor) -> Tensor:
        """Logits (N, K, ...); one output D = 1 stands for K = 2 classes."""
        output = output if output.dtype == torch.float64 else single(output)
        tiny = torch.finfo(output.dtype).tiny
        if output.shape[1] > 1:
            return output if self.output == "logits" else output.clamp(min=tiny).log()
        if self.output == "logits":
            return torch.cat([-output / 2, output / 2], 1)
        return torch.cat([1 - output, output], 1).clamp(min=tiny).log()

    def targets(self, layout: Layout, output: Tensor, target: Tensor) -> Targets:
        """Logits and labels."""
        canonical = layout.output(output)
        if not layout.dense and output.dim() > 2:
            raise ShapeError(
                f"Expected logits (N, K), one logit, or dense logits whose layer has the same positions, but got "
                f"{tuple(output.shape)}; choose a layer with positions through layer=."
            )
        self._check_output(canonical)
        expected = (len(output), *canonical.shape[2:])
        shapes = {tuple(layout.restore_scores(canonical[:, 0], output).shape)}
        if canonical.shape[1] == 1 or not layout.dense:
            shapes |= {tuple(output.shape)} if canonical.shape[1] == 1 else {(len(output), 1)}
        if tuple(target.shape) not in shapes:
            raise ShapeError(
                f"Expected class indices of shape {min(shapes, key=len)}, but got {tuple(target.shape)}; "
                "reshape the labels, or take argmax of one-hot ones."
            )
        label = target.reshape(len(output), canonical.shape[2:].numel())
        if label.is_floating_point() and not torch.equal(label, label.round()):
            raise DataError("Expected labels that are class indices, but got fractions or NaN; check the targets.")
        logits = self.canonical(canonical).float()
        label = self._checked(label.long().reshape(expected), logits.shape[1])
        return Targets({"logits": logits, "label": label.clamp(min=0).unsqueeze(1)}, self.present(label))

    def _checked(self, label: Tensor, classes: int) -> Tensor:
        """Labels with `MISSING` for those to be ignored; an error where one is no class."""
        wrong = (label != self.ignore_index) & ((label < 0) | (label >= classes))
        if wrong.any():
            raise DataError(
                f"Expected labels from 0 to {classes - 1}, but got {int(label[wrong][0])}; check the labels, or name "
                "the label to skip with ignore_index=."
            )
        return self._marked(label)

    def _marked(self, label: Tensor) -> Tensor:
        return torch.where(label == self.ignore_index, MISSING, label)

    def _check_output(self, output: Tensor) -> None:
        """Refuse probabilities given as logits and the reverse, as far as numbers can tell."""
        inside = bool(((output >= 0) & (output <= 1)).all())
        close = 1e-3 if output.dtype in (torch.float32, torch.float64) else 2e-2
        sums = output.shape[1] == 1 or bool(((output.float().sum(1) - 1).abs() < close).all())
        if self.output == "probs" and not (inside and sums):
            raise DataError(
                "Expected probabilities in [0, 1] that sum to 1, but the model returns other numbers; "
                "use output='logits'."
            )
        if self.output == "logits" and output.shape[1] > 1 and len(output) and inside and sums:
            raise DataError("Expected logits, but the model returns probabilities that sum to 1; use output='probs'.")

    def plain(self, layout: Layout, tail: tuple[int, ...], outputs: int, target: Tensor, *, known: bool) -> Tensor:  # noqa: ARG002
        """Labels (N,) or (N, P), `MISSING` where there is none."""
        label = (target.reshape(len(target), -1) if layout.dense else target.reshape(len(target))).long()
        return self._marked(label) if known else self._checked(label, max(outputs, 2))

    def present(self, target: Tensor) -> Tensor:
        """Those that are not marked as missing."""
        return target != MISSING

    def errors(self, raw: Tensor, target: Tensor) -> Tensor:
        """Log losses."""
        return F.cross_entropy(self.canonical(raw), target, reduction="none")

    def loss(self, layout: Layout, output: Tensor, target: Tensor) -> Tensor:
        """Mean log loss of the labels that are there."""
        targets = self.targets(layout, output.detach(), target)
        label = torch.where(targets.valid, targets.columns["label"].squeeze(1), MISSING)
        return F.cross_entropy(self.canonical(layout.output(output)), label, ignore_index=MISSING)

    def channels(self, layout: Layout, score: Tensor) -> tuple[int, ...]:  # noqa: ARG002
        """One threshold for all rows and positions."""
        return ()


@dataclass(frozen=True)
class RegressionAnswer:
    """Canonical fields of a `RegressionPrediction`; `lowers` and `uppers` carry the levels on a last axis."""

    levels: Levels
    mean: Tensor
    lowers: Tensor
    uppers: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    total: Tensor
    mar: Tensor | None = None
    mar_up: Tensor | None = None
    mar_down: Tensor | None = None
    scale: Tensor | None = None
    freedom: Tensor | None = None
    support: Tensor | None = None
    sds: Tensor | None = None

    def prediction(self, layout: Layout, like: Tensor, reference: Reference | None) -> Prediction:
        """The same in the shape of the output `like`."""
        own: dict[str, Any] = dict(vars(self))
        if self.support is None:
            own["support"] = self.epistemic
        if self.mean.shape == like.shape and not layout.dense:
            return RegressionPrediction(**own, reference=reference)

        def shaped(name: str, values: Tensor) -> Tensor:
            if name in ("lowers", "uppers"):
                return torch.stack([layout.restore(value, like) for value in values.unbind(-1)], -1)
            return layout.restore(values, like)

        own |= {name: shaped(name, values) for name, values in own.items() if isinstance(values, Tensor)}
        return RegressionPrediction(**own, reference=reference)


@dataclass(frozen=True)
class ClassAnswer:
    """Canonical fields of a `ClassificationPrediction`; scores (N,) or (N, P) have no class axis.

    `logits` are those whose softmax `probs` are, where there are any: they tell apart what rounding makes 0 and 1.
    Methods that compare M views have `conflict`, a score, and `blame` (N, M) or (N, M, P).
    """

    probs: Tensor
    base_probs: Tensor
    epistemic: Tensor
    total: Tensor
    mar: Tensor | None = None
    conformity: Conformity | None = None
    logits: Tensor | None = None
    support: Tensor | None = None
    sds: Tensor | None = None
    conflict: Tensor | None = None
    blame: Tensor | None = None

    @property
    def scaled(self) -> Tensor:
        """Logits of the probabilities, their logarithms where there are no others."""
        if self.logits is not None:
            return self.logits
        return self.probs.clamp(min=torch.finfo(self.probs.dtype).tiny).log()

    def prediction(self, layout: Layout, like: Tensor, reference: Reference | None) -> Prediction:
        """The same in the shape of the output `like`."""

        def score(values: Tensor) -> Tensor:
            return layout.restore_scores(values, like)

        return ClassificationPrediction(
            probs=layout.restore_classes(self.probs, like),
            base_probs=layout.restore_classes(self.base_probs, like),
            label=score(self.probs.argmax(1)),
            aleatoric=score(entropy(self.probs, 1)),
            epistemic=score(self.epistemic),
            total=score(self.total),
            reference=reference,
            support=score(self.epistemic if self.support is None else self.support),
            sds=None if self.sds is None else score(self.sds),
            mar=None if self.mar is None else layout.restore_classes(self.mar, like),
            conflict=None if self.conflict is None else score(self.conflict),
            blame=None if self.blame is None else layout.restore_classes(self.blame, like),
            conformity=None if self.conformity is None else replace(self.conformity, axis=layout.axis or 1),
        )


Answer = RegressionAnswer | ClassAnswer
