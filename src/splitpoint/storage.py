"""Loading predictors: one safetensors file with JSON metadata, never unpickled; predictors save themselves."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

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
from splitpoint.features import Tap, branch_name, branches_of
from splitpoint.files import CONTENTS, one_line, path_of, read_tensors
from splitpoint.fingerprint import Fingerprint
from splitpoint.head_method import HeadMethod
from splitpoint.hooks import find_module
from splitpoint.layer_setting import LayerSpec
from splitpoint.layout import Layout
from splitpoint.method import Method
from splitpoint.networks import Architecture, Factory, build, factory_of
from splitpoint.posthoc import PostHocPredictor
from splitpoint.predictor import FILE_FORMAT, FILE_KEY, SEEN, Predictor
from splitpoint.regression import SplitPointRegressor
from splitpoint.settings import shown
from splitpoint.wrappers import inner_prefix, moved_place, unwrapped

Description = dict[str, Any]
Saved = HeadMethod[Any] | PostHocBaseline | NetworkBaseline | Agreement

DESCRIPTION = {"format": int, "kind": str, "settings": dict, "layout": dict, "inputs": int}
"""What the metadata hold in any case, and of which kind."""

POST_HOC = {"layer": dict}
"""What they hold beside that for a predictor on a base model."""

WITH_FINGERPRINT = 4
"""First format whose files hold what the base model was like at the fit, and a digest of their contents."""

GARBLED = (KeyError, TypeError, IndexError, AttributeError, AssertionError, ValueError, RuntimeError, ArithmeticError)
"""What goes wrong where a description or tensors are not those of a predictor."""

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
        strict: refuse a model that is not the one of the fit, by its weights, or by its outputs and features on a few
            made-up rows; see `Predictor.verify`. One that cannot work is refused in any case.
    """
    path, place = path_of(path), None if map_location is None else _device(map_location)
    start = unwrapped(model) if isinstance(model, nn.Module) else model
    try:
        file = _read(path)
        predictor = _built(file, start, layer, strict)
        predictor.checks = tuple(Check(**check) for check in file.description.get("checks", ()))
        predictor.notes = {str(name): str(text) for name, text in file.description.get("notes", {}).items()}
        if file.fingerprint is not None:
            predictor.fingerprint = replace(file.fingerprint, prefix=inner_prefix(predictor.base))
        _try(file, predictor, strict)
    except StorageError:
        raise
    except LayerError as error:
        raise StorageError(f"Expected a base model with the layers that {path} reads, but {_but(error)}") from error
    except GARBLED as error:
        raise StorageError(
            f"Expected a complete splitpoint file, but {path} lacks or garbles {one_line(error)}; take another copy of "
            "it, or fit again and save it."
        ) from error
    if place is None:
        return predictor
    return predictor.to(place) if isinstance(predictor, NetworkPredictor) else predictor.heads_to(place)


def _device(place: Any) -> torch.device:
    """A device that this machine has."""
    try:
        device = torch.device(place)
        torch.empty(0, device=device)
    except (RuntimeError, TypeError, AssertionError) as error:
        raise SettingsError(
            f"Expected map_location to be a device of this machine, but got {shown(place)}; leave it out to stay where "
            "the model is."
        ) from error
    return device


class File(NamedTuple):
    """What a file holds.

    Attributes:
        path: where it is.
        method: with the settings of the file.
        description: the metadata.
        tensors: everything fitted, by name.
        fingerprint: of the base model; None for a predictor without one, or which nothing is known of.
    """

    path: Path
    method: Saved
    description: Description
    tensors: dict[str, Tensor]
    fingerprint: Fingerprint | None


