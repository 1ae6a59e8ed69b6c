"""Optimisers of the training loops: the arithmetic of `torch.optim` without what it does around every step.

A step of many small networks takes a few tenths of a millisecond, and of that `torch.optim.Adam.step` spends a sizeable
part on hooks and on grouping its parameters anew.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw


class Optimiser(ABC):
    """Some parameters and how they follow their gradients."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @abstractmethod
    def step(self, rate: float) -> None:
        """Move the parameters along their gradients; those without one stay."""


class Adam(Optimiser):
    """Adam (Kingma & Ba 2015), with an L2 penalty or with decoupled weight decay (Loshchilov & Hutter 2019)."""

    def __init__(self, parameters: Iterable[nn.Parameter], weight_decay: float = 0.0, *, decoupled: bool) -> None:
        super().__init__(parameters)
        self.weight_decay = weight_decay
        self.update = adamw if decoupled else adam
        self.states = [
            (torch.zeros_like(own), torch.zeros_like(own), torch.zeros((), dtype=torch.float32, device=own.device))
            for own in self.parameters
        ]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """See `Optimiser`."""
        moved = [
            (parameter, parameter.grad, *state)
            for parameter, state in zip(self.parameters, self.states, strict=True)
            if parameter.grad is not None
        ]
        parameters, gradients, first, second, steps = map(list, zip(*moved, strict=True))
        self.update(
            parameters, gradients, first, second, [], steps, lr=rate, weight_decay=self.weight_decay,
            beta1=0.9, beta2=0.999, eps=1e-8, amsgrad=False, maximize=False, fused=True,
        )  # fmt: skip


class Sgd(Optimiser):
    """Stochastic gradient descent with Nesterov momentum 0.9 and an L2 penalty."""

    def __init__(self, parameters: Iterable[nn.Parameter], weight_decay: float = 0.0) -> None:
        super().__init__(parameters)
        self.inner = torch.optim.SGD(self.parameters, lr=0.0, momentum=0.9, nesterov=True, weight_decay=weight_decay)

    def step(self, rate: float) -> None:
        """See `Optimiser`."""
        self.inner.param_groups[0]["lr"] = rate
        self.inner.step()
