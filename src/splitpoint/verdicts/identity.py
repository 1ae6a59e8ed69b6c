"""What was judged: the model, the predictor, the data, and with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from splitpoint.files import model_fingerprint
from splitpoint.predictor import Predictor
from splitpoint.runtime import Runtime
from splitpoint.wrappers import unwrapped

DIGITS = 16
"""Digits of a digest that are shown."""


def identity(described: Mapping[str, str], rows: Mapping[str, int], entries: int) -> dict[str, str]:
    """Names and values for people: what is judged, on which data, and with what."""
    from splitpoint.bench.record import versions  # the version of the package is known only once it is loaded

    software = versions()
    return {
        **{name: value for name, value in described.items() if value},
        "data": ", ".join(f"{count:,} {name} rows" for name, count in rows.items()),
        "targets": f"{entries:,} entries of the test rows are judged",
        "versions": _versions({name: software[name] for name in ("splitpoint", "source", "torch", "numpy", "python")}),
    }


def of_predictor(uq: Predictor[Any]) -> dict[str, str]:
    """What a predictor is; the digest is that of the base model's parameters and buffers."""
    base = unwrapped(uq.base)
    return {
        "model": type(base).__name__,
        "parameters": f"{sum(own.numel() for own in base.parameters()):,}",
        "digest": model_fingerprint(base)[:DIGITS],
        "predictor": type(uq).__name__,
        **_method(uq.method),
        "fitted": f"{sum(own.numel() for own in uq.own_tensors().values()):,} numbers",
        "layer": str(getattr(uq, "layer", "")),
    }


def of_file(file: Runtime, method: Any) -> dict[str, str]:
    """What an ONNX file is, by its metadata; the digest is that of network and heads."""
    return {
        "model": file.metadata["model"],
        "digest": file.digest[:DIGITS],
        "predictor": "ONNX file",
        **_method(method),
        "layer": file.layer,
        "written with": _versions(file.versions),
    }


def _method(method: Any) -> dict[str, str]:
    settings = ", ".join(f"{name}={value!r}" for name, value in changed(method).items())
    return {"method": type(method).__name__, "settings": settings or "defaults"}


def _versions(software: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in software.items())


def changed(method: Any) -> dict[str, Any]:
    """Settings that are not those of the plain constructor."""
    found = {}
    for field in fields(method):
        usual = field.default_factory() if field.default_factory is not MISSING else field.default
        value = getattr(method, field.name)
        if not _same(value, usual):
            found[field.name] = value
    return found


def _same(value: Any, usual: Any) -> bool:
    return value is usual or (type(value) is type(usual) and bool(value == usual))
