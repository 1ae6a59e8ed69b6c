"""The plain classifier: entropy and maximum probability, the floor that every method must beat."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from splitpoint.baselines.answers import softmax_answer
from splitpoint.baselines.posthoc import AtOutput, BaselinePredictor, Fitted, PostHocBaseline
from splitpoint.baselines.settings import ClassificationMethod
from splitpoint.tasks import Answer


@dataclass(frozen=True, kw_only=True)
class Softmax(PostHocBaseline, ClassificationMethod[BaselinePredictor]):
    """The model's own softmax: ``1 - max_k p_k`` as epistemic score, entropy as aleatoric and total score."""

    def _answer(self, fitted: Fitted, at_output: AtOutput, output: Tensor) -> Answer:  # noqa: ARG002
        return softmax_answer(output)
