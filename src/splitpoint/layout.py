"""How features and outputs of any shape become rows: vectors, maps (N, C, H, W) and sequences (N, T, C).

Canonical form: ``(N, C)`` for one set of numbers per row, ``(N, C, P)`` for P positions. Heads see nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint.errors import ShapeError
from splitpoint.operators import averages, evenly

BANDS = 3
"""Parts of a map or sequence that are averaged apart where it is described by one vector."""


@dataclass(frozen=True)
class Layout:
    """Where the channels are, decided once on the first batch.

    Attributes:
        last: for every feature tensor, whether its channels are on the last axis (else on the second).
        dense: whether the output has positions of its own, so that heads are evaluated at each of them; if not,
            positions of the features are averaged away.
        axis: axis of the output's channels, 1 or -1; None where the output has positions but no channel axis.
    """

    last: tuple[bool, ...]
    dense: bool
    axis: int | None

    @staticmethod
    def infer(features: Sequence[Tensor], last: Sequence[bool], output: Tensor, squeezable: int) -> Layout:
        """Read the layout off the first batch.

        Args:
            features: feature tensors of the batch.
            last: for each, whether its channels are on the last axis.
            output: the model's output.
            squeezable: least number of output axes with which a channel axis of size 1 may be missing.
        """
        spatial = [_positions(f, at_end) for f, at_end in zip(features, last, strict=True)]
        if output.dim() > 2 and all(len(shape) == output.dim() - 2 for shape in spatial):
            preferred = -1 if last[0] else 1
            permuted = all(_positions(output, preferred == 1) == shape for shape in spatial)
            same = all(_positions(output, preferred == -1) == shape for shape in spatial)
            return Layout(tuple(last), True, -preferred if permuted and not same else preferred)
        if output.dim() >= squeezable and all(shape == tuple(output.shape[1:]) for shape in spatial):
            return Layout(tuple(last), True, None)
        return Layout(tuple(last), False, 1)

    def features(self, tensors: Sequence[Tensor]) -> Tensor:
        """Canonical float32 features: (N, C), or (N, C, *positions) at the feature resolution when dense.

        Several dense tensors are brought to the resolution of the largest one before they are joined.
        """
        parts = self.parts(tensors)
        if not self.dense:
            vectors = [part if part.dim() == 2 else part.flatten(2).mean(2) for part in parts]
            return vectors[0] if len(vectors) == 1 else torch.cat(vectors, 1)
        if len(parts) > 1:
            shape = largest(parts)
            parts = [resized(part, shape) for part in parts]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    @property
    def several(self) -> bool:
        """Whether features are several maps or sequences, each at a resolution of its own."""
        return self.dense and len(self.last) > 1

    def parts(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Every feature tensor as (N, C), or (N, C, *positions) at its own resolution, in float32."""
        return [_channels_second(single(t), at_end) for t, at_end in zip(tensors, self.last, strict=True)]

    def bands(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """One vector (N, 3 C) for every feature tensor, see `bands`."""
        return [bands(tensor, at_end) for tensor, at_end in zip(tensors, self.last, strict=True)]

    def output(self, output: Tensor) -> Tensor:
        """Canonical output: (N, D), or (N, D, P) when dense; an output (N,) has D = 1."""
        if not self.dense:
            if output.dim() == 2:
                return output
            return output.flatten(1) if output.dim() > 2 else output.unsqueeze(1)
        return (output.unsqueeze(1) if self.axis is None else output.movedim(self.axis, 1)).flatten(2)

    def heads(self, values: Tensor, output: Tensor) -> Tensor:
        """Head outputs (N, M, *feature positions) resized to the output's positions, as (N, M, P)."""
        if not self.dense:
            return values
        shape = self._positions_of(output)
        return (values if tuple(values.shape[2:]) == shape else resized(values, shape)).flatten(2)

    def restore(self, values: Tensor, like: Tensor) -> Tensor:
        """Canonical (N, D) or (N, D, P) values in the shape of the output `like`."""
        if not self.dense:
            return values.reshape(like.shape)
        shaped: Tensor = values.unflatten(2, self._positions_of(like))
        return shaped.squeeze(1) if self.axis is None else shaped.movedim(1, self.axis)

    def restore_classes(self, values: Tensor, like: Tensor) -> Tensor:
        """Canonical (N, K) or (N, K, P) class values with the class axis where `like` has its channels."""
        if not self.dense:
            return values
        shaped: Tensor = values.unflatten(2, self._positions_of(like))
        return shaped.movedim(1, self.axis or 1)

    def restore_scores(self, values: Tensor, like: Tensor) -> Tensor:
        """Per-position values (N,) or (N, P) in the shape of the output without its channel axis."""
        shaped: Tensor = values.unflatten(1, self._positions_of(like)) if self.dense else values
        return shaped

    def channel_shape(self, score: Tensor) -> tuple[int, ...]:
        """Shape of a threshold that broadcasts against a regression score: every channel has one of its own."""
        shape = tuple(score.shape[1:])
        if not self.dense:
            return shape
        if self.axis is None:
            return ()
        own = score.dim() - 1 if self.axis == -1 else 1
        return tuple(size if axis == own else 1 for axis, size in enumerate(shape, 1))

    def places(self, output: Tensor) -> Tensor:
        """(A, P) coordinates of the output's positions on its A axes, from -1 at one end to 1 at the other."""
        axes = [evenly(size, output.device) for size in self._positions_of(output)]
        return torch.stack(torch.meshgrid(*axes, indexing="ij")).flatten(1)

    def _positions_of(self, output: Tensor) -> tuple[int, ...]:
        if self.axis is None:
            return tuple(output.shape[1:])
        return _positions(output, self.axis == -1)

    def pointwise(self, function: Callable[[Tensor], Tensor], features: Tensor, output: Tensor) -> Tensor:
        """A function of rows (R, C) -> (R, M), applied at every position of the features: (N, M) or (N, M, P)."""
        if features.dim() == 2:
            return function(features)
        rows = features.flatten(2).movedim(1, 2)
        values = function(rows.flatten(0, 1)).unflatten(0, rows.shape[:2]).movedim(2, 1)
        return self.heads(values.unflatten(2, features.shape[2:]), output)

    def at(self, tensors: Sequence[Tensor], output: Tensor, positions: Tensor) -> Tensor:
        """Canonical features (N, C, K) at some output positions (N, K), without those of the others.

        The position of the largest tensor is the nearest one; smaller tensors are interpolated to it as in `features`.
        """
        parts = self.parts(tensors)
        found, shape = largest(parts), self._positions_of(output)
        if found != shape:
            flat = torch.arange(math.prod(found), device=output.device, dtype=torch.float64).reshape(1, 1, *found)
            positions = F.interpolate(flat, shape, mode="nearest-exact").long().flatten()[positions]
        return torch.cat([_gathered(part, found, positions) for part in parts], 1)


def bands(tensor: Tensor, last: bool) -> Tensor:
    """Means (N, 3 C) of a map over its top, middle and bottom third, of a sequence over its beginning, middle and end.

    A vector (N, C) is its own mean. The first axis of positions is the one that is cut; thirds of fewer than three
    positions overlap.

    Args:
        tensor: (N, C), (N, C, *positions) or (N, *positions, C).
        last: whether the channels are on the last axis.
    """
    if tensor.dim() == 2:
        return tensor.float()
    strips = _channels_second(tensor, last).flatten(3) if tensor.dim() > 3 else _channels_second(tensor, last)
    means = strips.mean(3, dtype=torch.float32) if strips.dim() > 3 else strips.float()
    return averages(means, BANDS).flatten(1)


def single(tensor: Tensor) -> Tensor:
    """The tensor in float32; no operator where it is so already."""
    return tensor if tensor.dtype == torch.float32 else tensor.float()


def _positions(tensor: Tensor, last: bool) -> tuple[int, ...]:
    return tuple(tensor.shape[1:-1] if last else tensor.shape[2:])


def _channels_second(tensor: Tensor, last: bool) -> Tensor:
    return tensor.movedim(-1, 1) if last and tensor.dim() > 2 else tensor


def largest(parts: Sequence[Tensor]) -> tuple[int, ...]:
    """Positions of the largest of some tensors (N, C, *positions)."""
    found, *others = (tuple(part.shape[2:]) for part in parts)
    for shape in others:
        if math.prod(shape) > math.prod(found):
            found = shape
    return found


def _gathered(tensor: Tensor, shape: tuple[int, ...], positions: Tensor) -> Tensor:
    """A tensor (N, C, *own), resized to `shape` as `resized` does it, at some positions (N, K) only: (N, C, K)."""
    own, flat = tuple(tensor.shape[2:]), tensor.flatten(2)
    coordinates = torch.unravel_index(positions, shape)

    def found(index: Tensor, axis: int) -> Tensor:
        """The values at a flat index of the axes so far, interpolated along the others."""
        if axis == len(own):
            return flat.gather(2, index.unsqueeze(1).expand(-1, flat.shape[1], -1))
        at, size = coordinates[axis], own[axis]
        if size == shape[axis]:
            return found(index * size + at, axis + 1)
        place = ((at + 0.5) * (size / shape[axis]) - 0.5).clamp(min=0)
        low = place.long()
        part = (place - low).to(flat.dtype).unsqueeze(1)
        above = (low + 1).clamp(max=size - 1)
        return found(index * size + low, axis + 1) * (1 - part) + found(index * size + above, axis + 1) * part

    return found(torch.zeros_like(positions), 0)


def resized(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A map (N, C, *positions) at other positions, interpolated linearly along every axis."""
    mode = {1: "linear", 2: "bilinear", 3: "trilinear"}.get(len(shape))
    if mode is None:
        raise ShapeError(f"Expected maps with one to three positions axes to resize, but got {len(shape)}.")
    return F.interpolate(tensor, shape, mode=mode, align_corners=False)
