"""What regression heads put out, and the losses they are trained and judged by."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.cache import Table
from splitpoint.consistency import Mars
from splitpoint.heads import Heads
from splitpoint.losses import CoverageForm, coverage_loss, masked_mse, pinball_loss
from splitpoint.operators import running_max
from splitpoint.regression.checks import Judged
from splitpoint.tasks import Rows
from splitpoint.training import Losses

SHAPING_ROWS = 1_000_000


@dataclass(frozen=True)
class Outputs:
    """Meaning of the raw outputs of regression heads.

    Attributes:
        levels: confidence levels, ascending.
        shared: whether one trunk gives both half-widths and MARs.
    """

    levels: tuple[float, ...]
    shared: bool

    @property
    def names(self) -> tuple[str, ...]:
        """Those of the trunks, quantiles first."""
        return ("shared",) if self.shared else ("quantile", "mar")

    def trunks(self, hidden: int, quantile_layers: int, mar_layers: int, outputs: int) -> dict[str, list[int]]:
        """Sizes of hidden and last layers of every trunk."""
        quantiles, mars = outputs * 2 * len(self.levels), outputs * 3
        if self.shared:
            return {"shared": [hidden] * mar_layers + [quantiles + mars]}
        return {"quantile": [hidden] * quantile_layers + [quantiles], "mar": [hidden] * mar_layers + [mars]}

    def decode(self, raw: Mapping[str, Tensor], axis: int) -> tuple[Tensor, Mars]:
        """Half-widths (..., D, 2, L, ...) and MARs (..., D, ...) in units of the residual scale.

        Raw channels lie on `axis`; sides are (down, up). Half-widths of rising levels add up positive steps, so they
        never cross.
        """
        levels = len(self.levels)
        if self.shared:
            outputs = raw["shared"].shape[axis] // (2 * levels + 3)
            quantile, mar = raw["shared"].split([outputs * 2 * levels, outputs * 3], axis)
        else:
            quantile, mar = raw["quantile"], raw["mar"]
        steps = F.softplus(quantile.unflatten(axis, (-1, 2, levels)))
        bounds = steps if levels == 1 else steps.cumsum(axis + 2)
        return bounds, Mars(*F.softplus(mar.unflatten(axis, (-1, 3))).unbind(axis + 1))


class LeftOut(NamedTuple):
    """What heads say about rows that they were not trained on, in units of the residual scale.

    Attributes:
        bounds: (G, R, D, 2, L) half-widths.
        mars: (G, R, D).
        residual: (G, R, D) of these rows.
    """

    bounds: Tensor
    mars: Mars
    residual: Tensor

    def of(self, group: int, shape: Tensor) -> Judged:
        """The rows of one group with their intervals at the highest level, after the half-widths were shaped.

        Args:
            group: its number.
            shape: (D, 2, L, 3), see `shaped_bounds`.
        """
        own = shaped_bounds(self.bounds[group], Mars(*(mar[group] for mar in self.mars)), shape)
        down, up = own[..., -1].unbind(2)
        return Judged(down, up, self.residual[group], "left-out")


@dataclass(frozen=True)
class Objective:
    """Losses of a stack of regression heads.

    Attributes:
        outputs: meaning of the heads' outputs.
        quantile_loss: "pinball", "coverage" or "coverage_paper".
        scale: (E, D) size of a residual.
        group: consecutive members on the same table; of several, the last one is trained on all rows.
    """

    outputs: Outputs
    quantile_loss: str
    scale: Tensor
    group: int

    def loss(self, heads: Heads, rows: Rows) -> Losses:
        """Training loss (E,) of every trunk: quantile loss of both sides and squared error of the MARs (E21)."""
        bounds, mars, residual = self._predicted(heads, rows)
        size, up, down = residual.abs().unsqueeze(-1), residual > 0, residual < 0
        quantile = self._quantile(size.unsqueeze(-1), bounds, torch.stack([down, up], -1).unsqueeze(-1))
        squares = masked_mse(torch.stack(mars, -1), size, torch.stack([up | down, up, down], -1), dim=1)
        squared = squares.mean(1).sum(1)
        return {"shared": quantile + squared} if self.outputs.shared else {"quantile": quantile, "mar": squared}

    def _quantile(self, size: Tensor, bounds: Tensor, mask: Tensor) -> Tensor:
        """Loss (E,) of half-widths (E, B, D, 2, L), both sides at once: small operations cost more than small sums."""
        if self.quantile_loss == "pinball":
            return pinball_loss(size, bounds, self._level, mask, dim=1).mean((1, 3)).sum(1)
        form: CoverageForm = "paper" if self.quantile_loss == "coverage_paper" else "authors"
        return coverage_loss(size, bounds, self._level, mask, dim=1, form=form).mean((1, 3)).sum(1)

    def score(self, heads: Heads, rows: Rows) -> Losses:
        """Pinball loss (G,) of the half-widths on left-out rows, after each is scaled to cover its level there.

        Only the quantile heads are judged: the MAR heads do better when trained to the end.
        """
        bounds, _, residual = self._predicted(heads, rows)
        bounds, residual = self._left_out(bounds), self._left_out(residual)
        level = self._level
        losses = []
        for side, mask in enumerate((residual < 0, residual > 0)):
            size, bound, rows_of_side = residual.abs().unsqueeze(-1), bounds[:, :, :, side], mask.unsqueeze(-1)
            count = rows_of_side.sum(1, keepdim=True)
            ratio = torch.where(rows_of_side, size / bound, torch.inf).sort(1).values
            rank = torch.minimum((count * level).long(), count - 1).clamp(min=0)
            factor = ratio.gather(1, rank)
            scaled = torch.where(factor.isfinite(), factor, 1.0) * bound
            losses.append(pinball_loss(size, scaled, level, rows_of_side, dim=1).mean((1, 2)))
        return {"shared" if self.outputs.shared else "quantile": torch.stack(losses).sum(0)}

    def left_out(self, heads: Heads, rows: Rows) -> LeftOut | None:
        """What the members that left rows out say about them, on the CPU; None where no rows were left out."""
        if not rows["residual"].shape[1]:
            return None
        with torch.no_grad():
            bounds, mars, residual = self._predicted(heads, rows)
        limit = SHAPING_ROWS // self.scale.shape[1]
        found = (self._left_out(t)[:, :limit].cpu() for t in (bounds, mars.total, mars.up, mars.down, residual))
        bounds, total, up, down, residual = found
        return LeftOut(bounds, Mars(total, up, down), residual)

    def shapes(self, found: LeftOut | None, blind: Sequence[bool]) -> Tensor:
        """Coefficients (G, D, 2, L, 3) of the half-widths, from left-out rows; (1, 0, 0) where there are none.

        Heads that are `blind` have constant ones.
        """
        groups, outputs, levels = len(self.scale) // self.group, self.scale.shape[1], self.outputs.levels
        shapes = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float32).repeat(groups, outputs, 2, len(levels), 1)
        if found is None:
            return shapes.to(self.scale.device)
        for place in torch.cartesian_prod(*(torch.arange(n) for n in shapes.shape[:4])).tolist():
            group, output, side, level = place
            error = found.residual[group, :, output] * (1 if side else -1)
            rows_of_side = error > 0
            mar = (found.mars.up if side else found.mars.down)[group, :, output][rows_of_side]
            bound = found.bounds[group, :, output, side, level][rows_of_side]
            parts = torch.stack([bound, mar, torch.ones_like(mar)], 1)
            mixtures = MIXTURES[-1:] if blind[group] else MIXTURES
            shapes[group, output, side, level] = fit_shape(error[rows_of_side], parts, levels[level], mixtures)
        return shapes.to(self.scale.device)

    @cached_property
    def _level(self) -> Tensor:
        """The levels (L,)."""
        return torch.tensor(self.outputs.levels, dtype=torch.float32, device=self.scale.device)

    @property
    def _unit(self) -> Tensor:
        """What residuals (E, B, D) are divided by, (E, 1, D); joint training moves the scale as it goes."""
        return torch.where(self.scale > 0, self.scale, 1.0)[:, None]

    def _left_out(self, values: Tensor) -> Tensor:
        """(E, R, ...) of all members -> (G, R', ...) of those that left the rows out, one group after the other."""
        groups: Tensor = values.unflatten(0, (-1, self.group))
        return groups[:, : max(self.group - 1, 1)].flatten(1, 2)

    def _predicted(self, heads: Heads, rows: Rows) -> tuple[Tensor, Mars, Tensor]:
        """Half-widths (E, B, D, 2, L), MARs and residuals (E, B, D), all in units of the scale."""
        bounds, mars = self.outputs.decode(heads(rows["features"], rows.get("left_out")), axis=2)
        residual = (rows["residual"] / self._unit).to(bounds.dtype)
        return bounds, mars, residual / rows["shrink"] if "shrink" in rows else residual


def shaped_bounds(bounds: Tensor, mars: Mars, shape: Tensor, more: Sequence[Tensor] = ()) -> Tensor:
    """Half-widths ``c0 quantile + c1 MAR of the side + c2 + c3 ...`` that never cross.

    Args:
        bounds: (N, D, 2, L, ...) predicted quantiles of the sides (down, up).
        mars: (N, D, ...) predicted MARs.
        shape: (D, 2, L, 3) coefficients, see `fit_shape`, or more of them.
        more: further parts (N, D, 2, L, ...), one for each further coefficient.
    """
    c0, c1, c2, *rest = (c.reshape(1, *c.shape, *[1] * (bounds.dim() - 4)) for c in shape.unbind(-1))
    sides = torch.stack([mars.down, mars.up], 2).unsqueeze(3)
    mixed = c0 * bounds + c1 * sides + c2
    for coefficient, part in zip(rest, more, strict=True):
        mixed = mixed + coefficient * part
    return running_max(mixed, 3)


def summary(table: Table, levels: tuple[float, ...]) -> dict[str, Tensor]:
    """Scale (D,) of the residuals, and where heads start: steps (D, 2, L) and MARs (D, 3) in units of it.

    A side without residuals has MAR 0, as in `consistency.sample_mars`, and the half-widths of both sides together.
    The scale is in float32 unless it is beyond its range.
    """
    residual = torch.cat([part["residual"] / part.get("shrink", torch.ones(())) for part in table.slices()])
    scale = residual.abs().nanmean(0).nan_to_num(0.0)
    unit = (residual / torch.where(scale > 0, scale, 1.0)).float()
    scale = in_range(scale)
    shares = torch.tensor(levels, dtype=torch.float32)
    steps, mars = (
        torch.ones(len(scale), 2, len(levels), dtype=torch.float32),
        torch.ones(len(scale), 3, dtype=torch.float32),
    )
    for output, column in enumerate(unit.T):
        sides = [-column[column < 0], column[column > 0]]
        both = torch.cat(sides)
        for side, sizes in enumerate(sides):
            chosen = sizes if len(sizes) else both
            if len(chosen):
                ordered = chosen.sort().values
                bounds = ordered[(shares * len(ordered)).long().clamp(max=len(ordered) - 1)]
                steps[output, side] = torch.diff(bounds, prepend=torch.zeros(1, dtype=torch.float32))
                mars[output, 2 - side] = sizes.mean() if len(sizes) else 0.0
    return {"scale": scale, "steps": steps.clamp(min=1e-3), "mars": mars.clamp(min=1e-3)}


def in_range(scale: Tensor) -> Tensor:
    """The same in float32 where that has room for thousandths and for thousands of it."""
    used, limits = scale[scale > 0].double(), torch.finfo(torch.float32)
    inside = bool(((used > 1e3 * limits.tiny) & (used < limits.max / 1e3)).all())
    return scale.float() if inside else scale.double()


def empty_sides(table: Table) -> Tensor:
    """(D, 2) whether no residual lies below, or above, where some do on the other side."""
    residual = table.column("residual")
    any_of = torch.stack([(residual < 0).any(0), (residual > 0).any(0)], 1)
    return ~any_of & any_of.flip(1)


def simplex(parts: int, steps: int = 4) -> tuple[tuple[float, ...], ...]:
    """Weights of so many parts in multiples of ``1 / steps`` that add up to 1; the earlier a part, the larger first.

    >>> simplex(2, 2)
    ((1.0, 0.0), (0.5, 0.5), (0.0, 1.0))
    """
    counts = itertools.product(range(steps, -1, -1), repeat=parts - 1)
    return tuple((*(n / steps for n in own), 1 - sum(own) / steps) for own in counts if sum(own) <= steps)


MIXTURES = simplex(3)
"""Weights of the parts of a half-width that `fit_shape` chooses from; the last one is the constant alone."""


def fit_shape(size: Tensor, parts: Tensor, level: float, mixtures: Sequence[tuple[float, ...]] = MIXTURES) -> Tensor:
    """Coefficients (C,) of a half-width ``c . parts`` that covers a share `level` of the sizes, at least pinball loss.

    Parts are brought to mean 1, mixed with weights on a grid of the simplex, and the mixture is scaled until it
    covers exactly `level` of these rows, which the heads must not have been trained on.

    Args:
        size: (n,) residual sizes of one side.
        parts: (n, C) positive candidates, such as predicted quantile, predicted MAR of the side, and the constant 1.
        level: share to cover.
        mixtures: weights of the parts to choose from.
    """
    if not len(size):
        return torch.eye(parts.shape[1], dtype=torch.float32)[0]
    weights = torch.tensor(mixtures, dtype=torch.float32) / parts.mean(0).clamp(min=torch.finfo(parts.dtype).tiny)
    shapes = parts @ weights.T
    rank = min(int(level * len(size)), len(size) - 1)
    factor = (size[:, None] / shapes.clamp(min=torch.finfo(parts.dtype).tiny)).sort(0).values[rank]
    error = size[:, None] - factor * shapes
    loss = torch.maximum(level * error, (level - 1) * error).mean(0)
    best = int(loss.argmin())
    return factor[best] * weights[best]
