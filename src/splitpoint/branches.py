"""Branches: the last layers that a model's output is put together from, and what is read of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from splitpoint.batches import Batch, output_tensor
from splitpoint.calls import MOST_PLACES, WIDEST_CONTEXT, is_candidate, place_of, spread
from splitpoint.frozen import frozen
from splitpoint.hooks import find_module, first_tensor, tensors_in, version

MOST_BRANCHES = 16
"""Most last layers that count as branches: more of them are steps of one computation, such as those of a sequence."""


@dataclass(frozen=True)
class Branch:
    """One of several parts of a model that end in a place of their own, such as the network of a modality.

    Attributes:
        name: of the modality, or of the layer where nobody named it.
        width: number of its features.
        context: of the layers before the last one that are read beside the features, the number of features of each.
    """

    name: str
    width: int
    context: tuple[int, ...] = ()


@dataclass(frozen=True)
class Step:
    """One call of a layer.

    Attributes:
        name: of the layer.
        number: of the call, among those of the layer.
        before: numbers of all steps that what went in depends on.
        given: what went in, where that is a vector a row; None else.
        version: of that tensor.
        rows: number of rows that went in, 0 where there was no tensor with rows and channels.
    """

    name: str
    number: int
    before: frozenset[int]
    given: Tensor | None
    version: int
    rows: int


class Trace(TorchDispatchMode):
    """Follows through one forward pass which layers every tensor was made from, counted from their last results.

    A linear or convolution layer starts anew: what it gives depends on its own call, and through it on what came
    before. All other operations pass on what their arguments depend on, those in place too, since views share their
    memory with what they are views of. That holds with and without gradients, in any precision.

    It is also the forward hook of these layers.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names = {module: name for name, module in model.named_modules() if is_candidate(module)}
        self.steps: list[Step] = []
        self.counts: dict[str, int] = {}
        self.origins: dict[int, frozenset[int]] = {}

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Do the operation and pass on where its arguments came from."""
        kwargs = kwargs or {}
        origins = self.direct((args, kwargs))
        result = func(*args, **kwargs)
        for tensor in tensors_in(result):
            self.origins[_memory(tensor)] = origins
        return result

    def direct(self, value: Any) -> frozenset[int]:
        """Steps that the tensors in `value` depend on without another layer between."""
        found = (self.origins.get(_memory(tensor), frozenset()) for tensor in tensors_in(value))
        return frozenset().union(*found)

    def hook(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Forward hook of a layer: add a step, which its results come from."""
        name, given = self.names[module], first_tensor((*args, *kwargs.values()))
        number = self.counts.get(name, 0)
        self.counts[name] = number + 1
        direct = self.direct((args, kwargs))
        before = direct.union(*(self.steps[step].before for step in direct))
        vector = given if given is not None and given.dim() == 2 else None
        rows = len(given) if given is not None and given.dim() >= 2 else 0
        self.steps.append(Step(name, number, before, vector, version(vector), rows))
        for tensor in tensors_in(output):
            self.origins[_memory(tensor)] = frozenset([len(self.steps) - 1])

    def ends(self, output: Tensor) -> list[int]:
        """Steps whose results the output is put together from, in order.

        One that also feeds another of them is a part of what that one reads, as in residual networks, where every
        block adds to what the last one reads.
        """
        direct = self.direct(output)
        inner = frozenset().union(*(self.steps[step].before for step in direct))
        return sorted(direct - inner)

    def place(self, step: Step) -> str:
        """Name of the input of a step."""
        return place_of(step.name, step.number, self.counts[step.name])


def _memory(tensor: Tensor) -> int:
    """What a tensor shares with its views."""
    found: int = tensor.untyped_storage()._cdata
    return found


def traced(model: nn.Module, run: Callable[[nn.Module], Tensor]) -> tuple[Trace, list[Step]]:
    """Run the model once and find the steps that its output is put together from; none where that cannot be told.

    Args:
        model: the base model.
        run: calls a network like it on a first batch and gives the output tensor.
    """
    with frozen(model) as view:
        trace = Trace(view)
        for module in trace.names:
            module.register_forward_hook(trace.hook, with_kwargs=True)
        try:
            with trace:
                output = run(view)
            return trace, [trace.steps[step] for step in trace.ends(output)]
        except (RuntimeError, NotImplementedError, TypeError):  # of compiled parts and tensors without memory
            return trace, []


def contexts(trace: Trace, ends: Sequence[Step]) -> list[list[Step]]:
    """Of every branch, steps before its last one whose inputs tell how far a row lies from others.

    As `CallLog.context` for each branch, on what no branch before it reads; a branch has at most 4 places with its
    last one, and all together have at most 2048 features. None where a layer reads maps, sequences or other rows.
    """
    rows = ends[0].rows
    if any(step.given is None or step.rows != rows for step in trace.steps):
        return [[] for _ in ends]
    for most in range(MOST_PLACES, 1, -1):
        seen = {id(end.given) for end in ends}
        found: list[list[Step]] = []
        for end in ends:
            own: list[Step] = []
            for number in sorted(end.before):
                step = trace.steps[number]
                if id(step.given) not in seen and version(step.given) == step.version:
                    seen.add(id(step.given))
                    own.append(step)
            found.append(spread([*own, end], most)[:-1])
        every = [step.given for part in [*found, ends] for step in part]
        if sum(given.shape[1] for given in every if given is not None) <= WIDEST_CONTEXT:
            return found
    return [[] for _ in ends]


class Nudge:
    """Forward hook that disturbs a module's output, to see whether the model's output follows.

    Neither a shift nor a scale, which a softmax or a norm behind it would swallow.
    """

    def __call__(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        """The disturbed output."""
        if not isinstance(output, Tensor):
            return output
        ramp = torch.linspace(-1, 1, output.numel(), device=output.device, dtype=output.dtype).reshape(output.shape)
        return output * 1.1 + (1 + output.abs().mean()) * ramp


def influences(model: nn.Module, name: str, batch: Batch, key: str | int | None, output: Tensor) -> bool:
    """Whether the model's output on the batch, which is `output`, follows what the layer of this name gives."""
    with frozen(model) as view:
        find_module(view, name).register_forward_hook(Nudge())
        nudged = output_tensor(view(*batch.args, **batch.kwargs), key)
    return not torch.equal(nudged, output)
