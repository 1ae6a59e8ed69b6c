"""How well conflicts of modalities are found, and the right one of them named."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

import torch
from torch import Tensor

from splitpoint.metrics.ranking import auroc


def spoilt_aurocs(known: Tensor, spoilt: Mapping[str, Tensor]) -> dict[str, float]:
    """How well a score tells rows with one modality spoilt from the same rows as they are, for each modality.

    Args:
        known: (N,) of the rows as they are.
        spoilt: (N,) with one modality spoilt, by its name.

    >>> spoilt_aurocs(torch.tensor([0.0, 1.0]), {"image": torch.tensor([2.0, 3.0]), "text": torch.tensor([0.0, 1.0])})
    {'image': 1.0, 'text': 0.5}
    """
    return {name: auroc(known, scores) for name, scores in spoilt.items()}


def blamed(blame: Mapping[str, Tensor]) -> dict[str, tuple[float, ...]]:
    """Share of the rows in which each modality has the largest blame, by the modality that was spoilt.

    Args:
        blame: (N, M) by the name of the spoilt modality.

    >>> blamed({"image": torch.tensor([[2.0, 1.0], [0.0, 3.0]])})
    {'image': (0.5, 0.5)}
    """
    return {
        name: tuple((torch.bincount(one.argmax(1), minlength=one.shape[1]) / len(one)).tolist())
        for name, one in blame.items()
    }


def right_blame(blame: Mapping[str, Tensor]) -> float:
    """Share of the rows in which the spoilt modality has the largest blame, the mean over modalities.

    Args:
        blame: (N, M) by the name of the spoilt modality, all M in the order of the columns.

    >>> right_blame({"image": torch.tensor([[2.0, 1.0], [0.0, 3.0]]), "text": torch.tensor([[0.0, 1.0]])})
    0.75
    """
    return statistics.fmean(shares[place] for place, shares in enumerate(blamed(blame).values()))
