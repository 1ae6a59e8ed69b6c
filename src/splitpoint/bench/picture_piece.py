"""A piece of work on pictures: a data set, a network and how it is trained, and one trial."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from splitpoint.bench.networks import NETWORKS
from splitpoint.bench.pictures import Trial, trial_of
from splitpoint.bench.piece import Piece
from splitpoint.bench.training import PAPER, Schedule

UNMIRRORED = ("mnist", "svhn", "notmnist")
"""Data sets of digits and letters, which are not mirrored."""


@dataclass(frozen=True, kw_only=True)
class PicturePiece(Piece):
    """Some methods of one family on one trial; `dataset` names data set and network, as in ``mnist/lenet``.

    Attributes:
        outside: names of the sets out of distribution.
        cache: folder of checkpoints and recorded rows.
        device: where networks are trained, run and attacked. Rows come from there to the CPU, where post-hoc methods
            are fitted on them; checkpoints and rows are found on any device.
    """

    outside: tuple[str, ...]
    cache: Path
    device: str = "cpu"

    @property
    def pictures(self) -> str:
        """Name of the data set."""
        return self.dataset.partition("/")[0]

    @property
    def network(self) -> str:
        """Name of the network."""
        return self.dataset.partition("/")[2]

    @property
    def schedule(self) -> Schedule:
        """How networks are trained."""
        return schedule_of(self.protocol, self.pictures, self.network, self.epochs)

    def trial(self, share: float | None = None) -> Trial:
        """The pictures; `share` of the training pictures serve calibration, a tenth by default."""
        trained = NETWORKS[self.network].trained
        given = {} if share is None else {"share": share}
        return trial_of(self.pictures, self.outside, self.trials[0], seed=self.seed, trained=trained, **given)

    @property
    def settings(self) -> dict[str, Any]:
        """What the records tell of networks and pictures."""
        found: dict[str, Any] = {} if NETWORKS[self.network].trained else asdict(self.schedule)
        found["outside"] = " + ".join(self.outside)
        return found if self.device == "cpu" else found | {"device": self.device}


def schedule_of(protocol: str, pictures: str, network: str, epochs: int | None = None) -> Schedule:
    """How a network is trained: as the paper states, or shorter; digits and letters are never mirrored."""
    own = NETWORKS[network].schedule
    chosen = PAPER if protocol == "paper" or own is None else own
    if pictures in UNMIRRORED:
        chosen = replace(chosen, augment=False)
    return chosen if epochs is None else replace(chosen, epochs=epochs)
