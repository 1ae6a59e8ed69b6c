"""`splitpoint verdict`: the page of a verdict on named columns, and figures that have to reach something."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import splitpoint as sp
from splitpoint import cli, runtime, verdicts
from splitpoint.commands.judging import least_figures, missed_figures
from splitpoint.errors import SettingsError

ROWS = ("--data", "rows.npz", "--out", "v.html")


@pytest.fixture
def judged(place, run, monkeypatch):
    """The place with a predictor, and what verdicts were asked about; they leave out the time of a prediction."""
    run("fit", "--task", "regression", *place.model("numbers"), "--data", "rows.npz", "--out", "uq.safetensors")
    made, real = [], verdicts.verdict

    def verdict(uq, test, **more):
        made.append(SimpleNamespace(uq=uq, data={"test": test, **more}))
        return real(uq, test, **more, cost=False)

    monkeypatch.setattr(verdicts, "verdict", verdict)
    return SimpleNamespace(place=place, made=made, call=("verdict", "uq.safetensors", *place.model("numbers")))


def test_rows_are_handed_on_with_and_without_targets(judged, run):
    np.savez("strange.npz", X=judged.place.x.numpy() + 9)
    more = ("--train", "rows.npz", "--ood", "strange.npz", "--json", "v.json", "--batch", "20")
    said = run(*judged.call, *ROWS, *more)
    assert said.startswith("RED: Do not rely on its uncertainty")  # all test rows are training rows
    assert said.endswith("\nv.html\n")
    (verdict,) = judged.made
    assert isinstance(verdict.uq, sp.RegressionPredictor)
    assert set(verdict.data) == {"test", "train", "ood", "progress"}
    assert [len(x) for x, _ in verdict.data["test"]] == [20, 20, 8]
    assert torch.equal(torch.cat([y for _, y in verdict.data["train"]]).float(), judged.place.y)
    assert torch.equal(torch.cat([x for (x,) in verdict.data["ood"]]), judged.place.x + 9)
    assert "<html" in Path("v.html").read_text()
    assert json.loads(Path("v.json").read_text())["figures"]["test_among_train"] == 1


def test_a_figure_that_is_too_low_fails_after_the_page_is_written(judged, run, capsys):
    run(*judged.call, *ROWS, "--json", "v.json")
    coverage = json.loads(Path("v.json").read_text())["figures"]["coverage"]
    Path("v.html").unlink()
    call = [*map(str, judged.call), *ROWS, "--quiet", "--fail-under"]
    assert cli.main([*call, f"coverage={coverage - 0.01}"]) == 0
    capsys.readouterr()
    assert cli.main([*call, "coverage=1.5", "rows=48", "entries=49"]) == 1
    captured = capsys.readouterr()
    assert captured.out.endswith("\nv.html\n")
    assert captured.err == (
        f"splitpoint: Expected coverage of at least 1.5, but got {coverage:.4g}; entries of at least 49, but got 48; "
        "see v.html.\n"
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


def test_a_graph_is_judged_without_its_model(judged, run, refused, monkeypatch):
    pytest.importorskip("onnxscript")
    run("export", *judged.call[1:], "--example", "rows.npz", "--format", "onnx", "--out", "uq.onnx")
    run(*judged.call, *ROWS, "--json", "v.json")
    wanted = json.loads(Path("v.json").read_text())["figures"]
    monkeypatch.setattr("sys.path", [])  # nobody can build the network
    run("verdict", "uq.onnx", *ROWS, "--json", "v.json")
    assert isinstance(judged.made[-1].uq, runtime.Runtime)
    found = json.loads(Path("v.json").read_text())["figures"]
    assert found.keys() == wanted.keys()
    assert found["winkler"] == pytest.approx(wanted["winkler"], rel=1e-4)
    refused("verdict", "uq.onnx", *ROWS, "--device", "cpu", parts=("--device", "uq.onnx is a graph"))
    refused("predict", "uq.onnx", "--data", "rows.npz", "--out", "s.csv", parts=("the graph uq.onnx", "runtime.load"))
    Path("uq.onnx").write_text("no graph")
    refused("verdict", "uq.onnx", *ROWS, parts=("a whole ONNX file",))


def test_least_figures_are_numbers():
    assert least_figures(["a=1", "b=.5"]) == {"a": 1.0, "b": 0.5}
    with pytest.raises(SettingsError, match="figure=number"):
        least_figures(["a=x"])
    assert missed_figures({"a": 1.0}, {"a": 1.0}, Path("v.html")) == ""


def test_figures_that_could_not_be_measured_are_too_low():
    assert missed_figures({"ece": float("nan")}, {"ece": 0.1}, Path("v.html")) == (
        "Expected ece of at least 0.1, but got none that could be measured; see v.html."
    )


def test_without_a_stand_in_the_cost_is_measured(place, run):
    run("fit", "--task", "classification", *place.model("classes"), "--data", "kinds.npz", "--out", "uq.safetensors")
    said = run("verdict", "uq.safetensors", *place.model("classes"), "--data", "kinds.npz", "--out", "v.html")
    assert "A prediction takes" in said
    assert "<html" in Path("v.html").read_text()
