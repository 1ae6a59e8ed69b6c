"""Layer settings: what they may be, and the places in a model that they name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from torch import nn

from splitpoint.errors import LayerError
from splitpoint.hooks import METHOD, find_module, named_parts
from splitpoint.wrappers import unwrapped

LayerSpec: TypeAlias = (
    "str | nn.Module | Callable[..., Any] | Sequence[str | nn.Module] | Mapping[str, str | nn.Module] | None"
)
"""None (automatic), a name, a module, several of them, those of modalities by their names, or a callable."""


def modalities(model: nn.Module, layer: Mapping[str, str | nn.Module]) -> dict[str, str]:
    """The places of modalities by their names."""
    pairs = layer.items()
    if not layer or not all(isinstance(key, str) and isinstance(part, str | nn.Module) for key, part in pairs):
        raise LayerError(
            f"Expected layer= to name modalities, such as {{'image': 'image_net'}}, but got {dict(layer)}; give "
            "each a name and a layer."
        )
    return {name: name_of(model, part) for name, part in pairs}


def name_of(model: nn.Module, layer: str | nn.Module) -> str:
    """The name of a layer that is given by it, or as a module of the model."""
    if isinstance(layer, str):
        find_module(model, layer)
        return layer
    for name, module in named_parts(model):
        if module is unwrapped(layer):
            return name
    raise LayerError(
        f"Expected a module of the model, but this {type(layer).__name__} is not part of it; "
        "pass one of its own layers or a name."
    )


def layer_name(model: nn.Module, layer: LayerSpec) -> str | None:
    """A layer setting in words, the same for the same places of the same model."""
    if layer is None or isinstance(layer, str):
        return layer
    if isinstance(layer, Mapping):
        return " + ".join(f"{name}={place}" for name, place in modalities(model, layer).items())
    if isinstance(layer, Sequence):
        return " + ".join(name_of(model, part) for part in layer)
    if isinstance(layer, nn.Module):
        return name_of(model, layer)
    return method_name(model, layer) or f"callable {label_of(layer)} {_body(layer)}"


def _body(function: Any) -> str:
    """Fingerprint of what a function does, so that two lambdas are not taken for one."""
    code = getattr(function, "__code__", None)
    parts = (
        () if code is None else (code.co_code, code.co_names, [c for c in code.co_consts if not hasattr(c, "co_code")])
    )
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def method_name(model: nn.Module, function: Callable[..., Any]) -> str | None:
    """``"owner.method()"`` when `function` is a method of `model` or of a part of it, such as ``model.encode``."""
    owner, method = getattr(function, "__self__", None), getattr(function, "__name__", "forward")
    if method == "forward":
        return None
    owners = (name for name, part in named_parts(model) if part is owner)
    return next((f"{name}.{method}{METHOD}".removeprefix(".") for name in owners), None)


def label_of(function: Any) -> str:
    """A callable in words."""
    return str(getattr(function, "__qualname__", type(function).__name__))
