"""Loading predictors: one safetensors file with JSON metadata, never unpickled; predictors save themselves."""

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

from splitpoint.agreement import Agreement, AgreementPredictor
from splitpoint.agreement.branches import Branches
from splitpoint.baselines import METHODS
from splitpoint.baselines.posthoc import PostHocBaseline
from splitpoint.baselines.trained import NetworkBaseline, NetworkPredictor
from splitpoint.batches import placement
from splitpoint.checks import Check
from splitpoint.classification import SplitPointClassifier
from splitpoint.errors import LayerError, SettingsError, StorageError
from splitpoint.features import LayerSpec, Tap, branches_of
from splitpoint.files import model_fingerprint, read_tensors
from splitpoint.head_method import HeadMethod
from splitpoint.hooks import find_module
from splitpoint.layout import Layout
from splitpoint.method import Method
from splitpoint.networks import Architecture, Factory, build, factory_of
from splitpoint.predictor import FILE_FORMAT, FILE_KEY, PostHocPredictor, Predictor
from splitpoint.regression import SplitPointRegressor

Description = dict[str, Any]
Saved = HeadMethod[Any] | PostHocBaseline | NetworkBaseline | Agreement

DESCRIPTION = {"format": int, "kind": str, "settings": dict, "layout": dict, "inputs": int}
"""What the metadata hold in any case, and of which kind."""

POST_HOC = {"layer": dict, "base_model": str}
"""What they hold beside that for a predictor on a base model."""

OURS = (SplitPointRegressor, SplitPointClassifier, Agreement)
"""Methods that are not in the table."""

OLD_KINDS = {"regression": "SplitPointRegressor", "classification": "SplitPointClassifier"}
"""Names in files of format 1, which otherwise named methods by their ids."""


def load(
    path: str | os.PathLike[str],
    model: nn.Module | Factory | None = None,
    *,
    map_location: torch.device | str | None = None,
    layer: LayerSpec = None,
    strict: bool = True,
) -> Predictor[Any]:
    """Read a predictor that ``uq.save(path)`` wrote and attach it to `model`.

    Args:
        path: the file.
        model: the base model it was fitted on; for a method that trained its networks itself, the function that
            builds an untrained one, or any network of that architecture; None for one fitted on rows without a model.
        map_location: device of what was fitted; the model's own by default.
        layer: the callable, when the predictor was fitted with a callable layer, which no file can hold.
        strict: refuse a model whose weights differ from those at fitting time.
    """
    path = Path(path)
    description, tensors = _read(path)
    try:
        method = _method(description)
        tensors = _current(path, description, tensors)
        checks = tuple(Check(**check) for check in description.get("checks", ()))
        notes = {str(name): str(text) for name, text in description.get("notes", {}).items()}
        if isinstance(method, NetworkBaseline):
            networks = _networks(path, method, description, tensors, model, map_location)
            networks.checks, networks.notes = checks, notes
            return networks
        if isinstance(method, Agreement):
            agreement = _agreement(path, method, description, tensors, model, strict)
            agreement.checks, agreement.notes = checks, notes
            return agreement.heads_to(
                placement(agreement.base)[0] if map_location is None else torch.device(map_location)
            )
        if model is not None and not description["layer"]:
            raise StorageError(f"Expected no model, since {path} was fitted on rows without one; leave it out.")
        own = _with_weights(path, method, tensors, model)
        if strict and own is None:
            _check_base(path, description, model)
        predictor = _post_hoc(method, description, tensors, own or model, layer)
        predictor.owns_base, predictor.checks, predictor.notes = own is not None, checks, notes
        predictor.widths = tuple(description["widths"]) if description.get("widths") else None
    except (KeyError, TypeError, IndexError, AttributeError, SettingsError) as error:
        raise StorageError(f"Expected a complete splitpoint file, but {path} lacks or garbles {error}.") from error
    own_device = torch.device("cpu") if predictor.tap is None else predictor.tap.device
    return predictor.heads_to(own_device if map_location is None else torch.device(map_location))


def _read(path: Path) -> tuple[Description, dict[str, Tensor]]:
    if not path.is_file():
        raise StorageError(f"Expected a file written by uq.save, but {path} does not exist.")
    metadata, tensors = read_tensors(path)
    if FILE_KEY not in metadata:
        raise StorageError(f"Expected a file written by uq.save, but {path} holds other tensors.")
    try:
        description = json.loads(metadata[FILE_KEY])
    except ValueError as error:
        raise StorageError(f"Expected readable metadata, but those of {path} are damaged.") from error
    if isinstance(description, dict) and "blueprint" in description:  # its name in files of format 1
        description["architecture"] = description.pop("blueprint")
    wanted = DESCRIPTION | ({} if _has(description, "architecture", dict) else POST_HOC)
    missing = [key for key, kind in wanted.items() if not _has(description, key, kind)]
    if missing:
        raise StorageError(f"Expected a complete splitpoint file, but {path} lacks or garbles {', '.join(missing)}.")
    if description["format"] > FILE_FORMAT:
        raise StorageError(
            f"Expected a file of format {FILE_FORMAT} or older, but {path} has format {description['format']}; "
            "install a newer splitpoint."
        )
    return description, tensors


