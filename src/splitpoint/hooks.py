"""Reading a model from outside: eval mode for the time of a call, hooks that leave no trace, places by name.

A place is ``"layer"`` (its output), ``"layer:input"``, either with ``"@k"`` for the k-th call of a layer that runs
several times, or ``"layer.method()"`` (what a method returned while the model ran).
"""

from __future__ import annotations

import difflib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from splitpoint.errors import LayerError

INPUT = ":input"
CALL = "@"
METHOD = "()"

_LOCK = threading.Lock()
_FROZEN: weakref.WeakKeyDictionary[nn.Module, tuple[int, list[nn.Module]]] = weakref.WeakKeyDictionary()


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Run `model` in eval mode without gradients; every module gets its own mode back afterwards.

    Threads may overlap: the modes come back when the last of them is done.
    """
    with _LOCK:
        users, training = _FROZEN.get(model) or (0, [module for module in model.modules() if module.training])
        _FROZEN[model] = users + 1, training
        for module in training:
            module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        with _LOCK:
            users, training = _FROZEN.pop(model)
            if users > 1:
                _FROZEN[model] = users - 1, training
            else:
                for module in training:
                    module.training = True


def first_tensor(value: Any) -> Tensor | None:
    """The first floating-point tensor in a module's input or output, looking into tuples and mappings."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() and not value.is_nested else None
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return next((t for t in map(first_tensor, value) if t is not None), None)
    return None


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in a module's input or output, looking into sequences and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for part in value:
            yield from tensors_in(part)


class Recorder:
    """Forward hook that keeps the input or output of its module, in one call or the last, for its own thread.

    A top-level class, so that a model caught in the middle of a call can still be pickled or copied.

    Args:
        name: the place.
        pool: what is kept of a tensor, worked out as soon as it is there; None keeps the tensor itself.
    """

    def __init__(self, name: str, pool: Callable[[nn.Module, Tensor], Tensor] | None = None) -> None:
        self.reads_input = INPUT in name
        self.pool = pool
        self.wanted = int(name.partition(CALL)[2] or -1)
        self.calls = 0
        self.value: Tensor | None = None
        self.version = 0
        self.thread = threading.get_ident()

    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """Keep the tensor, a copy of an output, which an in-place layer may overwrite."""
        if threading.get_ident() != self.thread:
            return
        self.calls += 1
        if self.wanted in (-1, self.calls - 1):
            kwargs = rest[0] if len(rest) > 1 else {}
            found = first_tensor((*args, *kwargs.values()) if self.reads_input else rest[-1])
            if found is not None and self.pool is not None:
                found = self.pool(module, found)
            elif found is not None and not self.reads_input:
                found = found.clone()
            self.value = found
            self.version = version(self.value)

    @property
    def overwritten(self) -> bool:
        """Whether the model changed the tensor in place after it was recorded."""
        return version(self.value) != self.version


def version(tensor: Tensor | None) -> int:
    """How often a tensor was changed in place, as far as PyTorch counts it."""
    return 0 if tensor is None or tensor.is_inference() else tensor._version


class MethodRecorder:
    """Stands in for a bound method while the model runs and keeps what it returned, for every thread apart."""

    def __init__(self, method: Callable[..., Any], own: Any) -> None:
        self.method, self.own = method, own
        self.users = 0
        self.values: dict[int, Tensor | None] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method and keep its tensor."""
        result = self.method(*args, **kwargs)
        self.values[threading.get_ident()] = first_tensor(result)
        return result

    @property
    def overwritten(self) -> bool:
        """Never: what a method returned is taken as the model left it."""
        return False

    @property
    def value(self) -> Tensor | None:
        """What the method returned last in this thread."""
        return self.values.get(threading.get_ident())


@contextmanager
def recording(
    model: nn.Module, name: str, pool: Callable[[nn.Module, Tensor], Tensor] | None = None
) -> Iterator[Recorder | MethodRecorder]:
    """A recorder of the place `name` for as long as the context lasts; see `Recorder`, a method is not pooled."""
    if name.endswith(METHOD):
        with _listening(find_module(model, name), name.removesuffix(METHOD).rpartition(".")[2]) as listener:
            yield listener
        return
    recorder = Recorder(name, pool)
    handle = find_module(model, name).register_forward_hook(recorder, with_kwargs=True)
    try:
        yield recorder
    finally:
        handle.remove()


@contextmanager
def _listening(owner: nn.Module, method: str) -> Iterator[MethodRecorder]:
    """A stand-in for `method` that threads share; the last one puts back what was there."""
    with _LOCK:
        own = vars(owner).get(method)
        listener = own if isinstance(own, MethodRecorder) else MethodRecorder(getattr(owner, method), own)
        listener.users += 1
        object.__setattr__(owner, method, listener)
    try:
        yield listener
    finally:
        with _LOCK:
            listener.users -= 1
            listener.values.pop(threading.get_ident(), None)
            if not listener.users and listener.own is None:
                object.__delattr__(owner, method)
            elif not listener.users:
                object.__setattr__(owner, method, listener.own)


def find_module(model: nn.Module, name: str) -> nn.Module:
    """The module that the place `name` belongs to, or a LayerError that suggests close names."""
    wanted = name.partition(CALL)[0].removesuffix(INPUT)
    if name.endswith(METHOD):
        wanted = name.removesuffix(METHOD).rpartition(".")[0]
    try:
        return model.get_submodule(wanted)
    except AttributeError:
        modules = [key for key, _ in model.named_modules()]
    close = difflib.get_close_matches(wanted, modules, n=3) or [key for key in modules[-3:] if key]
    raise LayerError(
        f"Expected the name of a layer, but the model has none called '{wanted}'; did you mean {close}? "
        "sp.layers(model, x) lists them all."
    )
