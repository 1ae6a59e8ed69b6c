"""Deep ensembles: networks that differ in initial weights and row order (Lakshminarayanan et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from splitpoint.baselines.mixture import Mixture
from splitpoint.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class DeepEnsemble(Mixture):
    """M networks, trained as one stack, each from its own initial weights and in its own order of the rows.

    Regression: members predict mean and variance; the mixture's moments are reported, the mean variance as aleatoric
    and the variance of the means as epistemic. Classification: mean probabilities, mutual information as epistemic
    and predictive entropy as total score.

    Attributes:
        members: number of networks M.
    """

    members: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.members < 1:
            raise SettingsError(f"Expected members >= 1, but got {self.members}.")

    @property
    def _members(self) -> int:
        return self.members
