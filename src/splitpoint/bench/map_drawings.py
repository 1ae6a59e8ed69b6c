"""What a page draws of a method on the scenes of one trial: curves, bins, and maps in colour."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from splitpoint.bench.depth_evidence import Judged, Predict
from splitpoint.bench.depth_trials import DepthTrial, batches, sweep
from splitpoint.bench.drawings import png
from splitpoint.bench.map_artefacts import COLOURS, MISSING, Coverages, MapDrawing, MapRow, Sparsified, Sweep
from splitpoint.bench.record import Cell
from splitpoint.datasets.scenes import SCENES
from splitpoint.metrics import sparsification
from splitpoint.prediction import RegressionPrediction

POINTS, BINS = 50, 20
"""Of a sparsification curve, and of the coverages of images."""

COLUMNS = 4
"""Strengths of the attack whose maps are shown, evenly spread."""

MOST_SHOWN = 0.995
"""Share of the pixels of errors and scores that have colours of their own; the largest numbers share the last one."""

SHADES = 255
"""Colours of a map; one more is that of what has no number."""


class Shown(NamedTuple):
    """A column: its title, the image (1, 3, H, W), its target and what a method predicts."""

    title: str
    image: Tensor
    target: Tensor
    prediction: RegressionPrediction


def map_drawing(
    cell: Cell, said: Judged, predict: Predict, network: nn.Module, data: DepthTrial, unit: str
) -> MapDrawing:
    """What a page draws of one method.

    Args:
        cell: of the method.
        said: of the trial.
        predict: the method.
        network: what an attack on it looks at.
        data: the trial.
        unit: of the targets.
    """
    evidence = said.evidence
    prediction, attack, coverage = evidence.prediction, evidence.attack, evidence.coverage
    assert isinstance(prediction, RegressionPrediction)
    assert attack is not None
    assert coverage is not None
    strengths = list(attack["strength"])
    places = torch.linspace(0, len(strengths) - 1, min(COLUMNS, len(strengths))).round().long().tolist()
    columns = list(shown(predict, network, data, [strengths[place] for place in places]))
    return MapDrawing(
        cell,
        prediction.levels[-1],
        Sweep(*(tuple(attack[name]) for name in ("strength", "rmse", "epistemic"))),
        sparsified(prediction, evidence.target),
        coverages(coverage),
        tuple(column.title for column in columns),
        tuple(map_rows(columns, unit)),
    )


def sparsified(prediction: RegressionPrediction, target: Tensor) -> Sparsified:
    """The sparsification curve of the total score at some points."""
    curve = sparsification(prediction, target)
    places = torch.linspace(0, len(curve.removed) - 1, min(POINTS, len(curve.removed))).long()
    return Sparsified(*(tuple(part[places].tolist()) for part in (curve.removed, curve.error, curve.oracle)))


def coverages(shares: Tensor) -> Coverages:
    """Bins of equal width from 0 to 1, images without a target left out."""
    known = shares[~shares.isnan()].double()
    edges = torch.linspace(0, 1, BINS + 1, dtype=torch.float64)
    counts = torch.histogram(known, edges).hist / max(len(known), 1)
    return Coverages(tuple(edges.tolist()), tuple(counts.tolist()))


def shown(predict: Predict, network: nn.Module, data: DepthTrial, strengths: Sequence[float]) -> Iterator[Shown]:
    """The test image in the middle under every strength, and the first image of every set out of distribution."""
    middle = data.test.at([len(data.test) // 2])
    for strength, image, target in sweep(middle, network, strengths):
        yield Shown(f"attack {strength:g}" if strength else "clean", image.cpu(), target, predict(image))
    for name, found in data.ood.items():
        for image, target in batches(found.at([0])):
            yield Shown(SCENES[name].title, image, target, predict(image))


def map_rows(columns: Sequence[Shown], unit: str) -> Iterator[MapRow]:
    """All quantities of the columns: those in the unit of the target share their colours, others have their own."""
    yield MapRow("input", "", math.nan, math.nan, tuple(png((255 * one.image[0]).round().byte()) for one in columns))
    depths = {
        "truth": [one.target for one in columns],
        "prediction": [one.prediction.mean for one in columns],
        "lower bound": [one.prediction.lower for one in columns],
        "upper bound": [one.prediction.upper for one in columns],
    }
    scores = {
        "error": [(one.prediction.mean - one.target).abs() for one in columns],
        "epistemic score": [one.prediction.epistemic for one in columns],
    }
    known = torch.stack(depths["truth"] + depths["prediction"])
    limits = float(known.nan_to_num(torch.inf).min()), float(known.nan_to_num(-torch.inf).max())
    units = {"error": unit}
    for title, maps in _in_order(depths | scores).items():
        low, high = limits if title in depths else (0.0, _highest(maps))
        yield MapRow(title, unit if title in depths else units.get(title, ""), low, high, _coloured(maps, low, high))
    if all(one.prediction.reference is not None for one in columns):
        flagged = tuple(png(255 * one.prediction.flagged[0].byte()) for one in columns)
        yield MapRow("flagged", "", math.nan, math.nan, flagged)


def _in_order(found: Mapping[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    order = ("truth", "prediction", "error", "lower bound", "upper bound", "epistemic score")
    return {title: found[title] for title in order}


def _highest(maps: Sequence[Tensor]) -> float:
    """The number that few are above, so that single pixels do not darken all others; 1 where it is not above 0."""
    known = torch.stack(list(maps)).double()
    known = known[known.isfinite()]
    found = float(known.quantile(MOST_SHOWN)) if len(known) else 0.0
    return found if found > 0 else 1.0


def _coloured(maps: Sequence[Tensor], low: float, high: float) -> tuple[str, ...]:
    """Maps (1, 1, H, W) in colour, numbers beyond the limits as those at them."""
    span = high - low if high > low else 1.0
    palette = colours()
    found = []
    for one in maps:
        shade = ((one[0].double() - low) / span).clamp(0, 1) * (SHADES - 1)
        index = torch.where(shade.isnan(), SHADES, shade.nan_to_num().round())
        found.append(png(index.byte(), palette))
    return tuple(found)


def colours() -> Tensor:
    """The palette (256, 3), uint8: the colours between those of `COLOURS`, and that of what has no number."""
    anchors = torch.tensor(COLOURS, dtype=torch.float64)
    place = torch.linspace(0, len(anchors) - 1, SHADES, dtype=torch.float64)
    low = place.long().clamp(max=len(anchors) - 2)
    between = torch.lerp(anchors[low], anchors[low + 1], (place - low)[:, None])
    return torch.cat([between.round().byte(), torch.tensor([MISSING], dtype=torch.uint8)])
