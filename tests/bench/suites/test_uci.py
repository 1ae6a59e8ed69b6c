"""The UCI experiments on a small table: complete records, laws of noise in one stack, and published figures."""

import math
from dataclasses import replace

import pytest
import torch

from splitpoint.bench.fitting import CALIBRATED, POST_HOC
from splitpoint.bench.record import Cell, Journal, Record
from splitpoint.bench.run import bench, left
from splitpoint.bench.suite import Fit, Request, Trial, Work
from splitpoint.bench.suites import SUITES, uci
from splitpoint.prediction import RegressionPrediction

UCI = SUITES["uci"]
METHODS = UCI.fit.names()
GROUPS = UCI.fit.groups(METHODS)
SETTINGS = {"datasets": ["yacht"], "epochs": 2, "jobs": 1, "progress": False}
NOT_RANKED = {"gaussian": {"spearman_epistemic"}, "conformal": {"spearman_epistemic", "spearman_total"}}
"""Scores that are the same everywhere and so have no rank correlation."""

CHEAP = ["gaussian", "evidential_regression"]

pytestmark = pytest.mark.usefixtures("small_table")


@pytest.fixture(scope="module")
def everything(small_table, tmp_path_factory):
    """Records of all methods."""
    folder = tmp_path_factory.mktemp("uci")
    text = bench("uci", folder, trials=2, **SETTINGS)
    return folder, text, Journal(folder).read()


def stacks(trials=2, **options):
    """All work of a request."""
    request = Request("uci", None, options=UCI.chosen({"datasets": ["yacht"]} | options))
    return left(UCI, UCI.cells(request), trials, lambda _cell, _seed: set())


def by_trial(records):
    return {(one.method, one.trial): one for one in records}


# Methods


def test_methods_stand_on_what_the_table_says():
    assert {
        **{name: (name,) for name in ("mc_dropout", "deep_ensemble", "evidential_regression", "evidential_quantile")},
        **{name: (name,) for name in ("sqr_oc", "gaussian")},
        POST_HOC: ("laplace", "splitpoint_paper", "splitpoint_paper_calibrated", "splitpoint"),
        CALIBRATED: ("conformal", "splitpoint_conformal"),
    } == GROUPS


def test_methods_that_are_left_out_have_a_reason():
    assert not set(uci.WITHOUT) & set(METHODS)
    assert all(uci.WITHOUT.values())


# Records


def test_every_method_has_a_complete_record_of_every_trial(everything):
    folder, text, records = everything
    assert {(one.method, one.trial) for one in records} == {(m, t) for m in METHODS for t in (0, 1)}
    assert f"pieces of work done. Records: {folder / 'records.jsonl'}. Next: splitpoint report {folder}" in text
    for one in records:
        assert one.error is None, one
        assert (one.suite, one.protocol, one.noise, one.dataset, one.seed) == ("uci", "paper", "clean", "yacht", 0)
        assert one.stack == (0, 1)
        assert one.settings["epochs"] == 2
        assert all(value > 0 for value in one.timing.values())
        assert set(one.timing) == {"train_cpu_s", "infer_us_per_row"}
        unknown = {name for name, value in one.metrics.items() if math.isnan(value)}
        assert unknown == NOT_RANKED.get(one.method, set()), one.method


def test_figures_are_in_units_of_the_target(everything):
    """The target has a deviation of about 12 units, so that a network that has hardly learned is off by as much."""
    assert all(5 < one.metrics["rmse"] < 30 for one in everything[2])


def test_post_hoc_methods_share_the_base_network(everything):
    found = by_trial(everything[2])
    assert len({found[method, 0].metrics["rmse"] for method in GROUPS[POST_HOC]}) == 1
    assert found["laplace", 0].metrics["rmse"] != found["conformal", 0].metrics["rmse"]


def test_a_method_alone_gives_the_same_as_beside_the_others(everything, tmp_path):
    bench("uci", tmp_path, trials=2, methods=["laplace", "gaussian", "splitpoint_paper_calibrated"], **SETTINGS)
    beside = by_trial(everything[2])
    for one in Journal(tmp_path).read():
        assert one.metrics == beside[one.method, one.trial].metrics


def test_noise_and_the_other_protocol_are_cells_of_their_own(tmp_path):
    bench("uci", tmp_path, protocol="authors", noise=["clean", "trimodal"], trials=1, methods=CHEAP, **SETTINGS)
    found = Journal(tmp_path).read()
    assert {one.cell for one in found} == {
        Cell("uci", "authors", noise, "yacht", method) for noise in ("clean", "trimodal") for method in CHEAP
    }
    evidential = next(one for one in found if one.method == "evidential_regression")
    assert evidential.settings["regulariser"] == 0.0
    assert evidential.settings["batch_size"] == 16


def test_settings_of_heads_and_calibration_are_recorded(tmp_path):
    methods = ["splitpoint_paper", "splitpoint_paper_calibrated", "splitpoint", "splitpoint_conformal"]
    bench("uci", tmp_path, trials=1, methods=methods, **SETTINGS)
    found = {record.method: record.settings for record in Journal(tmp_path).read()}
    assert found["splitpoint_paper"]["heads"]["quantile_loss"] == "coverage"
    assert found["splitpoint_paper_calibrated"]["heads"]["interval"] == "consistent"
    assert found["splitpoint"]["heads"]["epochs"] == SETTINGS["epochs"]
    assert found["splitpoint_conformal"]["calibration_rows"] >= 80


