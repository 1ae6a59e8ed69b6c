"""Monte Carlo dropout: dropout that stays on at test time (Gal & Ghahramani 2016)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from splitpoint.baselines.deep_ensemble import Mixture
from splitpoint.baselines.trained import NetworkPredictor, Runs
from splitpoint.batches import output_tensor
from splitpoint.errors import SettingsError
from splitpoint.networks import Architecture
from splitpoint.networks.surgery import sampling, with_dropout


@dataclass(frozen=True, kw_only=True)
class McDropout(Mixture):
    """T passes with dropout on; mean and variance over the passes.

    A network without dropout layers gets one before each linear or convolution layer but the first; a network with
    dropout layers of its own keeps them, and their rates. The T masks are the same for all rows and calls, so that
    a prediction does not depend on what else is in its batch. Nothing but the dropout layers leaves eval mode.

    Attributes:
        dropout: rate of the dropout layers that are added.
        passes: number of passes T.
        mask_seed: of the masks.
    """

    dropout: float = 0.2
    passes: int = 5
    mask_seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.dropout < 1:
            raise SettingsError(f"Expected dropout in (0, 1), but got {self.dropout}.")
        if self.passes < 2:
            raise SettingsError(f"Expected passes >= 2, but got {self.passes}.")

    def _changed(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        return with_dropout(super()._changed(network, architecture), architecture.layers[1:], self.dropout)

    def _runs(self, predictor: NetworkPredictor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Runs:
        (network,) = predictor.running
        outputs = []
        for number in range(self.passes):
            with sampling(self.mask_seed + number):
                outputs.append(output_tensor(network(*args, **kwargs), self.output_key))
        return Runs(outputs)
