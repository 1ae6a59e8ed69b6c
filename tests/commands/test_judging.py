"""`splitpoint verdict`: the page of a verdict on named columns, and figures that have to reach something."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import splitpoint as sp
from splitpoint import cli
from splitpoint.commands.judging import least_figures, missed_figures
from splitpoint.errors import SettingsError


class Verdict:
    """A stand-in that remembers what it was asked about."""

    figures = {"coverage": 0.9, "ece": math.nan}  # noqa: RUF012

    def __init__(self, uq, test, **more):
        self.uq, self.data = uq, {"test": test, **more}

    def save(self, path):
        Path(path).write_text("<html>")

    def to_dict(self):
        return {"figures": {"coverage": 0.9}}

    def __str__(self):
        return "GREEN: trust it"


@pytest.fixture
def judged(place, run, monkeypatch):
    """The place with a predictor, and the verdicts that were asked for."""
    run("fit", "--task", "regression", *place.model("numbers"), "--data", "rows.npz", "--out", "uq.safetensors")
    made = []

    def verdict(*args, **kwargs):
        made.append(Verdict(*args, **kwargs))
        return made[-1]

    monkeypatch.setitem(sys.modules, "splitpoint.verdicts", SimpleNamespace(verdict=verdict))
    return SimpleNamespace(place=place, made=made, call=("verdict", "uq.safetensors", *place.model("numbers")))


def test_rows_are_handed_on_with_and_without_targets(judged, run):
    np.savez("strange.npz", X=judged.place.x.numpy() + 9)
    more = ("--train", "rows.npz", "--ood", "strange.npz", "--out", "v.html", "--json", "v.json", "--batch", "20")
    assert run(*judged.call, "--data", "rows.npz", *more) == "GREEN: trust it\nv.html\n"
    (verdict,) = judged.made
    assert isinstance(verdict.uq, sp.RegressionPredictor)
    assert set(verdict.data) == {"test", "train", "ood", "progress"}
    assert [len(x) for x, _ in verdict.data["test"]] == [20, 20, 8]
    assert torch.equal(torch.cat([y for _, y in verdict.data["train"]]).float(), judged.place.y)
    assert torch.equal(torch.cat([x for (x,) in verdict.data["ood"]]), judged.place.x + 9)
    assert Path("v.html").read_text() == "<html>"
    assert json.loads(Path("v.json").read_text()) == {"figures": {"coverage": 0.9}}


def test_a_figure_that_is_too_low_fails_after_the_page_is_written(judged, run, capsys):
    call = [*map(str, judged.call), "--data", "rows.npz", "--out", "v.html", "--quiet", "--fail-under"]
    assert cli.main([*call, "coverage=.9"]) == 0
    capsys.readouterr()
    assert cli.main([*call, "coverage=.93", "ece=.01"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "GREEN: trust it\nv.html\n"
    assert captured.err == (
        "splitpoint: Expected coverage of at least 0.93, but got 0.9; ece of at least 0.01, but got none that could be "
        "measured; see v.html.\n"
    )
    assert Path("v.html").exists()


def test_figures_have_to_be_known(judged, refused):
    call = (*judged.call, "--data", "rows.npz", "--out", "v.html", "--fail-under")
    refused(*call, "coverag=.9", parts=("figures of the verdict, but got coverag; did you mean coverage?",))
    refused(*call, "coverage", parts=("--fail-under figure=number", "'coverage'"))


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--out", "v.txt"), ("a file .html to write to",)),
        (("--json", "v.txt"), ("a file .json to write to",)),
        (("--data", "bare.npz"), ("the targets y, but bare.npz lacks y; it has X",)),
        (("--target", "z"), ("a column of rows.npz with --target, but got 'z'",)),
        (("--ood", "none.npz"), ("none.npz does not exist",)),
    ],
    ids=str,
)
def test_what_is_wrong_is_one_sentence(judged, refused, options, parts):
    np.savez("bare.npz", X=judged.place.x.numpy())
    refused(*judged.call, "--data", "rows.npz", "--out", "v.html", *options, parts=parts)
    assert not judged.made


def test_a_graph_needs_no_model(judged, run, monkeypatch):
    notes = sp.load("uq.safetensors", judged.place.numbers).notes
    graph = SimpleNamespace(task="regression", metadata={"predictor": {"notes": notes}})
    monkeypatch.setitem(sys.modules, "splitpoint.runtime", SimpleNamespace(load=lambda path: (graph, path)[0]))
    run("verdict", "uq.onnx", "--data", "rows.npz", "--out", "v.html")
    assert judged.made[-1].uq is graph


def test_least_figures_are_numbers():
    assert least_figures(["a=1", "b=.5"]) == {"a": 1.0, "b": 0.5}
    with pytest.raises(SettingsError, match="figure=number"):
        least_figures(["a=x"])
    assert missed_figures({"a": 1.0}, {"a": 1.0}, Path("v.html")) == ""


def test_the_verdict_of_the_library_serves(place, run):
    """Without a stand-in."""
    pytest.importorskip("splitpoint.verdicts")
    run("fit", "--task", "regression", *place.model("numbers"), "--data", "rows.npz", "--out", "uq.safetensors")
    said = run("verdict", "uq.safetensors", *place.model("numbers"), "--data", "rows.npz", "--out", "v.html")
    assert said.endswith("v.html\n")
    assert "<html" in Path("v.html").read_text()