def _read(path: Path) -> File:
    if not os.path.exists(path):  # which raises nothing, whatever the name
        raise StorageError(f"Expected a file written by uq.save, but {path} does not exist.")
    if not path.is_file():
        raise StorageError(f"Expected a file written by uq.save, but {path} is no ordinary file.")
    metadata, tensors = read_tensors(path)
    if FILE_KEY not in metadata:
        raise StorageError(f"Expected a file written by uq.save, but {path} holds other tensors.")
    try:
        description = json.loads(metadata[FILE_KEY])
    except (ValueError, RecursionError) as error:
        raise StorageError(f"Expected readable metadata, but those of {path} are damaged.") from error
    if isinstance(description, dict) and "blueprint" in description:  # its name in files of format 1
        description["architecture"] = description.pop("blueprint")
    wanted = DESCRIPTION | ({} if _has(description, "architecture", dict) else POST_HOC)
    if "layer" in wanted and _has(description, "format", int) and description["format"] < WITH_FINGERPRINT:
        wanted |= {"base_model": str}
    missing = [key for key, kind in wanted.items() if not _has(description, key, kind)]
    if missing:
        raise StorageError(f"Expected a complete splitpoint file, but {path} lacks or garbles {', '.join(missing)}.")
    if description["format"] > FILE_FORMAT:
        raise StorageError(
            f"Expected a file of format {FILE_FORMAT} or older, but {path} has format {description['format']}; "
            "install a newer splitpoint."
        )
    if description["format"] >= WITH_FINGERPRINT and CONTENTS not in metadata:
        raise StorageError(f"Expected a complete splitpoint file, but {path} lacks the digest of its contents.")
    fingerprint = _fingerprint(description, tensors)
    own = {name: value for name, value in tensors.items() if not name.startswith(SEEN)}
    _check_numbers(path, own, description.get("not_finite"))
    return File(path, method_of(description), description, _current(path, description, own), fingerprint)


def _fingerprint(description: Description, tensors: dict[str, Tensor]) -> Fingerprint | None:
    """That of the base model; before format 4 it was a digest of the weights when the file was written."""
    if description["format"] < WITH_FINGERPRINT:
        weights = description.get("base_model", "")
        return Fingerprint(weights=weights) if weights else None
    if description["fingerprint"] is None:
        return None
    count = sum(name.startswith(SEEN) for name in tensors)
    return Fingerprint.read(description["fingerprint"], [tensors[f"{SEEN}{number}"] for number in range(count)])


def _check_numbers(path: Path, tensors: dict[str, Tensor], known: list[str] | None) -> None:
    """Refuse numbers that the fit did not leave: a quantile may be infinite, where no finite one is large enough.

    Files before format 4 do not say which.
    """
    if known is None:
        return
    for name, value in tensors.items():
        if value.is_floating_point() and name not in known and not bool(value.isfinite().all()):
            raise StorageError(f"Expected finite numbers, but {name} in {path} holds others; take another copy of it.")


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


def method_of(description: Description) -> Saved:
    """The method with the settings of a file, from what `Predictor.description` says."""
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


def _built(file: File, model: nn.Module | Factory | None, layer: LayerSpec, strict: bool) -> Predictor[Any]:
    """The predictor of a file, on the device of its base model."""
    method = file.method
    if isinstance(method, NetworkBaseline):
        return _networks(file, method, model)
    if not isinstance(method, Agreement) and not file.description["layer"]:
        if model is not None:
            raise StorageError(f"Expected no model, since {file.path} was fitted on rows without one; leave it out.")
        return _of_rows(file, method)
    own = _with_weights(file, model)
    base = _trained(model) if own is None else own
    if strict and own is None and file.fingerprint is not None:
        words = file.fingerprint.weights_differ(base)
        if words:
            raise _refused(file.path, words)
    if isinstance(method, Agreement):
        places = {name: _place(file, base, str(place)) for name, place in method.branches.items()}
        branches = Branches.of(base, places, method.output_key)
        inputs, classes = file.description["inputs"], file.description["classes"]
        predictor: Predictor[Any] = AgreementPredictor(
            replace(method, branches=places), branches, inputs, classes, file.tensors
        )
    else:
        post_hoc = _post_hoc(file, method, base, layer)
        post_hoc.owns_base, predictor = own is not None, post_hoc
    return predictor.heads_to(placement(base)[0])


def _try(file: File, predictor: Predictor[Any], strict: bool) -> None:
    """Compare the base model with that of the fit, and see that the predictor runs; StorageError where not."""
    device, dtype = placement(predictor.base)
    if device.type == "meta":  # which knows no numbers
        return
    known = file.fingerprint
    if known is not None and known.likeness is not None:
        found = known.difference(predictor.base, predictor.observed)
        if found.words and (strict or found.shape):
            raise _refused(file.path, found.words, insist=not found.shape)
        batch = known.likeness.batch(device, {getattr(torch, known.dtype): dtype})
        predictor(*batch.args, **batch.kwargs)
    elif isinstance(predictor, PostHocPredictor):
        words = known.difference(predictor.base, predictor.observed).words if known is not None else ""
        if words and strict:
            raise _refused(file.path, words)
        if predictor.widths is not None and not predictor.layout.dense:
            predictor.predict_rows(*(torch.zeros(2, width) for width in predictor.widths))


