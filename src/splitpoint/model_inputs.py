"""What goes into a model, in the types that it takes, and what the model says to what it does not take.

A model decides for itself: inputs go in as they are wherever it runs on them. Where it does not, numbers of another
precision, then whole numbers one by one and last all of them, become numbers of its own type, and the first way in
which it runs is kept. So token numbers stay whole for an embedding, and the bytes of an image become numbers for a
convolution, also where one model takes both.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from splitpoint.errors import DataError, SplitPointError

MOST_SINGLE = 8
"""Inputs of whole numbers that are tried one by one."""

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)

Kinds: TypeAlias = "tuple[torch.dtype, ...]"
_CHOSEN: weakref.WeakKeyDictionary[nn.Module, dict[Kinds, tuple[int, ...]]] = weakref.WeakKeyDictionary()
"""By model and types of its inputs: places of the inputs that are converted."""


def to_convert(
    model: nn.Module, values: Sequence[Tensor], own: torch.dtype, runs: Callable[[Sequence[Tensor]], bool]
) -> tuple[int, ...]:
    """Places of the inputs that have to be of the type `own` of the model's weights.

    Args:
        model: the model.
        values: all tensors among its inputs, in a fixed order.
        own: type of its weights.
        runs: whether the model runs on these tensors instead of its inputs.
    """
    kinds = tuple(value.dtype for value in values)
    strange = [kind for kind in kinds if kind not in (own, torch.bool) and not kind.is_complex]
    if not strange:
        return ()
    tokens = all(kind in (torch.int64, torch.int32, torch.bool) for kind in kinds)
    if tokens and any(isinstance(module, _EMBEDDINGS) for module in model.modules()):
        return ()
    known = _CHOSEN.setdefault(model, {})
    if kinds not in known:
        first = [value[:1] if value.dim() else value for value in values]
        ways = list(_ways(kinds, own))
        found = (way for some in (first, values) for way in ways if runs(converted(some, way, own)))
        known[kinds] = next(found, ())
    return known[kinds]


def _ways(kinds: Kinds, own: torch.dtype) -> Iterator[tuple[int, ...]]:
    """Places that may have to be converted, fewest first; True and False never are."""
    reals = tuple(n for n, kind in enumerate(kinds) if kind.is_floating_point and kind != own)
    wholes = tuple(
        n for n, kind in enumerate(kinds) if not (kind.is_floating_point or kind.is_complex or kind == torch.bool)
    )
    yield ()
    if reals:
        yield reals
    if len(wholes) > 1:
        yield from ((*reals, one) for one in wholes[:MOST_SINGLE])
    if wholes:
        yield (*reals, *wholes)


def converted(values: Sequence[Tensor], places: Sequence[int], own: torch.dtype) -> list[Tensor]:
    """The tensors with those at some places in the type `own`."""
    return [value.to(own) if n in places else value for n, value in enumerate(values)]


class ForwardError(DataError, RuntimeError):
    """What the forward of a model raised, in one sentence; the error itself is its cause."""


def retold(error: Exception, model: nn.Module) -> None:
    """Say in one sentence what a model's forward raised; the error of the library and a lack of memory stay as such."""
    if isinstance(error, SplitPointError | torch.OutOfMemoryError | MemoryError):
        return
    first = next(iter(str(error).strip().splitlines()), "nothing more")[:200].rstrip(" .;:")
    raise ForwardError(
        f"Expected inputs that the model takes, but the forward of {type(model).__name__} raised "
        f"{type(error).__name__}: {first}; give it what it is called with elsewhere."
    ) from error
