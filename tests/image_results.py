"""A made-up image experiment for the tests of reports: records, and what pages draw of every method."""

import base64
import itertools
import math
import struct
import zlib

from splitpoint.bench.artefacts import Attack, Drawing, Histogram, Reliability, Thumbnail, Thumbnails
from splitpoint.bench.record import Cell, Record

PLACES = ("mnist/lenet", "cifar10/resnet20_published", "cifar10/vgg16_small")
METHODS = (
    "softmax",
    "temperature_scaling",
    "ddu",
    "deep_ensemble",
    "splitpoint_paper",
    "splitpoint_paper_calibrated",
    "splitpoint",
    "splitpoint_conformal",
    "splitpoint_layers",
)
CALIBRATED = ("temperature_scaling", "ddu", "deep_ensemble", "splitpoint_paper_calibrated", *METHODS[-2:])
DRAWN = "splitpoint_conformal"
STRENGTHS = [0.0, 0.02, *(round(0.04 * step, 2) for step in range(1, 11))]
BINS = 15


def image_record(place, method, metrics, *, trial=0, protocol="short", suite="images", variant=""):
    """A record; `place` is data set and network, such as ``mnist/lenet``."""
    dataset, _, network = place.partition("/")
    return Record(
        suite,
        protocol,
        "clean",
        dataset,
        method,
        variant,
        trial,
        (trial,),
        seed=0,
        metrics=metrics,
        timing={"train_cpu_s": 12.0, "infer_us_per_row": 30.0},
        settings={"epochs": 350 if protocol == "paper" else 12, "ood": "svhn + tiny_imagenet"},
        versions={"torch": "2.13.0"},
        network=network,
    )


def image_trials(place, method, metrics, **changes):
    """Records of one cell: `metrics` maps names to a value for each trial."""
    count = len(next(iter(metrics.values())))
    return [
        image_record(place, method, {name: values[trial] for name, values in metrics.items()}, trial=trial, **changes)
        for trial in range(count)
    ]


def around(value, spread=0.004):
    """Three trials."""
    return [value - spread, value, value + spread]


def measured(method, size):
    """Metrics of a method on data set number `size`; only ours with several layers beat the entropy on all of them."""
    ours = {"splitpoint": 0.03 * (size - 1), "splitpoint_conformal": 0.03 * (size - 1), "splitpoint_layers": 0.05}
    gain = ours.get(method, 0.0)
    calibrated = method in CALIBRATED and method not in ("ddu", "splitpoint_layers")
    entropy = {f"auroc_{name}_entropy": around(0.9 - 0.03 * size) for name in ("error", "adversarial", "ood")}
    return entropy | {
        "accuracy": around(0.99 - 0.05 * size, 0.001),
        "ece": around(0.01 if calibrated else 0.04, 0.001),
        "nll": around(0.2 * size),
        "brier": around(0.1 * size),
        "auroc_error": around(0.9 - 0.03 * size + gain),
        "auroc_error_epistemic": around(0.89 - 0.03 * size + gain),
        "auroc_adversarial": around(0.9 - 0.03 * size + gain),
        "auroc_ood": around(0.9 - 0.03 * size + gain),
        "flagged_test": around(0.05),
        "flagged_ood": around(0.6),
        "spearman_attack": around(-0.9 + 0.02 * size),
    }


def image_records():
    """All methods on three data sets, and the ablations of the paper on one."""
    found = []
    for size, place in enumerate(PLACES):
        for method in METHODS:
            found += image_trials(place, method, measured(method, size))
    variants = [("splitpoint_paper", f"training=stagewise;train_fraction={share}") for share in (0.2, 0.6, 1.0)]
    variants += [("splitpoint_paper", "training=joint")]
    variants += [("splitpoint_paper", f"calib_fraction={share};uq_train_set=train") for share in (0.1, 0.3, 0.5)]
    variants += [
        ("splitpoint_paper_calibrated", f"calib_fraction={share};uq_train_set=calibration") for share in (0.1, 0.3, 0.5)
    ]
    variants += [("splitpoint_paper_calibrated", f"hidden_layers={count}") for count in (1, 2, 3)]
    for method, variant in variants:
        for place in PLACES[1:]:
            narrow = {"nll": around(0.02285, 0.00005)}  # long numbers on its axis
            found += image_trials(place, method, measured(method, 1) | narrow, suite="images-ablation", variant=variant)
    return found


