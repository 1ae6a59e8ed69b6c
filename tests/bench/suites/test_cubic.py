"""The cubic experiment: its rows, its records and its curves, whole and resumable."""

import json
import math
from dataclasses import fields

import pytest
import torch

from splitpoint import cli
from splitpoint.bench.artefacts import Curve
from splitpoint.bench.record import Cell, Journal
from splitpoint.bench.run import bench
from splitpoint.bench.suite import Work
from splitpoint.bench.suites import SUITES, cubic
from splitpoint.datasets import NOISE_LAWS
from splitpoint.errors import SettingsError, SplitPointError

METHODS = SUITES["cubic"].fit.names()
QUICK = {"noise": ["trimodal"], "epochs": 3, "jobs": 1, "progress": False}


@pytest.fixture(scope="module")
def every_method(tmp_path_factory):
    """A folder with two trials of all methods under one noise."""
    folder = tmp_path_factory.mktemp("cubic")
    bench("cubic", folder, trials=2, **QUICK)
    return folder


def rows(noise, number):
    """The data of a trial."""
    return cubic.trial(Work("cubic", "paper", noise, "cubic", "", ()), number)


def records(folder):
    return Journal(folder).read()


def curves(folder):
    return [json.loads(line) for line in (folder / Curve.file).read_text().splitlines()]


# Rows


def test_training_rows_lie_in_four_and_test_rows_in_six():
    own = rows("gaussian", 0)
    assert own.train[0].shape == own.train[1].shape == (2000, 1)
    assert own.test[0].shape == own.test[1].shape == (1000, 1)
    assert own.train[0].abs().max() <= 4 < own.test[0].abs().max() <= 6
    assert len(own.calibration[0]) == 600


def test_noise_of_the_rows_has_the_law_that_is_named():
    own = rows("gaussian", 0)
    noise = own.train[1] - own.train[0] ** 3
    assert abs(float(noise.mean())) < 3 * 8 / math.sqrt(2000)
    assert float(noise.std()) == pytest.approx(8, rel=0.06)


def test_rows_depend_on_noise_and_number_alone():
    assert torch.equal(rows("trimodal", 1).train[1], rows("trimodal", 1).train[1])
    assert not torch.equal(rows("trimodal", 1).train[0], rows("trimodal", 2).train[0])
    assert not torch.equal(rows("trimodal", 1).train[0], rows("gaussian", 1).train[0])


def test_base_network_has_two_hidden_layers_of_64():
    sizes = [tuple(weight.shape) for weight in cubic.network().parameters() if weight.dim() == 2]
    assert sizes == [(64, 1), (64, 64), (1, 64)]


# Records


def test_every_method_has_every_trial(every_method):
    found = records(every_method)
    assert {(r.method, r.trial) for r in found} == {(m, t) for m in METHODS for t in range(2)}
    assert len(found) == 2 * len(METHODS) == 24
    for record in found:
        assert record.error is None
        assert record.cell[:4] == ("cubic", "paper", "trimodal", "cubic")
        assert record.stack == (0, 1)


def test_metrics_are_complete_and_of_rows_in_range(every_method):
    for record in records(every_method):
        assert {"rmse", "picp", "piece", "piece_plus", "piece_minus", "winkler", "auroc_ood"} <= set(record.metrics)
        assert 0 <= record.metrics["auroc_ood"] <= 1
        # the targets of rows in range have a deviation of about 34, those of all test rows of about 85
        assert record.metrics["rmse"] < 45


def test_methods_without_an_epistemic_score_cannot_tell_rows_out_of_range(every_method):
    for record in records(every_method):
        if record.method in ("gaussian", "conformal"):
            assert record.metrics["auroc_ood"] == 0.5


def test_settings_are_those_of_the_paper():
    assert (cubic.BUDGET.learning_rate, cubic.BUDGET.batch_size, cubic.BUDGET.epochs) == (1e-3, 2000, 5000)
    assert cubic.SETTINGS["sqr_oc"] == {"certificates": 20}
    assert tuple(NOISE_LAWS) == ("log_normal", "trimodal", "gaussian")


def test_settings_are_recorded(every_method):
    by_method = {record.method: record.settings for record in records(every_method)}
    assert by_method["sqr_oc"] == {"learning_rate": 1e-3, "batch_size": 2000, "epochs": 3, "certificates": 20}
    assert by_method["gaussian"] == {"learning_rate": 1e-3, "batch_size": 2000, "epochs": 3}


# Curves


def test_every_method_has_one_curve(every_method):
    lines = curves(every_method)
    assert sorted(line["method"] for line in lines) == sorted(METHODS)
    assert {line["noise"] for line in lines} == {"trimodal"}


def test_curves_are_well_formed(every_method):
    for line in curves(every_method):
        x = torch.tensor(line["x"])
        assert torch.allclose(x, torch.linspace(-6, 6, 241), atol=1e-5)
        for name in ("mean", "lower", "upper", "epistemic", "truth", "true_lower", "true_upper"):
            assert len(line[name]) == 241
            assert all(isinstance(value, float) for value in line[name])
        assert torch.allclose(torch.tensor(line["truth"]), x**3, atol=1e-3)
        assert len(line["train_x"]) == len(line["train_y"]) == 200
        assert max(map(abs, line["train_x"])) <= 4


