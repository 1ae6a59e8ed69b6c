"""What pages draw: kept by cell, read as it was put, damaged lines left out, older lines under the names of today."""

import json
import math
from dataclasses import asdict, dataclass
from typing import ClassVar

import pytest

from image_results import drawing_of, image_png, reliability_of
from splitpoint.bench.artefacts import Artefact, Attack, Curve, Drawing, Histogram, Reliability, Thumbnail, Thumbnails
from splitpoint.bench.record import Cell
from splitpoint.errors import DataError


def values_of(artefact):
    """A line as JSON holds it."""
    return json.loads(artefact.line())


def written(folder, kind, *lines):
    """What is read of lines, which are texts or values."""
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (folder / kind.file).write_text("\n".join(texts))
    return kind.read(folder)


# Putting and reading


@pytest.mark.parametrize("kind", [Curve, Drawing])
def test_without_a_file_there_are_none(tmp_path, kind):
    assert kind.read(tmp_path) == []


def test_an_artefact_is_read_as_it_was_put(tmp_path, curve):
    drawing = drawing_of("cifar10/vgg16_small", "splitpoint_conformal")
    curve("laplace", epistemic=(0.1, 1e-300, 3.0, 1 / 3, 5.0)).put(tmp_path / "new" / "folder")
    drawing.put(tmp_path)
    assert Curve.read(tmp_path / "new" / "folder") == [curve("laplace", epistemic=(0.1, 1e-300, 3.0, 1 / 3, 5.0))]
    assert repr(Drawing.read(tmp_path)) == repr([drawing])  # NaN of empty bins included, which equals nothing
    assert drawing.cell.network == "vgg16_small"


def test_an_artefact_takes_the_place_of_its_predecessor(tmp_path, curve):
    for mean in ((1.0,) * 5, (2.0,) * 5, (math.nan,) * 5):
        curve("laplace", mean=mean).put(tmp_path)
        curve("sqr_oc", mean=(0.0,) * 5).put(tmp_path)
        curve("sqr_oc", noise="gaussian").put(tmp_path)
    found = Curve.read(tmp_path)
    assert [(one.cell.noise, one.cell.method) for one in found] == [
        ("trimodal", "laplace"),
        ("trimodal", "sqr_oc"),
        ("gaussian", "sqr_oc"),
    ]
    assert all(map(math.isnan, found[0].mean))
    assert found[1].mean == (0.0,) * 5
    assert [path.name for path in tmp_path.iterdir()] == [Curve.file]


def test_null_stands_for_a_number_that_is_not_finite(curve):
    assert values_of(curve("laplace", mean=(math.inf, -math.inf, math.nan, 0.0, 1.0)))["mean"] == [None] * 3 + [0, 1]


def test_the_last_line_of_a_cell_counts(tmp_path):
    old = drawing_of("mnist/lenet", "softmax", reliability=reliability_of(0.5))
    found = written(tmp_path, Drawing, *map(values_of, (old, drawing_of("mnist/lenet", "softmax"))))
    assert [one.reliability.ece for one in found] == [pytest.approx(0.08)]


@dataclass(frozen=True)
class Depth(Artefact):
    """A kind that the package does not have: rows of images against the strength of an attack."""

    strength: tuple[float, ...]
    rows: tuple[Thumbnails, ...]

    file: ClassVar[str] = "depth.jsonl"


def test_a_further_kind_is_one_more_class(tmp_path):
    row = Thumbnails("input", ood=False, images=(Thumbnail(image_png(1), 0, 0),))
    depth = Depth(Cell("depth", "paper", "clean", "rooms", "splitpoint"), (0.0, 0.1), (row, row))
    depth.put(tmp_path)
    assert Depth.read(tmp_path) == [depth]


# Damage


def test_torn_and_other_lines_do_not_count(tmp_path, curve):
    whole = values_of(curve("splitpoint"))
    lines = [
        json.dumps(whole)[:100],
        "[]",
        "{}",
        "3",
        "",
        values_of(curve("laplace")) | {"mean": [1.0]},
        values_of(curve("gaussian")) | {"x": 3},
        values_of(curve("conformal")) | {"method": 3},
        values_of(curve("sqr_oc")) | {"format": 3},
        {name: value for name, value in whole.items() if name != "upper"} | {"method": "oc"},
    ]
    (found,) = written(tmp_path, Curve, *lines, whole)
    assert found.cell.method == "splitpoint"
    assert found.mean == (-216.0, -27.0, 0.0, 27.0, 216.0)
    with open(tmp_path / Curve.file, "ab") as file:
        file.write(b"\n\xff\n")
    assert len(Curve.read(tmp_path)) == 1


def test_damaged_lines_are_gone_after_the_next_artefact(tmp_path, curve):
    written(tmp_path, Curve, values_of(curve("laplace")), '{"torn', "3")
    curve("gaussian").put(tmp_path)
    lines = (tmp_path / Curve.file).read_text().splitlines()
    assert [json.loads(line)["method"] for line in lines] == ["laplace", "gaussian"]


SOME = {"label": 1, "predicted": 1}


def shown(**image):
    return {"thumbnails": [{"title": "most doubted, test", "ood": False, "images": [SOME | image]}]}


