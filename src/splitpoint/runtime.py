"""Predictions from ONNX files that `splitpoint.export.onnx` wrote, with ONNX Runtime and NumPy alone.

No PyTorch is imported:

    from splitpoint.runtime import load

    uq = load("uq.onnx")
    out = uq(x)                     # the fields of the prediction by name, as arrays
    out["mean"], out["lowers"], out["flagged"]
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from splitpoint.errors import DataError, ExportError, SettingsError, ShapeError, StorageError

if TYPE_CHECKING:
    import onnxruntime

Array = np.ndarray[Any, Any]

FILE_KEY, FILE_FORMAT = "splitpoint", 1
"""Where in the metadata of a file the description is, and its format."""

PREFIX = "uq_"
"""Of the names of all outputs, which would else be those of nodes in some graphs."""


class Runtime:
    """A predictor in an ONNX file; call it with the model's own inputs, by position or by name.

    Threads may share it.

    Attributes:
        session: of ONNX Runtime.
        metadata: all that the file says of itself.
        task: "regression" or "classification".
        method: what was fitted.
        layer: where the features are read.
        fields: names of what predictions hold.
        inputs: names of the inputs.
        levels: confidence levels of the intervals, ascending; empty for classes.
        classes: their number; None for numbers.
        threshold: support above it is flagged; None where none was set.
        versions: of the packages that wrote the file.
        digest: of everything fitted, base model included.
    """

    def __init__(self, session: onnxruntime.InferenceSession, metadata: Mapping[str, Any]) -> None:
        self.session, self.metadata = session, dict(metadata)
        self.task: Literal["regression", "classification"] = metadata["task"]
        self.method: str = metadata["method"]
        self.layer: str = metadata["layer"]
        self.fields: tuple[str, ...] = tuple(metadata["outputs"])
        self.inputs: tuple[str, ...] = tuple(given["name"] for given in metadata["inputs"])
        self.levels: tuple[float, ...] = tuple(metadata["levels"] or ())
        self.classes: int | None = metadata["classes"]
        self.threshold: Array | None = None if metadata["threshold"] is None else np.asarray(metadata["threshold"])
        self.versions: dict[str, str] = dict(metadata["versions"])
        self.digest: str = metadata["digest"]

    def __call__(self, *inputs: Any, **named: Any) -> dict[str, Array]:
        """The fields of the prediction by name, see `fields`."""
        given = self._checked(self._by_name(inputs, named))
        try:
            found = self.session.run([PREFIX + name for name in self.fields], given)
        except Exception as error:  # what ONNX Runtime says of sizes that the model cannot do with
            shapes = {name: value.shape for name, value in given.items()}
            raise DataError(
                f"Expected inputs that the model can run on, but got shapes {shapes}, and ONNX Runtime says: "
                f"{str(error).splitlines()[0].strip()}"
            ) from error
        return dict(zip(self.fields, found, strict=True))

    def _by_name(self, inputs: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        given = dict(zip(self.inputs, inputs, strict=False)) | dict(named)
        if len(inputs) + len(named) != len(self.inputs) or set(given) != set(self.inputs):
            raise DataError(
                f"Expected the inputs {self.inputs}, by position or by name, but got {len(inputs)} by position and "
                f"{tuple(named)} by name."
            )
        return given

    def _checked(self, given: Mapping[str, Any]) -> dict[str, Array]:
        """Inputs as the file has them: arrays of its types; an error where type or shape is another."""
        found, sizes = {}, dict[str, int]()
        for known in self.metadata["inputs"]:
            name, shape, wanted = known["name"], known["shape"], np.dtype(known["dtype"])
            value = np.asarray(given[name])
            if value.dtype != wanted and (value.dtype.kind not in _kinds(wanted) or not value.dtype.isnative):
                raise DataError(f"Expected '{name}' as {wanted}, but got {value.dtype}; convert it.")
            pairs = zip(shape, value.shape, strict=False)
            if value.ndim != len(shape) or any(
                size != own if isinstance(own, int) else sizes.setdefault(own, size) != size for own, size in pairs
            ):
                said = f"({', '.join(map(str, shape))})" if len(shape) != 1 else f"({shape[0]},)"
                raise ShapeError(
                    f"Expected '{name}' of shape {said}, with the same sizes wherever a name comes again, but got "
                    f"{value.shape}; reshape it."
                )
            found[name] = np.ascontiguousarray(value, dtype=wanted)
        return found

    def __repr__(self) -> str:
        """Task, inputs and fields."""
        return f"Runtime({self.method}, layer={self.layer!r}, inputs={self.inputs}, fields={self.fields})"


def _kinds(wanted: np.dtype[Any]) -> str:
    """Kinds of numbers that become the wanted one without a second thought."""
    return {"f": "f", "i": "iu", "u": "iu"}.get(wanted.kind, wanted.kind)


def load(
    path: str | os.PathLike[str], *, providers: Sequence[str] | None = None, threads: int | None = None
) -> Runtime:
    """Open an ONNX file that `splitpoint.export.onnx` wrote.

    Args:
        path: the file.
        providers: of ONNX Runtime, in order of preference; None for the CPU.
        threads: most threads of one prediction; None leaves it to ONNX Runtime.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise ExportError(
            "Expected the package onnxruntime to run ONNX files, but it cannot be imported; install it with: "
            "pip install onnxruntime."
        ) from error
    path = Path(path)
    if not path.is_file():
        raise StorageError(f"Expected a file written by sp.export.onnx, but {path} does not exist.")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    if threads is not None:
        if threads < 1:
            raise SettingsError(f"Expected threads >= 1 or None, but got {threads}.")
        options.intra_op_num_threads = threads
    try:
        session = onnxruntime.InferenceSession(path, options, providers=list(providers or ["CPUExecutionProvider"]))
    except Exception as error:  # of several classes of its own
        raise StorageError(
            f"Expected a whole ONNX file written by sp.export.onnx, but ONNX Runtime says of {path}: "
            f"{str(error).splitlines()[0].strip()}"
        ) from error
    described = session.get_modelmeta().custom_metadata_map.get(FILE_KEY)
    if described is None:
        raise StorageError(
            f"Expected a file written by sp.export.onnx, but {path} holds another model; export the predictor, not the "
            "network alone."
        )
    metadata = json.loads(described)
    if metadata["format"] > FILE_FORMAT:
        raise StorageError(
            f"Expected a file of format {FILE_FORMAT} or older, but {path} has format {metadata['format']}; install a "
            "newer splitpoint."
        )
    return Runtime(session, metadata)
