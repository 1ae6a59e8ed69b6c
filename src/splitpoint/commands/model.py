"""A model from the command line: ``package.module:factory`` and a file of weights, which is never unpickled."""

from __future__ import annotations

import importlib
import pickle
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from splitpoint.batches import output_tensor, placement
from splitpoint.errors import SettingsError, StorageError
from splitpoint.files import model_fingerprint, one_line

PREFIXES = ("module.", "_orig_mod.", "model.")
"""What data-parallel, compiled and Lightning modules put before the names of weights."""

INSIDE = ("state_dict", "model_state_dict", "model")
"""Entries of training checkpoints that hold the weights."""


def imported(place: str) -> nn.Module:
    """A model, or what a function without arguments builds, at ``package.module:name``, as seen from where we are."""
    module, _, name = place.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name)
        model = found if isinstance(found, nn.Module) else found()
    except Exception as error:
        raise SettingsError(
            f"Expected package.module:name of a model or of a function without arguments, but got {place!r} "
            f"({type(error).__name__}: {one_line(error)})."
        ) from error
    if not isinstance(model, nn.Module):
        raise SettingsError(f"Expected {place} to be or to build a torch.nn.Module, but got {type(model).__name__}.")
    return model


def built(place: str, weights: str | None, device: str | None = None) -> nn.Module:
    """The model with its weights, in eval mode on the device."""
    model = imported(place).eval()
    if weights is not None:
        load_weights(model, Path(weights))
    return model if device is None else _moved(model, device)


def _moved(model: nn.Module, device: str) -> nn.Module:
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise SettingsError(f"Expected a device such as cpu or cuda:0, but got {device!r}.") from error
    try:
        return model.to(place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise SettingsError(f"Expected a device that is there, but {device} is not ({one_line(error)}).") from error


def check_trained(place: str, model: nn.Module) -> None:
    """Refuse a network that has other weights whenever it is built: they are random."""
    if model_fingerprint(model) != model_fingerprint(imported(place)):
        raise SettingsError(
            f"Expected trained weights, but {place} builds a network with other weights every time; name their file "
            "with --weights, or load them in the function."
        )


def answers(model: nn.Module, inputs: Tensor) -> Tensor:
    """The output of the model for some rows; an error where it does not take them."""
    device, dtype = placement(model)
    try:
        with torch.no_grad():
            raw = model(inputs.to(device, dtype))
    except Exception as error:  # whatever a forward says to what it does not take
        raise SettingsError(
            f"Expected a model that takes a batch of shape {tuple(inputs.shape)}, but it said: {one_line(error)}"
        ) from error
    return output_tensor(raw)


def load_weights(model: nn.Module, path: Path) -> None:
    """Give the model the weights of a file, all of them and no others."""
    found, wanted = read_weights(path), model.state_dict()
    fitting = stripped(found, wanted)
    lacking = [name for name in wanted if name not in fitting]
    strange = [name for name in fitting if name not in wanted]
    reshaped = [
        f"{name} {tuple(fitting[name].shape)} in place of {tuple(value.shape)}"
        for name, value in wanted.items()
        if isinstance(value, Tensor) and name in fitting and fitting[name].shape != value.shape
    ]
    wrong = [
        f"{what} {', '.join(names[:3])}{f' and {len(names) - 3} more' if len(names) > 3 else ''}"
        for what, names in (("lacks", lacking), ("has", strange), ("has", reshaped))
        if names
    ]
    if wrong:
        raise StorageError(
            f"Expected the weights of the model, {len(wanted)} tensors, but {path} {', and '.join(wrong)}; "
            "check --model and --weights."
        )
    model.load_state_dict(fitting)


def read_weights(path: Path) -> dict[str, Any]:
    """Names and tensors of a safetensors file, or of what `torch.save` wrote of a state dict or of a checkpoint."""
    if not path.is_file():
        raise StorageError(f"Expected a file of weights, but {path} does not exist; check --weights.")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles of another kind, which are refused anyway
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise StorageError(
            f"Expected a file of tensors only, but {path} holds Python objects, which are not loaded for safety; "
            "write it with torch.save(model.state_dict(), path)."
        ) from error
    except (SafetensorError, OSError, RuntimeError, ValueError, EOFError, KeyError) as error:
        raise StorageError(
            f"Expected a whole file of weights, but {path} cannot be read ({one_line(error)})."
        ) from error
    while isinstance(loaded, Mapping) and (inner := [key for key in INSIDE if isinstance(loaded.get(key), Mapping)]):
        loaded = loaded[inner[0]]
    if not isinstance(loaded, Mapping) or not any(isinstance(value, Tensor) for value in loaded.values()):
        raise StorageError(
            f"Expected names and tensors in {path}, but it holds {type(loaded).__name__}; write it with "
            "torch.save(model.state_dict(), path)."
        )
    return {str(name): value for name, value in loaded.items()}


def stripped(found: Mapping[str, Any], wanted: Iterable[str]) -> dict[str, Any]:
    """Weights under the names of the model: without what wrappers put before them and what they hold beside it.

    >>> stripped({"model._orig_mod.fc.bias": 1, "criterion.scale": 2}, {"fc.bias"})
    {'fc.bias': 1}
    """
    names, readings = set(wanted), [dict(found)]
    while prefix := next((own for own in PREFIXES if any(name.startswith(own) for name in readings[-1])), None):
        inner = {name.removeprefix(prefix): own for name, own in readings[-1].items() if name.startswith(prefix)}
        readings.append(inner)
    return max(readings, key=lambda reading: len(names & reading.keys()))
