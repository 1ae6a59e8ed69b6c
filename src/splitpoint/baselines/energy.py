"""The energy score of a classifier (Liu et al. 2020), which also sees how large the logits are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from splitpoint.baselines.answers import Answer, softmax_answer
from splitpoint.baselines.method import Fitted
from splitpoint.baselines.posthoc import AtOutput, PostHocBaseline
from splitpoint.baselines.settings import About
from splitpoint.recording import Recording


@dataclass(frozen=True, kw_only=True)
class Energy(PostHocBaseline):
    """The model's own softmax, with the free energy ``-log sum_k exp(logit_k)`` as epistemic score.

    Softmax does not change when all logits grow by the same number, and the energy falls by it: inputs that excite no
    class have a high one. It can be negative; only its order counts.
    """

    about: ClassVar[About] = About(
        tasks=("classification",),
        post_hoc=True,
        passes="1",
        needs="trained model",
        epistemic="-logsumexp of the logits",
        reference="Liu et al. 2020",
    )

    def _learn(self, rows: Recording, held_out: Recording | None, seed: int) -> dict[str, Tensor]:  # noqa: ARG002
        return {}

    def _answer(self, fitted: Fitted, at_output: AtOutput, output: Tensor) -> Answer:  # noqa: ARG002
        return replace(softmax_answer(output), epistemic=-output.logsumexp(1))
