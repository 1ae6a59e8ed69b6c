"""The public contract of every method: its settings are frozen, its own, and none is accepted and then ignored."""

from dataclasses import FrozenInstanceError, is_dataclass

import pytest
import torch

import splitpoint as sp
from problems import METHODS, NO_MAPS, base, calibrated, differ, fails, fit, method, post_hoc, problem, settings_of
from splitpoint.baselines import NetworkTraining
from splitpoint.errors import DataError, SettingsError, SplitPointError

named = pytest.mark.parametrize("name", METHODS)
PROBLEMS = {"regression": "scalar", "classification": "classes"}


@named
def test_settings_are_frozen_and_compare_by_value(name):
    settings = METHODS[name]()
    assert is_dataclass(settings)
    with pytest.raises(FrozenInstanceError):
        settings.rows_per_call = 7
    assert settings == METHODS[name]()
    assert hash(settings) == hash(METHODS[name]())
    assert settings != METHODS[name](rows_per_call=7)


@named
def test_nothing_unfitted_can_predict(name):
    settings = METHODS[name]()
    assert not callable(settings)
    assert not hasattr(settings, "predict")
    assert not hasattr(settings, "save")


@named
def test_every_method_says_what_it_is(name):
    recipe = METHODS[name]
    assert set(recipe.tasks) <= {"regression", "classification"}
    assert set(recipe.held_out) <= set(recipe.tasks)
    assert recipe.start in ("factory", "model")
    assert all([recipe.tasks, recipe.title, recipe.passes, recipe.needs, recipe.epistemic, recipe.reference])


def test_titles_tell_methods_apart():
    assert len({recipe.title for recipe in METHODS.values()}) == len(METHODS)


@named
@pytest.mark.parametrize("unknown", ["nonsense", "confidence_levels", "epoch"])
def test_unknown_settings_are_refused_with_the_names_of_those_it_has(name, unknown):
    with pytest.raises(SettingsError, match=f"^Expected settings [^\n]* but got {unknown}\\.$") as error:
        METHODS[name](**{unknown: 1})
    for task in METHODS[name].tasks:
        assert set(settings_of(name, task)) <= set(str(error.value).replace(",", "").split())


NETWORKS = [name for name in NetworkTraining.__dataclass_fields__ if name not in ("epochs", "learning_rate")]


@pytest.mark.parametrize("name", [name for name in METHODS if post_hoc(name) and not name.startswith("splitpoint")])
@pytest.mark.parametrize("setting", ["epochs", "learning_rate", *NETWORKS])
def test_a_method_that_trains_nothing_has_no_settings_of_training(name, setting):
    with fails(SettingsError, f"but got {setting}"):
        METHODS[name](**{setting: 1})


# No setting is ignored


def untrained(network, _data):
    """Copies stay as they are."""
    return network


OTHERWISE = {
    "annealing": 0.5,
    "batch_size": 16,
    "certificates": 2,
    "confidence_level": 0.6,
    "correction_prior": 0.01,
    "delta0": 10.0,
    "dense_steps": 1,
    "dropout": 0.5,
    "epochs": 2,
    "factor_limit": 1.01,
    "folds": 2,
    "held_back": 0.4,
    "hessian": "full",
    "interval": "consistent",
    "layer": "1",
    "learning_rate": 3e-2,
    "leverage": False,
    "mar_layers": 2,
    "mars": "free",
    "mask_seed": 5,
    "members": 2,
    "milestones": (0.25,),
    "noise": 3.0,
    "optimiser": "sgd",
    "passes": 2,
    "patience": 1,
    "penalty": 0.3,
    "positions": 3,
    "prior_precision": 3.0,
    "quantile_layers": 0,
    "quantile_loss": "coverage",
    "regulariser": 3.0,
    "residual": "normalised",
    "residuals": "train",
    "residuals of classification": "refit",
    "retrain": untrained,
    "score": "variance",
    "score of conformal": "aps",
    "shared": True,
    "standardise": False,
    "steepness": 5.0,
    "support_mass": 0.1,
    "tau": "outputs",
    "temperature": "ece",
    "weight_decay": 0.3,
    "widen": False,
    "scores": "sds",
    "width": 3,
}
"""Another value for every setting that changes predictions, of one method or task where it has values of its own."""

CONTEXT = {
    "delta0": {"mars": "free"},
    "factor_limit": {"interval": "consistent"},
    "held_back": {"folds": 0},
    "layer": {"residual": "normalised"},
    "score": {"confidence_level": 0.6},
    "retrain": {"residuals": "refit"},
    "patience": {"epochs": 60, "folds": 0, "learning_rate": 0.1},
    "shared": {"leverage": False},
    "standardise": {"leverage": False},
}
"""Other settings that a setting needs in order to show, as far as the method has them."""

ELSEWHERE = {
    "cache": "where rows are kept (test_cache.py)",
    "gamma": "of networks with several views (test_rcml.py)",
    "ignore_index": "which label does not count (test_data.py)",
    "order": "of the views of a network (test_rcml.py)",
    "output": "what the model returns; the other value is refused below",
    "output_key": "which output is the prediction (test_data.py)",
    "rows_per_call": "rows at a time, without effect on what comes out",
    "spectral_norm": "of a network from a factory (test_ddu.py)",
    "task": "refused below where it is not the data's",
    "training": "of a network from a factory (test_fitting.py)",
    "views": "parts of a network (test_rcml.py)",
}
"""Settings that are held by other tests, with what they are."""