@pytest.mark.parametrize(
    "changes",
    [
        {"attack": {"strength": [0.0, 0.1], "accuracy": [1.0], "epistemic": [0.0, 1.0]}},
        {"histogram": {"logarithm": True, "edges": [0, 1], "test": [1, 2], "ood": [1, 2], "threshold": 0}},
        {"histogram": {"logarithm": True, "edges": [0, None], "test": [1], "ood": [1], "threshold": 0}},
        {"histogram": {"logarithm": True, "edges": [], "test": [], "ood": [], "threshold": 0}},
        shown(image='"><script>'),
        shown(image="AAAA"),
        shown(image=image_png(0), label="a"),
        {"reliability": []},
        {"method": 3},
    ],
    ids=["uneven", "edges", "edge", "no edge", "script", "no image", "no label", "empty", "no name"],
)
def test_lines_of_another_form_do_not_count(tmp_path, changes):
    whole = values_of(drawing_of("mnist/lenet", "splitpoint"))
    other = values_of(drawing_of("mnist/lenet", "softmax")) | changes
    found = written(tmp_path, Drawing, other, json.dumps(whole)[:300], "[]", whole)
    assert [drawing.cell.method for drawing in found] == ["splitpoint"]


def test_who_writes_nonsense_is_told_so(curve):
    with pytest.raises(DataError, match=r"equally many numbers in the parts of the grid, but got \[5, 1, 5"):
        curve("laplace", mean=(1.0,))
    with pytest.raises(DataError, match="parts of the training rows"):
        curve("laplace", train_x=(1.0,))
    with pytest.raises(DataError, match="an attack"):
        Attack((0.0,), (1.0,), ())
    with pytest.raises(DataError, match="a reliability diagram"):
        Reliability((0.5,), (0.5,), ())
    with pytest.raises(DataError, match="finite edges"):
        Histogram(False, (), (), (), 0.0)
    with pytest.raises(DataError, match="a PNG file"):
        Thumbnail("AAAA", 1, 1)


# Lines of the first format


def test_older_curves_are_those_of_the_cubic_experiment(tmp_path, curve):
    numbers = {name: value for name, value in asdict(curve("laplace")).items() if name != "cell"}
    lines = [{"noise": "gaussian", "method": method} | numbers for method in ("splitpoint", "splitpoint_default")]
    found = written(tmp_path, Curve, *lines)
    assert [one.cell for one in found] == [
        Cell("cubic", "paper", "gaussian", "cubic", method) for method in ("splitpoint_paper", "splitpoint")
    ]
    assert found[0].mean == curve("laplace").mean


def older_drawing(method):
    image = {"picture": image_png(1), "label": 1, "predicted": 7}
    reliability = {"confidence": [None, 0.9], "accuracy": [None, 0.8], "count": [0, 10]}
    return {
        "protocol": "short",
        "dataset": "cifar10/vgg16_small",
        "method": method,
        "attack": {"strength": [0.0, 0.1], "accuracy": [0.9, 0.5], "epistemic": [0.1, None]},
        "reliability": reliability,
        "reliability_before": reliability,
        "histogram": {"logarithm": False, "edges": [0, 1], "inside": [0.4], "outside": [0.6], "threshold": None},
        "thumbnails": {"most doubted, test": [image], "least doubted, outside": [image, image]},
    }


def test_older_drawings_are_those_of_the_image_experiments(tmp_path):
    (found,) = written(tmp_path, Drawing, older_drawing("splitpoint_default_calibrated"))
    assert found.cell == Cell("images", "short", "clean", "cifar10", "splitpoint_conformal", network="vgg16_small")
    assert (found.histogram.test, found.histogram.ood) == ((0.4,), (0.6,))
    assert math.isnan(found.histogram.threshold)
    assert [(row.title, row.ood, len(row.images)) for row in found.thumbnails] == [
        ("most doubted, test", False, 1),
        ("least doubted, out of distribution", True, 2),
    ]
    assert found.thumbnails[0].images[0] == Thumbnail(image_png(1), 1, 7)
    found.put(tmp_path)
    assert repr(Drawing.read(tmp_path)) == repr([found])


@pytest.mark.parametrize(
    ("method", "calibrated"),
    [("temperature_scaling", True), ("splitpoint_layers", True), ("splitpoint_calibrated", True), ("softmax", False)],
)
def test_older_drawings_know_which_methods_calibrated(tmp_path, method, calibrated):
    (found,) = written(tmp_path, Drawing, older_drawing(method))
    assert found.calibrated is calibrated


# What follows from them


def test_calibration_error_by_hand():
    # 1/4 |0.5 - 0.6| + 3/4 |0.8 - 0.9| = 0.1; the empty bin does not count
    found = Reliability((math.nan, 0.6, 0.9), (math.nan, 0.5, 0.8), (0, 1, 3))
    assert found.ece == pytest.approx(0.1)
    assert found.bins == [(0.6, 0.5, 0.25), (0.9, 0.8, 0.75)]
    assert Reliability((), (), ()).ece == 0


def test_methods_that_change_probabilities_are_told_from_others():
    assert not drawing_of("mnist/lenet", "softmax").recalibrated
    assert drawing_of("mnist/lenet", "splitpoint_layers").recalibrated


def test_thumbnails_know_how_wide_they_are():
    drawing = drawing_of("cifar10/vgg16", "splitpoint_conformal")
    assert {one.width for row in drawing.thumbnails for one in row.images} == {32}
