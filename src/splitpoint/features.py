"""Features and output of a frozen model from one forward pass: finding the layer, recording it, leaving no trace."""

from __future__ import annotations

import difflib
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from splitpoint.batches import Batch, output_tensor, placement
from splitpoint.errors import LayerError

LayerSpec: TypeAlias = "str | nn.Module | Callable[..., Any] | Sequence[str | nn.Module] | None"

INPUT = ":input"
CALL = "@"
METHOD = "()"
_TAIL = 8


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
        return value if value.is_floating_point() else None
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return next((t for t in map(first_tensor, value) if t is not None), None)
    return None


class Recorder:
    """Forward hook that keeps the input or output of its module, in one call or the last, for its own thread.

    A top-level class, so that a model caught in the middle of a call can still be pickled or copied.
    """

    def __init__(self, name: str) -> None:
        self.reads_input = INPUT in name
        self.wanted = int(name.partition(CALL)[2] or -1)
        self.calls = 0
        self.value: Tensor | None = None
        self.thread = threading.get_ident()

    def __call__(self, _module: nn.Module, args: Any, *rest: Any) -> None:
        """Keep the tensor, a copy of an output, which an in-place layer may overwrite."""
        if threading.get_ident() != self.thread:
            return
        self.calls += 1
        if self.wanted in (-1, self.calls - 1):
            kwargs = rest[0] if len(rest) > 1 else {}
            found = first_tensor((*args, *kwargs.values()) if self.reads_input else rest[-1])
            self.value = found if found is None or self.reads_input else found.clone()


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
    def value(self) -> Tensor | None:
        """What the method returned last in this thread."""
        return self.values.get(threading.get_ident())


@dataclass(frozen=True)
class Tap:
    """A model together with the places its features are read from.

    Attributes:
        model: the base model, never changed.
        names: ``"layer"`` (its output), ``"layer:input"`` or ``"layer.method()"`` (what the method returned in
            passing), one for each place; empty when `function` is set.
        function: callable that computes the features from the model's own arguments, or None.
        reason: why these places, for people.
        output_key: which entry of the model's output is the prediction, where it has several.
    """

    model: nn.Module
    names: tuple[str, ...]
    function: Callable[..., Any] | None
    reason: str
    output_key: str | int | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, list[Tensor]]:
        """Run the frozen model once: its output and the features, one tensor for each place."""
        with frozen(self.model):
            return self.live(*args, **kwargs)

    def live(self, *args: Any, **kwargs: Any) -> tuple[Tensor, list[Tensor]]:
        """The same in whatever mode the model is, with gradients: for training it."""
        with ExitStack() as stack:
            recorders = [stack.enter_context(_recording(self.model, name)) for name in self.names]
            output = output_tensor(self.model(*args, **kwargs), self.output_key)
            found = [recorder.value for recorder in recorders]
            if self.function is not None:
                found = [first_tensor(self.function(*args, **kwargs))]
        return output, [self._checked(place, value, output) for place, value in enumerate(found)]

    @property
    def label(self) -> str:
        """The places in words."""
        return " + ".join(self.names) if self.names else f"callable {_label(self.function)}"

    @property
    def spec(self) -> LayerSpec:
        """A layer setting that opens this tap again."""
        return self.function or list(self.names)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return placement(self.model)[0]

    def _checked(self, place: int, value: Tensor | None, output: Tensor) -> Tensor:
        name = self.names[place] if self.names else self.label
        if value is None:
            raise LayerError(
                f"Expected layer '{name}' to run and give a floating-point tensor, but it did not; "
                "sp.layers(model, x) lists the layers that do."
            )
        if value.dim() < 2 or len(value) != len(output):
            raise LayerError(
                f"Expected features of shape (rows, channels, ...) with the output's {len(output)} rows from layer "
                f"'{name}', but got {tuple(value.shape)}; choose another layer with layer=."
            )
        return value

    def channels_last(self, place: int, dims: int) -> bool:
        """Whether features of `dims` axes at `place` carry their channels on the last one, not on the second.

        Convolutions and batch norms put them second, linear layers and layer norms last; for other modules a
        sequence (N, T, C) has them last and a map (N, C, H, W) second.
        """
        module = None if not self.names or self.names[place].endswith(METHOD) else self._module(place)
        if isinstance(module, nn.modules.conv._ConvNd | nn.modules.batchnorm._BatchNorm):
            return False
        return isinstance(module, nn.Linear | nn.LayerNorm) or dims == 3

    def _module(self, place: int) -> nn.Module:
        return find_module(self.model, self.names[place])


@contextmanager
def _recording(model: nn.Module, name: str) -> Iterator[Recorder | MethodRecorder]:
    if name.endswith(METHOD):
        with _listening(find_module(model, name), name.removesuffix(METHOD).rpartition(".")[2]) as listener:
            yield listener
        return
    recorder = Recorder(name)
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


def _label(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__name__))


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


