"""Whether a training stays finite: what diverged, when, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from splitpoint.errors import TrainingError

WILD = 1e6
"""How many times its first value a loss may come to before the training counts as diverged."""


def check_converging(losses: Tensor, what: str, epoch: int, rate: float) -> None:
    """A TrainingError that names the members whose last loss (..., E) of an epoch is not a finite number."""
    if bool(losses.isfinite().all()):
        return
    lost = (~losses.isfinite()).reshape(-1, losses.shape[-1]).any(0).nonzero()[:, 0].tolist()
    raise diverged(what, lost, losses.shape[-1], f"lost its way in epoch {epoch}", rate)


def check_bounded(losses: Tensor, first: float, what: str, rate: float) -> None:
    """The same where the loss (E,) that was kept is `WILD` times the `first` one of the training."""
    lost = (~(losses <= WILD * max(abs(first), 1.0))).nonzero()[:, 0].tolist()
    if lost:
        raise diverged(what, lost, len(losses), "learned nothing but ever larger numbers", rate)


def check_finite(networks: Sequence[nn.Module], what: str, rate: float) -> None:
    """The same for networks of which a weight or a statistic is not a finite number."""
    lost = [number for number, network in enumerate(networks) if not _is_finite(network)]
    if lost:
        raise diverged(what, lost, len(networks), "ended in weights that are NaN or infinite", rate)


def diverged(what: str, lost: Sequence[int], of: int, how: str, rate: float) -> TrainingError:
    """The error that says which of several members diverged, how, and what to do."""
    which = what if of == 1 else f"{what} {', '.join(str(number + 1) for number in lost)} of {of}"
    return TrainingError(
        f"Expected training to stay finite, but {which} {how}; nothing was fitted: lower learning_rate={rate:g}, or "
        "bring inputs and targets to a usual scale."
    )


def _is_finite(network: nn.Module) -> bool:
    return all(bool(value.isfinite().all()) for value in network.state_dict().values() if value.is_floating_point())