CALIBRATED = {"splitpoint": ("delta0", "correction_prior")}
"""Settings of calibrated probabilities, which a recipe without calibration data shares with `splitpoint_conformal`."""

SHOWN = [
    (name, setting)
    for name in METHODS
    if name not in ("splitpoint_paper", "splitpoint_paper_calibrated", "splitpoint_layers")  # presets of the others
    for setting in dict.fromkeys(s for task in METHODS[name].tasks for s in settings_of(name, task))
    if setting not in (*ELSEWHERE, *CALIBRATED.get(name, ()))
]


def otherwise(setting, *owners):
    """Another value of a setting, that of the first owner that has one of its own."""
    keys = [*(f"{setting} of {owner}" for owner in owners), setting]
    return next(OTHERWISE[key] for key in keys if key in OTHERWISE)


def defaults(name, task):
    """The method with its defaults, as the task has it."""
    settings = METHODS[name](task=task)
    return settings._heads(task) if name.startswith("splitpoint") else settings


def place(name, setting, task):
    """The problem where a setting shows, its base network, and other settings that it needs for it."""
    known = settings_of(name, task)
    changes = {key: value for key, value in CONTEXT.get(setting, {}).items() if key in known}
    if setting not in ("positions", "dense_steps"):
        return problem(PROBLEMS[task]), base(PROBLEMS[task]), changes
    if "temperature" in known and task == "classification":
        changes["temperature"] = "nll"
    dense = {"regression": "maps", "classification": "label_maps"}
    if name in NO_MAPS:
        dense = {"regression": "sequences", "classification": "classes"}
    return problem(dense[task]), base(dense[task]), changes


def predicted(name, own, start, **changes):
    held = own.calibration if "temperature" in changes else calibrated(name, own)
    few = {"epochs": 3} if "epochs" in settings_of(name, own.task) else {}
    uq = method(name, own, **few | changes).fit(start, own.data, calibration=held, progress=False)
    return uq(torch.cat([own.fresh, 20 * own.fresh]))  # like the data and far beyond


@pytest.mark.parametrize(("name", "setting"), SHOWN, ids=[f"{name}-{setting}" for name, setting in SHOWN])
def test_every_setting_changes_something(name, setting):
    """In one of the tasks at least."""
    shown = []
    for task in METHODS[name].tasks:
        if setting not in settings_of(name, task) or (setting, task) == ("temperature", "regression"):
            continue
        own, model, changes = place(name, setting, task)
        start = model if post_hoc(name) else own.factory
        default = getattr(defaults(name, task), setting)
        value = not default if setting == "decay" else otherwise(setting, name, task)
        assert value != default
        shown.append(differ(*(predicted(name, own, start, **changes, **more) for more in ({}, {setting: value}))))
    assert any(shown), f"{setting} changes nothing"


@named
def test_another_task_than_the_datas_is_refused(name):
    """A one-task method says so at once, others when they see the data."""
    for task in ("regression", "classification"):
        if task not in METHODS[name].tasks:
            with fails(SettingsError, f"Expected task to be one of .* but got '{task}'"):
                METHODS[name](task=task)
    if len(METHODS[name].tasks) == 2:
        own = problem("classes")
        numbers = own.data[0], torch.full((len(own.data[0]), 3), 0.5)
        start = base("classes") if post_hoc(name) else own.factory
        with pytest.raises(SplitPointError, match="Expected"):
            METHODS[name](task="classification").fit(start, numbers, calibration=numbers, progress=False)


@pytest.mark.parametrize("name", [name for name in METHODS if "classification" in METHODS[name].tasks])
def test_what_the_model_returns_is_never_guessed(name):
    with fails(DataError, "Expected probabilities in .* but the model returns other numbers; use output='logits'"):
        fit(name, "classes", output="probs")


# Recipes


@pytest.mark.parametrize("kind", [sp.SplitPointRegressor, sp.SplitPointClassifier])
def test_the_papers_recipe_is_a_preset_of_the_same_class(kind):
    paper = kind.paper(epochs=9)
    assert type(paper) is kind
    assert paper.epochs == 9
    assert paper.learning_rate == 1e-4
    assert not paper.standardise


def test_the_papers_recipes_have_the_papers_settings():
    regressor, classifier = sp.SplitPointRegressor.paper(0.9), sp.SplitPointClassifier.paper()
    assert regressor.levels == (0.9,)
    assert (regressor.residuals, regressor.interval, regressor.epochs) == ("train", "split", 400)
    assert (classifier.mars, classifier.delta0, classifier.epochs) == ("free", 0.01, 300)


def test_levels_are_sorted_and_unique():
    assert sp.SplitPointRegressor(confidence_level=(0.9, 0.5, 0.9)).levels == (0.5, 0.9)
    assert sp.SplitPointRegressor(0.8).levels == (0.8,)
    assert METHODS["conformal"](confidence_level=(0.9, 0.5, 0.9)).levels == (0.5, 0.9)
