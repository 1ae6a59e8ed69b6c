"""Orthonormal certificates on the features of a trained model (Tagasovska & Lopez-Paz 2019)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from splitpoint.baselines.answers import Answer, softmax_answer
from splitpoint.baselines.certificates import certificate_score, check_certificates, fit_certificates
from splitpoint.baselines.method import Fitted
from splitpoint.baselines.posthoc import AtOutput, PostHocBaseline
from splitpoint.baselines.residuals import constant_answer, residual_quantiles
from splitpoint.baselines.settings import About
from splitpoint.recording import Recording


@dataclass(frozen=True, kw_only=True)
class OrthonormalCertificates(PostHocBaseline):
    """Epistemic score ``|C^T h(x)|^2 / k`` of certificates that vanish on the training features.

    Probabilities are the model's own. Regression intervals are the model's output plus residual quantiles, of the
    calibration data where given, else of the training data: certificates say nothing about noise.

    Attributes:
        certificates: most certificates k; there are no more than features.
        penalty: weight of the orthonormality.
    """

    about: ClassVar[About] = About(
        tasks=("regression", "classification"),
        post_hoc=True,
        passes="1",
        needs="trained model",
        epistemic="size of the certificates",
        reference="Tagasovska & Lopez-Paz 2019",
    )

    certificates: int = 100
    penalty: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_certificates(self.certificates, self.penalty)

    def _learn(self, rows: Recording, held_out: Recording | None, seed: int) -> dict[str, Tensor]:  # noqa: ARG002
        learned = fit_certificates(rows.table, self.certificates, self.penalty)
        if self.task == "regression":
            learned["quantiles"] = residual_quantiles((held_out or rows).table, self.levels)
        return learned

    def _answer(self, fitted: Fitted, at_output: AtOutput, output: Tensor) -> Answer:
        names = ("center", "spread", "certificates")
        score = at_output(lambda rows: certificate_score(rows, *(fitted[name] for name in names)))
        if self.task == "classification":
            return replace(softmax_answer(output), epistemic=score.squeeze(1))
        return constant_answer(output, fitted["quantiles"], self.levels, score.expand_as(output))
