"""The plain classifier: entropy and maximum probability, the floor that every method must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from splitpoint.baselines.answers import Answer, softmax_answer
from splitpoint.baselines.method import Fitted
from splitpoint.baselines.posthoc import AtOutput, PostHocBaseline
from splitpoint.baselines.settings import About
from splitpoint.recording import Recording


@dataclass(frozen=True, kw_only=True)
class Softmax(PostHocBaseline):
    """The model's own softmax: ``1 - max_k p_k`` as epistemic score, entropy as aleatoric and total score."""

    about: ClassVar[About] = About(
        tasks=("classification",),
        post_hoc=True,
        passes="1",
        needs="trained model",
        epistemic="1 - max p",
        reference="Hendrycks & Gimpel 2017",
    )

    def _learn(self, rows: Recording, held_out: Recording | None, seed: int) -> dict[str, Tensor]:  # noqa: ARG002
        return {}

    def _answer(self, fitted: Fitted, at_output: AtOutput, output: Tensor) -> Answer:  # noqa: ARG002
        return softmax_answer(output)
