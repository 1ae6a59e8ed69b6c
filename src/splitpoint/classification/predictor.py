"""The fitted classification predictor: from features and logits to a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from splitpoint.classification.correction import Correction
from splitpoint.classification.support import Support
from splitpoint.conformal import Conformity
from splitpoint.consistency import Mars, class_mars, class_sds, corrected_probs, entropy
from splitpoint.features import Tap
from splitpoint.heads import Heads
from splitpoint.layout import Layout
from splitpoint.marginals import complement
from splitpoint.posthoc import PostHocPredictor
from splitpoint.prediction import ClassificationPrediction
from splitpoint.tasks import ClassAnswer

if TYPE_CHECKING:
    from splitpoint.classification.method import SplitPointClassifier


class ClassificationPredictor(PostHocPredictor[ClassificationPrediction]):
    """What `SplitPointClassifier.fit` returns: `clf(x)` is a `ClassificationPrediction`.

    Attributes:
        support: how little the training set says about an input; None with free MARs.
        mix: weight of the lack of support in the total score, next to the entropy; see `method.fit_mix`.
        network: class frequencies (simplex) or total MARs (free) from training rows; None where the base model's
            own softmax proved to be the better estimate of the frequencies.
        calibrator: zero-included MARs from calibration rows (free MARs only).
        correction: factor, bias and weights of the calibrated logits (simplex only).
        set_scores: (3, m) scores of calibration rows, or of rows as copies of the network answer that left them out,
            that prediction sets are made of; None without such rows.
    """

    method: SplitPointClassifier
    mix: Tensor
    set_scores: Tensor | None

    def __init__(
        self,
        method: SplitPointClassifier,
        tap: Tap | None,
        layout: Layout,
        inputs: int,
        tensors: Mapping[str, Tensor],
    ) -> None:
        super().__init__(method, tap, layout, inputs, tensors)

        def part(prefix: str) -> dict[str, Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        self.register_buffer("mix", tensors.get("mix", torch.zeros((), dtype=torch.float64)))
        self.support = (
            Support(part("support."), method.steepness, tap is not None and bool(tap.branches)).eval()
            if part("support.")
            else None
        )
        self.network = Heads(part("network.")).eval() if part("network.") else None
        self.calibrator = Heads(part("calibrator.")).eval() if part("calibrator.") else None
        self.correction = Correction(**part("correction.")).eval() if part("correction.") else None
        self.register_buffer("set_scores", tensors.get("set_scores"))

    @property
    def calibrated(self) -> bool:
        """Whether `fit` calibrated the probabilities, on calibration data or on answers of copies."""
        return self.calibrator is not None or self.correction is not None

    def _marginal(self, tensors: dict[str, Tensor], features: Tensor, context: Tensor) -> dict[str, Tensor]:  # noqa: ARG002
        """See `PostHocPredictor`; probabilities are the model's own, since what was calibrated are those of all."""
        kept = {name: own for name, own in tensors.items() if not name.startswith(("correction.", "calibrator."))}
        if "support.whiten" not in kept:
            return kept
        whiten = kept["support.whiten"]
        others = complement(whiten, features.to(whiten.device))
        moved = {name: (kept[name].double() @ others).float() for name in ("support.whiten", "support.centres")}
        return kept | moved

    def _answer(self, features: Tensor, output: Tensor) -> ClassAnswer:
        logits = self.task.canonical(self.layout.output(output))
        base = logits.softmax(1)
        probs = self._calibrated(features, output, logits, base).to(base.dtype)
        if self.support is None:
            mar, sds = self._free(features, output, base)
            scores = {"epistemic": sds, "total": mar.sum(1) + sds, "support": sds, "sds": sds}
        else:
            support = self._support(features, output, logits)
            mar, sds = self._simplex(features, output, logits, self.support.share(support).unsqueeze(1))
            total = entropy(probs.double(), 1) + self.mix * support
            scores = {"epistemic": support, "total": total, "support": support, "sds": sds}
        scores = {name: score.to(base.dtype) for name, score in scores.items()}
        conformity = None if self.set_scores is None else Conformity(self.set_scores)
        return ClassAnswer(probs=probs, base_probs=base, mar=mar.to(base.dtype), conformity=conformity, **scores)

    def _support(self, features: Tensor, output: Tensor, logits: Tensor) -> Tensor:
        """Lack of support (N,) or (N, P), in float64."""
        support = self.support
        assert support is not None
        distance = self.layout.pointwise(lambda rows: support.distance(rows)[:, None], features, output)
        found: Tensor = support(distance.squeeze(1), logits)
        return found

    def _simplex(self, features: Tensor, output: Tensor, logits: Tensor, unsupported: Tensor) -> tuple[Tensor, Tensor]:
        """MARs and SDS of the class frequencies P, all derived from P: ``z = P(1-p) + (1-P)p`` (E6).

        P is the prior of the classes to the share `unsupported` (N, 1, ...), else what the network or p says.

        ``P - p`` is kept apart from p, in float64, so that scores far below the rounding of p keep their order.
        """
        assert self.support is not None
        p = logits.double().softmax(1)
        prior = self.support.prior.reshape(1, -1, *[1] * (p.dim() - 2))
        shift = unsupported * (prior - p)
        if self.network is not None:
            raw = self.layout.heads(self.network.pointwise(features)["frequency"], output)
            frequency = frequency_logits(raw, logits, 1).double().softmax(1)
            shift = shift + (1 - unsupported) * (frequency - p)
        mar = class_mars(p, p + shift).total
        return mar, (shift * (1 - 2 * p)).abs().sum(1)

    def scored_rows(self, features: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Calibrated probabilities (R, K) and lack of support (R,) of recorded rows, canonical already."""
        assert self.support is not None
        probs = logits.softmax(1)
        if self.correction is not None:
            probs = (self.correction.factor * logits + self.correction.shift(features)).softmax(1)
        return probs, self.support(self.support.distance(features), logits)

    def _free(self, features: Tensor, output: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
        assert self.network is not None
        mar = self.layout.heads(self.network.pointwise(features)["mar"], output)
        return mar, class_sds(base, mar, 1)

    def _calibrated(self, features: Tensor, output: Tensor, logits: Tensor, base: Tensor) -> Tensor:
        if self.calibrator is not None:
            raw = self.layout.heads(self.calibrator.pointwise(features)["zero_included"], output)
            mars = Mars(*raw.unflatten(1, (3, -1)).unbind(1))
            return corrected_probs(base, mars, float(self.method.delta0), 1)
        if self.correction is not None:
            shift = self.layout.pointwise(self.correction.shift, features, output)
            return (self.correction.factor * logits + shift).softmax(1)
        return base


def frequency_logits(raw: Tensor, logits: Tensor, axis: int) -> Tensor:
    """``exp(a) * logits + g`` from the network's outputs ``(g, a)`` along `axis`."""
    shift: Tensor
    log_factor: Tensor
    shift, log_factor = raw.split([logits.shape[axis], 1], axis)
    return log_factor.exp() * logits + shift
