"""Rows that were recorded before: from a model or from arrays, with and without a model behind them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint.baselines import METHODS
from splitpoint.errors import DataError, SettingsError, ShapeError, StorageError
from splitpoint.recording import Recording
from splitpoint.tasks import Classification, Regression

METHOD = sp.SplitPointRegressor(0.9, epochs=2)


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).eval()


def arrays(rows=80):
    """A model, its inputs, features, outputs and targets."""
    model, generator = network(), torch.Generator().manual_seed(1)
    x = torch.randn(rows, 3, generator=generator)
    with torch.no_grad():
        features, outputs = model[:2](x), model(x)
    return model, x, features, outputs, outputs + torch.randn(rows, 1, generator=generator)


def without_a_model():
    _, _, features, outputs, y = arrays()
    return METHOD.fit_rows(Recording.of(Regression(), features, outputs, y), progress=False)


def test_rows_of_a_model_and_of_arrays_teach_the_same():
    model, x, features, outputs, y = arrays()
    whole = METHOD.fit(model, (x, y), progress=False)(x)
    recorded = METHOD.fit_rows(METHOD.record(model, (x, y), progress=False), progress=False)
    assert torch.equal(recorded(x).upper, whole.upper)
    told = Recording.of(Regression(), *(part.numpy() for part in (features, outputs, y)))
    from_arrays = METHOD.fit_rows(told, progress=False).predict_rows(features.numpy(), outputs.numpy())
    torch.testing.assert_close(from_arrays.upper, whole.upper)
    torch.testing.assert_close(from_arrays.epistemic, whole.epistemic)


def test_a_predictor_without_a_model_is_saved_and_loaded_without_one(tmp_path):
    _, _, features, outputs, _ = arrays()
    uq, path = without_a_model(), tmp_path / "uq.safetensors"
    uq.save(path)
    assert torch.equal(sp.load(path).predict_rows(features, outputs).lower, uq.predict_rows(features, outputs).lower)
    assert "layer: rows" in repr(uq)
    with pytest.raises(StorageError, match=r"Expected no model, .* leave it out"):
        sp.load(path, network())


def test_a_prediction_sets_the_threshold_as_its_data_would():
    model, x, features, outputs, y = arrays()
    with_model = replace(METHOD, layer="1").fit(model, (x, y), progress=False).set_threshold(x, quantile=0.9)
    rows = without_a_model()
    rows.set_threshold(rows.predict_rows(features, outputs), quantile=0.9)
    torch.testing.assert_close(rows.threshold, with_model.threshold)
    assert torch.equal(rows.predict_rows(features, outputs).flagged, with_model(x).flagged)


def test_rows_without_a_target_do_not_count():
    _, _, features, outputs, y = arrays()
    y[::2] = torch.nan
    assert Recording.of(Regression(), features, outputs, y).table.rows == 40
    with pytest.raises(DataError, match="at least two rows with a target"):
        Recording.of(Regression(), features, outputs, torch.full_like(y, torch.nan))


def a_classifier():
    """The prediction of a classifier."""
    rows = Recording.of(Classification(), torch.zeros(4, 2), 3 * torch.eye(4), torch.arange(4))
    return METHODS["softmax"]().fit_rows(rows, progress=False).predict_rows(torch.zeros(4, 2), torch.eye(4))


@pytest.mark.parametrize("name", ["conformal", "oc"])
def test_outputs_of_another_width_are_never_broadcast(name, tmp_path):
    """Neither by the predictor that was fitted, nor by one that was loaded, nor between training and calibration."""
    _, x, features, outputs, y = arrays()
    rows = Recording.of(Regression(), features, outputs, y)
    uq = METHODS[name]().fit_rows(rows, calibration=rows, progress=False)
    uq.save(tmp_path / "uq.safetensors")
    for own in (uq, sp.load(tmp_path / "uq.safetensors")):
        with pytest.raises(ShapeError, match="8 features and 1 outputs"):
            own.predict_rows(features, x)
    with pytest.raises(ShapeError, match=r"calibration rows with 8 features and 1 outputs .* got 8 and 3"):
        METHODS[name]().fit_rows(rows, calibration=Recording.of(Regression(), features, x, x), progress=False)


def test_rows_that_were_read_in_another_way_are_refused():
    model, x, features, outputs, y = arrays()
    rows = METHOD.record(model, (x, y), progress=False)
    named = sp.SplitPointRegressor(0.9, epochs=1, layer="2:input").fit_rows(rows, progress=False)
    assert named.layer == "2:input"
    for layer, given in (("0", rows), ("2:input", Recording.of(Regression(), features, outputs, y))):
        with pytest.raises(SettingsError, match=f"Expected rows of layer='{layer}', but got rows of .* same layer="):
            sp.SplitPointRegressor(0.9, layer=layer).fit_rows(given)
    probs, label = torch.full((80, 2), 0.5), torch.arange(80) % 2
    as_probs = Recording.of(Classification("probs", ignore_index=7), features, probs, label)
    with pytest.raises(SettingsError, match="give both the same output="):
        METHODS["softmax"]().fit_rows(as_probs)
    assert METHODS["softmax"](output="probs").fit_rows(as_probs, progress=False).task.output == "probs"


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda uq, x, _: uq(x), SettingsError, "fitted on recorded rows alone; call predict_rows"),
        (lambda uq, _, f: uq.predict_rows(f, torch.zeros(3, 1)), DataError, "as many rows, at least one, but got 80"),
        (lambda uq, _, f: uq.predict_rows(f[:, :2], torch.zeros(80, 1)), ShapeError, "read them at the same layer"),
        (
            lambda uq, x, f: uq.predict_rows(f, x),
            ShapeError,
            "8 features and 1 outputs, .* got \\(80, 8\\) and \\(80, 3",
        ),
        (lambda uq, *_: uq.set_threshold(a_classifier()), DataError, "Expected a prediction of regression"),
        (lambda *_: METHODS["splitpoint"](interval="conformal"), SettingsError, "use splitpoint_conformal"),
        (lambda *_: METHOD.fit_rows(np.zeros(3)), SettingsError, "Expected a Recording to fit on, but got ndarray"),
        (lambda *_: METHODS["splitpoint"]().fit_rows(None), SettingsError, "but got NoneType"),
        (lambda _, x, f: Recording.of(Regression(), f[:5], x, x), ShapeError, "of the 80 rows .* got \\(5, 8\\)"),
        (lambda _, x, f: Recording.of(Classification(), f, x, torch.full((80,), 3)), DataError, "labels from 0 to 2"),
    ],
)
def test_what_does_not_fit_is_one_sentence(call, error, words):
    _, x, features, _, _ = arrays()
    with pytest.raises(error, match=words):
        call(without_a_model(), x, features)
