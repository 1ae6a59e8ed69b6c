"""What was judged: the model, the predictor, the data, and with what."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any

from splitpoint.files import model_fingerprint
from splitpoint.predictor import Predictor
from splitpoint.wrappers import unwrapped

DIGITS = 16
"""Digits of a digest that are shown."""


def identity(uq: Predictor[Any], rows: dict[str, int], entries: int) -> dict[str, str]:
    """Names and values for people; the digest is that of the base model's parameters and buffers."""
    from splitpoint.bench.record import versions  # the version of the package is known only once it is loaded

    base = unwrapped(uq.base)
    software = versions()
    known = {
        "model": type(base).__name__,
        "parameters": f"{sum(own.numel() for own in base.parameters()):,}",
        "digest": model_fingerprint(base)[:DIGITS],
        "predictor": type(uq).__name__,
        "method": type(uq.method).__name__,
        "settings": ", ".join(f"{name}={value!r}" for name, value in changed(uq.method).items()) or "defaults",
        "fitted": f"{sum(own.numel() for own in uq.own_tensors().values()):,} numbers",
        "layer": str(getattr(uq, "layer", "")),
        "data": ", ".join(f"{count:,} {name} rows" for name, count in rows.items()),
        "targets": f"{entries:,} entries of the test rows are judged",
        "versions": ", ".join(
            f"{name} {software[name]}" for name in ("splitpoint", "source", "torch", "numpy", "python")
        ),
    }
    return {name: value for name, value in known.items() if value}


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
