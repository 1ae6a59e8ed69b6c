"""How much several opinions about the same rows contradict each other, and whose fault that is.

An opinion is a law over K classes that are equally probable beforehand, so that the uniform one says nothing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def mixed(probs: Tensor, doubt: float) -> Tensor:
    """Logarithms of opinions (..., K) that are mixed with the uniform one: ``log((1 - doubt) p + doubt / K)``."""
    return ((1 - doubt) * probs + doubt / probs.shape[-1]).log()


def conflict(opinions: Tensor) -> Tensor:
    """``C = -log(K^(M - 1) sum_k prod_m P_m(k))`` of every row, (N,): 0 if at most one of them says anything.

    The sum is the probability that M independent draws, one from each opinion, name one class, K^(M - 1) its inverse
    where nobody knows anything. Opinions that confirm each other are in negative conflict.

    Args:
        opinions: (M, N, K) logarithms of the opinions.

    >>> round(conflict(torch.tensor([[[0.9, 0.1]], [[0.1, 0.9]]]).log()).item(), 4)  # -log(2 (0.09 + 0.09))
    1.0217
    """
    count, _, classes = opinions.shape
    return -(opinions.sum(0).logsumexp(-1) + (count - 1) * math.log(classes))


def blame(opinions: Tensor) -> Tensor:
    """``B_m = -log(K sum_k P_m(k) P_-m(k))``, (N, M), with the normalised product ``P_-m`` of all the others.

    An opinion that says nothing has no blame; of two opinions both have the same, which is their conflict.

    Args:
        opinions: (M, N, K) logarithms of the opinions.
    """
    others = (opinions.sum(0) - opinions).log_softmax(-1)
    return -((opinions + others).logsumexp(-1) + math.log(opinions.shape[-1])).T


def left_out(opinions: Tensor, missing: Tensor) -> Tensor:
    """Opinions (M, N, K) with the uniform one, which says nothing, where one is `missing` (N, M)."""
    silent = torch.full_like(opinions, -math.log(opinions.shape[-1]))
    return torch.where(missing.T.unsqueeze(-1), silent, opinions)
