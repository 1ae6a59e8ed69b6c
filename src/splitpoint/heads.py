"""The UQ networks: stacks of independent pointwise MLPs on the channel axis.

A stack holds E networks of one shape whose parameters carry a leading axis E; one batched product serves them all,
so many trials train in the time of a few. A predictor keeps a stack of one and applies it to vectors (N, C) and to
maps (N, C, ...) alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from splitpoint.cache import Table
from splitpoint.layout import largest
from splitpoint.operators import traced
from splitpoint.products import MapProduct
from splitpoint.tasks import Rows

WIDEST, PROJECTED = 2048, 512
LEAST_RIDGE = 1e-6
LARGEST = 0.8
REACH = 0.99

FARTHEST = 1e15
"""Leverage, and deviations of a feature from its mean, that count as no larger: beyond, products overflow."""

CACHE_POSITIONS = 4096
"""Positions of a map that go through all layers at a time: few enough for their activations to stay in cache."""


NARROW = 16
"""Outputs below which a batched product is several times as fast with rows and columns exchanged."""


def stacked_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``x weight + bias`` of E linear layers: (E, B, inputs), (E, inputs, outputs), (E, 1, outputs) -> (E, B, outputs).

    >>> x, weight, bias = torch.ones(2, 3, 20), torch.ones(2, 20, 1), torch.zeros(2, 1, 1)
    >>> stacked_linear(x, weight, bias).flatten()
    tensor([20., 20., 20., 20., 20., 20.])
    """
    if weight.shape[2] < min(NARROW, weight.shape[1]):
        if not torch.is_grad_enabled():
            return NarrowLinear.forward(x, weight, bias)
        found: Tensor = NarrowLinear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return found
    return torch.baddbmm(bias, x, weight)


