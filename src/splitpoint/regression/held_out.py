"""What calibration images teach of the half-widths of dense outputs, where it is better than what training taught.

Heads learn from residuals of training images, which an overfitted network makes small at random places. Calibration
images show how errors depend on the prediction and on the place in the image, whatever the network learned by heart.
Both are mixed, and the mixture serves where it is better on images that it was not fitted to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitpoint.cache import Table, feature_moments
from splitpoint.groups import Owners
from splitpoint.heads import Heads, inverse_softplus
from splitpoint.losses import pinball_loss
from splitpoint.regression.objective import fit_shape, simplex, summary
from splitpoint.tasks import Rows
from splitpoint.training import Losses, Training, folded, train

FOLDS = 5
HIDDEN = 16
"""Units of the head that learns from calibration rows; every position pays for it."""

SHAPED_ROWS = 20_000
"""Most rows of a side that a mixture is fitted to."""

MIXTURES = simplex(5)
"""Weights of the parts: predicted quantile, MAR of the side, the constant, |prediction|, and the held-out quantile."""


class HeldOut(nn.Module):
    """Quantiles of the sizes of residuals by prediction and place, learned from rows that the network has not seen.

    Args:
        state: of the `Heads` with one trunk ``quantile``, and ``low`` and ``high`` (1, D + A), the range of the inputs
            that it learned from; beyond, the answer is that of the edge.
    """

    low: Tensor
    high: Tensor

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.heads = Heads({name.removeprefix("heads."): v for name, v in state.items() if name.startswith("heads.")})
        self.register_buffer("low", state["low"])
        self.register_buffer("high", state["high"])

    def forward(self, prediction: Tensor, place: Tensor, levels: int) -> Tensor:
        """(N, D, ...) predictions and (N, A, ...) places -> half-widths (N, D, 2, L, ...)."""
        wide = [1, -1, *[1] * (prediction.dim() - 2)]
        inputs = torch.cat([prediction, place.expand(prediction.shape[0], *place.shape[1:])], 1).float()
        inside = inputs.maximum(self.low.reshape(wide)).minimum(self.high.reshape(wide))
        return _bounds(self.heads.pointwise(inside)["quantile"], levels, 1)


class HeldOutRows(NamedTuple):
    """Calibration rows, residuals and half-widths in units of the residual scale and of the growth with leverage.

    Attributes:
        parts: (n, D, 2, L, 4) predicted quantile, MAR of the side, 1 and |prediction|.
        current: (n, D, 2, L) half-widths as training shaped them.
        residual: (n, D), NaN where there is none.
        prediction: (n, D) in units of the target.
        place: (n, A) where in its image a row lies.
        groups: (n,) its image.
    """

    parts: Tensor
    current: Tensor
    residual: Tensor
    prediction: Tensor
    place: Tensor
    groups: Tensor


class Mixed(NamedTuple):
    """Half-widths that were learned from calibration rows.

    Attributes:
        shape: (D, 2, L, 5) coefficients of the parts, see `MIXTURES`.
        state: of the `HeldOut` head.
        bounds: (n, D, 2, L) half-widths of the calibration rows, with quantiles of a head that left their image out.
    """

    shape: Tensor
    state: dict[str, Tensor]
    bounds: Tensor


def mixed(
    rows: HeldOutRows, levels: Sequence[float], generator: torch.Generator, device: torch.device, progress: bool
) -> Mixed | None:
    """The mixture of all parts, fitted to calibration images; None where training images taught as much.

    Five times a head and a mixture are fitted without a fifth of the images. On these, the pinball loss of the mixture
    has to be lower, on average over images, than that of the half-widths as they are, scaled to the others.
    """
    if len(rows.groups.unique()) < 2 * FOLDS:
        return None
    heads, fold = _trained(rows, levels, generator, device, progress)
    quantile = torch.empty_like(rows.current)
    inputs = rows.prediction, rows.place
    for number in range(FOLDS):
        own = fold == number
        quantile[own] = heads[number](*(values[own] for values in inputs), len(levels))
    parts = torch.cat([rows.parts, quantile[..., None]], -1)
    shape, gains = rows.parts.new_zeros(*parts.shape[1:4], parts.shape[4]), []
    for output, side, index in torch.cartesian_prod(*(torch.arange(n) for n in parts.shape[1:4])).tolist():
        level, residual = levels[index], rows.residual[:, output] * (1 if side else -1)
        size, of_side = residual.clamp(min=0), residual > 0
        if not bool(of_side.any()):  # takes the half-widths of the other side, see `half_widths`
            gains.append(torch.zeros_like(size))
            continue
        own, plain = parts[:, output, side, index], rows.current[:, output, side, index, None]
        shape[output, side, index] = _fitted(size, own, level, MIXTURES, of_side)
        before, after = torch.ones_like(size), torch.ones_like(size)
        for left_out in (fold == number for number in range(FOLDS)):
            seen = of_side & ~left_out
            after[left_out] = own[left_out] @ _fitted(size, own, level, MIXTURES, seen)
            before[left_out] = plain[left_out] @ _fitted(size, plain, level, [(1.0,)], seen)
        gain = _pinball(size, before, level) - _pinball(size, after, level)
        gains.append(torch.where(of_side, gain, 0.0))
    if float((Owners.of(rows.groups).shares * torch.stack(gains).sum(0)).sum()) <= 0:
        return None
    return Mixed(shape, {name: value.cpu() for name, value in heads[-1].state_dict().items()}, (parts * shape).sum(-1))


def _pinball(size: Tensor, bound: Tensor, level: float) -> Tensor:
    error = size - bound
    return torch.maximum(level * error, (level - 1) * error)


def _fitted(size: Tensor, parts: Tensor, level: float, mixtures: Sequence[tuple[float, ...]], chosen: Tensor) -> Tensor:
    """`fit_shape` on at most `SHAPED_ROWS` of the chosen rows, evenly spread."""
    places = chosen.nonzero()[:, 0]
    places = places[:: max(1, -(-len(places) // SHAPED_ROWS))]
    return fit_shape(size[places], parts[places], level, mixtures)


def _trained(
    rows: HeldOutRows, levels: Sequence[float], generator: torch.Generator, device: torch.device, progress: bool
) -> tuple[list[HeldOut], Tensor]:
    """Heads that left out one fold of the images each, one that saw all, and the fold of every row."""
    inputs = torch.cat([rows.prediction, rows.place], 1)
    values: Rows = {"features": inputs, "residual": rows.residual, "group": rows.groups[:, None]}
    table = Table.in_memory(values)
    members = folded(table, FOLDS, generator)
    fold = torch.stack([member.left_out for member in members[:-1]]).int().argmax(0)
    center, spread = (value.expand(len(members), 1, -1) for value in feature_moments(table))
    start = summary(table, tuple(levels))
    steps = (start["steps"] * start["scale"][:, None, None]).clamp(min=1e-3).flatten()
    seeds = torch.randint(2**62, (len(members),), generator=generator).tolist()
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    sizes = {"quantile": [HIDDEN, len(steps)]}
    heads = Heads.random({"center": center.clone(), "spread": spread.clone()}, sizes, generators).to(device)
    heads.start_at("quantile", inverse_softplus(steps).expand(len(members), -1).to(device))
    level = torch.tensor(levels, dtype=torch.float32, device=device)

    def loss(stack: Heads, batch: Rows) -> Losses:
        bounds = _bounds(stack(batch["features"])["quantile"], len(levels), 2)
        residual = batch["residual"]
        mask = torch.stack([residual < 0, residual > 0], -1).unsqueeze(-1)
        size = residual.abs().unsqueeze(-1).unsqueeze(-1)
        return {"quantile": pinball_loss(size, bounds, level, mask, dim=1).mean((1, 3)).sum(1)}

    settings = Training(learning_rate=5e-3, weight_decay=1e-3)
    label = "fitting on calibration rows"
    train(heads, members, loss, None, settings, generators, group=len(members), label=label, progress=progress)
    heads = heads.cpu()
    span = {"low": inputs.amin(0, keepdim=True), "high": inputs.amax(0, keepdim=True)}
    with torch.no_grad():
        states = [heads.member(number).state_dict(prefix="heads.") for number in range(len(members))]
    return [HeldOut(span | dict(state)).requires_grad_(False) for state in states], fold


def _bounds(raw: Tensor, levels: int, axis: int) -> Tensor:
    """Raw outputs with D * 2 * L channels on an axis -> half-widths (..., D, 2, L, ...) that never cross."""
    return F.softplus(raw.unflatten(axis, (-1, 2, levels))).cumsum(axis + 2)
