"""The fitted classification predictor: from features and logits to a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor

from splitpoint.classification.correction import Correction
from splitpoint.classification.support import Support
from splitpoint.consistency import Mars, class_mars, class_sds, corrected_probs
from splitpoint.features import Tap
from splitpoint.heads import Heads
from splitpoint.layout import Layout
from splitpoint.prediction import ClassificationPrediction
from splitpoint.predictor import PostHocPredictor
from splitpoint.tasks import ClassAnswer

if TYPE_CHECKING:
    from splitpoint.classification.method import SplitPointClassifier


class ClassificationPredictor(PostHocPredictor[ClassificationPrediction]):
    """What `SplitPointClassifier.fit` returns: `clf(x)` is a `ClassificationPrediction`.

    Attributes:
        support: how far the training set supports an input; None with free MARs.
        network: class frequencies (simplex) or total MARs (free) from training rows; None where the base model's
            own softmax proved to be the better estimate of the frequencies.
        calibrator: zero-included MARs from calibration rows (free MARs only).
        correction: factor, bias and weights of the calibrated logits (simplex only).
    """

    method: SplitPointClassifier

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

        self.support = Support(part("support."), method.steepness).eval() if part("support.") else None
        self.network = Heads(part("network.")).eval() if part("network.") else None
        self.calibrator = Heads(part("calibrator.")).eval() if part("calibrator.") else None
        self.correction = Correction(**part("correction.")).eval() if part("correction.") else None

    @property
    def calibrated(self) -> bool:
        """Whether calibration data were given to `fit`."""
        return self.calibrator is not None or self.correction is not None

    def _answer(self, features: Tensor, output: Tensor) -> ClassAnswer:
        logits = self.task.canonical(self.layout.output(output))
        base = logits.softmax(1)
        mar, score = self._simplex(features, output, logits) if self.support else self._free(features, output, base)
        probs = self._calibrated(features, output, logits, base).to(base.dtype)
        return ClassAnswer(
            probs=probs,
            base_probs=base,
            epistemic=score.to(base.dtype),
            total=(mar.sum(1) + score).to(base.dtype),
            mar=mar.to(base.dtype),
        )

    def _simplex(self, features: Tensor, output: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        """MARs and SDS of the class frequencies P, all derived from P: ``z = P(1-p) + (1-P)p`` (E6).

        ``P - p`` is kept apart from p, in float64, so that scores far below the rounding of p keep their order.
        """
        assert self.support is not None
        distance = self.layout.pointwise(lambda rows: self.support.distance(rows)[:, None], features, output)  # type: ignore[union-attr]
        unsupported = self.support(distance.squeeze(1), logits).unsqueeze(1)
        p = logits.double().softmax(1)
        prior = self.support.prior.reshape(1, -1, *[1] * (p.dim() - 2))
        shift = unsupported * (prior - p)
        if self.network is not None:
            raw = self.layout.heads(self.network.pointwise(features)["frequency"], output)
            frequency = frequency_logits(raw, logits, 1).double().softmax(1)
            shift = shift + (1 - unsupported) * (frequency - p)
        mar = class_mars(p, p + shift).total
        return mar, (shift * (1 - 2 * p)).abs().sum(1)

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
