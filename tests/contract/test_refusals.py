"""What users get wrong with a method is told in one sentence."""

import pytest
import torch
from torch import nn

from problems import (
    CLOSE,
    METHODS,
    ROWS,
    TRAINED,
    assert_same,
    base,
    drawn,
    fit,
    fitted,
    method,
    only,
    post_hoc,
    problem,
    vector_network,
)
from splitpoint.errors import DataError, SettingsError, SplitPointError


def one_sentence(error):
    text = str(error.value)
    assert isinstance(error.value, SplitPointError)
    assert text.startswith("Expected")
    assert "\n" not in text


RANGES = {
    "confidence_level": ("gaussian", {"confidence_level": 1.0}),
    "confidence_levels": ("conformal", {"confidence_level": (0.5, 0.0)}),
    "task": ("gaussian", {"task": "classification"}),
    "unknown task": ("deep_ensemble", {"task": "ranking"}),
    "output": ("softmax", {"output": "scores"}),
    "temperature": ("softmax", {"temperature": "brier"}),
    "no temperature": ("temperature_scaling", {"temperature": None}),
    "temperature of splitpoint": ("splitpoint", {"temperature": "nll"}),
    "temperature of one network for numbers": ("gaussian", {"temperature": "nll"}),
    "temperature of numbers": ("deep_ensemble", {"temperature": "nll", "task": "regression"}),
    "epochs": ("gaussian", {"epochs": 0}),
    "learning_rate": ("gaussian", {"learning_rate": 0.0}),
    "batch_size": ("gaussian", {"batch_size": 0}),
    "rows_per_call": ("gaussian", {"rows_per_call": 0}),
    "positions": ("oc", {"positions": 0}),
    "weight_decay": ("gaussian", {"weight_decay": -1.0}),
    "optimiser": ("gaussian", {"optimiser": "lbfgs"}),
    "milestones": ("gaussian", {"milestones": (0.5, 2.0)}),
    "members": ("deep_ensemble", {"members": 0}),
    "dropout": ("mc_dropout", {"dropout": 1.0}),
    "passes": ("mc_dropout", {"passes": 1}),
    "evidence": ("evidential_regression", {"regulariser": -1.0}),
    "quantile evidence": ("evidential_quantile", {"regulariser": float("nan")}),
    "class evidence": ("evidential_classification", {"regulariser": float("inf")}),
    "annealing": ("evidential_classification", {"annealing": 0.0}),
    "certificates": ("oc", {"certificates": 0}),
    "penalty": ("sqr_oc", {"penalty": 0.0}),
    "spectral_norm": ("ddu", {"spectral_norm": 0.0}),
    "hessian": ("laplace", {"hessian": "diagonal"}),
    "prior_precision": ("laplace", {"prior_precision": 0.0}),
    "noise": ("laplace", {"noise": -1.0}),
    "residual": ("conformal", {"residual": "signed"}),
    "set score": ("conformal", {"score": "topk"}),
    "recipe": ("splitpoint", {"recipe": "fast"}),
    "training": ("laplace", {"epochs": 3}),
}


@pytest.mark.parametrize("case", RANGES)
def test_settings_out_of_range_are_refused(case):
    name, settings = RANGES[case]
    with pytest.raises(SettingsError) as error:
        METHODS[name](**settings)
    one_sentence(error)


@only([name for name in METHODS if "regression" not in METHODS[name].tasks], ["classes"])
def test_classifiers_do_not_take_numbers(name, own):
    with pytest.raises(SplitPointError) as error:
        fit(name, own, data=(drawn(1, 40, 3), drawn(2, 40, 3)))
    one_sentence(error)


@only(["softmax", "deep_ensemble", "temperature_scaling", "ddu"], ["classes"])
def test_a_temperature_wants_calibration_data(name, own):
    with pytest.raises(SettingsError, match="Expected calibration data for temperature='nll'") as error:
        method(name, problem(own), temperature="nll").fit(problem(own).factory, problem(own).data, progress=False)
    one_sentence(error)


@only(["oc", "deep_ensemble", "laplace"], ["scalar"])
def test_numbers_have_no_temperature(name, own):
    given = problem(own)
    with pytest.raises(SettingsError, match="temperature") as error:
        method(name, given, temperature="nll").fit(
            given.factory, given.data, calibration=given.calibration, progress=False
        )
    one_sentence(error)


@only(["conformal"])
def test_conformal_prediction_wants_calibration_data(name, own):
    with pytest.raises(SettingsError, match="Expected calibration data for conformal prediction") as error:
        method(name, problem(own)).fit(base(own), problem(own).data, progress=False)
    one_sentence(error)


@only(["splitpoint_paper_calibrated", "splitpoint_conformal"], ["classes"])
def test_calibrated_probabilities_want_calibration_data(name, own):
    with pytest.raises(SettingsError, match=r"Expected calibration data for calibrated .* probabilities") as error:
        method(name, problem(own)).fit(base(own), problem(own).data, progress=False)
    one_sentence(error)


@only(["conformal"])
def test_conformal_prediction_wants_enough_calibration_data(name, own):
    given = problem(own)
    few = tuple(part[:10] for part in given.calibration)
    with pytest.raises(DataError, match="Expected at least 19 calibration") as error:
        method(name, given).fit(base(own), given.data, calibration=few, progress=False)
    one_sentence(error)