def _current(path: Path, description: Description, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a file as this version reads them.

    Before format 3 a classifier's support was another score, which can no longer be computed from what is in the file.
    """
    if description["format"] < 3 and "support.centres" in tensors:
        raise StorageError(
            f"Expected a classifier of file format 3, but {path} has format {description['format']}, whose support "
            "score is no longer in use; fit it again and save it."
        )
    return tensors


def _has(description: Any, key: str, kind: type) -> bool:
    return isinstance(description, dict) and isinstance(description.get(key), kind)


def _method(description: Description) -> Saved:
    """The method with the settings of a file."""
    kinds: dict[str, type[Method[Any]]] = {kind.__name__: kind for kind in OURS}
    kinds |= {recipe.method.__name__: recipe.method for recipe in METHODS.values()}
    settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in description["settings"].items()}
    kind = description["kind"]
    if description["format"] == 1:
        kind = OLD_KINDS.get(kind) or METHODS[kind].method.__name__
        known = {field.name for field in dataclasses.fields(kinds[kind])}
        settings = {name: value for name, value in settings.items() if name in known}
    if description["format"] < 3 and kind == SplitPointRegressor.__name__:  # intervals and scores as they were
        settings |= {"widen": False, "scores": "sds"}
    method = kinds[kind](**settings)
    assert isinstance(method, HeadMethod | PostHocBaseline | NetworkBaseline | Agreement)
    return method


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


def _check_base(path: Path, description: Description, model: nn.Module | Factory | None) -> None:
    if description["base_model"] != _fingerprint(model):
        raise StorageError(
            f"Expected the base model that {path} was fitted on, but the weights differ; "
            "load the right weights, or pass strict=False if you know that they fit."
        )


def _agreement(
    path: Path,
    method: Agreement,
    description: Description,
    tensors: dict[str, Tensor],
    model: nn.Module | Factory | None,
    strict: bool,
) -> AgreementPredictor:
    network = _trained(model)
    if strict:
        _check_base(path, description, model)
    branches = Branches.of(network, method.branches, method.output_key)
    return AgreementPredictor(method, branches, description["inputs"], description["classes"], tensors)


def _fingerprint(model: nn.Module | Factory | None) -> str:
    return "" if model is None else model_fingerprint(_trained(model))


def _trained(model: nn.Module | Factory | None) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise StorageError(
            f"Expected the trained base model, but got {type(model).__name__}; pass the torch.nn.Module."
        )
    return model


def _untrained(model: nn.Module | Factory | None) -> nn.Module:
    if model is None:
        raise StorageError("Expected a function that builds the network, or one of its architecture, but got None.")
    return copy.deepcopy(model) if isinstance(model, nn.Module) else build(factory_of(model), 0)


def _base_weights(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("base."): value for name, value in tensors.items() if name.startswith("base.")}


def _with_weights(
    path: Path, method: Saved, tensors: dict[str, Tensor], model: nn.Module | Factory | None
) -> nn.Module | None:
    """A network with the base model's weights where the file holds them."""
    weights = _base_weights(tensors)
    if not weights:
        return None
    with _fitting(path):
        network = _untrained(model)
        if isinstance(method, PostHocBaseline):
            network = method._rebuilt(network, weights)
        network.load_state_dict(weights)
    return network.eval().requires_grad_(False)


def _layout(shape: dict[str, Any]) -> Layout:
    return Layout(tuple(shape["last"]), shape["dense"], shape["axis"])


def _networks(
    path: Path,
    method: NetworkBaseline,
    description: Description,
    tensors: dict[str, Tensor],
    model: nn.Module | Factory | None,
    map_location: torch.device | str | None,
) -> NetworkPredictor:
    saved: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in description["architecture"].items()}
    architecture = Architecture(**(saved | {"layout": _layout(description["layout"])}))
    with _fitting(path):
        networks = [
            build(lambda: _untrained(model), 0, lambda network: method._changed(network, architecture))
            for _ in range(description["networks"])
        ]
    predictor = NetworkPredictor(method, networks, architecture, tensors)
    with _fitting(path):
        predictor.base.load_state_dict(_base_weights(tensors))
    device = placement(predictor.base)[0] if map_location is None else map_location
    return predictor.to(device)


def _post_hoc(
    method: HeadMethod[Any] | PostHocBaseline,
    description: Description,
    tensors: dict[str, Tensor],
    model: nn.Module | Factory | None,
    layer: LayerSpec,
) -> PostHocPredictor[Any]:
    layout, inputs, place = _layout(description["layout"]), description["inputs"], description["layer"]
    if not place:
        return method._predictor(None, layout, inputs, tensors)
    names = tuple(place["names"])
    function = None
    if not names:
        if not callable(layer):
            raise StorageError(
                f"Expected the callable that computed the features ({place['function']}), but got none; "
                "pass it as sp.load(path, model, layer=...)."
            )
        function = layer
    model = _trained(model)
    context, stages = (tuple(place.get(key, ())) for key in ("context", "stages"))
    for name in (*names, *context, *stages):
        find_module(model, name)
    tap = Tap(model, names, function, place["reason"], method.output_key, context, stages, branches_of(place))
    return method._predictor(tap, layout, inputs, tensors)
