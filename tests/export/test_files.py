"""What is written and what is refused: modules, programs and ONNX files."""

import importlib.util
import io
import json
import pickle
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import splitpoint as sp
from export.networks import built, classes, network, numbers
from splitpoint import runtime
from splitpoint.baselines import METHODS
from splitpoint.export import comparison

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.fixture(scope="module")
def base():
    return built(lambda: network(1))


@pytest.fixture(scope="module")
def uq(base):
    method = sp.SplitPointRegressor(confidence_level=(0.5, 0.9), epochs=3, residuals="train")
    fitted = method.fit(base, numbers(200, 1, 0), calibration=numbers(200, 1, 1), progress=False)
    return fitted.set_threshold(numbers(200, 1, 2))


@pytest.fixture(scope="module")
def x():
    return numbers(20, 1, 3)[0]


@pytest.fixture(scope="module")
def path(uq, x, tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "uq.onnx"
    sp.export.onnx(uq, path, x[:3])
    return path


# Modules and programs


def test_a_module_says_what_the_predictor_says_and_shares_its_weights(uq, base, x):
    graph, prediction = sp.export.module(uq), uq(x)
    found = graph(x)
    assert set(found) >= {"uq_mean", "uq_lowers", "uq_uppers", "uq_aleatoric", "uq_epistemic", "uq_total"}
    assert set(found) >= {"uq_support", "uq_sds", "uq_mar", "uq_mar_up", "uq_mar_down", "uq_percentile", "uq_flagged"}
    for name, value in found.items():
        assert torch.equal(value, getattr(prediction, name.removeprefix("uq_"))), name
        assert not value.requires_grad
    known = {tensor.data_ptr() for tensor in base.state_dict().values()}
    assert {tensor.data_ptr() for name, tensor in graph.state_dict().items() if name.startswith("base.")} == known
    assert all(not module._forward_hooks for module in base.modules())


def test_a_module_can_be_pickled_and_stays_in_eval_mode(uq, x):
    graph = sp.export.module(uq, fields=["mean", "flagged"]).train()
    copy = pickle.loads(pickle.dumps(graph))
    assert not copy.training
    assert torch.equal(copy(x)["uq_mean"], uq(x).mean)
    assert list(copy(x)) == ["uq_mean", "uq_flagged"]


def test_a_program_takes_any_number_of_rows_and_can_be_saved(uq, x):
    file = io.BytesIO()
    torch.export.save(sp.export.program(uq, x[:3]), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for rows in (x, x[:1]):
        found, prediction = loaded(rows), uq(rows)
        assert torch.allclose(found["uq_lowers"], prediction.lowers, rtol=1e-5)
        assert torch.equal(found["uq_flagged"], prediction.flagged)


def test_torchscript_traces_a_module(uq, x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch has better ways by now, and says so
        traced = torch.jit.trace(sp.export.module(uq), (x[:3],), strict=False, check_trace=False)
    assert torch.allclose(traced(x)["uq_uppers"], uq(x).uppers, rtol=1e-5)


# Files


def test_a_file_says_what_it_holds(uq, path):
    file = runtime.load(path)
    assert (file.task, file.method, file.layer) == ("regression", "SplitPointRegressor", uq.layer)
    assert (file.levels, file.classes, file.inputs) == ((0.5, 0.9), None, ("input",))
    assert np.allclose(file.threshold, uq.threshold.numpy())
    assert file.versions == {"splitpoint": sp.__version__, "torch": torch.__version__}
    assert file.metadata["predictor"]["settings"]["epochs"] == 3
    assert file.metadata["inputs"] == [{"name": "input", "dtype": "float32", "shape": ["batch", 5]}]
    assert len(file.digest) == 40
    assert "SplitPointRegressor" in repr(file)


def test_every_output_has_a_name_of_its_own(path):
    names = [output.name for output in onnxruntime.InferenceSession(path).get_outputs()]
    assert all(name.startswith("uq_") for name in names)


def test_a_file_is_little_more_than_its_weights_and_knows_nothing_of_this_machine(uq, path):
    """Exporters note for every operator which line of which file it came from."""
    weights = sum(value.nbytes for value in sp.export.module(uq).state_dict().values())
    assert path.stat().st_size < weights + 50_000
    assert str(Path(sp.__file__).parent).encode() not in path.read_bytes()


def test_only_the_fields_that_are_asked_for(uq, x, tmp_path):
    sp.export.onnx(uq, tmp_path / "uq.onnx", x[:2].numpy(), fields=("mean", "flagged"))
    assert runtime.load(tmp_path / "uq.onnx").fields == ("mean", "flagged")


def test_a_file_that_differs_is_not_kept_and_one_that_was_there_stays(uq, x, tmp_path, monkeypatch):
    path = tmp_path / "uq.onnx"
    path.write_text("another")
    monkeypatch.setattr(comparison.Comparison, "difference", lambda _, name, __: 0.5 * (name == "uppers"))
    with pytest.raises(sp.ExportError, match=r"'uppers' differs by 0\.5 for 3 rows; the file was not kept"):
        sp.export.onnx(uq, path, x[:3])
    assert path.read_text() == "another"
    assert [own.name for own in tmp_path.iterdir()] == ["uq.onnx"]


# What counts as a difference


def compared(uq, rows, name, change):
    prediction = uq(rows)
    return comparison.Comparison(prediction, 1e-5).difference(name, change(getattr(prediction, name).numpy().copy()))


def test_differences_are_relative_to_the_number_or_to_the_field(uq, x):
    assert compared(uq, x, "mean", lambda own: own) == 0
    mean = uq(x).mean.numpy()
    assert compared(uq, x, "mean", lambda own: own + np.float32(1e-3)) == pytest.approx(
        1e-3 / np.abs(mean).mean(), rel=1e-2
    )
    assert compared(uq, x, "epistemic", lambda own: own * np.float32(1.5)) == pytest.approx(0.5, rel=0.5)
    assert compared(uq, x, "mean", lambda own: np.full_like(own, np.nan)) == np.inf
    assert compared(uq, x, "mean", lambda own: own[:, 0]) == np.inf


def test_flags_and_labels_are_the_same_or_infinitely_far(uq, x):
    assert compared(uq, x, "flagged", lambda own: own) == 0
    assert compared(uq, x, "flagged", lambda own: ~own) == np.inf
    assert compared(uq, x, "percentile", lambda own: own + np.float32(5)) == np.inf


def test_a_score_on_the_threshold_may_fall_on_either_side(uq, x):
    fitted = sp.SplitPointRegressor(epochs=1, residuals="train").fit(uq.base, numbers(50, 1, 0), progress=False)
    fitted.set_threshold(fitted(x[:19]))
    on = int((fitted(x[:19]).support[:, 0] == fitted.threshold[0]).nonzero()[0])
    rows = x[on : on + 1]
    assert compared(fitted, rows, "flagged", lambda own: ~own) == 0


# Refusals


def refused(expected, message, call):
    with pytest.raises(expected, match=message) as caught:
        call()
    assert str(caught.value).startswith("Expected ")


def test_an_example_of_one_row_is_refused(uq, x, tmp_path):
    refused(sp.DataError, "two rows or more", lambda: sp.export.program(uq, x[:1]))
    refused(sp.DataError, "two rows or more", lambda: sp.export.onnx(uq, tmp_path / "uq.onnx", x[:1]))
    refused(sp.DataError, "got none", lambda: sp.export.program(uq))
    refused(sp.DataError, "got str for 'input'", lambda: sp.export.program(uq, "x"))


def test_a_callable_layer_is_refused(base):
    data = numbers(50, 1, 0)
    uq = sp.SplitPointRegressor(layer=lambda x: x * 2, epochs=1, residuals="train").fit(base, data, progress=False)
    refused(sp.LayerError, "through a callable; fit it with the name", lambda: sp.export.module(uq))


def test_predictors_without_one_model_are_refused(base):
    method = sp.SplitPointRegressor(epochs=1, residuals="train")
    recording = method.record(base, numbers(50, 1, 0), progress=False)
    rows = sp.Recording.of(sp.Regression(), recording.table.column("features"), recording.table.column("output"),
                           numbers(50, 1, 0)[1])  # fmt: skip
    refused(
        sp.ExportError, "fitted on recorded rows alone", lambda: sp.export.module(method.fit_rows(rows, progress=False))
    )
    ensemble = METHODS["deep_ensemble"](task="regression", members=2, epochs=1)
    trained = ensemble.fit(lambda: network(1), numbers(50, 1, 0), progress=False)
    refused(sp.ExportError, "got NetworkPredictor", lambda: sp.export.module(trained))


def test_unknown_fields_are_refused(uq, x):
    refused(sp.SettingsError, "got \\['median'\\]", lambda: sp.export.program(uq, x, fields=["mean", "median"]))
    refused(sp.SettingsError, "got none", lambda: sp.export.program(uq, x, fields=[]))


def test_missing_packages_are_named_with_the_extra(uq, x, tmp_path, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxscript" else found(name))
    refused(
        sp.ExportError,
        "onnxscript cannot be found; install them with: pip install 'splitpoint\\[onnx\\]'",
        lambda: sp.export.onnx(uq, tmp_path / "uq.onnx", x),
    )


def test_a_path_that_is_no_file_is_refused(uq, x, tmp_path):
    refused(sp.StorageError, "existing folder", lambda: sp.export.onnx(uq, tmp_path, x))
    refused(sp.StorageError, "existing folder", lambda: sp.export.onnx(uq, tmp_path / "none" / "uq.onnx", x))


def test_a_model_that_cannot_be_traced_is_refused_in_a_sentence(x):
    class Branching(torch.nn.Sequential):
        def forward(self, x):
            return super().forward(x) if float(x.sum()) > -1e9 else x

    model = built(lambda: Branching(*network(1)))
    uq = sp.SplitPointRegressor(epochs=1, residuals="train", layer="4:input").fit(
        model, numbers(50, 1, 0), progress=False
    )
    refused(sp.ExportError, "torch.export can trace", lambda: sp.export.program(uq, x))


# Reading


def test_inputs_of_another_shape_or_type_are_refused_in_a_sentence(path, x):
    file = runtime.load(path)
    rows = x.numpy()
    refused(sp.ShapeError, r"'input' of shape \(batch, 5\).*got \(20, 4\)", lambda: file(rows[:, :4]))
    refused(sp.ShapeError, r"got \(5,\)", lambda: file(rows[0]))
    refused(sp.DataError, "'input' as float32, but got int64", lambda: file(rows.astype(np.int64)))
    refused(sp.DataError, r"the inputs \('input',\)", lambda: file())
    refused(sp.DataError, "1 by position and \\('more',\\) by name", lambda: file(rows, more=rows))
    assert np.array_equal(file(rows.astype(np.float64))["mean"], file(input=rows)["mean"])
    assert file(rows[:0])["mean"].shape == (0, 1)


def test_files_of_others_are_refused(tmp_path, path, base, x):
    refused(sp.StorageError, "does not exist", lambda: runtime.load(tmp_path / "none.onnx"))
    damaged = tmp_path / "damaged.onnx"
    damaged.write_bytes(path.read_bytes()[:200])
    refused(sp.StorageError, "whole ONNX file", lambda: runtime.load(damaged))
    refused(sp.SettingsError, "threads >= 1", lambda: runtime.load(path, threads=0))
    import onnx

    model = onnx.load(path)
    facts = {own.key: own.value for own in model.metadata_props}
    onnx.helper.set_model_props(model, {"splitpoint": json.dumps(json.loads(facts["splitpoint"]) | {"format": 9})})
    onnx.save(model, tmp_path / "newer.onnx")
    refused(sp.StorageError, "has format 9; install a newer", lambda: runtime.load(tmp_path / "newer.onnx"))
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "other.onnx")
    refused(sp.StorageError, "holds another model", lambda: runtime.load(tmp_path / "other.onnx"))


def test_a_classifier_s_label_is_that_of_the_file(tmp_path):
    uq = sp.SplitPointClassifier(epochs=1).fit(built(lambda: network(3)), classes(100, 3, 0), progress=False)
    x = classes(20, 3, 1)[0]
    sp.export.onnx(uq, tmp_path / "uq.onnx", x[:2], fields=["label", "probs"])
    assert np.array_equal(runtime.load(tmp_path / "uq.onnx")(x.numpy())["label"], uq(x).label.numpy())
