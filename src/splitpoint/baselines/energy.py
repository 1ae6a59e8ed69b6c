"""The energy score of a classifier (Liu et al. 2020), which also sees how large the logits are."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from splitpoint.baselines.answers import softmax_answer
from splitpoint.baselines.posthoc import AtOutput, BaselinePredictor, Fitted, PostHocBaseline
from splitpoint.baselines.settings import ClassificationMethod
from splitpoint.tasks import Answer


@dataclass(frozen=True, kw_only=True)
class Energy(PostHocBaseline, ClassificationMethod[BaselinePredictor]):
    """The model's own softmax, with the free energy ``-log sum_k exp(logit_k)`` as epistemic score.

    Softmax does not change when all logits grow by the same number, and the energy falls by it: inputs that excite no
    class have a high one. It can be negative; only its order counts.
    """

    def _answer(self, fitted: Fitted, at_output: AtOutput, output: Tensor) -> Answer:  # noqa: ARG002
        return replace(softmax_answer(output), epistemic=-output.logsumexp(1))
