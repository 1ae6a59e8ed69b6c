"""Saving and loading predictors: one safetensors file with JSON metadata, written atomically, never unpickled."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from splitpoint.cache import model_fingerprint
from splitpoint.classification import ClassificationPredictor, SplitPointClassifier
from splitpoint.errors import SettingsError, StorageError
from splitpoint.features import LayerSpec, Tap
from splitpoint.hooks import find_module
from splitpoint.layout import Layout
from splitpoint.method import Method, PostHocPredictor
from splitpoint.regression import RegressionPredictor, SplitPointRegressor

FORMAT = 1
KEY = "splitpoint"
DESCRIPTION = {
    "format": int,
    "kind": str,
    "settings": dict,
    "layer": dict,
    "layout": dict,
    "inputs": int,
    "base_model": str,
}
"""What the metadata hold, and of which kind."""

METHODS: dict[str, tuple[type[Method[Any]], type[PostHocPredictor[Any]]]] = {
    "regression": (SplitPointRegressor, RegressionPredictor),
    "classification": (SplitPointClassifier, ClassificationPredictor),
}


def save(predictor: PostHocPredictor[Any], path: Path) -> None:
    """Write the heads, their settings and the base model's fingerprint to `path`, all or nothing."""
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in predictor.own_tensors().items()}
    metadata = {KEY: json.dumps(_describe(predictor), default=float), "format": "pt"}
    if path.is_dir():
        raise StorageError(f"Expected a file to save to, but {path} is a folder; name a file in it.")
    if not path.parent.is_dir():
        raise StorageError(f"Expected a folder to save to, but {path.parent} does not exist; create it first.")
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    os.close(handle)
    try:
        save_file(tensors, temporary, metadata)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _describe(predictor: PostHocPredictor[Any]) -> dict[str, Any]:
    kind = next(name for name, (_, made) in METHODS.items() if type(predictor) is made)
    settings = {f.name: getattr(predictor.method, f.name) for f in dataclasses.fields(predictor.method)}
    settings["layer"] = None
    settings["cache"] = str(settings["cache"])
    tap = predictor.tap
    return {
        "format": FORMAT,
        "kind": kind,
        "settings": settings,
        "layer": {"names": tap.names, "reason": tap.reason, "function": None if tap.names else tap.label},
        "layout": dataclasses.asdict(predictor.layout),
        "inputs": predictor.inputs,
        "base_model": model_fingerprint(tap.model),
    }


def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    *,
    map_location: torch.device | str | None = None,
    layer: LayerSpec = None,
    strict: bool = True,
) -> PostHocPredictor[Any]:
    """Read a predictor that ``uq.save(path)`` wrote and attach it to `model`.

    Args:
        path: the file.
        model: the base model it was fitted on.
        map_location: device of the heads; the model's own by default.
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
    if strict and description["base_model"] != model_fingerprint(model):
        raise StorageError(
            f"Expected the base model that {path} was fitted on, but the weights differ; "
            "load the right weights, or pass strict=False if you know that they fit."
        )
    try:
        predictor = _rebuild(description, tensors, model, layer)
    except (KeyError, TypeError, IndexError, AttributeError, SettingsError) as error:
        raise StorageError(f"Expected a complete splitpoint file, but {path} lacks or garbles {error}.") from error
    device = predictor.tap.device if map_location is None else torch.device(map_location)
    return predictor.heads_to(device)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():
        raise StorageError(f"Expected a file written by uq.save, but {path} does not exist.")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise StorageError(
            f"Expected a whole safetensors file, but {path} is damaged or cut short ({error})."
        ) from error
    if KEY not in metadata:
        raise StorageError(f"Expected a file written by uq.save, but {path} holds other tensors.")
    try:
        description = json.loads(metadata[KEY])
    except ValueError as error:
        raise StorageError(f"Expected readable metadata, but those of {path} are damaged.") from error
    missing = [key for key, kind in DESCRIPTION.items() if not _has(description, key, kind)]
    if missing:
        raise StorageError(f"Expected a complete splitpoint file, but {path} lacks or garbles {', '.join(missing)}.")
    return description, tensors


def _has(description: Any, key: str, kind: type) -> bool:
    return isinstance(description, dict) and isinstance(description.get(key), kind)


def _rebuild(
    description: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module, layer: LayerSpec
) -> PostHocPredictor[Any]:
    method_class, predictor_class = METHODS[description["kind"]]
    settings: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in description["settings"].items()}
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
    shape = description["layout"]
    return predictor_class(
        method_class(**settings),
        Tap(model, names, function, place["reason"], settings["output_key"]),
        Layout(tuple(shape["last"]), shape["dense"], shape["axis"]),
        description["inputs"],
        tensors,
    )
