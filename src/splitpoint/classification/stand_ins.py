"""What stands in for calibration rows: training rows as copies of the network answer that have not seen them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from splitpoint.batches import Data, item_of
from splitpoint.cache import Table
from splitpoint.checks import Check
from splitpoint.classification.correction import Correction
from splitpoint.classification.mix import Scored
from splitpoint.classification.predictor import ClassificationPredictor
from splitpoint.classification.support import Support
from splitpoint.conformal import calibration_scores
from splitpoint.errors import SettingsError
from splitpoint.method import GivenRows
from splitpoint.networks.copies import Prepared, copies_check, groups, prepared, refitted
from splitpoint.networks.refit import LeftOut, Retrain
from splitpoint.recording import Source, record


@dataclass(frozen=True)
class StandIns:
    """Rows that copies of a network have not seen, as these answer.

    Attributes:
        logits: (n, K) of the copy that left the row out.
        label: (n,) class indices.
        evidence: (n, 3) of every row in the features of that copy; see `Support.evidence`.
        check: whether the copies came as far as the network.
        groups: (n,) numbers of the groups that the rows belong to; None where each stands for itself.
    """

    logits: Tensor
    label: Tensor
    evidence: Tensor
    check: Check
    groups: Tensor | None = None

    def fitted(self, support: Support) -> dict[str, Tensor]:
        """Tensors of a predictor: the scaling of its logits, and scores for prediction sets.

        Features of the copies are in bases of their own, so that a correction could not learn from them: one factor
        for all logits is all there is.
        """
        correction = Correction.scaling(self.logits, self.label, len(support.center))
        probs = (correction.factor * self.logits).softmax(1)
        scores = calibration_scores(probs, self.label, self.groups)
        return dict(correction.state_dict(prefix="correction.")) | {"set_scores": scores}

    def scored(self, predictor: ClassificationPredictor) -> Scored:
        """What the predictor says of these rows."""
        assert predictor.correction is not None
        assert predictor.support is not None
        probs = (predictor.correction.factor * self.logits).softmax(1)
        return Scored(probs, predictor.support.weighed(self.evidence), self.label)


def stand_ins(given: GivenRows, source: Source, retrain: Retrain | None) -> list[StandIns]:
    """Stand-ins for the rows of every network, or one error for what cannot be copied."""
    data: Sequence[Data | None] = given.data or [None] * len(given.rows)
    owners = given.groups or [None] * len(given.rows)
    ready: dict[int, Prepared] = {}
    for number, (recording, part, owned_by) in enumerate(zip(given.rows, data, owners, strict=True)):
        if recording.tap is not None and recording.tap.function is not None:
            raise SettingsError(
                "Expected features that copies have too for residuals='refit', but got a function as layer=, which "
                "knows the given network only; name the layer, or pass calibration data."
            )
        copied = prepared(recording, part, source, owners=owned_by)
        if not isinstance(copied, Prepared):
            raise copied
        ready[number] = copied
    found: dict[int, StandIns] = {}
    for group in groups(ready):
        alike, seeds = [ready[number] for number in group], [given.seeds[number] for number in group]
        left_out = refitted(alike, source, seeds, retrain, given.progress)
        for number, own, out in zip(group, alike, left_out, strict=True):
            found[number] = _read(own, out, source)
    return [found[number] for number in range(len(given.rows))]


def _read(own: Prepared, left_out: LeftOut, source: Source) -> StandIns:
    """Answers of every copy for the rows that it left out, with distances in its own features.

    Once rows are memorised, more training makes the logits larger and little else. Copies stop there, so their logits
    are brought to the size that those of the given network have on its rows.
    """
    tap = own.recording.tap
    assert tap is not None
    place, size = replace(source, layer=list(tap.names)), _size(own.recording.table)
    every = torch.arange(len(left_out.fold)) if own.recording.layout.dense else None
    owners = every if own.groups is None else own.groups

    def read(network: nn.Module, chosen: Tensor) -> Table:
        of_rows = None if owners is None else owners[chosen]
        item = item_of(_rows(own.columns, chosen))
        return record(network, item, place, cache=None, label="copies", progress=False, groups=of_rows).table

    logits, evidence, tables = [], [], []
    for number, copied in enumerate(left_out.networks):
        seen, unseen = (read(copied.network, chosen) for chosen in (left_out.fold != number, left_out.fold == number))
        scaled = size / max(_size(seen), 1e-12) * unseen.column("logits")
        support = Support.fit(seen, seen.width("logits"), 1.0, 0.5, parts=own.recording.parts)
        evidence.append(support.evidence(Table.in_memory(unseen.whole() | {"logits": scaled})))
        logits.append(scaled)
        tables.append(unseen)
    labels = torch.cat([table.column("label")[:, 0] for table in tables])
    groups = None if owners is None else torch.cat([table.column("group")[:, 0] for table in tables])
    return StandIns(torch.cat(logits), labels, torch.cat(evidence), copies_check(left_out.reached), groups)


def _rows(columns: dict[Any, Tensor], chosen: Tensor) -> dict[Any, Tensor]:
    return {name: values[chosen] for name, values in columns.items()}


def _size(table: Table) -> float:
    """Root mean square of the centred logits."""
    logits = table.column("logits").double()
    return float((logits - logits.mean(1, keepdim=True)).square().mean().sqrt())
