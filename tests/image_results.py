"""A made-up image experiment for the tests of reports: records, and the sheets that pages draw."""

import base64
import itertools
import json
import math
import struct
import zlib

from splitpoint.bench.record import Record

PLACES = ("mnist/lenet", "cifar10/resnet20_published", "cifar10/vgg16_small")
METHODS = (
    "softmax",
    "temperature_scaling",
    "ddu",
    "deep_ensemble",
    "splitpoint",
    "splitpoint_calibrated",
    "splitpoint_default",
    "splitpoint_default_calibrated",
    "splitpoint_layers",
)
DRAWN = "splitpoint_default_calibrated"
STRENGTHS = [0.0, 0.02, *(round(0.04 * step, 2) for step in range(1, 11))]
BINS = 15


def image_record(dataset, method, metrics, *, trial=0, protocol="short", suite="images", variant=""):
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
        settings={"epochs": 350 if protocol == "paper" else 12, "outside": "svhn + tiny_imagenet"},
        versions={"torch": "2.13.0"},
    )


def image_trials(dataset, method, metrics, **place):
    """Records of one cell: `metrics` maps names to a value for each trial."""
    count = len(next(iter(metrics.values())))
    return [
        image_record(dataset, method, {name: values[trial] for name, values in metrics.items()}, trial=trial, **place)
        for trial in range(count)
    ]


def around(value, spread=0.004):
    """Three trials."""
    return [value - spread, value, value + spread]


def measured(method, size):
    """Metrics of a method on data set number `size`; only ours with several layers beat the entropy on all of them."""
    ours = {"splitpoint_default": 0.03 * (size - 1), "splitpoint_layers": 0.05}
    gain = ours.get(method.removesuffix("_calibrated"), 0.0)
    calibrated = method.endswith("_calibrated") or method in ("temperature_scaling", "deep_ensemble")
    entropy = {f"auroc_{name}_entropy": around(0.9 - 0.03 * size) for name in ("error", "adv", "ood")}
    return entropy | {
        "accuracy": around(0.99 - 0.05 * size, 0.001),
        "ece": around(0.01 if calibrated else 0.04, 0.001),
        "nll": around(0.2 * size),
        "brier": around(0.1 * size),
        "auroc_error": around(0.9 - 0.03 * size + gain),
        "auroc_error_epistemic": around(0.89 - 0.03 * size + gain),
        "auroc_adv": around(0.9 - 0.03 * size + gain),
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
    variants = [("splitpoint", f"training=stagewise;train_fraction={share}") for share in (0.2, 0.6, 1.0)]
    variants += [("splitpoint", "training=joint")]
    variants += [("splitpoint", f"calib_fraction={share};uq_train_set=train") for share in (0.1, 0.3, 0.5)]
    variants += [
        ("splitpoint_calibrated", f"calib_fraction={share};uq_train_set=calibration") for share in (0.1, 0.3, 0.5)
    ]
    variants += [("splitpoint_calibrated", f"hidden_layers={count}") for count in (1, 2, 3)]
    for method, variant in variants:
        for place in PLACES[1:]:
            narrow = {"nll": around(0.02285, 0.00005)}  # long numbers on its axis
            found += image_trials(place, method, measured(method, 1) | narrow, suite="images-ablation", variant=variant)
    return found


def picture(seed, side=28, channels=1):
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
    return {
        "confidence": [None] * empty + centres[empty:],
        "accuracy": [None] * empty + [max(centre - gap, 0.0) for centre in centres[empty:]],
        "count": [0] * empty + [2**index for index in range(empty, BINS)],
    }


def bell(middle, edges, width):
    places = [(a + b) / 2 for a, b in itertools.pairwise(edges)]
    heights = [math.exp(-(((place - middle) / width) ** 2)) for place in places]
    return [height / sum(heights) for height in heights]


def sheet_of(dataset, method, **changes):
    """One line of ``sheets.jsonl``."""
    logarithm = method != "ddu"
    edges = [-6 + 0.15 * index for index in range(41)] if logarithm else [-80 + 3 * index for index in range(41)]
    span = edges[-1] - edges[0]
    kept = method in ("softmax", "ddu", "splitpoint", "splitpoint_default")
    marks = ("least doubted, test", "most doubted, test", "least doubted, outside", "most doubted, outside")
    groups = {
        group: [
            {
                "picture": picture(seed, *((28, 1) if "mnist" in dataset else (32, 3))),
                "label": seed % 10,
                "predicted": said,
            }
            for seed, said in enumerate((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 7) if "least" in group else (9, 1, 7) * 4)
        ]
        for group in marks
    }
    return {
        "protocol": "short",
        "dataset": dataset,
        "method": method,
        "attack": {
            "strength": STRENGTHS,
            "accuracy": [0.1 + 0.85 * math.exp(-9 * strength) for strength in STRENGTHS],
            "epistemic": [
                (1 - math.exp(-9 * strength)) * (0.004 if logarithm else 300) - (not logarithm) * 400
                for strength in STRENGTHS
            ],
        },
        "reliability": reliability_of(0.08 if kept else 0.02),
        "reliability_before": reliability_of(0.08),
        "histogram": {
            "logarithm": logarithm,
            "edges": edges,
            "inside": bell(edges[0] + 0.3 * span, edges, 0.1 * span),
            "outside": bell(edges[0] + 0.6 * span, edges, 0.15 * span),
            "threshold": edges[0] + 0.45 * span,
        },
        "thumbnails": groups if method == DRAWN else {},
    } | changes


def image_sheets():
    """The lines of all methods and data sets."""
    return "".join(json.dumps(sheet_of(place, method)) + "\n" for place in PLACES for method in METHODS)
