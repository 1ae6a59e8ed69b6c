"""Reading a model from outside: places by name, and recorders of what goes in or comes out there.

A place is ``"layer"`` (its output), ``"layer:input"``, either with ``"@k"`` for the k-th call of a layer that runs
several times, or ``"layer.method()"`` (what a method returned while the model ran).
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import Any, Protocol

from torch import Tensor, nn

from splitpoint.errors import LayerError
from splitpoint.frozen import FrozenView
from splitpoint.operators import traced
from splitpoint.wrappers import unwrapped

INPUT = ":input"
CALL = "@"
METHOD = "()"

Pool = Callable[[nn.Module, Tensor], Tensor]
"""From a module and a tensor that goes in or comes out to what is kept of it."""


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
    """Forward hook that keeps the input or output of its module, in one call or the last.

    A top-level class, so that a model caught in the middle of a call can still be pickled or copied.

    Args:
        name: the place.
        pool: what is kept of a tensor, worked out as soon as it is there; None keeps the tensor itself.

    Attributes:
        value: the tensor, None until it came.
    """

    def __init__(self, name: str, pool: Pool | None = None) -> None:
        self.reads_input, self.wanted = _read_as(name)
        self.pool = pool
        self.calls = 0
        self.value: Tensor | None = None
        self.version = 0

    def __call__(self, module: nn.Module, args: Any, *rest: Any) -> None:
        """Keep the tensor, a copy of an output, which an in-place layer may overwrite."""
        self.calls += 1
        if self.wanted in (-1, self.calls - 1):
            if self.reads_input:
                first = args[0] if args else None
                kwargs = rest[0] if len(rest) > 1 else {}
                plain = isinstance(first, Tensor) and first.is_floating_point() and not first.is_nested
                found = first if plain else first_tensor((*args, *kwargs.values()))
            else:
                found = first_tensor(rest[-1])
            if found is not None and self.pool is not None:
                found = self.pool(module, found)
            elif found is not None and not self.reads_input:
                found = found.clone()
            self.keep(found)

    def keep(self, found: Tensor | None) -> None:
        """Take a tensor as the value."""
        self.value, self.version = found, version(found)

    @property
    def overwritten(self) -> bool:
        """Whether the model changed the tensor in place after it was recorded."""
        return version(self.value) != self.version


@cache
def _read_as(name: str) -> tuple[bool, int]:
    """Whether a place is an input, and which call of it is meant, -1 for the last."""
    return INPUT in name, int(name.partition(CALL)[2] or -1)


def version(tensor: Tensor | None) -> int:
    """How often a tensor was changed in place, as far as PyTorch counts it."""
    return 0 if tensor is None or traced() or tensor.is_inference() else tensor._version


class MethodRecorder:
    """Stands in for a bound method and hands what it returned to a recorder.

    Args:
        method: the bound method.
        recorder: gives the recorder of the call under way, None where there is none.
    """

    def __init__(self, method: Callable[..., Any], recorder: Callable[[], Recorder | None]) -> None:
        self.method, self.recorder = method, recorder

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the method and keep its tensor."""
        result = self.method(*args, **kwargs)
        recorder = self.recorder()
        found = None if recorder is None else first_tensor(result)
        if recorder is not None and found is not None:
            recorder.keep(found.clone())
        return result


@contextmanager
def recording(model: nn.Module, name: str, pool: Pool | None = None) -> Iterator[Recorder]:
    """A recorder of the place `name` on the model itself for as long as the context lasts.

    For networks that are being trained, by one thread; predictions listen to a `Watched` view instead.
    """
    recorder, calls = Recorder(name, pool), Calls()
    owner, listener = find_module(model, name), Listener(calls, 0)
    with calls.heard([recorder]):
        if name.endswith(METHOD):
            method = _method(name)
            own = vars(owner).get(method)
            object.__setattr__(owner, method, MethodRecorder(getattr(owner, method), listener.recorder))
            try:
                yield recorder
            finally:
                if own is None:
                    object.__delattr__(owner, method)
                else:
                    object.__setattr__(owner, method, own)
            return
        handle = owner.register_forward_hook(listener, with_kwargs=True)
        try:
            yield recorder
        finally:
            handle.remove()


def _method(name: str) -> str:
    """The name of the method alone."""
    return name.removesuffix(METHOD).rpartition(".")[2]


