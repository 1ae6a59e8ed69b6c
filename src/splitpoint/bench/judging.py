"""The figures of one trial of an image experiment, and what a page draws of it."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint import metrics
from splitpoint.bench.pictures import TABLE_STRENGTH, Sweep
from splitpoint.datasets.images import ImageSet
from splitpoint.prediction import ClassificationPrediction, concatenate
from splitpoint.predictor import Predictor

SHEETS = "sheets.jsonl"
BINS, HISTOGRAM_BINS = 15, 40
THUMBNAILS, THUMBNAIL_SIDE = 12, 64


Attack = dict[str, list[float]]
"""Strengths of the curves, and the accuracy and the mean epistemic score under each."""


@dataclass(frozen=True)
class Views:
    """What a method says about the pictures of a trial.

    Attributes:
        labels: (N,) of the test pictures.
        test: the test pictures as they are.
        adversarial: the same, attacked, or natural adversarial pictures.
        outside: out of distribution.
        attack: see `Attack`.
        threshold: epistemic score above which a picture is flagged, from the calibration pictures.
    """

    labels: Tensor
    test: ClassificationPrediction
    adversarial: ClassificationPrediction
    outside: ClassificationPrediction
    attack: Attack
    threshold: float


def under_attack(
    predictor: Predictor[Any], sweep: Sweep, stream: Iterable[Tensor], labels: Tensor
) -> tuple[dict[float, ClassificationPrediction], Attack]:
    """Predictions without an attack and with that of the table, and the figures of the curves.

    The strength of the table is no point of the curves, which have steps of equal size. Predictions of the other
    strengths are not kept, since a thousand classes would need gigabytes. Batches of the stream are where the predictor
    is; what it says about them is kept on the CPU.
    """
    kept: dict[float, list[ClassificationPrediction]] = {0.0: [], TABLE_STRENGTH: []}
    right, doubt = dict.fromkeys(sweep.strengths, 0), dict.fromkeys(sweep.strengths, 0.0)
    for (strength, part), batch in zip(sweep.parts(), stream, strict=True):
        prediction = predictor(batch).to("cpu")
        right[strength] += int((prediction.label == labels[part]).sum())
        doubt[strength] += float(prediction.epistemic.double().sum())
        if strength in kept:
            kept[strength].append(prediction)
    strengths = sorted(set(sweep.strengths) - {TABLE_STRENGTH})
    attack = {
        "strength": strengths,
        "accuracy": [right[strength] / len(labels) for strength in strengths],
        "epistemic": [doubt[strength] / len(labels) for strength in strengths],
    }
    return {strength: concatenate(parts) for strength, parts in kept.items()}, attack


def measured(views: Views) -> dict[str, float]:
    """The metrics that benchmarks keep, by name."""
    evidence = metrics.Evidence(
        views.test,
        views.labels,
        ood=views.outside,
        adversarial=views.adversarial,
        attack=views.attack,
        threshold=views.threshold,
    )
    return metrics.measured(evidence, recorded=True)


def sheet(
    protocol: str, dataset: str, method: str, views: Views, pictures: ImageSet | None, outside: ImageSet | None
) -> dict[str, Any]:
    """What a page draws of one method on one data set, as JSON can hold it.

    Args:
        protocol: how networks were trained.
        dataset: data set and network.
        method: id of the method.
        views: what it says.
        pictures: test pictures, for thumbnails of the most and least certain ones; None for none.
        outside: pictures out of distribution, likewise.
    """
    found: dict[str, Any] = {
        "protocol": protocol,
        "dataset": dataset,
        "method": method,
        "attack": views.attack,
        "reliability": _reliability(views.test.probs, views.labels),
        "reliability_before": _reliability(views.test.base_probs, views.labels),
        "histogram": histogram(views.test.epistemic, views.outside.epistemic, views.threshold),
    }
    thumbnails = {}
    for name, images, prediction in (("test", pictures, views.test), ("outside", outside, views.outside)):
        if images is not None:
            order = prediction.epistemic.argsort(stable=True)
            for end, places in (("least", order[:THUMBNAILS]), ("most", order.flip(0)[:THUMBNAILS])):
                thumbnails[f"{end} doubted, {name}"] = [
                    {"picture": png(shrunk(picture)), "label": int(label), "predicted": int(said)}
                    for picture, label, said in zip(
                        images.pixels(places), images.labels[places], prediction.label[places], strict=True
                    )
                ]
    return found | {"thumbnails": thumbnails}


def _reliability(probs: Tensor, labels: Tensor) -> dict[str, list[float]]:
    found = metrics.reliability(probs, labels, BINS)
    return {name: getattr(found, name).tolist() for name in ("confidence", "accuracy", "count")}


def histogram(inside: Tensor, outside: Tensor, threshold: float) -> dict[str, Any]:
    """Shares of both sets in bins of equal width of the score, or of its logarithm where it is never negative.

    Scores that spread over many powers of ten would fill one bin of equal width; a score of 0 counts as the smallest
    positive one, and one that is not finite is left out. Bins reach from the 0.1% to the 99.9% quantile of both sets
    together, so that a few extreme scores do not squeeze all others into one bin; the outermost also count what lies
    beyond.
    """
    inside, outside = (part[part.isfinite()] for part in (inside, outside))
    both = torch.cat([inside, outside, torch.zeros(int(not len(inside) + len(outside)))]).double()
    logarithm = bool((both >= 0).all()) and bool((both > 0).any())
    smallest = float(both[both > 0].min()) if logarithm else 0.0

    def scaled(values: Tensor) -> Tensor:
        return values.double().clamp(min=smallest).log10() if logarithm else values.double()

    ordered = scaled(both).sort().values
    beyond = int(0.001 * (len(ordered) - 1))
    low, high = float(ordered[beyond]), float(ordered[-1 - beyond])
    edges = torch.linspace(low, high if high > low else low + 1, HISTOGRAM_BINS + 1, dtype=torch.float64)
    shares = [
        torch.histogram(scaled(part).clamp(edges[0], edges[-1]), edges).hist / max(len(part), 1)
        for part in (inside, outside)
    ]
    return {
        "logarithm": logarithm,
        "edges": edges.tolist(),
        "inside": shares[0].tolist(),
        "outside": shares[1].tolist(),
        "threshold": float(scaled(torch.tensor(threshold))),
    }


def shrunk(pixels: Tensor) -> Tensor:
    """A picture (C, H, W) in uint8 with sides of at most `THUMBNAIL_SIDE` pixels, by averaging areas."""
    scale = min(1.0, THUMBNAIL_SIDE / max(pixels.shape[1:]))
    sides = [max(1, round(side * scale)) for side in pixels.shape[1:]]
    found: Tensor = pixels if scale == 1 else F.interpolate(pixels[None].float(), sides, mode="area")[0].round().byte()
    return found


def png(pixels: Tensor) -> str:
    """A picture (1 or 3, H, W) in uint8 as the base64 text of a PNG file."""
    channels, height, width = pixels.shape
    lines = pixels.movedim(0, 2).reshape(height, width * channels).contiguous().numpy()
    raw = b"".join(b"\0" + line.tobytes() for line in lines)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks: Sequence[tuple[bytes, bytes]] = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()
