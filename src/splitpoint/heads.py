"""The UQ networks: stacks of independent pointwise MLPs on the channel axis.

A stack holds E networks of one shape whose parameters carry a leading axis E; one batched product serves them all,
so many trials train in the time of a few. A predictor keeps a stack of one and applies it to vectors (N, C) and to
maps (N, C, ...) alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

CACHE_POSITIONS = 4096
"""Positions of a map that go through all layers at a time: few enough for the activations to stay in the CPU's cache."""


class StackedMlp(nn.Module):
    """E independent multi-layer perceptrons with ReLU between their layers.

    Args:
        weights: (E, inputs, outputs) of every layer.
        biases: (E, 1, outputs) of every layer.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(weight) for weight in weights])
        self.biases = nn.ParameterList([nn.Parameter(bias) for bias in biases])

    @staticmethod
    def random(widths: Sequence[int], generators: Sequence[torch.Generator]) -> StackedMlp:
        """Sizes of input, hidden layers and output; uniform in ``+-1/sqrt(inputs)``, member e from ``generators[e]``."""
        weights, biases = [], []
        for inputs, outputs in zip(widths[:-1], widths[1:], strict=True):
            bound = 1 / math.sqrt(max(inputs, 1))
            drawn = torch.stack([torch.rand(inputs + 1, outputs, generator=g) for g in generators])
            drawn = drawn * 2 * bound - bound
            weights.append(drawn[:, :-1].contiguous())
            biases.append(drawn[:, -1:].contiguous())
        return StackedMlp(weights, biases)

    def forward(self, x: Tensor) -> Tensor:
        """(E, B, inputs) -> (E, B, outputs)."""
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, torch.relu(x) if layer else x, weight)
        return x

    def pointwise(self, x: Tensor) -> Tensor:
        """(N, inputs) or (N, inputs, P) -> the same with outputs, for a stack of one."""
        if x.dim() == 3 and x.shape[2] > CACHE_POSITIONS:
            parts = [[self.pointwise(part[None]) for part in row.split(CACHE_POSITIONS, 1)] for row in x]
            return torch.cat([torch.cat(row, 2) for row in parts])
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = x.relu_() if layer else x
            if x.dim() == 2:
                x = torch.addmm(bias[0], x, weight[0])
            else:
                x = torch.baddbmm(bias.mT, weight.mT.expand(len(x), -1, -1), x)
        return x


class Heads(nn.Module):
    """Named trunks on standardised features: ``trunk((h - center) / spread)``.

    Args:
        center: (E, 1, C) mean of every feature.
        spread: (E, 1, C) standard deviation of every feature, 1 where it is constant.
        trunks: the networks by name.
    """

    center: Tensor
    spread: Tensor

    def __init__(self, center: Tensor, spread: Tensor, trunks: Mapping[str, StackedMlp]) -> None:
        super().__init__()
        self.register_buffer("center", center)
        self.register_buffer("spread", spread)
        self.trunks = nn.ModuleDict(trunks)

    @staticmethod
    def random(
        center: Tensor,
        spread: Tensor,
        sizes: Mapping[str, Sequence[int]],
        generators: Sequence[torch.Generator],
    ) -> Heads:
        """Random trunks; `sizes` are those of their hidden layers and output."""
        inputs = center.shape[-1]
        trunks = {name: StackedMlp.random([inputs, *rest], generators) for name, rest in sizes.items()}
        return Heads(center, spread, trunks)

    @staticmethod
    def from_state(state: Mapping[str, Tensor], prefix: str = "") -> Heads:
        """Heads with exactly the tensors of another one's ``state_dict()``, whose names begin with `prefix`."""
        own = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        names = {key.split(".")[1]: None for key in own if key.startswith("trunks.")}

        def layers(name: str, kind: str) -> list[Tensor]:
            count = sum(key.startswith(f"trunks.{name}.{kind}.") for key in own)
            return [own[f"trunks.{name}.{kind}.{layer}"] for layer in range(count)]

        trunks = {name: StackedMlp(layers(name, "weights"), layers(name, "biases")) for name in names}
        return Heads(own["center"], own["spread"], trunks)

    def start_at(self, name: str, values: Tensor) -> None:
        """Let a trunk start at the constant outputs ``softplus^-1(values)``, values (E, M) > 0, whatever its input."""
        self.start_at_zero(name)
        with torch.no_grad():
            self.trunk(name).biases[-1].copy_(inverse_softplus(values)[:, None])

    def start_at_zero(self, name: str) -> None:
        """Let a trunk start at outputs 0, whatever its input."""
        with torch.no_grad():
            self.trunk(name).weights[-1].zero_()
            self.trunk(name).biases[-1].zero_()

    def trunk(self, name: str) -> StackedMlp:
        """The network called `name`."""
        found = self.trunks[name]
        assert isinstance(found, StackedMlp)
        return found

    def forward(self, features: Tensor) -> dict[str, Tensor]:
        """(E, B, C) features -> raw outputs (E, B, M) of every trunk."""
        x = (features - self.center) / self.spread
        return {name: self.trunk(name)(x) for name in self.trunks}

    def pointwise(self, features: Tensor) -> dict[str, Tensor]:
        """(N, C, ...) features -> raw outputs (N, M, ...) of every trunk, for a stack of one."""
        positions = features.shape[2:]
        if not positions:
            x = (features - self.center[0]) / self.spread[0]
            return {name: self.trunk(name).pointwise(x) for name in self.trunks}
        x = (features.flatten(2) - self.center.mT) / self.spread.mT
        return {name: self.trunk(name).pointwise(x).unflatten(2, positions) for name in self.trunks}

    def member(self, index: int) -> Heads:
        """A copy that holds one member of the stack."""
        return Heads.from_state(
            {key: value[index : index + 1].clone() for key, value in self.state_dict().items()}
        )


def inverse_softplus(values: Tensor) -> Tensor:
    """The x for which ``softplus(x) = values``."""
    return values + torch.log(-torch.expm1(-values))
