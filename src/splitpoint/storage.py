"""Saving and loading predictors: one safetensors file with JSON metadata, written atomically, never unpickled."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from splitpoint.baselines import METHODS
from splitpoint.baselines.blueprint import Blueprint
from splitpoint.baselines.method import Baseline
from splitpoint.baselines.posthoc import BaselinePredictor, PostHocBaseline
from splitpoint.baselines.trained import NetworkBaseline, NetworkPredictor
from splitpoint.batches import placement
from splitpoint.classification import ClassificationPredictor, SplitPointClassifier
from splitpoint.errors import LayerError, SettingsError, StorageError
from splitpoint.features import LayerSpec, Tap
from splitpoint.files import model_fingerprint, read_tensors, write_tensors
from splitpoint.hooks import find_module
from splitpoint.layout import Layout
from splitpoint.method import Method
from splitpoint.predictor import PostHocPredictor, Predictor
from splitpoint.regression import RegressionPredictor, SplitPointRegressor
from splitpoint.surgery import Factory, build, factory_of

FORMAT = 1
KEY = "splitpoint"
DESCRIPTION = {"format": int, "kind": str, "settings": dict, "layout": dict, "inputs": int}
"""What the metadata hold in any case, and of which kind."""

POST_HOC = {"layer": dict, "base_model": str}
"""What they hold beside that for a predictor on a base model."""

KINDS: dict[str, type[Method[Any]] | type[Baseline]] = {
    "regression": SplitPointRegressor,
    "classification": SplitPointClassifier,
    **{name: method for name, method in METHODS.items() if issubclass(method, NetworkBaseline | PostHocBaseline)},
}
"""Methods whose predictors can be saved. Split-point methods save as one of the first two."""


def save(predictor: Predictor[Any], path: Path) -> None:
    """Write the heads, their settings and the base model's fingerprint to `path`, all or nothing."""
    metadata = {KEY: json.dumps(_describe(predictor), default=float), "format": "pt"}
    if path.is_dir():
        raise StorageError(f"Expected a file to save to, but {path} is a folder; name a file in it.")
    if not path.parent.is_dir():
        raise StorageError(f"Expected a folder to save to, but {path.parent} does not exist; create it first.")
    write_tensors(path, predictor.own_tensors(), metadata)


def _describe(predictor: Predictor[Any]) -> dict[str, Any]:
    method: Any = predictor.method
    settings = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    settings["layer"] = None
    if "cache" in settings:
        settings["cache"] = str(settings["cache"])
    common = {
        "format": FORMAT,
        "kind": next(name for name, made in KINDS.items() if type(method) is made),
        "settings": settings,
        "layout": dataclasses.asdict(predictor.layout),
        "inputs": predictor.inputs,
    }
    if isinstance(predictor, NetworkPredictor):
        blueprint = dataclasses.asdict(predictor.blueprint)
        return common | {"blueprint": blueprint, "networks": len(predictor.networks)}
    assert isinstance(predictor, PostHocPredictor)
    tap = predictor.tap
    return common | {
        "layer": {"names": tap.names, "reason": tap.reason, "function": None if tap.names else tap.label},
        "base_model": model_fingerprint(tap.model),
    }


def load(
    path: str | os.PathLike[str],
    model: nn.Module | Factory,
    *,
    map_location: torch.device | str | None = None,
    layer: LayerSpec = None,
    strict: bool = True,
) -> Predictor[Any]:
    """Read a predictor that ``uq.save(path)`` wrote and attach it to `model`.

    Args:
        path: the file.
        model: the base model it was fitted on; for a method that trained its networks itself, the function that
            builds an untrained one, or any network of that architecture.
        map_location: device of what was fitted; the model's own by default.
        layer: the callable, when the predictor was fitted with a callable layer, which no file can hold.
        strict: refuse a model whose weights differ from those at fitting time.
    """
    path = Path(path)
    description, tensors = _read(path)
    if description["format"] > FORMAT:
        raise StorageError(
            f"Expected a file of format {FORMAT} or older, but {path} has format {description['format']}; "
            "install a newer splitpoint."
        )
    try:
        if "blueprint" in description:
            return _rebuild_networks(path, description, tensors, model, map_location)
        own = _with_weights(path, description, tensors, model)
        if strict and own is None and description["base_model"] != _fingerprint(model):
            raise StorageError(
                f"Expected the base model that {path} was fitted on, but the weights differ; "
                "load the right weights, or pass strict=False if you know that they fit."
            )
        predictor = _rebuild(description, tensors, own or _trained(model), layer)
        predictor.owns_base = own is not None
    except (KeyError, TypeError, IndexError, AttributeError, SettingsError) as error:
        raise StorageError(f"Expected a complete splitpoint file, but {path} lacks or garbles {error}.") from error
    device = predictor.tap.device if map_location is None else torch.device(map_location)
    return predictor.heads_to(device)