def open_tap(
    model: nn.Module, layer: LayerSpec, batch: Batch, output_key: str | int | None = None
) -> tuple[Tap, Tensor, list[Tensor]]:
    """Turn a layer setting into a `Tap` and run it on a first batch: the tap, the output and the features.

    Args:
        model: the base model.
        layer: None (automatic), a name, a module, several of them, or a callable on the model's own arguments.
        batch: a first batch, on the model's device.
        output_key: see `Tap`.
    """
    if layer is None:
        return _automatic(model, batch, output_key)
    if isinstance(layer, str | nn.Module):
        tap = Tap(model, (_name_of(model, layer),), None, "as asked for", output_key)
    elif isinstance(layer, Sequence):
        if not layer:
            raise LayerError("Expected at least one layer, but got an empty list; leave layer=None to choose one.")
        tap = Tap(model, tuple(_name_of(model, part) for part in layer), None, "as asked for", output_key)
    elif callable(layer):
        method = _method_name(model, layer)
        names, function = ((method,), None) if method else ((), layer)
        tap = Tap(model, names, function, "as asked for", output_key)
    else:
        raise LayerError(
            "Expected layer= to be None, a name, a module, a list of them or a callable, "
            f"but got {type(layer).__name__}."
        )
    return tap, *tap(*batch.args, **batch.kwargs)


def _name_of(model: nn.Module, layer: str | nn.Module) -> str:
    if isinstance(layer, str):
        find_module(model, layer)
        return layer
    for name, module in model.named_modules():
        if module is layer:
            return str(name)
    raise LayerError(
        f"Expected a module of the model, but this {type(layer).__name__} is not part of it; "
        "pass one of its own layers or a name."
    )


def layer_name(model: nn.Module, layer: LayerSpec) -> str | None:
    """A layer setting in words, the same for the same places of the same model."""
    if layer is None or isinstance(layer, str):
        return layer
    if isinstance(layer, Sequence):
        return " + ".join(_name_of(model, part) for part in layer)
    if isinstance(layer, nn.Module):
        return _name_of(model, layer)
    return _method_name(model, layer) or f"callable {_label(layer)}"


def _method_name(model: nn.Module, function: Callable[..., Any]) -> str | None:
    """``"owner.method()"`` when `function` is a method of `model` or of a part of it, such as ``model.encode``."""
    owner, method = getattr(function, "__self__", None), getattr(function, "__name__", "forward")
    if method == "forward":
        return None
    owners = (name for name, part in model.named_modules() if part is owner)
    return next((f"{name}.{method}{METHOD}".removeprefix(".") for name in owners), None)


@dataclass(frozen=True)
class Call:
    """One call of a candidate layer: its name, which call of it, and what went in and came out."""

    name: str
    number: int
    given: Tensor
    result: Tensor


class CallLog:
    """Forward hook on every candidate layer that remembers the last few calls in order."""

    def __init__(self, model: nn.Module) -> None:
        self.names = {module: name for name, module in model.named_modules() if _is_candidate(module)}
        self.calls: list[Call] = []
        self.counts: dict[str, int] = {}

    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Add a call to the log."""
        given, result = first_tensor((*args, *kwargs.values())), first_tensor(output)
        name = self.names[module]
        number = self.counts.get(name, 0)
        self.counts[name] = number + 1
        if given is not None and result is not None:
            self.calls = [*self.calls[1 - _TAIL :], Call(name, number, given, result)]


def _is_candidate(module: nn.Module) -> bool:
    """Linear and convolution layers, and leaf modules of other libraries that multiply by a weight matrix."""
    if isinstance(module, nn.Linear | nn.Bilinear | nn.modules.conv._ConvNd):
        return True
    weight = getattr(module, "weight", None)
    is_matrix = isinstance(weight, Tensor) and weight.dim() >= 2 and not isinstance(module, nn.Embedding)
    return is_matrix and next(module.children(), None) is None


def _automatic(model: nn.Module, batch: Batch, key: str | int | None) -> tuple[Tap, Tensor, list[Tensor]]:
    """Choose the input of the last executed Linear or Conv that produces the output, and check that it does."""
    with ExitStack() as stack:
        stack.enter_context(frozen(model))
        log = CallLog(model)
        for module in log.names:
            stack.callback(module.register_forward_hook(log, with_kwargs=True).remove)
        output = output_tensor(model(*batch.args, **batch.kwargs), key)
    calls = [call for call in log.calls if call.given.dim() >= 2 and len(call.given) == len(output)]
    for call in reversed(calls):
        if call.result.numel() == output.numel() and torch.equal(call.result.flatten(), output.flatten()):
            reason = f"its output is the model's output, {tuple(output.shape)}"
            return _chosen(model, call, log, reason, key, output)
    for call in reversed(calls):
        if _influences(model, call, batch, key, output):
            return _chosen(model, call, log, "the last layer that the model's output depends on", key, output)
    raise LayerError(
        "Expected a Linear or Conv layer that produces the output, but none was seen to run on the batch's "
        f"{len(output)} rows; name a layer with layer= (sp.layers(model, x) lists them)."
    )


def _chosen(
    model: nn.Module, call: Call, log: CallLog, reason: str, key: str | int | None, output: Tensor
) -> tuple[Tap, Tensor, list[Tensor]]:
    last = call.number == log.counts[call.name] - 1
    tap = Tap(model, (call.name + INPUT + ("" if last else f"{CALL}{call.number}"),), None, reason, key)
    return tap, output, [call.given]


class Nudge:
    """Forward hook that shifts a module's output, to see whether the model's output follows."""

    def __call__(self, _module: nn.Module, _args: Any, output: Any) -> Any:
        """The shifted output."""
        if not isinstance(output, Tensor):
            return output
        return output + 0.1 * (1 + output.abs().mean())


def _influences(model: nn.Module, call: Call, batch: Batch, key: str | int | None, output: Tensor) -> bool:
    handle = find_module(model, call.name).register_forward_hook(Nudge())
    try:
        with frozen(model):
            nudged = output_tensor(model(*batch.args, **batch.kwargs), key)
    finally:
        handle.remove()
    return not torch.equal(nudged, output)
