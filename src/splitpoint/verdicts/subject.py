"""What can be judged, a predictor or an ONNX file of one, and all that a verdict asks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from splitpoint.batches import Batch, mapped
from splitpoint.checks import Check
from splitpoint.errors import DataError, SettingsError
from splitpoint.fingerprint import NAME
from splitpoint.layout import Layout
from splitpoint.posthoc import PostHocPredictor
from splitpoint.prediction import ClassificationPrediction, Prediction, Reference, RegressionPrediction
from splitpoint.predictor import Predictor, Settings
from splitpoint.runtime import Array, Runtime
from splitpoint.storage import method_of
from splitpoint.tensors import from_numpy
from splitpoint.verdicts.cost import compared, not_compared
from splitpoint.verdicts.identity import of_file, of_predictor
from splitpoint.verdicts.parts import Part

SCORES = ("aleatoric", "epistemic", "total", "support")
ANSWERS = {"regression": ("mean", "lowers", "uppers"), "classification": ("probs", "base_probs", "label")}
"""Fields that a verdict reads of any prediction, and of one by its task."""


class Answered(NamedTuple):
    """A batch as it went in, its prediction on the CPU, and the free energy (N,) of its logits where it was asked for.

    There is no energy where the logits of the base model are not known.
    """

    batch: Batch
    prediction: Prediction
    energy: Tensor | None


class Subject(Protocol):
    """What a verdict asks of whatever it judges."""

    @property
    def method(self) -> Settings:
        """The settings of the fit."""
        ...

    @property
    def layout(self) -> Layout:
        """How the model's output is shaped."""
        ...

    @property
    def inputs(self) -> int:
        """Number of positional arguments of the model."""
        ...

    def answer(self, batch: Batch, energy: bool) -> Answered:
        """The prediction for a batch."""
        ...

    def checks(self) -> tuple[Check, ...]:
        """What the fit found out about itself."""
        ...

    def verify(self) -> Check:
        """Whether the base model is the one of the fit."""
        ...

    def cost(self, batch: Batch, rows: int) -> Part:
        """What a prediction costs."""
        ...

    def described(self) -> dict[str, str]:
        """What is judged, for people."""
        ...


def subject_of(uq: Predictor[Any] | Runtime) -> Subject:
    """A predictor, or what `splitpoint.runtime.load` returned, as a verdict sees it."""
    if isinstance(uq, Predictor):
        return OfPredictor(uq)
    if isinstance(uq, Runtime):
        return OfFile.of(uq)
    raise SettingsError(
        f"Expected a fitted predictor, but got {type(uq).__name__}; call fit, splitpoint.load, or "
        "splitpoint.runtime.load."
    )


@dataclass(frozen=True)
class OfPredictor:
    """A predictor in PyTorch."""

    uq: Predictor[Any]

    @property
    def method(self) -> Settings:
        """See `Subject`."""
        return self.uq.method

    @property
    def layout(self) -> Layout:
        """See `Subject`."""
        return self.uq.layout

    @property
    def inputs(self) -> int:
        """See `Subject`."""
        return self.uq.inputs

    def answer(self, batch: Batch, energy: bool) -> Answered:
        """See `Subject`."""
        moved = batch.to(self.uq.base)
        prediction = self.uq(*moved.args, **moved.kwargs).to("cpu")
        return Answered(moved, prediction, self._energy(moved) if energy else None)

    def _energy(self, batch: Batch) -> Tensor | None:
        """``-log sum_k exp(logit_k)``, the mean over the positions of a row: one more pass of the base model."""
        uq = self.uq
        if not isinstance(uq, PostHocPredictor) or uq.tap is None or uq.task.name != "classification":
            return None
        output = uq.layout.output(uq.tap(*batch.args, **batch.kwargs).output)
        score = -uq.task.canonical(output).double().logsumexp(1)
        return score.flatten(1).mean(1).cpu() if score.dim() > 1 else score.cpu()

    def checks(self) -> tuple[Check, ...]:
        """See `Subject`."""
        return self.uq.checks

    def verify(self) -> Check:
        """See `Subject`."""
        return self.uq.verify()

    def cost(self, batch: Batch, rows: int) -> Part:
        """See `Subject`."""
        return compared(self.uq, batch, rows)

    def described(self) -> dict[str, str]:
        """See `Subject`."""
        return of_predictor(self.uq)