def _refused(path: Path, words: str, insist: bool = True) -> StorageError:
    """What is said of another base model."""
    right = "load the right weights" if "weights differ" in words else "build it as it was at the fit"
    other = ", or pass strict=False if you know that they fit" if insist else ""
    return StorageError(f"Expected the base model that {path} was fitted on, but {words}; {right}{other}.")


def _but(error: Exception) -> str:
    """What came and what to do, of an error that says what was expected."""
    return str(error).partition("but ")[2] or str(error)


def _place(file: File, base: nn.Module, place: str) -> str:
    """A place of the model of the fit in this one, which may be inside of a wrapper; old files say nothing of that."""
    known = file.fingerprint
    return place if known is None or not known.names else moved_place(place, known.prefix, inner_prefix(base))


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


def _with_weights(file: File, model: nn.Module | Factory | None) -> nn.Module | None:
    """A network with the base model's weights where the file holds them."""
    weights = _base_weights(file.tensors)
    if not weights:
        return None
    with _fitting(file.path):
        network = _untrained(model)
        if isinstance(file.method, PostHocBaseline):
            network = file.method._rebuilt(network, weights)
        _fill(network, weights)
    return network.eval().requires_grad_(False)


def _fill(network: nn.Module, weights: dict[str, Tensor]) -> None:
    """Put weights into a network, which stays on its device, in the types that they have."""
    device = placement(network)[0]
    network.load_state_dict(weights, assign=True)
    network.to(device)


def _layout(shape: dict[str, Any]) -> Layout:
    return Layout(tuple(shape["last"]), shape["dense"], shape["axis"])


def _networks(file: File, method: NetworkBaseline, model: nn.Module | Factory | None) -> NetworkPredictor:
    description = file.description
    saved: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in description["architecture"].items()}
    architecture = Architecture(**(saved | {"layout": _layout(description["layout"])}))
    weights = _base_weights(file.tensors)
    if description["networks"] != len({name.partition(".")[0] for name in weights}):
        raise StorageError(f"Expected a complete splitpoint file, but {file.path} lacks or garbles networks.")
    with _fitting(file.path):
        networks = [
            build(lambda: _untrained(model), 0, lambda network: method._changed(network, architecture))
            for _ in range(description["networks"])
        ]
    predictor = NetworkPredictor(method, networks, architecture, file.tensors)
    with _fitting(file.path):
        _fill(predictor.base, weights)
    return predictor.to(placement(predictor.base)[0])


def _of_rows(file: File, method: HeadMethod[Any] | PostHocBaseline) -> PostHocPredictor[Any]:
    """A predictor without a model."""
    description = file.description
    predictor = method._predictor(None, _layout(description["layout"]), description["inputs"], file.tensors)
    predictor.widths = tuple(description["widths"]) if description.get("widths") else None
    return predictor


def _post_hoc(
    file: File, method: HeadMethod[Any] | PostHocBaseline, base: nn.Module, layer: LayerSpec
) -> PostHocPredictor[Any]:
    description, place = file.description, file.description["layer"]
    names, context, stages = (
        tuple(_place(file, base, name) for name in place.get(key, ())) for key in ("names", "context", "stages")
    )
    function = None
    if not names:
        if not callable(layer):
            raise StorageError(
                f"Expected the callable that computed the features ({place['function']}), but got none; "
                "pass it as sp.load(path, model, layer=...)."
            )
        function = layer
    for name in (*names, *context, *stages):
        find_module(base, name)
    branches = tuple(
        replace(branch, name=branch_name(new)) if branch.name == branch_name(old) else branch
        for branch, old, new in zip(branches_of(place), place["names"], names, strict=False)
    )
    tap = Tap(base, names, function, place["reason"], method.output_key, context, stages, branches)
    predictor = method._predictor(tap, _layout(description["layout"]), description["inputs"], file.tensors)
    predictor.widths = tuple(description["widths"]) if description.get("widths") else None
    return predictor
