"""What a prediction costs beside the base model alone, on this machine."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from statistics import quantiles
from typing import Any

import torch
from torch import nn

from splitpoint.batches import Batch, mapped, placement
from splitpoint.posthoc import PostHocPredictor
from splitpoint.predictor import Predictor
from splitpoint.verdicts.judging import Finding, short
from splitpoint.verdicts.parts import Bar, Chart, Part

LEAST_SECONDS, MOST_SECONDS = 0.004, 2.5
"""Time of one measurement at least, and of all of one batch size at most, about."""

LEAST_ROUNDS, MOST_ROUNDS = 5, 15


TITLE, ABOUT = "Cost of a prediction", "Time of the predictor over that of the base model alone"


def not_compared(says: str) -> Part:
    """The part where there is nothing to compare with, and why."""
    return Part("cost", TITLE, f"{ABOUT}.", findings=(Finding("cost_ratio", "green", says),))


def compared(uq: Predictor[Any], batch: Batch, rows: int) -> Part:
    """Time of the predictor over that of its base model, in turns, for one row and for a whole batch."""
    base = _alone(uq)
    if base is None:
        return not_compared("It has no base model to be compared with that runs in one pass.")
    about = f"{ABOUT}, which run in turns; median, and quartiles as bars. Measured on this machine, at this moment."
    figures, bars, said = {}, [], []
    for count in sorted({1, rows}):
        part = _first(batch, count, rows)
        low, middle, high, seconds = _ratio(base, uq, part)
        figures["cost_ratio_1" if count == 1 else "cost_ratio"] = middle
        bars.append(Bar(f"{count} rows" if count > 1 else "1 row", middle, low, high, 1.0, count))
        name = f"{count} rows" if count > 1 else "one row"
        said.append(f"{short(middle)} times ({short(low)} to {short(high)}) for {name}, {1000 * seconds:.3g} ms more")
    clock = "CPU time" if placement(uq)[0].type == "cpu" else "time"
    finding = Finding(
        "cost_ratio", "green", f"A prediction takes {'; '.join(said)} ({clock}, quartiles).", "", middle, low, high, 1.0
    )
    chart = Chart("cost", "Times the base model", "rows at once", tuple(bars))
    return Part("cost", TITLE, about, findings=(finding,), figures=figures, charts=(chart,))


def _alone(uq: Predictor[Any]) -> nn.Module | None:
    """The base model in eval mode, a copy where it is in train mode; None where there is not one that runs once."""
    if not isinstance(uq, PostHocPredictor) or uq.tap is None or placement(uq)[0].type not in ("cpu", "cuda"):
        return None
    model = uq.tap.model
    return copy.deepcopy(model).eval() if any(part.training for part in model.modules()) else model


def _first(batch: Batch, count: int, rows: int) -> Batch:
    """The first rows of a batch."""

    def cut(item: Any) -> Any:
        return item[:count] if isinstance(item, torch.Tensor) and item.dim() and len(item) == rows else item

    return Batch(tuple(mapped(cut, arg) for arg in batch.args), mapped(cut, batch.kwargs), None)


def _ratio(base: nn.Module, uq: Predictor[Any], part: Batch) -> tuple[float, float, float, float]:
    """Quartiles of the ratio of times and, as the last, the median of the difference in seconds."""

    def seconds(model: nn.Module, repeats: int) -> float:
        return _seconds(lambda: model(*part.args, **part.kwargs), repeats, placement(uq)[0])

    with torch.no_grad():
        for _ in range(3):  # the first calls set things up
            one = seconds(base, 1) + seconds(uq, 1)
        repeats = max(1, round(LEAST_SECONDS / max(one / 2, 1e-7)))
        rounds = int(min(max(MOST_SECONDS / max(one * repeats, 1e-7), LEAST_ROUNDS), MOST_ROUNDS))
        pairs = [(seconds(base, repeats), seconds(uq, repeats)) for _ in range(rounds)]
    low, middle, high = quantiles([second / max(first, 1e-9) for first, second in pairs], n=4)
    extra = quantiles([second - first for first, second in pairs], n=2)[0]
    return low, middle, high, extra


def _seconds(call: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Seconds of one call, those of the processor where it does the work."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = clock()
    for _ in range(repeats):
        call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (clock() - began) / repeats