class NarrowLinear(torch.autograd.Function):
    """`stacked_linear` of few outputs: batched products are slow where the last axis of their result is short."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """See `stacked_linear`."""
        return torch.baddbmm(bias.mT, weight.mT, x.mT).mT

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG004
        """Keep what the gradients need."""
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """Gradients of x, if it needs one, weight and bias."""
        x, weight = ctx.saved_tensors
        grad = grads[0].to(weight.dtype)  # lower precision where the product ran under autocast
        back = None
        if ctx.needs_input_grad[0]:
            back = grad * weight.mT if weight.shape[2] == 1 else torch.bmm(grad, weight.mT)
        return back, torch.bmm(grad.mT, x).mT, grad.sum(1, keepdim=True)


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
        """Uniform in ``+-1/sqrt(inputs)`` for the sizes of input, hidden layers and output; one generator a member."""
        weights, biases = [], []
        for inputs, outputs in itertools.pairwise(widths):
            bound = 1 / math.sqrt(max(inputs, 1))
            drawn = torch.stack([torch.rand(inputs + 1, outputs, generator=g, dtype=torch.float32) for g in generators])
            drawn = drawn * 2 * bound - bound
            weights.append(drawn[:, :-1].contiguous())
            biases.append(drawn[:, -1:].contiguous())
        return StackedMlp(weights, biases)

    def forward(self, x: Tensor) -> Tensor:
        """(E, B, inputs) -> (E, B, outputs)."""
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = stacked_linear(torch.relu(x) if layer else x, weight, bias)
        return x

    def pointwise(self, x: Tensor, done: int = 0) -> Tensor:
        """(N, inputs, P) -> (N, outputs, P), for a stack of one; with one layer `done`, x (N, K, P) is what it gave."""
        for layer, (weight, bias) in list(enumerate(zip(self.weights, self.biases, strict=True)))[done:]:
            x = torch.baddbmm(bias.mT, weight.mT.expand(x.shape[0], -1, -1), x.relu_() if layer else x)
        return x


Piece: TypeAlias = "Callable[[slice, slice], dict[str, Tensor]]"
"""Raw outputs (R, M, P) of some rows and positions, by name."""


class Heads(nn.Module):
    """Named trunks on standardised features and, where a leverage is given, its standardised logarithm.

    With ``x = (h - center) / spread`` and ``lev = floor + |x whiten|^2``, every trunk sees ``[x, (log lev - m) / d]``.
    Beyond ``lev = reach`` it sees the point where the line from the centre leaves that ellipsoid: heads never
    extrapolate, so their outputs cannot fade away far from the data.

    Args:
        state: tensors by name, each with a leading axis E: ``center`` and ``spread`` (E, 1, C); for the leverage
            ``whiten`` (E, C, W), ``floor``, ``reach``, ``log_mean`` and ``log_spread`` (E, 1, 1); and the trunks'
            ``trunks.NAME.weights.I`` and ``trunks.NAME.biases.I``.
    """

    center: Tensor
    spread: Tensor
    whiten: Tensor | None
    floor: Tensor
    reach: Tensor
    log_mean: Tensor
    log_spread: Tensor

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.register_buffer("center", state["center"])
        self.register_buffer("spread", state["spread"])
        for name in ("whiten", "floor", "reach", "log_mean", "log_spread"):
            self.register_buffer(name, state.get(name))
        names = {key.split(".")[1]: None for key in state if key.startswith("trunks.")}
        self.trunks = nn.ModuleDict()
        for name in names:
            depth = sum(key.startswith(f"trunks.{name}.weights.") for key in state)
            weights, biases = (
                [state[f"trunks.{name}.{kind}.{layer}"] for layer in range(depth)] for kind in ("weights", "biases")
            )
            self.trunks[name] = StackedMlp(weights, biases)

    @staticmethod
    def random(
        inputs: Mapping[str, Tensor], sizes: Mapping[str, Sequence[int]], generators: Sequence[torch.Generator]
    ) -> Heads:
        """Heads with the given standardisation and leverage, and random trunks of the given hidden and output sizes."""
        heads = Heads(inputs)
        count = inputs["center"].shape[-1] + ("whiten" in inputs)
        for name, rest in sizes.items():
            heads.trunks[name] = StackedMlp.random([count, *rest], generators)
        return heads

    def start_at(self, name: str, raw: Tensor) -> None:
        """Let a trunk start at the constant outputs `raw` (E, M), whatever its input."""
        with torch.no_grad():
            self.trunk(name).weights[-1].zero_()
            self.trunk(name).biases[-1].copy_(raw[:, None])

    def trunk(self, name: str) -> StackedMlp:
        """The network called `name`."""
        found = self.trunks[name]
        assert isinstance(found, StackedMlp)
        return found

    def forward(self, features: Tensor, leverage: Tensor | None = None) -> dict[str, Tensor]:
        """(E, B, C) features -> raw outputs (E, B, M) of every trunk, and the leverage (E, B, 1) if there is one.

        A leverage that is known already, as for training rows, need not be computed again.
        """
        x = ((features - self.center) / self.spread).clamp(-FARTHEST, FARTHEST)
        if self.whiten is None:
            return {name: self.trunk(name)(x) for name in self.trunks}
        if leverage is None:
            leverage = torch.bmm(x, self.whiten).square().sum(2, keepdim=True) + self.floor
        within = leverage.minimum(self.reach)
        x = x * (within / leverage).sqrt()
        x = torch.cat([x, (within.log() - self.log_mean) / self.log_spread], 2)
        return {name: self.trunk(name)(x) for name in self.trunks} | {"leverage": leverage.clamp(max=FARTHEST)}

    def pointwise(self, features: Tensor | Sequence[Tensor]) -> dict[str, Tensor]:
        """(N, C, ...) features -> raw outputs (N, M, ...) as in `forward`, for a stack of one.

        Several maps (N, C_i, ...) count as channels side by side at the positions of the largest one, where the others
        are interpolated; what is linear in them is done at the resolution of each, see `MapProduct`.
        """
        parts = [features] if isinstance(features, Tensor) else list(features)
        count, shape = parts[0].shape[0], largest(parts)
        if not shape:
            return {name: value[0] for name, value in self(torch.cat(parts, 1)[None]).items()}
        if not traced() and not count:
            some = self.pointwise([part.new_zeros(1, *part.shape[1:]) for part in parts])
            return {name: value[:0] for name, value in some.items()}
        piece = self._side_by_side(parts) if len(parts) > 1 else self._alone(parts[0])
        if traced() or math.prod(shape) <= CACHE_POSITIONS:
            found = piece(slice(None), slice(None))
            return {name: value.unflatten(2, shape) for name, value in found.items()}
        places = [slice(start, start + CACHE_POSITIONS) for start in range(0, math.prod(shape), CACHE_POSITIONS)]
        pieces = [[piece(slice(row, row + 1), place) for place in places] for row in range(count)]
        joined = {
            name: torch.cat([torch.cat([piece[name] for piece in row], 2) for row in pieces]) for name in pieces[0][0]
        }
        return {name: value.unflatten(2, shape) for name, value in joined.items()}

    def _alone(self, features: Tensor) -> Piece:
        """Raw outputs (R, M, P) of some rows and positions of one map (N, C, ...)."""
        flat = features.flatten(2)
        return lambda rows, places: self._piece(flat[rows, :, places])

    def _piece(self, features: Tensor) -> dict[str, Tensor]:
        """(N, C, P) features -> raw outputs (N, M, P)."""
        x = (features - self.center.mT).div_(self.spread.mT).clamp_(-FARTHEST, FARTHEST)
        if self.whiten is None:
            return {name: self.trunk(name).pointwise(x) for name in self.trunks}
        leverage = torch.matmul(self.whiten.mT, x).square().sum(1, keepdim=True) + self.floor
        within = leverage.minimum(self.reach)
        x = torch.cat([x.mul_((within / leverage).sqrt()), (within.log() - self.log_mean) / self.log_spread], 1)
        far = {"leverage": leverage.clamp_(max=FARTHEST)}
        return {name: self.trunk(name).pointwise(x) for name in self.trunks} | far

    def _side_by_side(self, parts: Sequence[Tensor]) -> Piece:
        """The same of several maps."""
        trunks, width = {name: self.trunk(name) for name in self.trunks}, self.center.shape[2]
        firsts = [trunk.weights[0] for trunk in trunks.values()]
        constant = torch.cat([trunk.biases[0] for trunk in trunks.values()], 2).mT
        whiten = [] if self.whiten is None else [self.whiten[0]]
        matrix = torch.cat([*whiten, *(first[0, :width] for first in firsts)], 1) / self.spread[0].mT
        product = MapProduct(parts, self.center[0, 0], matrix)
        sizes = [first.shape[2] for first in firsts]

        def piece(rows: slice, places: slice) -> dict[str, Tensor]:
            x, leverage = product.at((rows, slice(None), places)), {}
            if self.whiten is not None:
                wide = self.whiten.shape[2]
                squares, x = x[:, :wide], x[:, wide:]
                lever = squares.square().sum(1, keepdim=True) + self.floor
                within = lever.minimum(self.reach)
                length = (within.log() - self.log_mean) / self.log_spread
                slopes = torch.cat([first[:, -1:] for first in firsts], 2).mT
                x, leverage = (
                    x.mul_((within / lever).sqrt()).add_(slopes * length),
                    {"leverage": lever.clamp_(max=FARTHEST)},
                )
            x = x.add_(constant)
            ends = zip(trunks.items(), itertools.pairwise(itertools.accumulate(sizes, initial=0)), strict=True)
            return {name: trunk.pointwise(x[:, a:b], done=1) for (name, trunk), (a, b) in ends} | leverage

        return piece

    def member(self, index: int) -> Heads:
        """A copy that holds one member of the stack."""
        return Heads({key: value[index : index + 1].clone() for key, value in self.state_dict().items()})


def inverse_softplus(values: Tensor) -> Tensor:
    """The x for which ``softplus(x) = values``."""
    return values + torch.log(-torch.expm1(-values))


# Leverage: how far the features of a row lie from those that the last layer was fitted to


class Leverage(NamedTuple):
    """What `fit_leverage` finds.

    Attributes:
        inputs: what `Heads` computes the leverage of new rows with, without its leading axis: ``center``, ``spread``
            (1, C), ``whiten`` (C, W), ``floor``, ``reach`` (99% of the training rows lie within it), ``log_mean``,
            ``log_spread`` (1, 1).
        own: (n, 1) leverage of the training rows.
        left_out: (n, 1) the leverage that a training row would have had it been left out, ``lev / (1 - lev)``, as new
            rows are; by the sketch where there is one.
    """

    inputs: dict[str, Tensor]
    own: Tensor
    left_out: Tensor

    @property
    def shrink(self) -> Tensor:
        """(n, 1) residual of a training row over what it would be had the row been left out, ``1 - lev``."""
        return 1 - self.own.clamp(max=LARGEST)


def fit_leverage(
    table: Table, center: Tensor, spread: Tensor, columns: int | None = None, parts: Sequence[int] = ()
) -> Leverage:
    """Matrix and scales of ``lev(h) = 1/n + x' (X'X + n ridge I)^-1 x = floor + |x whiten|^2`` for standardised x.

    In a linear regression on these features the residual of a training row left out is ``r / (1 - lev)``, and the
    squared error at a new row is ``1 + lev`` times the noise; leverage grows with the square of the distance from
    the data. The ridge is the one under which the last layer w would be optimal, ``|X'r| / (n |w|)``: nearly zero for
    a layer trained to the end, larger for one that was stopped early. Features wider than 2048 are projected to 512
    at random, which keeps it about right.

    Args:
        table: columns ``features`` (C), ``output`` and ``residual``.
        center: (C,) mean of the features.
        spread: (C,) their deviation.
        columns: most columns of the matrix for new rows, which are then random mixtures of all: a sketch that keeps
            squared lengths to within a share of ``sqrt(2 / columns)`` (Johnson and Lindenstrauss). None for all.
        parts: numbers of features of branches, see `projection`.
    """
    project = projection(len(center), parts)
    width, n = project.shape[1], table.rows

    def standardised(part: Rows) -> Tensor:
        return ((part["features"] - center) / spread @ project).double()

    outputs = sum((part["output"].double().sum(0) for part in table.slices()), torch.zeros((), dtype=torch.float64))
    gram, with_output, with_residual = (torch.zeros((), dtype=torch.float64) for _ in range(3))
    for part in table.slices():
        x = standardised(part)
        gram = gram + x.T @ x / n
        with_output = with_output + x.T @ (part["output"].double() - outputs / n) / n
        with_residual = with_residual + x.T @ part["residual"].double().nan_to_num(0.0) / n
    eye = torch.eye(width, dtype=torch.float64)
    floor = LEAST_RIDGE * gram.diagonal().sum().clamp(min=1e-6)
    layer = torch.linalg.solve(gram + floor * eye, with_output)
    ridge = _ratio(with_residual, layer).clamp(floor, floor.clamp(min=1.0))
    factor = torch.linalg.cholesky(gram + ridge * eye) * math.sqrt(n)
    whiten = (project.double() @ torch.linalg.inv(factor).T).float()
    squares = [((p["features"] - center) / spread @ whiten).square().sum(1, keepdim=True) for p in table.slices()]
    leverage = torch.cat(squares) + 1 / n
    seen = leverage
    if columns is not None and columns < whiten.shape[1]:
        whiten = whiten @ sketch(whiten.shape[1], columns)
        squares = [((p["features"] - center) / spread @ whiten).square().sum(1, keepdim=True) for p in table.slices()]
        seen = torch.cat(squares) + 1 / n
    left_out = seen / (1 - seen.clamp(max=LARGEST))
    log = left_out.log()
    reach = left_out.flatten().sort().values[int(REACH * (n - 1))]
    inputs = {
        "center": center[None],
        "spread": spread[None],
        "whiten": whiten,
        "floor": torch.full((1, 1), 1 / n, dtype=torch.float32),
        "reach": reach.reshape(1, 1),
        "log_mean": log.mean().reshape(1, 1),
        "log_spread": log.std(correction=0).clamp(min=1e-3).reshape(1, 1),
    }
    return Leverage(inputs, leverage, left_out)


def _ratio(one: Tensor, other: Tensor) -> Tensor:
    """``|one| / |other|`` whatever the units of both; 0 where `one` is 0."""
    size, least = other.abs().amax().clamp(min=torch.finfo(other.dtype).tiny), torch.finfo(other.dtype).tiny
    found: Tensor = (one / size).norm() / (other / size).norm().clamp(min=least)
    return found


def projection(width: int, parts: Sequence[int] = ()) -> Tensor:
    """Identity (width, width) up to 2048 columns, else a fixed random projection to 512.

    Parts of the features, those of branches, get an equal share of the 512 each, so that one may be missing.
    """
    if width <= WIDEST:
        return torch.eye(width, dtype=torch.float32)
    if len(parts) < 2:
        return sketch(width, PROJECTED)
    share = PROJECTED // len(parts)
    own = [sketch(part, share) if part > share else torch.eye(part, dtype=torch.float32) for part in parts]
    found: Tensor = torch.block_diag(*own)
    return found


def sketch(width: int, columns: int) -> Tensor:
    """Fixed random matrix (width, columns) that keeps lengths about right."""
    drawn = torch.randn(width, columns, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    return drawn / math.sqrt(columns)
