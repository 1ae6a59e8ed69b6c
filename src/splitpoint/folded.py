"""Heads on vectors folded into few products, for predictions: what is linear is multiplied out once, not in every call.

Standardisation leaves x of the features. The whitening of leverages and the first layers of all trunks are linear in x,
and one product serves them all. With W the matrix of the heads' leverage, W' that of a leverage of more features, A and
w the first layers' rows for the features and for the logarithm of the leverage, and b their biases:

    ``[v', v, a] = x [W', W, A] + [o, 0, 0]``, ``[lev', lev] = [floor' + |v'|^2, floor + |v|^2]``
    ``within = min(lev, reach)``
    ``first layer = a sqrt(within / lev) + w (log(within) - m) / d + b``

with o for the difference of both standardisations. Each later layer of all trunks is one product, block-diagonal.
Trunks with fewer layers than the deepest hand on what they have found as its positive and its negative part, which ReLU
leaves alone. Results are those of `Heads`, but for rounding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from splitpoint.heads import FARTHEST, NARROW, Heads, StackedMlp

SOUND = 1e3
"""Size of a whitened feature that stands one deviation from the mean, up to which the farthest have finite squares."""


class Standardised(NamedTuple):
    """A leverage ``floor + |((h - center) / spread) whiten|^2`` of features: (1, C), (1, C), (C, W) and (1, 1)."""

    center: Tensor
    spread: Tensor
    whiten: Tensor
    floor: Tensor


class Found(NamedTuple):
    """What folded heads say of rows.

    Attributes:
        raw: (N, M) outputs of all trunks, side by side.
        leverages: (N, 1) or (N, 2) leverages, that of the heads last; None without leverage.
        far: (N, 1) logarithm of the squared distance from the data over that of the reach of training rows, at least 0.
    """

    raw: Tensor
    leverages: Tensor | None = None
    far: Tensor | None = None


class Derived(nn.Module):
    """Tensors worked out from those of other modules: not saved, and no longer `current` once those change.

    Args:
        sources: dictionaries of tensors that they were worked out from.
        tensors: by name.
    """

    def __init__(self, sources: Sequence[Mapping[str, Tensor | None]], tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.detach().contiguous(), persistent=False)
        self._sources = list(sources)
        self._seen = [dict(source) for source in self._sources]
        given = (own for source in self._seen for own in source.values() if own is not None)
        self._counted = [own for own in given if not own.is_inference()]
        self._versions = [own._version for own in self._counted]
        self.training = False

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, as a dictionary: attributes of a module take a microsecond each."""
        return cast("dict[str, Tensor]", self._buffers)

    @property
    def current(self) -> bool:
        """Whether the sources hold the very tensors that they held, unchanged."""
        try:
            return self._sources == self._seen and [own._version for own in self._counted] == self._versions
        except (RuntimeError, ValueError, TypeError):  # of other tensors in their place
            return False


def sources_of(*modules: nn.Module | None) -> Iterator[Mapping[str, Tensor | None]]:
    """The dictionaries that hold the tensors of modules and of their parts."""
    for module in modules:
        for part in () if module is None else module.modules():
            if part._parameters:
                yield part._parameters
            if part._buffers:
                yield part._buffers