class Listener:
    """Forward hook that stays at a place of a view and passes what it sees to the recorder of the call under way.

    A top-level class, so that what it listens to can be copied.
    """

    def __init__(self, calls: Heard, number: int) -> None:
        self.calls, self.number = calls, number

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Let the recorder keep the tensor."""
        recorder = self.recorder()
        if recorder is not None:
            recorder(module, args, kwargs, output)

    def recorder(self) -> Recorder | None:
        """That of the call under way in this thread."""
        return self.calls.recorders[self.number] if self.calls.recorders else None


class Heard(Protocol):
    """What a listener asks for the recorders of the call under way."""

    recorders: Sequence[Recorder]


class Calls(threading.local):
    """Who listens to the call under way, for every thread apart."""

    recorders: Sequence[Recorder] = ()

    def heard(self, recorders: Sequence[Recorder]) -> Hearing:
        """Let these recorders listen for as long as the context lasts."""
        return Hearing(self, recorders)

    def __reduce__(self) -> tuple[type[Calls], tuple[()]]:
        """A copy starts with no call under way."""
        return Calls, ()


class Hearing:
    """What `Calls.heard` returns: a context of few operations, since every prediction enters one."""

    __slots__ = ("before", "calls", "recorders")

    def __init__(self, calls: Calls, recorders: Sequence[Recorder]) -> None:
        self.calls, self.recorders, self.before = calls, recorders, calls.recorders

    def __enter__(self) -> None:
        self.calls.recorders = self.recorders

    def __exit__(self, *_: object) -> None:
        self.calls.recorders = self.before


class Watched:
    """A frozen view of a model that is listened to at some places, by any number of threads at once.

    View and hooks are made at the first call, and again when parts of the model were exchanged since.

    Args:
        model: the base model, never changed.
        places: of the recorders, each with what is kept of a tensor, see `Recorder`.
        function: a callable on the model's own arguments that reads further features, or None.
    """

    def __init__(
        self, model: nn.Module, places: Sequence[tuple[str, Pool | None]], function: Callable[..., Any] | None = None
    ) -> None:
        self.model, self.places, self.function = model, places, function
        self._start()

    def _start(self) -> None:
        self._calls = Calls()
        self._made: tuple[FrozenView, Callable[..., Any] | None] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "places": self.places, "function": self.function}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    def __call__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, list[Recorder], Any]:
        """What the model returns, what was recorded at every place, and what the function gives, None without one."""
        before = self._made
        made, function = self._view()
        recorders = [Recorder(name, pool) for name, pool in self.places]
        with nullcontext() if before is self._made and not made.passed_by else made.alone():
            with self._calls.heard(recorders):
                output = made.module(*args, **kwargs)
            own = None if function is None else function(*args, **kwargs)
        made.carry()
        return output, recorders, own

    @property
    def module(self) -> nn.Module:
        """The view, as it is now."""
        return self._view()[0].module

    def _view(self) -> tuple[FrozenView, Callable[..., Any] | None]:
        made = self._made
        if made is None or not made[0].current:
            view = FrozenView(self.model)
            for number, (name, _) in enumerate(self.places):
                listen(view.module, name, Listener(self._calls, number))
            self._made = made = view, view.of(self.function)
        return made


def listen(view: nn.Module, name: str, listener: Listener) -> None:
    """Let a listener stay at a place of a view."""
    owner = find_module(view, name)
    if name.endswith(METHOD):
        method = _method(name)
        object.__setattr__(owner, method, MethodRecorder(getattr(owner, method), listener.recorder))
    else:
        owner.register_forward_hook(listener, with_kwargs=True)


def find_module(model: nn.Module, name: str) -> nn.Module:
    """The module that the place `name` belongs to, or a LayerError that suggests close names."""
    wanted = name.partition(CALL)[0].removesuffix(INPUT)
    if name.endswith(METHOD):
        wanted = name.removesuffix(METHOD).rpartition(".")[0]
    found = unwrapped(model)
    for part in wanted.split(".") if wanted else []:
        child = found._modules.get(part)
        if child is None:
            break
        found = unwrapped(child)
    else:
        return found
    modules = [key for key, _ in named_parts(model)]
    close = difflib.get_close_matches(wanted, modules, n=3) or [key for key in modules[-3:] if key]
    raise LayerError(
        f"Expected the name of a layer, but the model has none called '{wanted}'; did you mean {close}? "
        "sp.layers(model, x) lists them all."
    )


def named_parts(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules of a model with their names, as `find_module` knows them: wrappers are no part of names.

    >>> [name for name, _ in named_parts(nn.DataParallel(nn.Sequential(nn.Linear(2, 1))))]
    ['', '0']
    """
    model = unwrapped(model)
    yield prefix, model
    for name, child in model._modules.items():
        if child is not None:
            yield from named_parts(child, f"{prefix}.{name}" if prefix else name)
