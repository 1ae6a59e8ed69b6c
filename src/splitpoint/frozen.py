"""Frozen views of models: the same weights with flags and hooks of their own, so that the model itself is not touched.

A view is a second tree of modules that holds the very tensors of the first one. It is in eval mode whatever the model
is in, hooks on it are no hooks on the model, and tensors that a forward keeps in passing stay on it. That makes
predictions safe beside anything that other threads do with the model but changing its weights: no flag is flipped, no
lock is taken.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from splitpoint.errors import LayerError
from splitpoint.model_inputs import retold
from splitpoint.wrappers import unwrapped

OWN = (
    "_modules", "_parameters", "_buffers", "_forward_hooks", "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs",
    "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
"""Dictionaries of a module that its view has copies of."""

EXCHANGED = (types.MethodType, types.FunctionType, functools.partial, list, tuple, dict)
"""Kinds of objects in which parts of the model are looked for."""

NUMBERS = (int, float)
"""Kinds of attributes in which a forward counts."""

LONGEST = 10_000
"""Most items of a list or dictionary in which parts of the model are looked for; longer ones are data."""


@contextmanager
def frozen(model: nn.Module) -> Iterator[nn.Module]:
    """A frozen view of `model`, and no gradients for as long as the context lasts."""
    made = FrozenView(model)
    with torch.no_grad():
        try:
            yield made.module
        except Exception as error:
            retold(error, model)
            raise
    made.carry()


def frozen_view(model: nn.Module) -> nn.Module:
    """A network that answers as `model` does in eval mode, on the same weights, with flags and hooks of its own.

    Wrappers such as that of `torch.compile` are seen through, at the top and inside: names of the view's parts are
    those of the model without its wrappers.
    """
    return FrozenView(model).module


class FrozenView:
    """A frozen view of a model, and what it was made of.

    Attributes:
        module: the view.
    """

    def __init__(self, model: nn.Module) -> None:
        self._views: dict[int, nn.Module] = {}
        self._sources: list[dict[str, Any]] = []
        self._found: list[dict[str, Any]] = []
        self._counts: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]] = []
        self.module = self._view(model)

    @property
    def current(self) -> bool:
        """Whether the model still is put together of the same parts, tensors, hooks and attributes."""
        try:
            return self._sources == self._found or all(map(_same, self._sources, self._found))
        except (RuntimeError, ValueError, TypeError):  # of tensors and arrays in the place of others
            return False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Refuse for as long as the context lasts that a part of the model itself runs, in train mode, in this thread.

        A forward that reaches its parts in a way that `of` does not see would run them as the model is.
        """
        thread = threading.get_ident()

        def check(module: nn.Module, _args: Any) -> None:
            if module.training and id(module) in self._views and threading.get_ident() == thread:
                raise LayerError(
                    f"Expected a model that reaches its layers by its own attributes, but a {type(module).__name__} of "
                    "the model itself ran, and that is in train mode; call model.eval() first."
                )

        handle = register_module_forward_pre_hook(check)
        try:
            yield
        finally:
            handle.remove()

    def carry(self) -> None:
        """Write numbers that a forward counted on the view, such as that of its calls, to the model as well."""
        for own, source, found, names in self._counts:
            if len(own) > len(found) + 1:  # the one is that of compiled calls
                names.extend(name for name in tuple(own) if name not in found and isinstance(own[name], NUMBERS))
            for name in names:
                if own[name] is not found.get(name):
                    source[name] = found[name] = own[name]

    def of(self, value: Any) -> Any:
        """The same with parts of the model exchanged for their views wherever `value` refers to them.

        Looked into are lists, tuples, dictionaries, bound methods, partial functions, and what functions take from
        around them; everything else stays the same object.
        """
        return self._exchanged(value, {}) if isinstance(value, (nn.Module, *EXCHANGED)) else value

    def _view(self, given: nn.Module) -> nn.Module:
        model = unwrapped(given)
        view = self._views.get(id(model))
        if view is None:
            if isinstance(model, torch.jit.ScriptModule):
                raise LayerError(
                    f"Expected Python modules, but a part of the model is a {type(model).__name__} of TorchScript; "
                    "build the model from the module that it was made of."
                )
            view = object.__new__(type(model))
            self._views[id(model)] = view
            self._fill(view, vars(model))
        self._views[id(given)] = view
        return view

    def _fill(self, view: nn.Module, attributes: dict[str, Any]) -> None:
        """Give a view the attributes of what it is a view of."""
        found = self._note(attributes)
        for name, value in tuple(attributes.items()):
            own = value
            if name in OWN and isinstance(value, dict):
                self._note(value)
                own = type(value)((key, self.of(part)) for key, part in tuple(value.items()))
            else:
                own = self.of(value)
            object.__setattr__(view, name, own)
        object.__setattr__(view, "training", False)
        object.__setattr__(view, "_compiled_call_impl", None)
        if not type(view).__module__.startswith("torch."):
            names = [name for name, own in attributes.items() if isinstance(own, NUMBERS) and name != "training"]
            self._counts.append((vars(view), attributes, found, names))

    def _note(self, source: dict[str, Any]) -> dict[str, Any]:
        """Remember what a dictionary of the model holds now, and return what is remembered."""
        found = dict(source)
        self._sources.append(source)
        self._found.append(found)
        return found

    def _exchanged(self, value: Any, known: dict[int, Any]) -> Any:
        """See `of`; what was looked at before is `known`, by its place in memory."""
        if isinstance(value, nn.Module):
            return self._view(value)
        if id(value) in known or not isinstance(value, EXCHANGED):
            return known.get(id(value), value)
        known[id(value)] = value
        found = value
        if isinstance(value, types.MethodType):
            owner = self._exchanged(value.__self__, known)
            found = value if owner is value.__self__ else types.MethodType(value.__func__, owner)
        elif isinstance(value, functools.partial):
            parts = self._items((value.func, *value.args, *value.keywords.values()), known)
            if parts is not None:
                count = 1 + len(value.args)
                named = dict(zip(value.keywords, parts[count:], strict=True))
                found = functools.partial(parts[0], *parts[1:count], **named)
        elif isinstance(value, types.FunctionType):
            found = self._function(value, known)
        elif isinstance(value, dict):
            parts = self._items(tuple(value.values()), known)
            found = value if parts is None else type(value)(zip(value, parts, strict=True))
        else:
            parts = self._items(value, known)
            found = value if parts is None else type(value)(parts)
        known[id(value)] = found
        return found

    def _items(self, items: Any, known: dict[int, Any]) -> list[Any] | None:
        """Items exchanged, or None where that changes nothing."""
        if len(items) > LONGEST:
            return None
        found = [self._exchanged(item, known) for item in items]
        return found if any(new is not old for new, old in zip(found, items, strict=True)) else None

    def _function(self, function: types.FunctionType, known: dict[int, Any]) -> types.FunctionType:
        """A function that takes views from around it: from its closure, its defaults, and its module's variables."""
        names = [name for name in function.__code__.co_names if isinstance(function.__globals__.get(name), nn.Module)]
        around = self._items([function.__globals__[name] for name in names], known) if names else None
        cells = function.__closure__ or ()
        inside = self._items([_content(cell) for cell in cells], known)
        defaults = self._items(function.__defaults__ or (), known)
        if around is None and inside is None and defaults is None:
            return function
        variables = function.__globals__
        if around is not None:
            variables = {**variables, **dict(zip(names, around, strict=True))}
        closure = cells
        if inside is not None:
            pairs = zip(cells, inside, strict=True)
            closure = tuple(cell if _content(cell) is new else types.CellType(new) for cell, new in pairs)
        found = types.FunctionType(
            function.__code__, variables, function.__name__,
            function.__defaults__ if defaults is None else tuple(defaults), closure,
        )  # fmt: skip
        found.__kwdefaults__ = function.__kwdefaults__
        return found


def _content(cell: types.CellType) -> Any:
    """What a closure holds; the cell itself where it is empty as yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return cell


def _same(now: dict[str, Any], then: dict[str, Any]) -> bool:
    """Whether a module has the attributes that it had; its mode does not matter."""
    return now == then or ("training" in then and {**now, "training": then["training"]} == then)