def folded(
    heads: Heads, trunks: Sequence[str], more: Standardised | None = None, order: Tensor | None = None
) -> dict[str, Tensor]:
    """The tensors that `answer` computes with, for a stack of one.

    Args:
        heads: the heads.
        trunks: their names, in the order in which their outputs come: files may hold them in another one.
        more: a further leverage, of further features in front of those of the heads; only beside theirs.
        order: another order of the outputs of all trunks side by side.
    """
    layers = _layers([heads.trunk(name) for name in trunks])
    center, spread = heads.center[0].double(), heads.spread[0].double()
    width = center.shape[1]
    (weight, bias), *later = layers
    if order is not None and later:
        later[-1] = later[-1][0][:, order], later[-1][1][:, order]
    elif order is not None:
        weight, bias = weight[:, order], bias[:, order]
    matrix = weight[:width]
    tensors: dict[str, Tensor] = {}
    if heads.whiten is not None:
        matrix = torch.cat([heads.whiten[0].double(), matrix], 1)
        sizes, floors = [heads.whiten.shape[2]], [heads.floor[0]]
        offset = matrix.new_zeros(1, matrix.shape[1])
        if more is not None:
            own, unit, whiten = (part.double() for part in more[:3])
            extra = own.shape[1] - width
            center, spread = torch.cat([own[:, :extra], center], 1), torch.cat([unit[:, :extra], spread], 1)
            whiten = whiten * (spread / unit).T
            offset = torch.cat([(center - own) / spread @ whiten, offset], 1)
            matrix = torch.cat([whiten, torch.cat([matrix.new_zeros(extra, matrix.shape[1]), matrix])], 1)
            sizes, floors = [whiten.shape[1], *sizes], [more.floor, *floors]
        size = matrix[:, : sum(sizes)].abs().sum(0).amax().clamp(min=SOUND) / SOUND
        spread, matrix = spread / size, matrix / size
        slope = weight[width:] / heads.log_spread[0].double()
        bias = bias - slope * heads.log_mean[0].double()
        reach = heads.reach[0].double()
        tensors |= {"slope": slope, "reach": reach.log(), "farthest": (FARTHEST / reach).log().clamp(min=0)}
        tensors |= {"offset": offset}
        tensors |= {"floors": torch.cat(floors), "squares": torch.block_diag(*(offset.new_ones(1, n) for n in sizes))}
    tensors |= {"center": center, "spread": spread, "matrix": matrix, "bias": bias}
    for number, (own_weight, own_bias) in enumerate(later):
        narrow = own_weight.shape[1] < NARROW
        pair = (own_weight.T, own_bias.T) if narrow else (own_weight, own_bias)
        tensors |= {f"weight{number}": pair[0], f"bias{number}": pair[1]}
    return {name: value.float() for name, value in tensors.items()}


def answer(tensors: Mapping[str, Tensor], features: Tensor) -> Found:
    """What heads say of features (N, C), from what `folded` gave."""
    x = ((features - tensors["center"]) / tensors["spread"]).clamp_(-FARTHEST, FARTHEST)
    if "squares" not in tensors:
        return Found(_later(tensors, torch.addmm(tensors["bias"], x, tensors["matrix"])))
    squares = tensors["squares"]
    wide = squares.shape[1]
    product = torch.addmm(tensors["offset"], x, tensors["matrix"])
    whitened = product.narrow(1, 0, wide)
    leverages = narrow_product(tensors["floors"], whitened * whitened, squares)
    own = leverages.narrow(1, leverages.shape[1] - 1, 1).log()
    within = own.minimum(tensors["reach"])
    far = own - within
    first = torch.addcmul(tensors["bias"], within, tensors["slope"])
    first = first.addcmul_(product.narrow(1, wide, product.shape[1] - wide), (far * -0.5).exp_())
    return Found(_later(tensors, first), leverages.clamp_(max=FARTHEST), far.minimum(tensors["farthest"]))


def _later(tensors: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """The layers after the first."""
    for number in itertools.count():
        weight = tensors.get(f"weight{number}")
        if weight is None:
            return x
        bias = tensors[f"bias{number}"]
        product = narrow_product if bias.shape[1] == 1 else torch.addmm
        x = product(bias, x.relu_(), weight)
    raise AssertionError


def narrow_product(bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """``bias + x weight`` (N, M) of few columns from bias (M, 1), x (N, C) and weight (M, C).

    A product of many columns, turned round, is several times as fast as one of few.

    >>> narrow_product(torch.ones(2, 1), torch.ones(1, 3), torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]))
    tensor([[2., 3.]])
    """
    return torch.addmm(bias, weight, x.T).T


def _layers(trunks: Sequence[StackedMlp]) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases, in float64, of all layers of some trunks side by side: the first one on the same inputs."""
    deepest = max(len(trunk.weights) for trunk in trunks)
    found = []
    for layer in range(deepest):
        parts = [_layer(trunk, layer, layer == deepest - 1) for trunk in trunks]
        weights = [weight for weight, _ in parts]
        weight = torch.block_diag(*weights) if layer else torch.cat(weights, 1)
        found.append((weight, torch.cat([bias for _, bias in parts], 1)))
    return found


def _layer(trunk: StackedMlp, layer: int, last: bool) -> tuple[Tensor, Tensor]:
    """A layer of one trunk, or what stands for it after its last one; see the module."""
    end = len(trunk.weights) - 1
    weight, bias = (part[min(layer, end)][0].detach().double() for part in (trunk.weights, trunk.biases))
    if layer > end:
        eye = torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)
        weight = torch.cat([eye, -eye]) if last else torch.eye(2 * len(eye), dtype=eye.dtype, device=eye.device)
        return weight, weight.new_zeros(1, weight.shape[1])
    return (weight, bias) if last or layer < end else (torch.cat([weight, -weight], 1), torch.cat([bias, -bias], 1))
