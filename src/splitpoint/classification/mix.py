"""How much the lack of support adds to the entropy where errors are ranked, decided on calibration rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from splitpoint.consistency import entropy as entropy_of

MIXES = (0.003, 0.01, 0.03, 0.1, 0.3)
FEWEST = 10
CERTAIN = 2.0


class Scored(NamedTuple):
    """What a predictor says of calibration rows, or of stand-ins for them.

    Attributes:
        probs: (n, K) calibrated probabilities.
        support: (n,) lack of support.
        label: (n,).
    """

    probs: Tensor
    support: Tensor
    label: Tensor

    def mix(self) -> Tensor:
        """The weight of support in the total score; see `fit_mix`."""
        return fit_mix(entropy_of(self.probs.double(), 1), self.support, self.probs.argmax(1) != self.label)


def fit_mix(entropy: Tensor, support: Tensor, wrong: Tensor) -> Tensor:
    """The weight w with which ``entropy + w support`` ranks wrong rows highest, 0 where none is surely better.

    The entropy alone is beaten only where the AUROC rises by two standard errors of the paired difference (DeLong et
    al. 1988) on at least ten wrong and ten right rows.

    Args:
        entropy: (n,) of the calibrated probabilities of calibration rows.
        support: (n,) their lack of support.
        wrong: (n,) whether the most probable class is not the label.

    >>> wrong = torch.arange(200) % 2 == 0
    >>> noise = torch.rand(200, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> fit_mix(noise, wrong.double(), wrong) > 0, fit_mix(noise, noise.flip(0), wrong) > 0
    (tensor(True), tensor(False))
    """
    none = torch.zeros((), dtype=torch.float64)
    if min(int(wrong.sum()), int((~wrong).sum())) < FEWEST:
        return none
    plain = _placements(entropy, wrong)
    best, gain = none, 0.0
    for weight in MIXES:
        mixed = _placements(entropy + weight * support, wrong)
        changes = [after - before for after, before in zip(mixed, plain, strict=True)]
        error = sum(float(change.var()) / len(change) for change in changes) ** 0.5
        rise = float(changes[0].mean())
        if rise > max(gain, CERTAIN * error):
            best, gain = none + weight, rise
    return best


def _placements(score: Tensor, wrong: Tensor) -> tuple[Tensor, Tensor]:
    """For every wrong row the share of right rows below it, and for every right row that of wrong rows above it."""
    low, high = score[~wrong].double().sort().values, score[wrong].double().sort().values

    def below(ordered: Tensor, values: Tensor) -> Tensor:
        ends = torch.searchsorted(ordered, values) + torch.searchsorted(ordered, values, right=True)
        return ends.double() / (2 * len(ordered))

    return below(low, score[wrong].double()), 1 - below(high, score[~wrong].double())
