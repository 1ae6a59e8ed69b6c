"""Settings and fitting of split-point uncertainty for classifiers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.cache import Table, feature_moments
from splitpoint.calibration import probable_factor
from splitpoint.checks import Check
from splitpoint.classification import checks
from splitpoint.classification.correction import Correction
from splitpoint.classification.mix import Scored
from splitpoint.classification.objective import LOSSES
from splitpoint.classification.predictor import ClassificationPredictor, frequency_logits
from splitpoint.classification.stand_ins import StandIns, stand_ins
from splitpoint.classification.support import Support
from splitpoint.conformal import calibration_scores
from splitpoint.consistency import Mars, corrected_probs, entropy
from splitpoint.errors import DataError, SettingsError
from splitpoint.features import Tap
from splitpoint.groups import random_folds
from splitpoint.head_method import PAPER_STEPS, Companion, HeadMethod, follow_features
from splitpoint.heads import Heads
from splitpoint.layout import Layout
from splitpoint.method import GivenRows, generators_for
from splitpoint.networks.copies import check_retrain
from splitpoint.networks.refit import Retrain
from splitpoint.recording import Recording, Source
from splitpoint.selfcheck import row_checks
from splitpoint.settings import Unbounded
from splitpoint.tasks import Classification, ModelOutput, Rows, TaskName
from splitpoint.training import Member, held_back, train

DELTA0_GRID = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, float("inf"))
FOLDS = 5


@dataclass(frozen=True, kw_only=True)
class SplitPointClassifier(HeadMethod[ClassificationPredictor]):
    """Split-point uncertainty for a trained classifier.

    `fit` needs the model and its training data, and, for calibrated probabilities, held-out calibration data.
    Logits may be (N, K), one logit (N,) or (N, 1), maps (N, K, H, W) or sequences (N, T, K); labels are indices.

    Attributes:
        output: what the model returns, "logits" or "probs"; never guessed.
        mars: "simplex" derives every MAR from one estimate P of the class frequencies, so that their identities
            hold by construction; "free" learns them one by one, as the paper does.
        delta0: quality gate of the free correction (E33), or "cv" to choose it by cross-validation.
        mar_layers: hidden layers of the MAR networks.
        standardise: features are brought to unit size inside the networks.
        ignore_index: label of rows and pixels that do not count.
        steepness: of the share with which the training set has nothing to say, see `Support.share`.
        support_mass: mean of that share over in-distribution rows.
        correction_prior: deviation of the calibrated logits from scaled ones a priori, in logit units.
        residuals: what stands in for calibration data where none are given: "train" nothing but the training rows,
            which a network that memorised them is surer of than of new ones; "refit" the same rows as five reset
            copies of the network answer, each trained without a fifth of the rows until it fits the others as well.
            They give the scaling of the logits, prediction sets, the weight of support in the total score and what
            support is measured against. Sets are then cross-conformal: their level holds approximately, and copies
            are a little less sure than the network, with a fifth fewer rows.
        retrain: how copies are trained, from a reset copy and the rows that it may see to the trained network; None
            for Adam at 1e-3 with batches of 64.
    """

    tasks: ClassVar[tuple[TaskName, ...]] = ("classification",)

    output: ModelOutput = "logits"
    mars: Literal["simplex", "free"] = "simplex"
    delta0: Unbounded | Literal["cv"] = 0.01
    mar_layers: int = 1
    patience: int | None = 10
    decay: bool = False
    standardise: bool = True
    ignore_index: int = -100
    steepness: float = 1.0
    support_mass: float = 0.005
    correction_prior: float = 0.5
    residuals: Literal["train", "refit"] = "train"
    retrain: Retrain | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        Classification(self.output, self.ignore_index)
        check_retrain(self.retrain, self.residuals, ("refit",))
        if self.residuals == "refit" and self.mars == "free":
            raise SettingsError(
                "Expected mars='simplex' with residuals='refit', but got mars='free', whose networks read features, "
                "and those of copies are no others' features; use one of the two, or pass calibration data."
            )
        if self.delta0 != "cv" and self.delta0 < 0:
            raise SettingsError(f"Expected delta0 >= 0 or 'cv', but got {self.delta0!r}.")
        if not 0 < self.support_mass < 1:
            raise SettingsError(f"Expected support_mass in (0, 1), but got {self.support_mass}.")
        for name in ("steepness", "correction_prior"):
            if not 0 < getattr(self, name) < float("inf"):
                raise SettingsError(f"Expected {name} > 0, but got {getattr(self, name)}.")
        if self.mar_layers < 0:
            raise SettingsError(f"Expected mar_layers >= 0, but got {self.mar_layers}.")

    @classmethod
    def paper(cls, **changes: Any) -> SplitPointClassifier:
        """The paper's recipe: free MARs from raw features, one hidden layer as wide, Adam at 1e-4, 300 epochs."""
        recipe: dict[str, Any] = {
            "mars": "free",
            "standardise": False,
            "width": None,
            "epochs": 300,
            "dense_steps": PAPER_STEPS,
            "learning_rate": 1e-4,
            "patience": None,
            "batch_size": 128,
            "held_back": 0.0,
        }
        return cls(**(recipe | changes))

    @property
    def _task(self) -> Classification:
        return Classification(self.output, self.ignore_index)

    def _source(self) -> Source:
        return replace(super()._source(), images=self.mars == "simplex")

    def _fit_recorded(self, given: GivenRows) -> list[ClassificationPredictor]:
        self._check_alike(given.rows)
        tables, generators = [recording.table for recording in given.rows], generators_for(given.seeds)
        for table in tables:
            self._check_logits(table)
        instead: Sequence[StandIns | None] = [None] * len(tables)
        if self.residuals == "refit" and given.calibration is None:
            instead = stand_ins(given, self._source(), self.retrain)
        networks, members = self._network(tables, self._trunk, generators, given.rows[0].device, given.progress)
        fitted = []
        for number, (member, own) in enumerate(zip(members, instead, strict=True)):
            network = networks.member(number)
            kept = self.mars == "free" or _worth_keeping(member, network)
            held_out = None if given.calibration is None else given.calibration[number].table
            fitted.append(
                self._from_training(member.table, network if kept else None, held_out, own, given.rows[number].parts)
            )
        return self._fitted(given.rows, fitted, given.calibration, generators, given.progress, instead)

    def _fitted(
        self,
        recordings: Sequence[Recording],
        fitted: list[dict[str, Tensor]],
        calibration: Sequence[Recording] | None,
        generators: Sequence[torch.Generator],
        progress: bool,
        instead: Sequence[StandIns | None] | None = None,
    ) -> list[ClassificationPredictor]:
        """Predictors from what was fitted on training rows, and calibration rows or stand-ins where given."""
        methods = [self] * len(recordings)
        if calibration is not None:
            methods, calibrated = self._from_calibration(calibration, generators, progress)
            fitted = [a | b for a, b in zip(fitted, calibrated, strict=True)]
        held_out = [None] * len(recordings) if calibration is None else calibration
        predictors = [
            method._predictor(r.tap, r.layout, r.inputs, tensors | self._describe(r, own))
            for method, r, tensors, own in zip(methods, recordings, fitted, held_out, strict=True)
        ]
        for number, (predictor, recording) in enumerate(zip(predictors, recordings, strict=True)):
            rows = None if calibration is None else calibration[number]
            own = None if instead is None else instead[number]
            scored = own.scored(predictor) if own is not None else _scored(predictor, rows)
            if scored is not None:
                predictor.mix.copy_(scored.mix())
            copies = () if own is None else (own.check,)
            found = _checks(predictor, recording.table, scored)
            predictor.checks = (*copies, *row_checks(recording, rows), *found)
        return [predictor.heads_to(r.device) for predictor, r in zip(predictors, recordings, strict=True)]

    def _predictor(
        self, tap: Tap | None, layout: Layout, inputs: int, tensors: Mapping[str, Tensor]
    ) -> ClassificationPredictor:
        return ClassificationPredictor(self, tap, layout, inputs, tensors)

    def _companion(self, rows: Rows, seed: int, device: torch.device) -> Companion:
        heads = self._untrained([Table.in_memory(rows)], self._trunk, generators_for([seed]), device)

        def follow(batch: Rows) -> None:
            if self.standardise:
                follow_features(heads, batch)

        return Companion(heads, LOSSES[self._trunk], follow, {})

    def _after_joint(
        self, recording: Recording, companion: Companion, calibration: Recording | None, seed: int, progress: bool
    ) -> ClassificationPredictor:
        scaling = None if calibration is None else calibration.table
        fitted = self._from_training(recording.table, companion.heads, scaling, parts=recording.parts)
        held_out = None if calibration is None else [calibration]
        return self._fitted([recording], [fitted], held_out, generators_for([seed]), progress)[0]

    @property
    def _trunk(self) -> str:
        return "frequency" if self.mars == "simplex" else "mar"

    def _check_logits(self, table: Table) -> None:
        """Refuse one output that runs from 0 to 1 over all rows: a sigmoid, not a logit."""
        if self.output == "logits" and table.width("logits") == 2:
            logits = table.column("logits")
            odds = logits[:, 1] - logits[:, 0]
            low, high = float(odds.min()), float(odds.max())
            if bool((logits.sum(1) == 0).all()) and 0 <= low < 0.1 and 0.9 < high <= 1:
                raise DataError(
                    f"Expected a logit, but the one output of the model runs from {low:.3f} to {high:.3f} like a "
                    "probability; use output='probs'."
                )

    def _network(
        self,
        tables: Sequence[Table],
        trunk: str,
        generators: Sequence[torch.Generator],
        device: torch.device,
        progress: bool,
    ) -> tuple[Heads, list[Member]]:
        """A stack of networks with one trunk, trained on `tables`, and the rows that each was held from."""
        heads = self._untrained(tables, trunk, generators, device)
        members = [held_back(table, self.held_back, g) for table, g in zip(tables, generators, strict=True)]
        loss = LOSSES[trunk]
        score = loss if bool(members[0].scored.any()) else None
        train(
            heads, members, loss, score, self._schedule(tables[0]), generators, label="fitting heads", progress=progress
        )
        return heads, members

    def _untrained(
        self, tables: Sequence[Table], trunk: str, generators: Sequence[torch.Generator], device: torch.device
    ) -> Heads:
        classes = tables[0].width("logits")
        outputs = {"frequency": classes + 1, "mar": classes, "zero_included": 3 * classes}[trunk]
        hidden = [self._hidden(tables[0])] * self.mar_layers
        found = [feature_moments(table) for table in tables]
        center, spread = (torch.stack(values)[:, None] for values in zip(*found, strict=True))
        if not self.standardise:
            center, spread = torch.zeros_like(center), torch.ones_like(spread)
        inputs = {"center": center, "spread": spread}
        heads = Heads.random(inputs, {trunk: [*hidden, outputs]}, generators).to(device)
        if trunk == "frequency":
            heads.start_at(trunk, torch.zeros(len(tables), outputs, dtype=torch.float32))
        return heads

    def _from_training(
        self,
        table: Table,
        network: Heads | None,
        held_out: Table | None,
        instead: StandIns | None = None,
        parts: Sequence[int] = (),
    ) -> dict[str, Tensor]:
        """Tensors of a predictor that come from the training rows; the network's where it is kept."""
        state = {} if network is None else dict(network.state_dict(prefix="network."))
        if self.mars == "free":
            return state
        evidence = None if instead is None else instead.evidence
        support = Support.fit(
            table, table.width("logits"), self.steepness, self.support_mass, held_out, evidence, parts
        )
        state |= dict(support.state_dict(prefix="support."))
        return state if instead is None else state | instead.fitted(support)

    def _from_calibration(
        self, recordings: Sequence[Recording], generators: Sequence[torch.Generator], progress: bool
    ) -> tuple[list[SplitPointClassifier], list[dict[str, Tensor]]]:
        """Settings (with delta0 chosen) and tensors of the predictors that come from calibration rows."""
        tables = [recording.table for recording in recordings]
        if self.mars == "simplex":
            pairs = zip(tables, generators, strict=True)
            return [self] * len(tables), [self._corrected(table.whole(), g) for table, g in pairs]
        device = recordings[0].device
        networks, _ = self._network(tables, "zero_included", generators, device, progress)
        tensors = [dict(networks.member(i).state_dict(prefix="calibrator.")) for i in range(len(tables))]
        methods = [self] * len(tables)
        if self.delta0 == "cv":
            chosen = [self._cross_validated(t, g, device) for t, g in zip(tables, generators, strict=True)]
            methods = [replace(self, delta0=value) for value in chosen]
        for number, (table, method) in enumerate(zip(tables, methods, strict=True)):
            tensors[number] |= {"set_scores": _free_scores(table, networks.member(number), float(method.delta0))}
        return methods, tensors

    def _corrected(self, rows: Rows, generator: torch.Generator) -> dict[str, Tensor]:
        """The correction from calibration rows, and the scores of these rows for prediction sets."""
        correction, logits = Correction.cross_fitted(rows, self.correction_prior, generator)
        scores = calibration_scores(logits.softmax(1), rows["label"][:, 0], Table.in_memory(rows).groups())
        return dict(correction.state_dict(prefix="correction.")) | {"set_scores": scores}

    def _cross_validated(self, table: Table, generator: torch.Generator, device: torch.device) -> float:
        """The gate with the smallest out-of-fold Brier score; the folds are trained as one stack."""
        rows = table.whole()
        count = len(rows["label"])
        if count < 2 * FOLDS:
            raise DataError(f"Expected at least {2 * FOLDS} calibration rows for delta0='cv', but got {count}.")
        fold = random_folds(count, FOLDS, generator, table.groups())
        parts = [Table.in_memory({k: v[fold != f] for k, v in rows.items()}) for f in range(FOLDS)]
        seeds = generators_for([int(torch.randint(2**31, (), generator=generator)) for _ in range(FOLDS)])
        stack, _ = self._network(parts, "zero_included", seeds, device, progress=False)
        errors = torch.zeros(len(DELTA0_GRID), dtype=torch.float32)
        for f in range(FOLDS):
            held = {k: v[fold == f].to(device) for k, v in rows.items()}
            base = held["logits"].softmax(1)
            with torch.no_grad():
                raw = stack.member(f).pointwise(held["features"])["zero_included"]
            mars = Mars(*raw.unflatten(1, (3, -1)).unbind(1))
            target = F.one_hot(held["label"][:, 0], base.shape[1])
            for i, delta0 in enumerate(DELTA0_GRID):
                errors[i] += (corrected_probs(base, mars, delta0) - target).square().sum().cpu()
        return DELTA0_GRID[int(errors.argmin())]


