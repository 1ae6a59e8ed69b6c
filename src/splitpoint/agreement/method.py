"""Which modality of a row contradicts the others: settings, and the fit of one linear probe for each branch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from splitpoint.agreement.branches import Branches, Place
from splitpoint.agreement.checks import calibration_check, knowledge_check, rows_check
from splitpoint.agreement.predictor import ROWS, AgreementPredictor
from splitpoint.agreement.probes import Found, Rows, cross_fitted
from splitpoint.batches import Data, labelled, placement
from splitpoint.errors import DataError, LayerError, SettingsError, ShapeError
from splitpoint.fingerprint import Fingerprint
from splitpoint.groups import check_count, group_ids, random_folds
from splitpoint.likeness import Likeness
from splitpoint.method import Given, Method
from splitpoint.recording import Recording, bar
from splitpoint.tasks import Classification, ModelOutput, Targets, Task, TaskName

FOLDS = 4
"""Parts of the rows that are left out in turn, to choose ridges and temperatures by."""

MOST_ROWS = 20_000
"""Most rows that probes are fitted on; more are drawn from."""


class Read(NamedTuple):
    """Rows of every modality: features (n, C) each, labels (n,), groups (n,), and what model and inputs are like."""

    features: list[Tensor]
    label: Tensor
    groups: Tensor
    classes: int
    inputs: int
    likeness: Likeness | None

    def at(self, chosen: Tensor) -> Read:
        """Some of the rows."""
        features = [own[chosen] for own in self.features]
        return self._replace(features=features, label=self.label[chosen], groups=self.groups[chosen])


@dataclass(frozen=True, kw_only=True)
class Agreement(Method[AgreementPredictor]):
    """Finds rows whose modalities contradict each other in a trained model, and the modality to blame.

    A calibrated linear probe on the features of each branch says what that modality alone knows of the class, P_m.
    With each mixed with a little of the uniform law, the conflict is ``-log[K^(M-1) sum_k prod_m P_m(k)]`` and the
    blame of m ``-log[K sum_k P_m(k) P_-m(k)]``, where P_-m is the normalised product of the others. It predicts no
    class, leaves the model as it is, and costs one forward pass.

    Attributes:
        branches: the layer (name or module) whose output is the features of each modality, by the name of the
            modality; two or more. Maps and sequences are averaged over their positions.
        doubt: share of the uniform law in every opinion: no single modality rules a class out for good.
        output: what the model returns, "logits" or "probs"; never guessed.
        ignore_index: label that does not count.
    """

    tasks: ClassVar[tuple[TaskName, ...]] = ("classification",)

    branches: Mapping[str, Place]
    doubt: float = 0.02
    output: ModelOutput = "logits"
    ignore_index: int = -100

    def __post_init__(self) -> None:
        super().__post_init__()
        Classification(self.output, self.ignore_index)
        if not isinstance(self.branches, Mapping) or not all(isinstance(name, str) for name in self.branches):
            raise SettingsError(
                "Expected branches= as a mapping from names of modalities to layers, such as {'image': 'image_net', "
                f"'text': 'text_net'}}, but got {type(self.branches).__name__}."
            )
        if len(self.branches) < 2:
            raise SettingsError(
                f"Expected branches of at least two modalities to compare, but got {list(self.branches)}; name more."
            )
        wrong = [place for place in self.branches.values() if not isinstance(place, str | nn.Module)]
        if wrong:
            raise SettingsError(
                f"Expected layers by name or as modules of the model, but got {type(wrong[0]).__name__} in branches=."
            )
        if not 0 < self.doubt < 1:
            raise SettingsError(f"Expected doubt in (0, 1), but got {self.doubt}.")

    @property
    def _task(self) -> Task:
        return Classification(self.output, self.ignore_index)

    def _fit_many(self, given: Given) -> list[AgreementPredictor]:
        count = len(given.data)
        held_out: Sequence[Data | None] = given.calibration or [None] * count
        groups, held_groups = (own or [None] * count for own in (given.groups, given.calibration_groups))
        parts = zip(given.starts, given.data, held_out, groups, held_groups, given.seeds, strict=True)
        return [self._fit_one(*part, progress=given.progress) for part in parts]

    def _fit_one(
        self,
        model: Any,
        data: Data,
        held_out: Data | None,
        groups: Tensor | None,
        held_groups: Tensor | None,
        seed: int,
        *,
        progress: bool,
    ) -> AgreementPredictor:
        if not isinstance(model, nn.Module):
            raise SettingsError(f"Expected a trained torch.nn.Module, but got {type(model).__name__}; train it first.")
        branches = Branches.of(model, self.branches, self.output_key)
        if len(set(branches.places.values())) < len(branches.places):
            raise SettingsError(
                f"Expected different layers for different modalities, but got {dict(branches.places)}; name one each, "
                "the calls of a layer that runs several times as 'layer@0', 'layer@1' and so on."
            )
        train = self._read(branches, data, groups, "train", progress)
        more = None if held_out is None else self._read(branches, held_out, held_groups, "calibration", progress)
        generator = torch.Generator().manual_seed(seed)
        own, extra = (train, None) if more is None else (more, train)
        found, present = _probes(own, extra, generator)
        tensors = {"present": present}
        for number, each in enumerate(found):
            probe = each.probe
            tensors |= {f"{field.name}{number}": getattr(probe, field.name) for field in dataclasses.fields(probe)}
        settings = replace(self, branches=dict(branches.places))
        predictor = AgreementPredictor(settings, branches, train.inputs, train.classes, tensors)
        names = tuple(branches.places)
        predictor.checks = (
            rows_check(train.label, None if more is None else more.label, len(present)),
            calibration_check(train.features, None if more is None else more.features),
            *(knowledge_check(name, each.loss, len(present)) for name, each in zip(names, found, strict=True)),
        )
        predictor.fingerprint = Fingerprint.of(model, predictor.observed, train.likeness)
        return predictor.heads_to(placement(model)[0])

    def fit_rows(self, recording: Recording, **_: Any) -> AgreementPredictor:
        """Refused: recorded rows do not say which features are whose."""
        raise SettingsError(
            f"Expected a model and data, but got {recording.table.rows} recorded rows, which do not say which features "
            "belong to which modality; call fit."
        )

    def _read(self, branches: Branches, data: Data, groups: Tensor | None, label: str, progress: bool) -> Read:
        """One pass of the model over the data; rows without a label are left out."""
        features: list[list[Tensor]] = [[] for _ in branches.places]
        labels: list[Tensor] = []
        kept, classes, inputs = [], 0, 0
        likeness = None
        for batch in bar(labelled(data, self.rows_per_call), label, progress):
            moved = batch.to(branches.model)
            likeness = likeness if labels else Likeness.of(moved)
            heard = branches(*moved.args, **moved.kwargs)
            targets = self._targets(heard.output, moved.target)
            classes, inputs = targets.columns["logits"].shape[1], len(moved.args)
            labels.append(targets.columns["label"][:, 0].cpu())
            kept.append(targets.valid.cpu())
            for name, own, value in zip(branches.places, features, heard.features, strict=True):
                own.append(_usable(name, branches.places[name], value).cpu())
        valid = torch.cat(kept) if kept else torch.zeros(0, dtype=torch.bool)
        if groups is not None:
            check_count(groups, len(valid), label)
        if int(valid.sum()) < 2:
            raise DataError(
                f"Expected at least two rows with a label in the {label} data, but got {int(valid.sum())}; give more."
            )
        owners = torch.arange(len(valid)) if groups is None else groups
        found = Read([torch.cat(own) for own in features], torch.cat(labels), owners, classes, inputs, likeness)
        return found.at(valid)

    def _targets(self, output: Tensor, target: Tensor | None) -> Targets:
        """Labels of a batch in canonical form; an error where the model is no classifier of rows."""
        assert target is not None
        if output.dim() > 2:
            raise ShapeError(
                f"Expected a classifier with one answer for each row, but the model returns {tuple(output.shape)}; "
                "modalities are compared row by row, so pool its maps or sequences."
            )
        return self._task.targets(ROWS, output, target)


def _usable(name: str, place: str, value: Tensor | None) -> Tensor:
    """Features that a probe can be fitted on."""
    if value is None:
        raise LayerError(
            f"Expected the branch '{place}' of '{name}' to run on every batch of the fit, but it did not; leave rows "
            "without that modality out, or name a layer that runs."
        )
    if not torch.isfinite(value).all():
        raise DataError(f"Expected finite features of '{name}', but got NaN or inf; check the inputs.")
    return value


def _probes(own: Read, more: Read | None, generator: torch.Generator) -> tuple[list[Found], Tensor]:
    """A probe for every modality, and the classes (K',) that there are rows of, which the probes tell apart.

    Ridges and temperatures are those that suit `own` rows best, each left out with its group. `more` rows, which the
    model may have memorised, only teach the probes.
    """
    drawn = _drawn(own, generator)
    extra = None if more is None else _drawn(more, generator)
    labels = drawn.label if extra is None else torch.cat([drawn.label, extra.label])
    present = labels.unique()
    if len(present) < 2:
        raise DataError(
            f"Expected rows of at least two classes, but all of them are of class {int(present[0])}; give others."
        )
    groups = group_ids(drawn.groups)
    if extra is None and int(groups.max()) == 0:
        raise DataError("Expected rows of at least two groups to leave one out, but got one; give more, or none.")
    folds = random_folds(len(groups), min(FOLDS, int(groups.max()) + 1), generator, groups)
    number = torch.zeros(own.classes, dtype=torch.int64)
    number[present] = torch.arange(len(present))
    found = []
    for place, features in enumerate(drawn.features):
        rows = Rows(features, number[drawn.label])
        further = None if extra is None else Rows(extra.features[place], number[extra.label])
        found.append(cross_fitted(rows, folds, len(present), further))
    return found, present


def _drawn(read: Read, generator: torch.Generator) -> Read:
    """At most `MOST_ROWS` of the rows, at random."""
    count = len(read.label)
    return read if count <= MOST_ROWS else read.at(torch.randperm(count, generator=generator)[:MOST_ROWS])
