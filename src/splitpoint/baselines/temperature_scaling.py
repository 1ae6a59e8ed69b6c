"""Temperature scaling of a trained classifier (Guo et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from splitpoint.baselines.answers import softmax_answer
from splitpoint.baselines.posthoc import AtOutput, BaselinePredictor, Fitted, PostHocBaseline
from splitpoint.baselines.settings import ClassificationMethod
from splitpoint.errors import SettingsError
from splitpoint.tasks import Answer


@dataclass(frozen=True, kw_only=True)
class TemperatureScaling(PostHocBaseline, ClassificationMethod[BaselinePredictor]):
    """``softmax(logits / T)`` with one temperature from calibration data.

    Other methods take the same setting: ``Ddu(temperature="nll")`` scales the probabilities that DDU reports.

    Attributes:
        temperature: what it minimises, log loss ("nll") or calibration error ("ece", as the authors' code does).
    """

    temperature: Literal["nll", "ece"] | None = "nll"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature is None:
            raise SettingsError("Expected temperature to be 'nll' or 'ece', but got None; use softmax for none.")

    def _answer(self, fitted: Fitted, at_output: AtOutput, output: Tensor) -> Answer:  # noqa: ARG002
        return softmax_answer(output)
