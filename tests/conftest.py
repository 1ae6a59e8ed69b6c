"""What the tests of reports share: records made by hand, and a folder of them."""

import math

import pytest
from hypothesis import settings

import properties  # noqa: F401  (the profiles)
from image_results import image_drawings, image_records
from splitpoint.bench.artefacts import Curve
from splitpoint.bench.record import Cell, Journal, Record

settings.load_profile("same")


def trials_of(
    dataset, method, metrics, *, noise="clean", protocol="authors", suite="uci", variant="", errors=(), network=""
):
    """Records of one cell: `metrics` maps names to a value for each trial; trials in `errors` failed."""
    count = len(next(iter(metrics.values())))
    return [
        Record(
            suite,
            protocol,
            noise,
            dataset,
            method,
            variant,
            trial,
            tuple(range(count)),
            seed=0,
            metrics={} if trial in errors else {name: values[trial] for name, values in metrics.items()},
            timing={} if trial in errors else {"train_cpu_s": 1.5},
            settings={"epochs": 40 if dataset == "cubic" else 400},
            error="loss is <not> finite" if trial in errors else None,
            versions={"torch": "2.13.0"},
            network=network,
        )
        for trial in range(count)
    ]


@pytest.fixture
def cell():
    """The function that makes records of one cell."""
    return trials_of


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """A folder with a bit of everything: four data sets, two noises, a failure, ablations, a cubic task with curves."""
    records = []
    methods = {"mc_dropout": 1.2, "deep_ensemble": 1.0, "splitpoint_paper": 0.9, "own_method": 1.1}
    for noise in ("clean", "trimodal"):
        for size, dataset in enumerate(("boston", "energy", "wine", "yacht"), start=1):
            for method, factor in methods.items():
                metrics = {
                    "rmse": [size * factor + step for step in (-0.1, 0.0, 0.1)],
                    "picp": [0.94, 0.95, 0.97],
                    "mpiw": [4 * size * factor] * 3,
                    "spearman_total": [math.nan if method == "own_method" else 0.3 * factor] * 3,
                }
                failed = (1,) if (method, dataset, noise) == ("mc_dropout", "wine", "clean") else ()
                records += trials_of(dataset, method, metrics, noise=noise, errors=failed)
    for dataset in ("concrete", "energy"):
        for variant in ("train_fraction=0.2", "train_fraction=1.0", "residuals=loo", "residuals=train"):
            metrics = {"rmse": [7.0, 7.2, 7.1]}
            records += trials_of(dataset, "splitpoint_paper", metrics, suite="uci-ablation", variant=variant)
    for method in ("deep_ensemble", "splitpoint_paper"):
        metrics = {"rmse": [21.0, 21.2], "picp": [0.93, 0.94], "mpiw": [60.0, 61.0]}
        records += trials_of("cubic", method, metrics, suite="cubic", noise="trimodal", protocol="paper")
    folder = tmp_path_factory.mktemp("results")
    Journal(folder).append(records)
    for method in ("deep_ensemble", "splitpoint_paper"):
        curve_of(method).put(folder)
    return folder


@pytest.fixture(scope="session")
def image_results(tmp_path_factory):
    """A folder of a made-up image experiment with what is drawn of it."""
    folder = tmp_path_factory.mktemp("image_results")
    Journal(folder).append(image_records())
    (folder / "sheets.jsonl").write_text(image_drawings())
    return folder


def curve_of(method, noise="trimodal", **changes):
    """A curve; one value is missing."""
    x = (-6.0, -3.0, 0.0, 3.0, 6.0)
    mean = tuple(value**3 for value in x)
    parts = {
        "x": x,
        "mean": mean,
        "lower": tuple(value - 10 for value in mean),
        "upper": tuple(value + 10 for value in mean),
        "epistemic": (5.0, 1.0, math.nan, 1.0, 5.0),
        "truth": mean,
        "true_lower": tuple(value - 12 for value in mean),
        "true_upper": tuple(value + 12 for value in mean),
        "train_x": (-4.0, 0.0, 4.0),
        "train_y": (-60.0, 1.0, 66.0),
    }
    return Curve(Cell("cubic", "paper", noise, "cubic", method), **parts | changes)


@pytest.fixture
def curve():
    """The function that makes a curve."""
    return curve_of
