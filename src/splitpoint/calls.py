"""Which layers of a model ran, in order, and a few of them that are spread over the network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from splitpoint.hooks import CALL, INPUT, first_tensor, version
from splitpoint.layout import bands

T = TypeVar("T")

TAIL = 8
"""Last calls that are kept in any case."""

MOST_PLACES, WIDEST_CONTEXT = 4, 2048
"""Most layers of a network that are read where several are, and most features of them together."""

MOST_STAGES = 8
"""Most layers of a network on maps or sequences that are pooled, the last one among them."""


def channels_last(module: nn.Module | None, dims: int) -> bool:
    """See `Tap.channels_last`."""
    if isinstance(module, nn.modules.conv._ConvNd | nn.modules.batchnorm._BatchNorm):
        return False
    return isinstance(module, nn.Linear | nn.LayerNorm) or dims == 3


def pooled(module: nn.Module, given: Tensor) -> Tensor:
    """What is kept of a map or sequence that a module reads: one vector a row, see `layout.bands`."""
    return bands(given, channels_last(module, given.dim()))


@dataclass(frozen=True)
class Call:
    """One call of a candidate layer: its name, which call of it, what went in, what came out, and their versions."""

    name: str
    number: int
    given: Tensor
    version: int
    result: Tensor
    after: int


def place_of(name: str, number: int, count: int) -> str:
    """The place that a call of a layer reads, the `number`-th of `count`: the last one goes without a number.

    >>> place_of("fc", 1, 2), place_of("fc", 0, 2)
    ('fc:input', 'fc:input@0')
    """
    return name + INPUT + ("" if number == count - 1 else f"{CALL}{number}")


class Stage(NamedTuple):
    """What is kept of a call in any case: name, number, and a vector (N, W) of what went in."""

    name: str
    number: int
    given: Tensor


class CallLog:
    """Forward hook on every candidate layer that remembers calls in order.

    Args:
        model: whose layers they are.
        whole: whether all calls are kept, as long as layers read vectors; else the last few.
        stages: whether vectors are kept of all calls.
    """

    def __init__(self, model: nn.Module, whole: bool = False, stages: bool = False) -> None:
        self.names = {module: name for name, module in model.named_modules() if is_candidate(module)}
        self.calls: list[Call] = []
        self.counts: dict[str, int] = {}
        self.whole = whole
        self.stages: list[Stage] | None = [] if stages else None

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Add a call to the log."""
        given, result = first_tensor((*args, *kwargs.values())), first_tensor(output)
        name = self.names[module]
        number = self.counts.get(name, 0)
        self.counts[name] = number + 1
        if given is None or result is None:
            return
        if self.stages is not None and given.dim() >= 2:
            self.stages.append(Stage(name, number, pooled(module, given)))
        self.whole = self.whole and given.dim() == 2
        self.calls.append(Call(name, number, given, version(given), result, version(result)))
        if not self.whole:
            del self.calls[:-TAIL]

    def place(self, call: Call | Stage) -> str:
        """Name of the input of a call."""
        return place_of(call.name, call.number, self.counts[call.name])

    def context(self, last: Call) -> list[Call]:
        """Calls before `last` whose inputs tell how far a row lies from others: spread over the network, the first too.

        With `last` they are at most 4 and have at most 2048 features. None where a layer reads maps, sequences or
        other rows. What several layers read counts once, and what is overwritten afterwards not at all.
        """
        calls = self.calls[: next(number for number, call in enumerate(self.calls) if call is last)]
        if not self.whole or any(len(call.given) != len(last.given) for call in calls):
            return []
        distinct: dict[int, Call] = {}
        for call in calls:
            if call.given is not last.given and version(call.given) == call.version:
                distinct.setdefault(id(call.given), call)
        for most in range(MOST_PLACES, 1, -1):
            chosen = spread([*distinct.values(), last], most)
            if sum(call.given.shape[1] for call in chosen) <= WIDEST_CONTEXT:
                return chosen[:-1]
        return []

    def spread(self, last: Call) -> list[Stage]:
        """At most 7 calls before `last`, evenly spread over the network, with what tells of maps or sequences there.

        They have rows of their own and at most 2048 features; what several layers read counts once.
        """
        found = self.stages or []
        place = next((n for n, stage in enumerate(found) if stage[:2] == (last.name, last.number)), 0)
        distinct = found[place : place + 1]
        for stage in reversed(found[:place]):
            given = stage.given
            fits = len(given) == len(last.given) and given.shape[1] <= WIDEST_CONTEXT
            if fits and not any(torch.equal(given, other.given) for other in distinct):
                distinct.insert(0, stage)
        return spread(distinct, MOST_STAGES)[:-1] if len(distinct) > 1 else []


def spread(items: Sequence[T], most: int) -> list[T]:
    """At most so many items, two or more, evenly spread from the first to the last one.

    >>> spread("abcdefg", 3), spread("ab", 3), spread("a", 3)
    (['a', 'd', 'g'], ['a', 'b'], ['a'])
    """
    end, count = len(items) - 1, min(most, len(items))
    return [items[place] for place in sorted({end - step * end // max(count - 1, 1) for step in range(count)})]


def is_candidate(module: nn.Module) -> bool:
    """Linear and convolution layers, and leaf modules of other libraries that multiply by a weight matrix."""
    if isinstance(module, nn.Linear | nn.Bilinear | nn.modules.conv._ConvNd):
        return True
    weight = getattr(module, "weight", None)
    is_matrix = isinstance(weight, Tensor) and weight.dim() >= 2 and not isinstance(module, nn.Embedding)
    return is_matrix and next(module.children(), None) is None
