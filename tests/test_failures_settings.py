"""Bad settings, and stacks of models that do not belong together, get one sentence."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import splitpoint as sp
from refusals import REGRESSOR, both, case, fit, refused

# Settings

SHARED = [
    ("rows_per_call", 0),
    ("positions", 0),
    ("width", 0),
    ("epochs", 0),
    ("epochs", -3),
    ("batch_size", 0),
    ("patience", 0),
    ("learning_rate", 0.0),
    ("learning_rate", -1.0),
    ("learning_rate", math.nan),
    ("learning_rate", math.inf),
    ("weight_decay", -0.1),
    ("weight_decay", math.nan),
    ("held_back", -0.1),
    ("held_back", 1.0),
    ("held_back", math.nan),
    ("mar_layers", -1),
]
REGRESSION = [
    ("confidence_level", 0.0),
    ("confidence_level", 1.0),
    ("confidence_level", 95),
    ("confidence_level", -0.5),
    ("confidence_level", math.nan),
    ("confidence_level", ()),
    ("confidence_level", (0.5, 1.5)),
    ("confidence_level", None),
    ("confidence_level", "high"),
    ("residuals", "test"),
    ("interval", "wide"),
    ("quantile_loss", "mse"),
    ("factor_limit", 0.5),
    ("factor_limit", math.nan),
    ("quantile_layers", -1),
    ("folds", -1),
]
CLASSIFICATION = [
    ("output", "prob"),
    ("mars", "paper"),
    ("residuals", "loo"),
    ("delta0", -0.1),
    ("delta0", "best"),
    ("delta0", None),
    ("delta0", math.nan),
    ("support_mass", 0.0),
    ("support_mass", 1.0),
    ("steepness", 0.0),
    ("steepness", math.nan),
    ("correction_prior", 0.0),
    ("correction_prior", math.nan),
]


def check_setting(kind, name, value):
    with pytest.raises(sp.SettingsError) as caught:
        kind(**{name: value})
    text = str(caught.value)
    assert text.startswith("Expected ")
    words = [name, "confidence levels"] if name == "confidence_level" else [name]
    assert any(word in text for word in words), text
    assert ", but got" in text, text
    came = text.split(", but got")[1]
    assert str(value) in came, text


@pytest.mark.parametrize(("name", "value"), SHARED)
@pytest.mark.parametrize("kind", [sp.SplitPointRegressor, sp.SplitPointClassifier])
def test_bad_settings_that_the_methods_share(kind, name, value):
    check_setting(kind, name, value)


@pytest.mark.parametrize(("name", "value"), REGRESSION)
def test_bad_settings_of_the_regressor(name, value):
    check_setting(sp.SplitPointRegressor, name, value)


@pytest.mark.parametrize(("name", "value"), CLASSIFICATION)
def test_bad_settings_of_the_classifier(name, value):
    check_setting(sp.SplitPointClassifier, name, value)


@pytest.mark.parametrize("kind", [sp.SplitPointRegressor, sp.SplitPointClassifier])
def test_presets_check_their_changes_too(kind):
    with pytest.raises(sp.SettingsError, match=r"Expected epochs >= 1 or None, but got 0\."):
        kind.paper(epochs=0)
    with pytest.raises(sp.SettingsError, match=f"Expected settings of {kind.__name__} among .* but got surprise"):
        kind(surprise=1)


@both
def test_unequal_numbers_of_models_and_data_sets(task):
    method, model, x, y = case(task)
    refused(
        sp.SettingsError,
        lambda: method.fit_many([model, model], [(x, y)], progress=False),
        "as many models, data sets, calibration sets and seeds",
        "but got 2, 1, 1 and 1",
    )


@both
def test_models_of_unequal_shape_in_one_stack(task):
    method, model, x, y = case(task)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        other = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1 if task == "regression" else 3))
    refused(
        sp.SettingsError,
        lambda: method.fit_many([model, other], [(x, y), (x, y)], progress=False),
        "equal feature widths",
        "but got [5, 8]",
        "fit them one by one",
    )


def test_targets_that_form_no_tensor():
    _, model, x, _ = case("regression")
    batches = [(x, np.array(["a"] * 60))]
    refused(sp.DataError, lambda: fit(REGRESSOR, model, batches), "targets as a tensor", "but got")
