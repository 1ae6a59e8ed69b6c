"""How well conflicts of modalities are found, and the right one of them named."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import torch
from torch import Tensor

from splitpoint.errors import ShapeError
from splitpoint.metrics.given import Given, named
from splitpoint.metrics.ranking import auroc
from splitpoint.tensors import numbers


def spoilt_aurocs(known: Given, spoilt: Mapping[str, Given]) -> dict[str, float]:
    """How well a score tells rows with one modality spoilt from the same rows as they are, for each modality.

    Args:
        known: (N,) of the rows as they are.
        spoilt: (N,) with one modality spoilt, by its name.

    >>> spoilt_aurocs(torch.tensor([0.0, 1.0]), {"image": torch.tensor([2.0, 3.0]), "text": torch.tensor([0.0, 1.0])})
    {'image': 1.0, 'text': 0.5}
    """
    return {name: auroc(known, scores) for name, scores in named(spoilt, "scores of spoilt rows").items()}


def blamed(blame: Mapping[str, Given]) -> dict[str, tuple[float, ...]]:
    """Share of the rows in which each modality has the largest blame, by the modality that was spoilt.

    Args:
        blame: (N, M) by the name of the spoilt modality.

    >>> blamed({"image": torch.tensor([[2.0, 1.0], [0.0, 3.0]])})
    {'image': (0.5, 0.5)}
    """
    found = {name: _columns(one) for name, one in named(blame, "blame").items()}
    return {
        name: tuple((torch.bincount(one.argmax(1), minlength=one.shape[1]) / len(one)).tolist())
        for name, one in found.items()
    }


def _columns(blame: Given) -> Tensor:
    """Blame (N, M)."""
    found = numbers(blame, "blame")
    if found.dim() != 2 or not found.numel():
        raise ShapeError(f"Expected blame (N, M), but got {tuple(found.shape)}; give one column for each modality.")
    return found


def right_blame(blame: Mapping[str, Given]) -> float:
    """Share of the rows in which the spoilt modality has the largest blame, the mean over modalities.

    Args:
        blame: (N, M) by the name of the spoilt modality, all M in the order of the columns.

    >>> right_blame({"image": torch.tensor([[2.0, 1.0], [0.0, 3.0]]), "text": torch.tensor([[0.0, 1.0]])})
    0.75
    """
    shares = list(blamed(blame).values())
    if any(len(own) < len(shares) for own in shares):
        raise ShapeError(
            f"Expected blame with a column for each of the {len(shares)} spoilt modalities, but got "
            f"{min(map(len, shares))}; name those of the columns."
        )
    return statistics.fmean(own[place] for place, own in enumerate(shares))
