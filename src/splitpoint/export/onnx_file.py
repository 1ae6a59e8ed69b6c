"""A predictor as an ONNX file, which is kept only if it answers as the predictor does."""

from __future__ import annotations

import importlib.util
import io
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from splitpoint import __version__
from splitpoint.errors import ExportError, StorageError
from splitpoint.export.comparison import Comparison
from splitpoint.export.graph import Graph, module, named_fields
from splitpoint.export.program import Example, exported, first_line, prepared, quiet
from splitpoint.files import named_digest, replacing
from splitpoint.posthoc import PostHocPredictor
from splitpoint.runtime import FILE_FORMAT, FILE_KEY, PREFIX, Runtime, load
from splitpoint.wrappers import unwrapped

NEEDED = ("onnx", "onnxscript", "onnxruntime")
"""Packages of the extra [onnx]."""


def onnx(
    uq: PostHocPredictor[Any],
    path: str | os.PathLike[str],
    /,
    *example: Any,
    fields: Sequence[str] | None = None,
    tolerance: float = 1e-5,
    fixed_sizes: bool = False,
    **named: Any,
) -> float:
    """Write base model and predictor to one ONNX file, which `splitpoint.runtime` runs without PyTorch.

    The file is run with ONNX Runtime at once: on the example, on its first row, and on other numbers of rows and other
    sizes where these may change. It is kept only if every field is within the tolerance of what `uq` says, and labels
    and flags are the same.

    Args:
        uq: the fitted predictor; its layer has to have a name.
        path: of the file.
        example: arguments of the model, tensors or arrays of at least two rows, see `program`.
        fields: see `module`.
        tolerance: largest relative difference of a number, see `Comparison`.
        fixed_sizes: see `program`.
        named: further arguments of the model, by name.

    Returns:
        The worst relative difference of all fields.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ExportError(
            f"Expected the packages {', '.join(NEEDED)} to write ONNX files, but {', '.join(missing)} cannot be found; "
            "install them with: pip install 'splitpoint[onnx]'."
        )
    path = Path(path)
    if path.is_dir() or not path.parent.is_dir():
        raise StorageError(f"Expected a file in an existing folder to write to, but got {path}.")
    graph = module(uq, fields=fields)
    given = prepared(graph, example, named)
    traced = exported(graph, given, fixed_sizes)
    outputs = list(graph(*given.args, **given.kwargs))
    with replacing(path) as draft:
        _convert(traced, given, outputs, metadata(uq, graph, traced, given, outputs), draft)
        return _verified(uq, load(draft, threads=1), list(variants(traced, given)), tolerance)


def _convert(traced: ExportedProgram, example: Example, outputs: list[str], facts: dict[str, Any], path: Path) -> None:
    """Write the ONNX file."""
    from onnx import checker

    try:
        with torch.no_grad(), quiet(), redirect_stdout(io.StringIO()):
            found = torch.onnx.export(
                traced, input_names=list(example.names), output_names=outputs, verbose=False, dynamo=True
            )
            assert found is not None
            for node in found.model.graph.all_nodes():  # says which line of which file it came from, at length
                node.metadata_props.clear()
            found.model.metadata_props[FILE_KEY] = json.dumps(facts, default=float)
            found.save(str(path))
            checker.check_model(str(path))
    except Exception as error:  # whatever the exporter says of a model
        raise ExportError(
            f"Expected a model with a form in ONNX, but the exporter says: {first_line(error)}; try "
            "fixed_sizes=True, or leave fields out with fields=."
        ) from error


def metadata(
    uq: PostHocPredictor[Any], graph: Graph, traced: ExportedProgram, example: Example, outputs: Sequence[str]
) -> dict[str, Any]:
    """What the file says of itself, see `splitpoint.runtime.Runtime`."""
    with torch.no_grad():
        prediction = uq(*example.args, **example.kwargs)
    probs = getattr(prediction, "base_probs", None)
    axis = uq.layout.axis or 1 if uq.layout.dense else 1
    names = [name.removeprefix(PREFIX) for name in outputs]
    references = {"reference": uq.reference, "image_reference": uq.image_reference}
    return {
        "format": FILE_FORMAT,
        "versions": {"splitpoint": __version__, "torch": torch.__version__},
        "task": uq.task.name,
        "method": type(uq.method).__name__,
        "layer": uq.layer,
        "levels": getattr(prediction, "levels", None),
        "classes": None if probs is None else probs.shape[axis],
        "threshold": None if uq.threshold is None else uq.threshold.tolist(),
        "image_threshold": None if uq.image_threshold is None else uq.image_threshold.tolist(),
        **{name: None if own is None else own.described() for name, own in references.items()},
        "digest": named_digest(dict(graph.state_dict())),
        "inputs": [
            {"name": name, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": shape}
            for (name, tensor), shape in zip(example.tensors.items(), shapes(traced), strict=True)
        ],
        "positional": len(example.args),
        "outputs": names,
        "left_out": [name for name in named_fields(prediction) if name not in names],
        "model": type(unwrapped(uq.tap.model)).__name__ if uq.tap else "",
        "predictor": uq.description(),
    }


def shapes(traced: ExportedProgram) -> list[list[int | str]]:
    """Shapes of the inputs of a program: numbers where sizes are fixed, else a name; the first one is the batch."""
    names = set(traced.graph_signature.user_inputs)
    found: list[list[int | str]] = []
    for node in traced.graph.nodes:
        if node.op == "placeholder" and node.name in names:
            own = [str(size) for size in node.meta["val"].shape[1:]]
            found.append(["batch", *(int(size) if size.isdigit() else size for size in own)])
    return found


def variants(traced: ExportedProgram, example: Example) -> Iterator[Example]:
    """The example, its first row, more rows than it has, and maps or sequences of twice the size where that is free."""
    tensors = list(example.tensors.values())
    yield example
    yield example.changed([tensor[:1] for tensor in tensors])
    yield example.changed([torch.cat([tensor.flip(0), tensor, tensor[:1]]) for tensor in tensors])
    free = [[axis for axis, size in enumerate(shape) if axis and isinstance(size, str)] for shape in shapes(traced)]
    if any(free):
        yield example.changed([_doubled(tensor, axes) for tensor, axes in zip(tensors, free, strict=True)])


def _doubled(tensor: Tensor, axes: Sequence[int]) -> Tensor:
    for axis in axes:
        tensor = torch.cat([tensor, tensor.flip(axis)], axis)
    return tensor


def _verified(uq: PostHocPredictor[Any], file: Runtime, examples: Sequence[Example], tolerance: float) -> float:
    """The worst difference between file and predictor; an error where it is too large."""
    worst = 0.0
    for example in examples:
        compared = Comparison(uq(*example.args, **example.kwargs), tolerance)
        found = file(**{name: tensor.cpu().numpy() for name, tensor in example.tensors.items()})
        for name, own in found.items():
            value = compared.difference(name, own)
            if not value <= tolerance:
                raise ExportError(
                    f"Expected a file that answers as the predictor does to within {tolerance:g}, but '{name}' differs "
                    f"by {value:.2g} for {example.rows} rows; the file was not kept, leave the field out with fields=, "
                    "or raise tolerance=."
                )
            worst = max(worst, value)
    return worst
