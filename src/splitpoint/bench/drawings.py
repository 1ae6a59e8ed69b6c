"""What a page draws of a method on the images of one trial: curves, bins, shares and thumbnails."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor
from torch.nn import functional as F

from splitpoint import metrics
from splitpoint.bench.artefacts import PNG_SIGNATURE, Attack, Drawing, Histogram, Reliability, Thumbnail, Thumbnails
from splitpoint.bench.image_trials import ImageTrial
from splitpoint.bench.record import Cell
from splitpoint.datasets.images import ImageSet
from splitpoint.metrics import Evidence
from splitpoint.prediction import ClassificationPrediction

BINS, HISTOGRAM_BINS = 15, 40
THUMBNAILS, THUMBNAIL_SIDE = 12, 64


def drawing(cell: Cell, evidence: Evidence, *, calibrated: bool, shown: ImageTrial | None = None) -> Drawing:
    """What a page draws of one method.

    Args:
        cell: of the method.
        evidence: what it says about a trial, out of distribution and under attack too.
        calibrated: whether it was given calibration images.
        shown: the trial, for thumbnails of the most and least doubted images; None for none.
    """
    test, ood, attack, threshold = evidence.prediction, evidence.ood, evidence.attack, evidence.threshold
    assert isinstance(test, ClassificationPrediction)
    assert isinstance(ood, ClassificationPrediction)
    assert attack is not None
    assert threshold is not None
    return Drawing(
        cell,
        Attack(**{name: tuple(values) for name, values in attack.items()}),
        _reliability(test.probs, evidence.target),
        _reliability(test.base_probs, evidence.target),
        histogram(test.epistemic, ood.epistemic, threshold),
        () if shown is None else (*thumbnails(shown.test, test), *thumbnails(shown.ood, ood, ood=True)),
        calibrated,
    )


def _reliability(probs: Tensor, labels: Tensor) -> Reliability:
    found = metrics.reliability(probs, labels, BINS)
    return Reliability(*(tuple(values.tolist()) for values in (found.confidence, found.accuracy, found.count)))


def thumbnails(images: ImageSet, prediction: ClassificationPrediction, *, ood: bool = False) -> tuple[Thumbnails, ...]:
    """The images that a method doubts least and most."""
    order = prediction.epistemic.argsort(stable=True)
    found = []
    for end, places in (("least", order[:THUMBNAILS]), ("most", order.flip(0)[:THUMBNAILS])):
        columns = zip(images.pixels(places), images.labels[places], prediction.label[places], strict=True)
        shown = tuple(
            Thumbnail(png(shrunk(pixels)), int(label), int(predicted)) for pixels, label, predicted in columns
        )
        found.append(Thumbnails(f"{end} doubted, {'out of distribution' if ood else 'test'}", ood, shown))
    return tuple(found)


def histogram(test: Tensor, ood: Tensor, threshold: float) -> Histogram:
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

    def shares(part: Tensor) -> tuple[float, ...]:
        counts = torch.histogram(scaled(part).clamp(edges[0], edges[-1]), edges).hist
        return tuple((counts / max(len(part), 1)).tolist())

    limit = float(scaled(torch.tensor(threshold)))
    return Histogram(logarithm, tuple(edges.tolist()), shares(test), shares(ood), limit)


def shrunk(pixels: Tensor) -> Tensor:
    """An image (C, H, W) in uint8 with sides of at most `THUMBNAIL_SIDE` pixels, by averaging areas."""
    scale = min(1.0, THUMBNAIL_SIDE / max(pixels.shape[1:]))
    sides = [max(1, round(side * scale)) for side in pixels.shape[1:]]
    found: Tensor = pixels if scale == 1 else F.interpolate(pixels[None].float(), sides, mode="area")[0].round().byte()
    return found


def png(pixels: Tensor, palette: Tensor | None = None) -> str:
    """An image (1 or 3, H, W) in uint8 as the base64 text of a PNG file.

    With a `palette` (n, 3) in uint8 the one channel numbers its colours.
    """
    channels, height, width = pixels.shape
    lines = pixels.movedim(0, 2).reshape(height, width * channels).contiguous().numpy()
    raw = b"".join(b"\0" + line.tobytes() for line in lines)
    kind = 3 if palette is not None else 0 if channels == 1 else 2
    chunks: list[tuple[bytes, bytes]] = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, kind, 0, 0, 0))]
    if palette is not None:
        chunks.append((b"PLTE", palette.contiguous().numpy().tobytes()))
    chunks += [(b"IDAT", zlib.compress(raw, 9)), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return base64.b64encode(PNG_SIGNATURE + body).decode()