@contextmanager
def _fitting(path: Path) -> Iterator[None]:
    """Whatever goes wrong with a network of another architecture, as one error."""
    try:
        yield
    except (RuntimeError, AttributeError, LayerError, SettingsError) as error:
        reason = str(error).splitlines()[-1].strip()
        raise StorageError(
            f"Expected a network of the architecture that {path} was fitted with, but its weights do not fit: {reason}"
        ) from error


def _trained(model: nn.Module | Factory) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise StorageError(
            f"Expected the trained base model, but got {type(model).__name__}; pass the torch.nn.Module."
        )
    return model


def _fingerprint(model: nn.Module | Factory) -> str:
    return model_fingerprint(_trained(model))


def _base_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("base."): value for name, value in tensors.items() if name.startswith("base.")}


def _with_weights(
    path: Path, description: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module | Factory
) -> nn.Module | None:
    """A network with the base model's weights where the file holds them."""
    weights = _base_weights(tensors)
    if not weights:
        return None
    method = KINDS[description["kind"]](**_settings(description))
    with _fitting(path):
        network = _untrained(model)
        if isinstance(method, PostHocBaseline):
            network = method._rebuilt(network, weights)
        network.load_state_dict(weights)
    return network.eval().requires_grad_(False)


def _untrained(model: nn.Module | Factory) -> nn.Module:
    return copy.deepcopy(model) if isinstance(model, nn.Module) else build(factory_of(model), 0)


def _settings(description: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in description["settings"].items()}


def _layout(shape: dict[str, Any]) -> Layout:
    return Layout(tuple(shape["last"]), shape["dense"], shape["axis"])


def _rebuild_networks(
    path: Path,
    description: dict[str, Any],
    tensors: dict[str, Tensor],
    model: nn.Module | Factory,
    map_location: torch.device | str | None,
) -> NetworkPredictor:
    method = KINDS[description["kind"]](**_settings(description))
    assert isinstance(method, NetworkBaseline)
    plan: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in description["blueprint"].items()}
    blueprint = Blueprint(**(plan | {"layout": _layout(description["layout"])}))
    with _fitting(path):
        networks = [
            build(lambda: _untrained(model), 0, lambda network: method._changed(network, blueprint))
            for _ in range(description["networks"])
        ]
    predictor = NetworkPredictor(method, networks, blueprint, tensors)
    with _fitting(path):
        predictor.base.load_state_dict(_base_weights(tensors))
    device = placement(predictor.base)[0] if map_location is None else map_location
    return predictor.to(device)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise StorageError(f"Expected a file written by uq.save, but {path} does not exist.")
    metadata, tensors = read_tensors(path)
    if KEY not in metadata:
        raise StorageError(f"Expected a file written by uq.save, but {path} holds other tensors.")
    try:
        description = json.loads(metadata[KEY])
    except ValueError as error:
        raise StorageError(f"Expected readable metadata, but those of {path} are damaged.") from error
    wanted = DESCRIPTION | ({} if _has(description, "blueprint", dict) else POST_HOC)
    missing = [key for key, kind in wanted.items() if not _has(description, key, kind)]
    if missing:
        raise StorageError(f"Expected a complete splitpoint file, but {path} lacks or garbles {', '.join(missing)}.")
    return description, tensors


def _has(description: Any, key: str, kind: type) -> bool:
    return isinstance(description, dict) and isinstance(description.get(key), kind)


def _rebuild(
    description: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module, layer: LayerSpec
) -> PostHocPredictor[Any]:
    method = KINDS[description["kind"]](**_settings(description))
    place = description["layer"]
    names = tuple(place["names"])
    function = None
    if not names:
        if not callable(layer):
            raise StorageError(
                f"Expected the callable that computed the features ({place['function']}), but got none; "
                "pass it as sp.load(path, model, layer=...)."
            )
        function = layer
    for name in names:
        find_module(model, name)
    tap = Tap(model, names, function, place["reason"], method.output_key)
    layout, inputs = _layout(description["layout"]), description["inputs"]
    if isinstance(method, SplitPointRegressor):
        return RegressionPredictor(method, tap, layout, inputs, tensors)
    if isinstance(method, SplitPointClassifier):
        return ClassificationPredictor(method, tap, layout, inputs, tensors)
    assert isinstance(method, PostHocBaseline)
    return BaselinePredictor(method, tap, layout, inputs, tensors)