# Several laws of noise in one stack


def test_all_sets_noises_and_groups_are_asked_for():
    found = stacks(20, noise=["clean", "trimodal"], datasets=["yacht", "boston"])
    together = [one for one in found if one.works[0].group not in uci.RANDOM_INSIDE]
    assert len(together) == 2 * (len(GROUPS) - len(uci.RANDOM_INSIDE))
    assert {one.label for one in found} >= {"yacht gaussian, yacht gaussian trimodal"}
    assert all(len(one.works) == 2 and one.cost == 2 * UCI.cost(one.works[0]) > 0 for one in together)
    apart = [one for one in found if one not in together]
    assert len(apart) == 2 * 2 * len(uci.RANDOM_INSIDE)
    assert all(len(one.works) == 1 for one in apart)


def test_trials_of_unequal_size_are_not_stacked():
    found = stacks(protocol="authors", noise=["clean", "log_normal", "trimodal"], methods=["gaussian"])
    assert [[one.noise for one in work.works] for work in found] == [["clean"], ["log_normal", "trimodal"]]


@pytest.mark.parametrize("method", METHODS)
def test_results_do_not_depend_on_the_laws_of_noise_that_are_asked_for_with_them(tmp_path, method):
    wanted = {"trials": 2, "methods": [method], **SETTINGS}
    bench("uci", tmp_path / "one", noise=["log_normal"], **wanted)
    bench("uci", tmp_path / "two", noise=["clean", "log_normal"], **wanted)
    alone, together = (
        {r.trial: r for r in Journal(tmp_path / n).read() if r.noise == "log_normal"} for n in ("one", "two")
    )
    for trial, one in alone.items():
        for name in ("rmse", "winkler"):
            assert one.metrics[name] == pytest.approx(together[trial].metrics[name], rel=1e-4)


def test_laws_of_noise_in_one_stack_learn_what_they_would_alone(tmp_path):
    noises = ("log_normal", "trimodal")
    methods = ["gaussian", "laplace", "splitpoint_paper", "splitpoint"]
    bench("uci", tmp_path / "together", noise=noises, trials=2, methods=methods, **SETTINGS)
    for noise in noises:
        bench("uci", tmp_path / "alone", noise=[noise], trials=2, methods=methods, **SETTINGS)
    together, alone = (
        {(one.cell, one.trial): one for one in Journal(tmp_path / name).read()} for name in ("together", "alone")
    )
    assert together.keys() == alone.keys()
    for key, one in together.items():
        for name in ("rmse", "winkler", "mpiw"):  # rank correlations of few rows turn on the last digits
            assert one.metrics[name] == pytest.approx(alone[key].metrics[name], rel=1e-3), key
        assert one.stack == (0, 1)


def test_larger_sets_cost_more():
    small = Work("uci", "paper", "clean", "yacht", "gaussian", ("gaussian",), (0, 1))
    assert UCI.cost(replace(small, dataset="protein")) > UCI.cost(small) > 0


# As published


def ensemble_prediction():
    mean, noise, doubt = (torch.tensor(values)[:, None] for values in ((1.0, 2.0), (4.0, 9.0), (1.0, 16.0)))
    return RegressionPrediction(
        aleatoric=noise,
        epistemic=doubt,
        total=noise + doubt,
        reference=None,
        mean=mean,
        levels=(0.95,),
        lowers=(mean - 10)[..., None],
        uppers=(mean + 10)[..., None],
    )


class Told:
    """A predictor that gives the same prediction whatever it is asked."""

    def predict(self, inputs):
        return ensemble_prediction()


@pytest.mark.parametrize(
    ("method", "protocol", "width"),
    [
        *((method, "authors", 10.0) for method in ("mc_dropout", "deep_ensemble")),
        *((method, "authors", 20.0) for method in ("splitpoint_paper", "evidential_regression", "gaussian")),
        *((method, "paper", 20.0) for method in ("mc_dropout", "deep_ensemble", "gaussian")),
    ],
)
def test_the_published_form_is_used_for_ensembles_under_the_protocol_of_the_authors(method, protocol, width):
    work = Work("uci", protocol, "clean", "yacht", method, (method,), (0,))
    rows = torch.zeros(2, 1), torch.zeros(2, 1)
    found = uci.judge(work, Fit(method, [Told()], {}, 1.0), 0, Trial(rows, rows, rows, rows))
    assert found.metrics["mpiw"] == width
    assert found.metrics["rmse"] == pytest.approx(math.sqrt(2.5))


def record(protocol, noise, dataset, suite="uci", **settings):
    cell = Cell(suite, protocol, noise, dataset, "gaussian")
    return Record(**cell._asdict(), trial=0, stack=(0,), seed=0, settings=settings)


def test_obstacles_to_a_comparison():
    found = UCI.obstacles(record("paper", "trimodal", "energy", epochs=40))
    assert [reason.split()[-1] for reason in found] == ["400", "states", "target"]
    assert UCI.obstacles(record("authors", "trimodal", "energy")) == ()
    assert UCI.obstacles(record("paper", "clean", "boston")) == ()
    assert SUITES["cubic"].obstacles(record("paper", "trimodal", "cubic", suite="cubic")) == ()
    assert SUITES["uci-ablation"].obstacles(record("paper", "clean", "naval", suite="uci-ablation")) == (
        "the published tables predict the second target",
    )