def test_true_bounds_are_those_of_the_law(every_method):
    # 0.4 N(0,1) + 0.3 N(40,1) + 0.3 N(-10,1) has mean 9: above it lies only the mode at 40, whose 0.95 quantile is
    # 41.64; below it lie 7 parts, of which the lowest 0.05 * 7 = 0.35 parts end in the mode at -10
    line = curves(every_method)[0]
    middle = line["x"].index(0.0)
    normal = torch.distributions.Normal(0.0, 1.0)
    assert line["true_upper"][middle] == pytest.approx(31 + float(normal.icdf(torch.tensor(0.95))), abs=0.02)
    lowest = float(normal.icdf(torch.tensor(0.35 / 3)))
    assert line["true_lower"][middle] == pytest.approx(-19 + lowest, abs=0.02)


def test_a_curve_takes_the_place_of_its_predecessor(tmp_path):
    parts = {name: (0.0,) for name in (field.name for field in fields(Curve)) if name != "cell"}
    for mean in ((1.0,), (2.0,), (math.nan,)):
        Curve(Cell("cubic", "paper", "gaussian", "cubic", "laplace"), **(parts | {"mean": mean})).put(tmp_path / "new")
        Curve(Cell("cubic", "paper", "gaussian", "cubic", "sqr_oc"), **parts).put(tmp_path / "new")
    lines = curves(tmp_path / "new")
    assert [(line["method"], line["mean"]) for line in lines] == [("laplace", [None]), ("sqr_oc", [0.0])]
    assert [path.name for path in (tmp_path / "new").iterdir()] == [Curve.file]


# Going on


def test_nothing_is_done_twice(every_method):
    before = {path.name: path.read_bytes() for path in every_method.iterdir()}
    assert "Nothing was left to do" in bench("cubic", every_method, trials=2, **QUICK)
    assert {path.name: path.read_bytes() for path in every_method.iterdir()} == before


def test_further_trials_and_methods_are_added(tmp_path):
    bench("cubic", tmp_path, methods=["gaussian"], trials=1, **QUICK)
    first = curves(tmp_path)
    bench("cubic", tmp_path, methods=["gaussian", "laplace"], trials=2, **QUICK)
    found = {(record.method, record.trial): record.stack for record in records(tmp_path)}
    assert found == {("gaussian", 0): (0,), ("gaussian", 1): (1,), ("laplace", 0): (0, 1), ("laplace", 1): (0, 1)}
    assert sorted(line["method"] for line in curves(tmp_path)) == ["gaussian", "laplace"]
    assert first[0] in curves(tmp_path)


def test_a_curve_is_stored_before_its_records(tmp_path, monkeypatch):
    def killed(_self, _records):
        raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "append", killed)
    with pytest.raises(KeyboardInterrupt):
        bench("cubic", tmp_path, methods=["gaussian"], trials=1, **QUICK)
    assert records(tmp_path) == []
    monkeypatch.undo()
    bench("cubic", tmp_path, methods=["gaussian"], trials=1, **QUICK)
    assert len(records(tmp_path)) == len(curves(tmp_path)) == 1


def test_a_failure_is_a_record_without_a_curve(tmp_path, monkeypatch):
    monkeypatch.setitem(cubic.SETTINGS, "laplace", {"no_such_setting": 1})
    with pytest.raises(SplitPointError, match="but 1 failed, such as laplace on cubic"):
        bench("cubic", tmp_path, methods=["laplace", "splitpoint_paper"], trials=1, **QUICK)
    failed, fine = sorted(records(tmp_path), key=lambda record: record.method)
    assert "no_such_setting" in failed.error
    assert fine.error is None
    assert [line["method"] for line in curves(tmp_path)] == ["splitpoint_paper"]


# Arguments


def test_the_command_says_what_was_done(tmp_path, capsys):
    argv = ["bench", "cubic", "--noise", "gaussian", "--methods", "gaussian", "--trials", "1", "--epochs", "2"]
    assert cli.main([*argv, "--jobs", "1", "--quiet", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("1 piece")
    assert [record.method for record in records(tmp_path)] == ["gaussian"]


def test_the_command_tells_a_bad_argument_in_one_line(tmp_path, capsys):
    assert cli.main(["bench", "cubic", "--noise", "clean", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("splitpoint: Expected noise among")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"noise": ["clean"]}, ("Expected noise among log_normal", "clean")),
        ({"methods": ["oc"]}, ("Expected methods among", "oc")),
        ({"trials": 0}, ("Expected trials >= 1", "0")),
        ({"epochs": 0}, ("Expected epochs >= 1", "0")),
    ],
)
def test_bad_arguments_are_told_in_one_sentence(tmp_path, arguments, parts):
    with pytest.raises(SettingsError) as caught:
        bench("cubic", tmp_path, **arguments)
    assert all(part in str(caught.value) for part in parts)


def test_damaged_curves_are_left_out_and_the_run_goes_on(tmp_path):
    wanted = {"trials": 1, **QUICK}
    bench("cubic", tmp_path, methods=["gaussian"], **wanted)
    with open(tmp_path / "curves.jsonl", "a") as file:
        file.write('{"torn\n3\n')
    bench("cubic", tmp_path, methods=["conformal"], **wanted)
    assert [line["method"] for line in curves(tmp_path)] == ["gaussian", "conformal"]
