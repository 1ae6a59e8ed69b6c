"""What methods say of rows with several modalities, and how well that tells strange, wrong and spoilt ones."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from splitpoint.baselines.trained import NetworkPredictor
from splitpoint.bench.modal_artefacts import ENTROPY, OWN, SpoiltDrawing, SpoiltScore
from splitpoint.bench.modal_experiments import DEFECTIVE
from splitpoint.bench.modal_trials import CONFLICT, SPOILING, ModalTrial, Rows
from splitpoint.bench.suite import Fit, Result, Work
from splitpoint.consistency import entropy
from splitpoint.metrics import Evidence, accuracy, auroc, blamed, measured, right_blame, spoilt_aurocs
from splitpoint.prediction import ClassificationPrediction, Prediction, concatenate

ROWS_PER_CALL = 128
"""Rows that are asked about at a time: batches of LUMA, which the published entropy depends on."""

NAMES: Mapping[str, str] = {OWN: "auroc_conflict", ENTROPY: "auroc_conflict_entropy"}
"""Metrics of the scores by which spoilt rows are found."""


@dataclass(frozen=True, eq=False)
class Said:
    """What a method says of N rows.

    Attributes:
        prediction: None of methods that predict nothing.
        conflict: (N,) how much the modalities disagree, None of methods that do not compare them.
        blame: (N, M) how much of that is owed to each.
    """

    prediction: ClassificationPrediction | None
    conflict: Tensor | None = None
    blame: Tensor | None = None

    @property
    def suspicion(self) -> Tensor:
        """The score (N,) that should rise when a modality is spoilt: the conflict, or lack of support."""
        if self.conflict is not None:
            return self.conflict
        assert self.prediction is not None
        return self.prediction.support

    @property
    def known(self) -> ClassificationPrediction:
        """The prediction of a method that has one."""
        assert self.prediction is not None
        return self.prediction

    @property
    def given_blame(self) -> Tensor:
        """The blame of a method that names modalities."""
        assert self.blame is not None
        return self.blame


Answer = Callable[[Rows], Said]
"""From rows to what a method says of them."""


@torch.no_grad()
def asked(answer: Answer, rows: Rows) -> Said:
    """What a method says of all rows, in batches, on the CPU."""
    parts = [answer(rows.at(slice(start, start + ROWS_PER_CALL))) for start in range(0, len(rows), ROWS_PER_CALL)]
    first = parts[0]
    return Said(
        None if first.prediction is None else concatenate([part.known.to("cpu") for part in parts]),
        *(None if getattr(first, name) is None else torch.cat([getattr(part, name).cpu() for part in parts])
          for name in ("conflict", "blame")),
    )  # fmt: skip


def defective(predictor: NetworkPredictor) -> Answer:
    """A mixture whose uncertainty is worked out as in the published code: softmax over the rows of the batch.

    With logits (M, N, K) the published code takes the softmax along N in place of K, so that what it calls
    probabilities of a row do not sum to 1, and how strange a row is cancels. Aleatoric is the mean over members of
    ``-sum_k q_k log q_k`` of these q, and epistemic what the same of their mean has more. Classes and probabilities
    are left as they are.
    """

    def answer(rows: Rows) -> Said:
        said = predictor(*rows.arguments)
        runs = predictor.method._runs(predictor, rows.arguments, {}).outputs
        wrong = torch.stack(runs).softmax(1)
        whole, within = entropy(wrong.mean(0), 1), torch.stack([entropy(part, 1) for part in wrong]).mean(0)
        doubt = whole - within
        return Said(replace(said, aleatoric=within, epistemic=doubt, support=doubt, total=whole))

    return answer


def judge(work: Work, fitted: Fit, place: int, data: ModalTrial) -> Result:
    """Metrics of a method on the rows of a trial, spoilt ones where the condition spoils some."""
    answer: Answer = fitted.context
    began = time.process_time()
    known = asked(answer, data.test)
    seconds = (time.process_time() - began) / len(data.test)
    if work.noise not in SPOILING:
        return Result(plain(answer, known, data), seconds)
    spoilt = {name: asked(answer, rows) for name, rows in data.spoilt.items()}
    found = on_conflict(known, spoilt) if work.noise == CONFLICT else {}
    drawn = drawing(work, fitted, place, known, spoilt, data)
    return Result(found | means(spoilt, data.test.labels), seconds, drawn)


def drawing(
    work: Work, fitted: Fit, place: int, known: Said, spoilt: Mapping[str, Said], data: ModalTrial
) -> SpoiltDrawing:
    """What pages draw of rows with one modality spoilt."""
    variant = DEFECTIVE.get(fitted.method)
    cell = work.cell(fitted.method) if variant is None else work.cell(variant.method, variant.name)
    found = spoilt_scores(known, spoilt) if work.noise == CONFLICT else {}
    scores = tuple(SpoiltScore(name, tuple(values.values())) for name, values in found.items())
    right = () if known.prediction is None else tuple(accuracy(s.known, data.test.labels) for s in spoilt.values())
    shares = (
        ()
        if known.blame is None or not found
        else tuple(blamed({n: s.given_blame for n, s in spoilt.items()}).values())
    )
    return SpoiltDrawing(cell, work.trials[place], work.seed, tuple(spoilt), scores, right, shares)


def spoilt_scores(known: Said, spoilt: Mapping[str, Said]) -> dict[str, dict[str, float]]:
    """How well each score of a method tells spoilt rows from the same as they are, by the spoilt modality."""
    found = {OWN: spoilt_aurocs(known.suspicion, {name: said.suspicion for name, said in spoilt.items()})}
    if known.prediction is not None:
        entropies = {name: said.known.aleatoric for name, said in spoilt.items()}
        found[ENTROPY] = spoilt_aurocs(known.prediction.aleatoric, entropies)
    return found


def plain(answer: Answer, known: Said, data: ModalTrial) -> dict[str, float]:
    """Metrics of rows of which none is spoilt."""
    strange = None if data.ood is None else asked(answer, data.ood)
    if known.prediction is None:
        return {} if strange is None else {"auroc_ood": auroc(known.suspicion, strange.suspicion)}
    evidence = Evidence(known.prediction, data.test.labels, ood=None if strange is None else strange.prediction)
    return measured(evidence, recorded=True) | mean_scores(known.prediction)


def mean_scores(prediction: Prediction) -> dict[str, float]:
    """Means of both kinds of uncertainty, whose change with the noise the published table shows."""
    return {f"mean_{name}": float(getattr(prediction, name).double().mean()) for name in ("aleatoric", "epistemic")}


def on_conflict(known: Said, spoilt: Mapping[str, Said]) -> dict[str, float]:
    """How well rows with one modality of another class are found, and that modality: means over the modalities."""
    aurocs = spoilt_scores(known, spoilt)
    found = {NAMES[score]: statistics.fmean(values.values()) for score, values in aurocs.items()}
    if known.blame is not None:
        found["right_blame"] = right_blame({name: said.given_blame for name, said in spoilt.items()})
    return found


def means(spoilt: Mapping[str, Said], labels: Tensor) -> dict[str, float]:
    """Metrics of predictions for rows with one modality spoilt, each the mean over the modalities."""
    predictions = [said.prediction for said in spoilt.values() if said.prediction is not None]
    each = [measured(Evidence(one, labels), recorded=True) | mean_scores(one) for one in predictions]
    return {name: statistics.fmean(one[name] for one in each) for name in each[0]} if each else {}