def _free_scores(table: Table, calibrator: Heads, delta0: float) -> Tensor:
    """Scores for prediction sets from the probabilities that free MARs correct.

    The MARs were fitted to the very rows that are scored, which look a little better than fresh ones will.
    """
    probs, label = [], []
    with torch.no_grad():
        for rows in table.slices():
            raw = calibrator.pointwise(rows["features"].to(calibrator.center.device))["zero_included"].cpu()
            mars = Mars(*raw.unflatten(1, (3, -1)).unbind(1))
            probs.append(corrected_probs(rows["logits"].softmax(1), mars, delta0))
            label.append(rows["label"][:, 0])
    return calibration_scores(torch.cat(probs), torch.cat(label), table.groups())


def _worth_keeping(member: Member, network: Heads) -> bool:
    """Whether the network beats the base model's own softmax on rows held back from its training.

    The base model was itself fitted to these rows, so near the data its softmax is usually the best estimate of the
    class frequencies, and a network in its place only adds noise to the score. It is kept where the base model is
    visibly biased: the held-back log loss falls by a tenth and by three standard errors, temperature scaling
    granted to the base model.
    """
    rows = member.scored_rows()
    if len(rows["label"]) < 2:
        return False
    logits, label = rows["logits"], rows["label"][:, 0]
    base = F.cross_entropy(probable_factor(logits, label) * logits, label, reduction="none")
    with torch.no_grad():
        raw = network.pointwise(rows["features"].to(network.center.device))["frequency"].cpu()
        ours = F.cross_entropy(frequency_logits(raw, logits, 1), label, reduction="none")
    gain = base - ours
    error = gain.std() / len(gain) ** 0.5
    return bool(gain.mean() > 0.1 * base.mean()) and bool(gain.mean() > 3 * error)


def _scored(predictor: ClassificationPredictor, calibration: Recording | None) -> Scored | None:
    """What a predictor with a support score says of calibration rows, where there are any."""
    if predictor.support is None or calibration is None:
        return None
    found = []
    for part in calibration.table.slices():
        with torch.no_grad():
            found.append((*predictor.scored_rows(part["features"], part["logits"]), part["label"][:, 0]))
    return Scored(*(torch.cat(values) for values in zip(*found, strict=True)))


def _checks(predictor: ClassificationPredictor, table: Table, scored: Scored | None) -> tuple[Check, ...]:
    """What is found out about classes, scores and probabilities; `scored` are calibration rows, where there are any."""
    found = [checks.classes(table, table.width("logits"))]
    if predictor.support is not None:
        found.append(checks.rivalry(predictor.support))
    if scored is not None:
        total = entropy(scored.probs.double(), 1) + predictor.mix * scored.support
        found += [checks.calibrated(scored.probs, scored.label), checks.ranking(scored.probs, scored.label, total)]
    elif not predictor.calibrated:
        found.append(checks.uncalibrated(table))
    return tuple(found)