@pytest.mark.parametrize("label", [3, -1], ids=["above", "below"])
@only(METHODS, ["classes"])
def test_labels_out_of_range_are_refused(name, own, label):
    x, y = problem(own).data
    wrong = y.clone()
    wrong[70] = label
    with pytest.raises(DataError, match=f"labels .*but got {label}") as error:
        fit(name, own, data=(x, wrong))
    one_sentence(error)


@only(METHODS, ["scalar"])
def test_infinite_targets_are_refused(name, own):
    x, y = problem(own).data
    wrong = y.clone()
    wrong[70] = torch.inf
    with pytest.raises(DataError, match="finite targets") as error:
        fit(name, own, data=(x, wrong))
    one_sentence(error)


@only(METHODS)
def test_targets_that_are_all_missing_are_refused(name, own):
    x, y = problem(own).data
    with pytest.raises(DataError) as error:
        fit(name, own, data=(x, torch.full_like(y, torch.nan if y.is_floating_point() else -100)))
    one_sentence(error)


@only(METHODS)
def test_targets_of_another_shape_are_refused(name, own):
    x, y = problem(own).data
    with pytest.raises(SplitPointError) as error:
        fit(name, own, data=(x, torch.stack([y, y], 1)))
    one_sentence(error)


@only(METHODS)
@pytest.mark.parametrize("form", ["nothing", "no rows", "one number", "lengths"])
def test_data_that_are_none_are_refused(name, own, form):
    x, y = problem(own).data
    with pytest.raises(DataError) as error:
        fit(name, own, data={"nothing": [], "no rows": (x[:0], y[:0]), "one number": 3, "lengths": (x, y[:5])}[form])
    one_sentence(error)


@only([name for name in METHODS if not post_hoc(name) or len(METHODS[name].tasks) == 2])
def test_a_stream_that_can_be_read_once_is_refused_where_a_first_look_decides(name, own):
    """Not read from its second batch on: by methods that train networks, or whose task is to be found."""
    x, y = problem(own).data
    with pytest.raises(DataError, match="iterator") as error:
        fit(name, own, data=iter([(x[:64], y[:64]), (x[64:], y[64:])]), task="auto")
    one_sentence(error)


@only([name for name in METHODS if post_hoc(name) and name != "splitpoint_layers"])
def test_a_stream_is_enough_for_a_method_that_reads_it_once(name, own):
    x, y = problem(own).data
    uq = fit(name, own, data=iter([(x[:64], y[:64]), (x[64:], y[64:])]))
    assert_same(uq(problem(own).fresh), fitted(name, own)(problem(own).fresh), **CLOSE)


@only([name for name in TRAINED if name != "evidential_classification"], ["scalar"])
def test_networks_end_in_their_last_layer(name, own):
    with pytest.raises(SettingsError, match="Expected a network that ends in its last layer") as error:
        fit(name, own, model=lambda: nn.Sequential(*vector_network(1), nn.Softplus()))
    one_sentence(error)


@only(METHODS)
@pytest.mark.parametrize("wrong", ["string", "other"])
def test_a_model_is_a_module_or_a_function_that_builds_one(name, own, wrong):
    with pytest.raises(SettingsError) as error:
        fit(name, own, model={"string": "resnet", "other": lambda: "resnet"}[wrong])
    one_sentence(error)


@pytest.mark.parametrize("name", [name for name in METHODS if len(METHODS[name].tasks) == 2])
def test_integers_for_one_output_ask_for_the_task(name):
    x, y = problem("flat").data
    with pytest.raises(SettingsError, match="Expected task= for integer targets") as error:
        fit(name, "flat", data=(x, (y > 0).long()), task="auto")
    one_sentence(error)


def test_integers_for_one_output_are_numbers_or_labels_as_the_task_says():
    x, y = problem("flat").data
    for name in ("deep_ensemble", "laplace"):
        changes = {} if post_hoc(name) else {"epochs": 2}
        uq = fit(name, "flat", data=(x, (y > 0).long()), task="classification", **changes)
        assert uq(x).probs.shape == (ROWS, 2)
        uq = fit(name, "flat", data=(x, (y > 0).long()), task="regression", **changes)
        assert uq(x).mean.shape == (ROWS, 1)


def test_maps_do_not_suit_a_linear_last_layer():
    with pytest.raises(SettingsError, match="Expected a model that ends in a Linear layer") as error:
        fit("laplace", "maps")
    one_sentence(error)


def test_a_bound_on_spectral_norms_needs_a_function():
    with pytest.raises(SettingsError, match="Expected a function that builds the network with spectral_norm=") as error:
        fit("ddu", "classes", spectral_norm=3.0)
    one_sentence(error)


@only(METHODS.keys() - set(TRAINED))
def test_another_number_of_groups_than_rows_is_refused(name, own):
    with pytest.raises(
        DataError, match=f"one group for each row of the train data, but got 7 for .*{ROWS} ro"
    ) as error:
        method(name, problem(own)).fit(
            base(own), problem(own).data, groups=range(7), calibration=problem(own).calibration, progress=False
        )
    one_sentence(error)