@dataclass(frozen=True)
class OfFile:
    """A predictor in an ONNX file: what is judged are the numbers that the file gives, its metadata tell of the fit."""

    file: Runtime
    method: Settings
    layout: Layout
    references: Mapping[str, Reference | None]

    @staticmethod
    def of(file: Runtime) -> OfFile:
        """The same as a subject; an error where a field that a verdict reads was left out of the file."""
        metadata = file.metadata
        needed = {*SCORES, *ANSWERS[file.task], "image_epistemic"}
        lost = [name for name in metadata["left_out"] if name in needed]
        if lost:
            raise SettingsError(
                f"Expected a file with all fields that a verdict reads, but {', '.join(lost)} had been left out of it "
                "with fields=; export the predictor again without fields=, and judge that file."
            )
        fit = metadata["predictor"]
        read = {name: metadata[name] for name in ("reference", "image_reference")}
        references = {name: None if own is None else Reference.read(own) for name, own in read.items()}
        return OfFile(file, method_of(fit), Layout(**fit["layout"]), references)

    @property
    def inputs(self) -> int:
        """See `Subject`."""
        return int(self.file.metadata["predictor"]["inputs"])

    def answer(self, batch: Batch, energy: bool) -> Answered:  # noqa: ARG002
        """See `Subject`; no file gives logits."""

        def tensor(item: Any) -> Any:
            return from_numpy(item) if isinstance(item, np.ndarray) else item

        given = Batch(tuple(mapped(tensor, arg) for arg in batch.args), mapped(tensor, batch.kwargs), batch.target)
        return Answered(given, self._prediction(self.file(**self._named(given))), None)

    def _named(self, batch: Batch) -> dict[str, Array]:
        """Inputs by the names of the file: those that have one of them, and the others in order."""
        every, known = batch.inputs(), self.file.metadata["inputs"]
        found = {path[-1]: value for path, value in every.items() if path[-1] in self.file.inputs}
        rest = [value for path, value in every.items() if path[-1] not in self.file.inputs]
        free = [name for name in self.file.inputs if name not in found]
        if len(every) != len(known) or len(rest) != len(free):
            raise DataError(
                f"Expected the inputs {self.file.inputs} in every batch, by position or by name, but got "
                f"{[path[-1] for path in every]}; give what the file was exported with."
            )
        found |= dict(zip(free, rest, strict=True))
        return {own["name"]: _suited(found[own["name"]], np.dtype(own["dtype"])) for own in known}

    def _prediction(self, fields: Mapping[str, Array]) -> Prediction:
        """The fields that are needed as a prediction."""
        names = (*SCORES, *ANSWERS[self.file.task], "image_epistemic")
        own: dict[str, Any] = {name: torch.from_numpy(fields[name]) for name in names if name in fields}
        own |= self.references
        if self.file.task == "regression":
            return RegressionPrediction(**own, levels=self.file.levels)
        return ClassificationPrediction(**own)

    def checks(self) -> tuple[Check, ...]:
        """See `Subject`."""
        return tuple(Check(**check) for check in self.file.metadata["predictor"]["checks"])

    def verify(self) -> Check:
        """See `Subject`; nobody can tell."""
        says = "the network is part of the file, which has nothing of the fit to compare it with"
        return Check(NAME, float("nan"), "unknown", says)

    def cost(self, batch: Batch, rows: int) -> Part:  # noqa: ARG002
        """See `Subject`."""
        return not_compared("Network and heads are one graph: there is no base model to compare its time with.")

    def described(self) -> dict[str, str]:
        """See `Subject`."""
        return of_file(self.file, self.method)


def _suited(value: Tensor, wanted: np.dtype[Any]) -> Array:
    """An input as an array; whole numbers are numbers where the file wants these, as for a predictor."""
    whole = not (value.is_floating_point() or value.is_complex() or value.dtype == torch.bool)
    value = value.float() if value.dtype == torch.bfloat16 else value
    array: Array = value.detach().cpu().numpy()
    return array.astype(wanted) if whole and wanted.kind == "f" else array
