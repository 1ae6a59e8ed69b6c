"""Features and output of a frozen model from one forward pass: finding the layer, recording it, leaving no trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from splitpoint.batches import Batch, output_tensor, placement
from splitpoint.branches import MOST_BRANCHES, Branch, contexts, influences, traced
from splitpoint.calls import TAIL, Call, CallLog, channels_last, pooled
from splitpoint.errors import LayerError
from splitpoint.frozen import frozen
from splitpoint.hooks import INPUT, METHOD, Pool, Recorder, Watched, find_module, first_tensor, recording, version
from splitpoint.layer_setting import LayerSpec, label_of, method_name, modalities, name_of
from splitpoint.layout import Layout, single
from splitpoint.model_inputs import retold
from splitpoint.wrappers import unwrapped


class Reading(NamedTuple):
    """What one forward pass gave.

    Attributes:
        output: of the model.
        features: one tensor for each place.
        context: (N, W) what layers before the last one read; None where they are not looked at.
        stages: of maps and sequences, what layers before the last one read, one vector a layer; see `layout.bands`.
        missing: for each branch whether it did not run, with zeros (N, width) as its features; empty without branches.
        whole: whether one layer is known to make the output of the features, so that nothing else has a part in it.
    """

    output: Tensor
    features: list[Tensor]
    context: Tensor | None = None
    stages: Sequence[Tensor] = ()
    missing: tuple[bool, ...] = ()
    whole: bool = False


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
        context: further places, whose vectors are read beside the features.
        stages: further places of a model that answers with maps or sequences, pooled as soon as they are read.
        branches: what the places belong to, one for each, where they are branches of the model, any of which may not
            run; their own places among `context` follow each other.
    """

    model: nn.Module
    names: tuple[str, ...]
    function: Callable[..., Any] | None
    reason: str
    output_key: str | int | None = None
    context: tuple[str, ...] = ()
    stages: tuple[str, ...] = ()
    branches: tuple[Branch, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Reading:
        """Run the frozen model once and read its output and features."""
        with torch.no_grad():
            return self.attached(*args, **kwargs)

    def attached(self, *args: Any, **kwargs: Any) -> Reading:
        """The same with gradients, where they are on: for attacks on the inputs."""
        try:
            output, recorders, own = self._watched(args, kwargs)
        except Exception as error:
            retold(error, self.model)
            raise
        return self.reading(output_tensor(output, self.output_key), recorders, own)

    def live(self, *args: Any, **kwargs: Any) -> Reading:
        """The same on the model itself, in whatever mode it is, with gradients: for training it."""
        with ExitStack() as stack:
            recorders = [stack.enter_context(recording(self.model, name, pool)) for name, pool in self.places]
            output = self.model(*args, **kwargs)
            own = None if self.function is None else self.function(*args, **kwargs)
        return self.reading(output_tensor(output, self.output_key), recorders, own)

    @property
    def places(self) -> list[tuple[str, Pool | None]]:
        """Where something is recorded, each with what is kept of it."""
        return [(name, None) for name in (*self.names, *self.context)] + [(name, pooled) for name in self.stages]

    @cached_property
    def _watched(self) -> Watched:
        return Watched(self.model, self.places, self.function)

    def reading(self, output: Tensor, recorders: Sequence[Recorder], own: Any) -> Reading:
        """What the recorders say of a call that gave this output; `own` is what the function gave."""
        names = (*self.names, *self.context)
        recorders, pools = recorders[: len(names)], recorders[len(names) :]
        spoilt = [name for name, recorder in zip(names, recorders, strict=True) if recorder.overwritten]
        if spoilt:
            raise LayerError(
                f"Expected features that stay as they are, but the model overwrites those of {spoilt} in place; "
                "choose another layer with layer=."
            )
        found = [recorder.value for recorder in recorders]
        if self.function is not None:
            names, found = (self.label,), [first_tensor(own)]
        count = len(found) - len(self.context)
        missing = tuple(value is None for value in found[: len(self.branches)])
        pooled_ones = [pool.value for pool in pools]
        if any(missing) and not all(missing):
            found = self._with_blanks(found, missing, output)
            pooled_ones = [value for value in pooled_ones if value is not None]
        values = [_checked(name, value, output) for name, value in zip(names, found, strict=True)]
        stages = [_checked(name, value, output) for name, value in zip(self.stages, pooled_ones, strict=False)]
        return Reading(output, values[:count], joined(values[count:]), stages, missing)

    def _with_blanks(
        self, found: Sequence[Tensor | None], missing: Sequence[bool], output: Tensor
    ) -> list[Tensor | None]:
        """The same with zeros (N, width) for every place of a branch that did not run."""
        own = [branch.width for branch in self.branches]
        widths = own + [width for branch in self.branches for width in branch.context]
        gone = [*missing, *(lost for branch, lost in zip(self.branches, missing, strict=True) for _ in branch.context)]
        parts = zip(found, gone, widths, strict=True)
        return [output.new_zeros(len(output), width) if lost else value for value, lost, width in parts]

    @property
    def label(self) -> str:
        """The places in words."""
        if self.named:
            return " + ".join(f"{b.name}={place}" for b, place in zip(self.branches, self.names, strict=True))
        return " + ".join(self.names) if self.names else f"callable {label_of(self.function)}"

    @property
    def spec(self) -> LayerSpec:
        """A layer setting that opens this tap again."""
        if self.named:
            return {branch.name: place for branch, place in zip(self.branches, self.names, strict=True)}
        return self.function or list(self.names)

    @property
    def named(self) -> bool:
        """Whether the branches have names of their own, those of modalities."""
        pairs = zip(self.branches, self.names, strict=False)
        return any(branch.name != branch_name(place) for branch, place in pairs)

    def columns(self, missing: Sequence[bool], *, context: bool = False) -> Tensor:
        """Which of the features (C,), or of the context, belong to branches that are missing."""
        parts = zip(self.branches, missing, strict=True)
        sizes = [(sum(branch.context) if context else branch.width, lost) for branch, lost in parts]
        return torch.cat([torch.full((size,), lost) for size, lost in sizes])

    def without_context(self) -> Tap:
        """The same tap that reads the last layers only."""
        return replace(self, context=(), branches=tuple(replace(branch, context=()) for branch in self.branches))

    def with_branches(self, names: Sequence[str], reading: Reading, contexts: Sequence[Sequence[int]]) -> Tap:
        """The same tap whose places are branches of these names."""
        widths = [
            value.shape[-1 if self.channels_last(place, value.dim()) else 1]
            for place, value in enumerate(reading.features)
        ]
        parts = zip(names, widths, contexts, strict=True)
        return replace(self, branches=tuple(Branch(name, width, tuple(own)) for name, width, own in parts))

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return placement(self.model)[0]

    def channels_last(self, place: int, dims: int) -> bool:
        """Whether features of `dims` axes at `place` carry their channels on the last one, not on the second.

        Convolutions and batch norms put them second, linear layers and layer norms last; for other modules a
        sequence (N, T, C) has them last and a map (N, C, H, W) second.
        """
        module = None if not self.names or self.names[place].endswith(METHOD) else self._module(place)
        return channels_last(module, dims)

    def _module(self, place: int) -> nn.Module:
        return find_module(self.model, self.names[place])


def _checked(name: str, value: Tensor | None, output: Tensor) -> Tensor:
    if value is None:
        raise LayerError(
            f"Expected layer '{name}' to run and give a floating-point tensor, but it did not; "
            "sp.layers(model, x) lists the layers that do."
        )
    if value.layout is not torch.strided:
        raise LayerError(
            f"Expected dense features from layer '{name}', but got a tensor of layout {value.layout}; choose another "
            "layer with layer=."
        )
    if value.dim() < 2 or value.shape[0] != output.shape[0]:
        raise LayerError(
            f"Expected features of shape (rows, channels, ...) with the output's {len(output)} rows from layer "
            f"'{name}', but got {tuple(value.shape)}; choose another layer with layer=."
        )
    return value


def branch_name(place: str) -> str:
    """What a branch is called that nobody named: its last layer, with the number of the call where it has several.

    >>> branch_name("text.fc:input"), branch_name("fc:input@0")
    ('text.fc', 'fc@0')
    """
    return place.replace(INPUT, "")


def branches_of(saved: Mapping[str, Any]) -> tuple[Branch, ...]:
    """Branches as files and caches hold them; older ones have none."""
    return tuple(Branch(name, width, tuple(context)) for name, width, context in saved.get("branches", ()))


def joined(vectors: Sequence[Tensor]) -> Tensor | None:
    """Vectors (N, C) of several layers side by side, in float32; None where there are none."""
    if len(vectors) == 1:
        return single(vectors[0])
    return torch.cat([value.float() for value in vectors], 1) if vectors else None


def open_tap(
    model: nn.Module,
    layer: LayerSpec,
    batch: Batch,
    output_key: str | int | None = None,
    *,
    context: bool = False,
    stages: int | None = None,
) -> tuple[Tap, Reading]:
    """Turn a layer setting into a `Tap` and run it on a first batch.

    Args:
        model: the base model.
        layer: None (automatic), a name, a module, several of them, those of modalities by their names, or a callable
            on the model's own arguments.
        batch: a first batch, on the model's device.
        output_key: see `Tap`.
        context: whether an automatic tap also reads layers before the last one, see `CallLog.context`.
        stages: whether it does so where the model answers with maps or sequences, see `CallLog.spread`: least number
            of axes of an output without a channel axis, see `Layout.infer`; None for not.
    """
    if isinstance(unwrapped(model), torch.jit.ScriptModule):
        raise LayerError(
            "Expected a Python module to read features from, but got a TorchScript one; pass the model it was made of."
        )
    if layer is None:
        return _automatic(model, batch, output_key, context, stages)
    if isinstance(layer, str | nn.Module):
        tap = Tap(model, (name_of(model, layer),), None, "as asked for", output_key)
    elif isinstance(layer, Mapping):
        return _of_modalities(model, layer, batch, output_key)
    elif isinstance(layer, Sequence):
        if not layer:
            raise LayerError("Expected at least one layer, but got an empty list; leave layer=None to choose one.")
        tap = Tap(model, tuple(name_of(model, part) for part in layer), None, "as asked for", output_key)
    elif callable(layer):
        method = method_name(model, layer)
        names, function = ((method,), None) if method else ((), layer)
        tap = Tap(model, names, function, "as asked for", output_key)
    else:
        raise LayerError(
            "Expected layer= to be None, a name, a module, a mapping from modalities to them, a list of them or a "
            "callable, "
            f"but got {type(layer).__name__}."
        )
    return tap, tap(*batch.args, **batch.kwargs)


def _of_modalities(
    model: nn.Module, layer: Mapping[str, str | nn.Module], batch: Batch, key: str | int | None
) -> tuple[Tap, Reading]:
    """The places of modalities, each of which may be missing later."""
    places = modalities(model, layer)
    tap = Tap(model, tuple(places.values()), None, "as asked for", key)
    reading = tap(*batch.args, **batch.kwargs)
    tap = tap.with_branches(tuple(places), reading, [()] * len(places))
    return tap, reading._replace(missing=(False,) * len(places))


def _automatic(
    model: nn.Module, batch: Batch, key: str | int | None, context: bool, stages: int | None
) -> tuple[Tap, Reading]:
    """Choose the input of the last executed Linear or Conv that produces the output, and check that it does.

    Where the output is put together from several of them, those of all branches.
    """
    with frozen(model) as view:
        log = CallLog(view, context, stages is not None)
        for module in log.names:
            module.register_forward_hook(log, with_kwargs=True)
        output = output_tensor(view(*batch.args, **batch.kwargs), key)
    calls = [call for call in log.calls[-TAIL:] if call.given.dim() >= 2 and len(call.given) == len(output)]
    for call in reversed(calls):
        if call.result.numel() == output.numel() and torch.equal(call.result.flatten(), output.flatten()):
            reason = f"its output is the model's output, {tuple(output.shape)}"
            tap, reading = _chosen(model, call, log, reason, key, output, stages)
            if version(call.result) == call.after:
                return tap, reading._replace(whole=True)
            return _branched(tap, batch, output, context) or (tap, reading)  # others were added to it in place
    for call in reversed(calls):
        if influences(model, call.name, batch, key, output):
            reason = "the last layer that the model's output depends on"
            tap, reading = _chosen(model, call, log, reason, key, output, stages)
            return _branched(tap, batch, output, context) or (tap, reading)
    raise LayerError(
        "Expected a Linear or Conv layer that produces the output, but none was seen to run on the batch's "
        f"{len(output)} rows; name a layer with layer= (sp.layers(model, x) lists them)."
    )


def _chosen(
    model: nn.Module,
    call: Call,
    log: CallLog,
    reason: str,
    key: str | int | None,
    output: Tensor,
    squeezable: int | None,
) -> tuple[Tap, Reading]:
    more, stages = log.context(call), []
    if squeezable is not None:
        last = channels_last(find_module(model, call.name), call.given.dim())
        stages = log.spread(call) if Layout.infer([call.given], [last], output, squeezable).dense else []
    places = tuple(map(log.place, more)), tuple(map(log.place, stages))
    tap = Tap(model, (log.place(call),), None, reason, key, *places)
    return tap, Reading(output, [call.given], joined([other.given for other in more]), [own.given for own in stages])


def _branched(tap: Tap, batch: Batch, output: Tensor, context: bool) -> tuple[Tap, Reading] | None:
    """The same with all branches that the output is put together from; None where there is one, or no telling.

    There is no telling where the layer that was found otherwise is none of them, where one has other rows than the
    output, and where they are more than 16.
    """
    model, key = tap.model, tap.output_key
    trace, ends = traced(model, lambda view: output_tensor(view(*batch.args, **batch.kwargs), key))
    ends = [end for end in ends if end.rows == len(output) and influences(model, end.name, batch, key, output)]
    places = tuple(map(trace.place, ends))
    if not 1 < len(ends) <= MOST_BRANCHES or tap.names[0] not in places:
        return None
    tap = replace(tap, names=places, context=(), stages=tuple(place for place in tap.stages if place not in places))
    values = tap(*batch.args, **batch.kwargs).features
    own = [n for n, value in enumerate(values) if all(value is not other for other in values[n + 1 :])]
    if len(own) == 1:  # several layers on the same features
        return None
    ends, places = [ends[n] for n in own], tuple(places[n] for n in own)
    more = contexts(trace, ends) if context else [[] for _ in ends]
    tap = replace(
        tap,
        names=places,
        context=tuple(trace.place(step) for steps in more for step in steps),
        reason=f"the model's output is put together from what these {len(own)} layers give",
    )
    reading = tap(*batch.args, **batch.kwargs)
    sizes = [[step.given.shape[1] for step in steps if step.given is not None] for steps in more]
    tap = tap.with_branches([branch_name(place) for place in places], reading, sizes)
    return tap, reading._replace(missing=(False,) * len(own))