def image_png(seed, side=28, channels=1):
    """A small PNG file with a bright spot, as base64 text."""
    rows = [
        b"\0"
        + bytes(
            255 if (x - 4 - seed % 20) ** 2 + (y - 14) ** 2 < 30 else 40 for x in range(side) for _ in range(channels)
        )
        for y in range(side)
    ]
    header = struct.pack(">IIBBBBB", side, side, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(b"".join(rows))), (b"IEND", b""))
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + body).decode()


def reliability_of(gap):
    """Bins that are too sure by `gap`; the lowest are empty."""
    centres = [(index + 0.5) / BINS for index in range(BINS)]
    empty = BINS // 10 + 1
    return Reliability(
        (math.nan,) * empty + tuple(centres[empty:]),
        (math.nan,) * empty + tuple(max(centre - gap, 0.0) for centre in centres[empty:]),
        (0.0,) * empty + tuple(float(2**index) for index in range(empty, BINS)),
    )


def bell(middle, edges, width):
    places = [(a + b) / 2 for a, b in itertools.pairwise(edges)]
    heights = [math.exp(-(((place - middle) / width) ** 2)) for place in places]
    return tuple(height / sum(heights) for height in heights)


def drawing_of(place, method, **changes):
    """What is drawn of one method; `place` is data set and network, such as ``mnist/lenet``."""
    dataset, _, network = place.partition("/")
    logarithm = method != "ddu"
    edges = [-6 + 0.15 * index for index in range(41)] if logarithm else [-80 + 3 * index for index in range(41)]
    span = edges[-1] - edges[0]
    kept = method in ("softmax", "ddu", "splitpoint_paper", "splitpoint")
    attack = Attack(
        tuple(STRENGTHS),
        tuple(0.1 + 0.85 * math.exp(-9 * strength) for strength in STRENGTHS),
        tuple(
            (1 - math.exp(-9 * strength)) * (0.004 if logarithm else 300) - (not logarithm) * 400
            for strength in STRENGTHS
        ),
    )
    histogram = Histogram(
        logarithm,
        tuple(edges),
        test=bell(edges[0] + 0.3 * span, edges, 0.1 * span),
        ood=bell(edges[0] + 0.6 * span, edges, 0.15 * span),
        threshold=edges[0] + 0.45 * span,
    )
    parts = {
        "cell": Cell("images", "short", "clean", dataset, method, network=network),
        "attack": attack,
        "reliability": reliability_of(0.08 if kept else 0.02),
        "reliability_before": reliability_of(0.08),
        "histogram": histogram,
        "thumbnails": thumbnails_of(*((28, 1) if "mnist" in dataset else (32, 3))) if method == DRAWN else (),
        "calibrated": method in CALIBRATED,
    }
    return Drawing(**parts | changes)


def thumbnails_of(side, channels):
    """The four rows of images that are shown of the drawn method."""
    found = []
    for title, ood in (("test", False), ("out of distribution", True)):
        for end, predicted in (("least", (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 7)), ("most", (9, 1, 7) * 4)):
            images = [Thumbnail(image_png(seed, side, channels), seed % 10, p) for seed, p in enumerate(predicted)]
            found.append(Thumbnails(f"{end} doubted, {title}", ood, tuple(images)))
    return tuple(found)


def image_drawings():
    """The lines of all methods and data sets, as their file holds them."""
    return "".join(drawing_of(place, method).line() for place in PLACES for method in METHODS)
