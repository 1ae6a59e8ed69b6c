"""What a page draws of a method on the images of one trial: curves, bins, shares and thumbnails."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint import metrics
from splitpoint.datasets.images import ImageSet
from splitpoint.prediction import ClassificationPrediction

BINS, HISTOGRAM_BINS = 15, 40
THUMBNAILS, THUMBNAIL_SIDE = 12, 64


def reliability(probs: Tensor, labels: Tensor) -> dict[str, list[float]]:
    """Mean confidence, accuracy and number of images in bins of the confidence."""
    found = metrics.reliability(probs, labels, BINS)
    return {name: getattr(found, name).tolist() for name in ("confidence", "accuracy", "count")}


def thumbnails(images: ImageSet, prediction: ClassificationPrediction, name: str) -> dict[str, list[dict[str, Any]]]:
    """The images that a method doubts least and most, by group such as "most doubted, test"."""
    order = prediction.epistemic.argsort(stable=True)
    ends = {"least": order[:THUMBNAILS], "most": order.flip(0)[:THUMBNAILS]}
    return {
        f"{end} doubted, {name}": [
            {"image": png(shrunk(pixels)), "label": int(label), "predicted": int(predicted)}
            for pixels, label, predicted in zip(
                images.pixels(places), images.labels[places], prediction.label[places], strict=True
            )
        ]
        for end, places in ends.items()
    }


def histogram(test: Tensor, ood: Tensor, threshold: float) -> dict[str, Any]:
    """Shares of both sets in bins of equal width of the score, or of its logarithm where it is never negative.

    Scores that spread over many powers of ten would fill one bin of equal width; a score of 0 counts as the smallest
    positive one, and one that is not finite is left out. Bins reach from the 0.1% to the 99.9% quantile of both sets
    together, so that a few extreme scores do not squeeze all others into one bin; the outermost also count what lies
    beyond.
    """
    test, ood = (part[part.isfinite()] for part in (test, ood))
    both = torch.cat([test, ood, torch.zeros(int(not len(test) + len(ood)))]).double()
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
        for part in (test, ood)
    ]
    return {
        "logarithm": logarithm,
        "edges": edges.tolist(),
        "test": shares[0].tolist(),
        "ood": shares[1].tolist(),
        "threshold": float(scaled(torch.tensor(threshold))),
    }


def shrunk(pixels: Tensor) -> Tensor:
    """An image (C, H, W) in uint8 with sides of at most `THUMBNAIL_SIDE` pixels, by averaging areas."""
    scale = min(1.0, THUMBNAIL_SIDE / max(pixels.shape[1:]))
    sides = [max(1, round(side * scale)) for side in pixels.shape[1:]]
    found: Tensor = pixels if scale == 1 else F.interpolate(pixels[None].float(), sides, mode="area")[0].round().byte()
    return found


def png(pixels: Tensor) -> str:
    """An image (1 or 3, H, W) in uint8 as the base64 text of a PNG file."""
    channels, height, width = pixels.shape
    lines = pixels.movedim(0, 2).reshape(height, width * channels).contiguous().numpy()
    raw = b"".join(b"\0" + line.tobytes() for line in lines)
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks: Sequence[tuple[bytes, bytes]] = ((b"IHDR", header), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()
