"""The UCI experiments on a small synthetic set: complete records, failures that stay put, and the work that is left."""

import dataclasses
import math

import pytest
import torch

from splitpoint.baselines import METHODS
from splitpoint.bench import uci
from splitpoint.bench.protocols import Protocol
from splitpoint.bench.record import RECORDS, Cell, Journal
from splitpoint.bench.runner import done_in, run_all
from splitpoint.bench.suites import bench_uci
from splitpoint.datasets import Tabular
from splitpoint.errors import DataError, SettingsError, SplitPointError

SETTINGS = {"datasets": ["yacht"], "epochs": 2, "jobs": 1, "progress": False}
NOT_RANKED = {"gaussian": {"spearman_epistemic"}, "conformal": {"spearman_epistemic", "spearman_total"}}
"""Scores that are the same everywhere and so have no rank correlation."""

CHEAP = ["gaussian", "evidential_regression"]


def synthetic(_, name):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400, 3, generator=generator).double()
    y = 100 + 30 * (x[:, :1] - x[:, 1:2] + 0.2 * torch.randn(400, 1, generator=generator))
    return Tabular(x, y, name, "target")


@pytest.fixture(autouse=True)
def table(monkeypatch):
    monkeypatch.setattr(Protocol, "table", synthetic)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """Records of all methods."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Protocol, "table", synthetic)
        folder = tmp_path_factory.mktemp("uci")
        said = bench_uci(folder, trials=2, **SETTINGS)
        return folder, said, Journal(folder).read()


def none_done(_cell, _seed):
    return set()


def bundle(*methods, trials=(0, 1), noises=("clean",)):
    family = next(name for name, members in uci.FAMILIES.items() if methods[0] in members)
    units = [uci.Unit("paper", noise, "yacht", family, methods, trials, epochs=2) for noise in noises]
    return uci.Bundle(tuple(units))


def by_trial(records):
    return {(one.method, one.trial): one for one in records}


# Records


def test_every_method_has_a_complete_record_of_every_trial(everything):
    folder, said, records = everything
    assert {(one.method, one.trial) for one in records} == {(m, t) for m in uci.UCI_METHODS for t in (0, 1)}
    assert f"pieces of work done. Records: {folder / 'records.jsonl'}. Next: splitpoint report {folder}" in said
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
    family = uci.FAMILIES["post_hoc"]
    assert len({found[method, 0].metrics["rmse"] for method in family}) == 1
    assert found["laplace", 0].metrics["rmse"] != found["conformal", 0].metrics["rmse"]


def test_a_method_alone_gives_the_same_as_beside_the_others(everything, tmp_path):
    bench_uci(tmp_path, trials=2, methods=["laplace", "gaussian"], **SETTINGS)
    beside = by_trial(everything[2])
    for one in Journal(tmp_path).read():
        assert one.metrics == beside[one.method, one.trial].metrics


def test_noise_and_the_other_protocol_are_cells_of_their_own(tmp_path):
    bench_uci(tmp_path, protocol="authors", noises=["clean", "trimodal"], trials=1, methods=CHEAP, **SETTINGS)
    found = Journal(tmp_path).read()
    assert {one.cell for one in found} == {
        Cell("uci", "authors", noise, "yacht", method) for noise in ("clean", "trimodal") for method in CHEAP
    }
    evidential = next(one for one in found if one.method == "evidential_regression")
    assert evidential.settings["regulariser"] == 0.0
    assert evidential.settings["batch_size"] == 16


# Failures


def test_a_method_that_fails_takes_no_other_with_it(monkeypatch, tmp_path):
    def broken(*_args, **_rest):
        raise ValueError("it broke")

    monkeypatch.setattr(METHODS["laplace"], "fit_many", broken)
    work = [bundle("laplace", "splitpoint"), bundle("gaussian")]
    run_all(work, uci.run, tmp_path, jobs=1, progress=False)
    found = by_trial(Journal(tmp_path).read())
    assert {key: one.error for key, one in found.items()} == {
        ("laplace", 0): "ValueError: it broke",
        ("laplace", 1): "ValueError: it broke",
        **{(method, trial): None for method in ("splitpoint", "gaussian") for trial in (0, 1)},
    }
    assert found["laplace", 0].metrics == {}
    assert found["splitpoint", 0].stack == (0, 1)


def test_a_trial_that_fails_takes_no_other_with_it(monkeypatch, tmp_path):
    fit_many = METHODS["gaussian"].fit_many

    def broken_for_one(self, models, data, *, seeds, **rest):
        if 1 in seeds:
            raise ValueError("trial 1 broke")
        return fit_many(self, models, data, seeds=seeds, **rest)

    monkeypatch.setattr(METHODS["gaussian"], "fit_many", broken_for_one)
    run_all([bundle("gaussian", trials=(0, 1, 2))], uci.run, tmp_path, jobs=1, progress=False)
    found = by_trial(Journal(tmp_path).read())
    assert [found["gaussian", trial].error for trial in range(3)] == [None, "ValueError: trial 1 broke", None]


def test_trials_that_failed_are_told_and_not_tried_again(monkeypatch, tmp_path):
    def broken(*_args, **_rest):
        raise ValueError("it broke")

    monkeypatch.setattr(METHODS["gaussian"], "fit_many", broken)
    again = {"trials": 1, "methods": ["gaussian"], **SETTINGS}
    told = r"Expected all 1 trial .* but 1 failed, such as gaussian on yacht, trial 0 \(ValueError: it broke\)"
    for _ in range(2):
        with pytest.raises(SplitPointError, match=told):
            bench_uci(tmp_path, **again)
        assert len((tmp_path / RECORDS).read_text().splitlines()) == 1


def test_trials_that_failed_are_tried_again_when_asked_for(monkeypatch, tmp_path):
    def broken(*_args, **_rest):
        raise ValueError("it broke")

    wanted = {"trials": 2, "methods": ["gaussian"], **SETTINGS}
    with monkeypatch.context() as patch:
        patch.setattr(METHODS["gaussian"], "fit_many", broken)
        with pytest.raises(SplitPointError, match="2 failed"):
            bench_uci(tmp_path, **wanted)
    assert bench_uci(tmp_path, retry=True, **wanted).startswith("1 piece of work done. ")
    assert [record.error for record in Journal(tmp_path).read()] == [None, None]
    assert bench_uci(tmp_path, retry=True, **wanted).startswith("Nothing was left to do. ")


# What is left


def test_nothing_is_left_of_what_is_done(everything):
    folder = everything[0]
    arguments = ("paper", ["clean"], ["yacht"], uci.UCI_METHODS)
    assert uci.bundles(*arguments, 2, 0, 2, done_in(folder)) == []
    assert len(uci.bundles(*arguments, 2, 1, 2, done_in(folder))) == len(uci.FAMILIES)  # another seed


def test_more_trials_are_the_missing_ones_only(tmp_path):
    bench_uci(tmp_path, trials=1, methods=["gaussian"], **SETTINGS)
    first = Journal(tmp_path).read()
    (work,) = uci.bundles("paper", ["clean"], ["yacht"], ["gaussian"], 3, 0, 2, done_in(tmp_path))
    assert [one.trials for one in work.units] == [(1, 2)]
    bench_uci(tmp_path, trials=3, methods=["gaussian"], **SETTINGS)
    found = Journal(tmp_path).read()
    assert found[:1] == first
    assert [one.trial for one in found] == [0, 1, 2]


def test_methods_of_a_family_with_the_same_trials_left_are_one_unit():
    def done(cell, _seed):
        return {0} if cell.method == "splitpoint" else set()

    methods = ["laplace", "splitpoint", "splitpoint_calibrated", "gaussian"]
    found = uci.bundles("paper", ["clean"], ["yacht"], methods, 2, 0, None, done)
    assert [(one.methods, one.trials) for work in found for one in work.units] == [
        (("gaussian",), (0, 1)), (("laplace", "splitpoint_calibrated"), (0, 1)), (("splitpoint",), (1,)),
    ]  # fmt: skip


def test_all_sets_noises_and_families_are_asked_for():
    found = uci.bundles("paper", ["clean", "trimodal"], ["yacht", "boston"], uci.UCI_METHODS, 20, 0, None, none_done)
    together = [one for one in found if one.units[0].family not in uci.RANDOM_INSIDE]
    assert len(together) == 2 * (len(uci.FAMILIES) - len(uci.RANDOM_INSIDE))
    assert {one.label for one in found} >= {"yacht gaussian, yacht gaussian trimodal"}
    assert all(len(one.units) == 2 and one.cost == 2 * one.units[0].cost > 0 for one in together)
    apart = [one for one in found if one not in together]
    assert len(apart) == 2 * 2 * len(uci.RANDOM_INSIDE)
    assert all(len(one.units) == 1 for one in apart)


@pytest.mark.parametrize("method", uci.UCI_METHODS)
def test_results_do_not_depend_on_the_laws_of_noise_that_are_asked_for_with_them(tmp_path, method):
    wanted = {"trials": 2, "methods": [method], **SETTINGS}
    bench_uci(tmp_path / "one", noises=["log_normal"], **wanted)
    bench_uci(tmp_path / "two", noises=["clean", "log_normal"], **wanted)
    alone, together = (
        {r.trial: r for r in Journal(tmp_path / n).read() if r.noise == "log_normal"} for n in ("one", "two")
    )
    for trial, one in alone.items():
        for name in ("rmse", "winkler"):
            assert one.metrics[name] == pytest.approx(together[trial].metrics[name], rel=1e-4)


def test_failures_that_were_not_asked_for_are_no_error(monkeypatch, tmp_path):
    def broken(*_args, **_rest):
        raise ValueError("it broke")

    with monkeypatch.context() as patch:
        patch.setattr(METHODS["gaussian"], "fit_many", broken)
        with pytest.raises(SplitPointError, match="1 failed"):
            bench_uci(tmp_path, trials=1, methods=["gaussian"], **SETTINGS)
    assert bench_uci(tmp_path, trials=1, methods=["laplace"], **SETTINGS).startswith("1 piece of work done. ")


def test_settings_of_heads_and_calibration_are_recorded(tmp_path):
    methods = ["splitpoint", "splitpoint_calibrated", "splitpoint_default", "splitpoint_conformal"]
    bench_uci(tmp_path, trials=1, methods=methods, **SETTINGS)
    found = {record.method: record.settings for record in Journal(tmp_path).read()}
    assert found["splitpoint"]["heads"]["quantile_loss"] == "coverage"
    assert found["splitpoint_calibrated"]["heads"]["interval"] == "consistent"
    assert found["splitpoint_default"]["heads"]["epochs"] == SETTINGS["epochs"]
    assert found["splitpoint_conformal"]["calibration_rows"] >= 80


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_told(tmp_path, seed):
    with pytest.raises(SettingsError, match=f"Expected seed from 0 to 4294967295, but got {seed}"):
        bench_uci(tmp_path, seed=seed, **SETTINGS)


def test_trials_of_unequal_size_are_not_bundled():
    found = uci.bundles("authors", ["clean", "log_normal", "trimodal"], ["yacht"], ["gaussian"], 2, 0, None, none_done)
    assert [[one.noise for one in work.units] for work in found] == [["clean"], ["log_normal", "trimodal"]]


# Several laws of noise in one stack


def test_laws_of_noise_in_one_stack_learn_what_they_would_alone(tmp_path):
    noises = ("log_normal", "trimodal")
    methods = ["gaussian", "laplace", "splitpoint", "splitpoint_default"]
    bench_uci(tmp_path / "together", noises=noises, trials=2, methods=methods, **SETTINGS)
    for noise in noises:
        bench_uci(tmp_path / "alone", noises=[noise], trials=2, methods=methods, **SETTINGS)
    together, alone = (
        {(one.cell, one.trial): one for one in Journal(tmp_path / name).read()} for name in ("together", "alone")
    )
    assert together.keys() == alone.keys()
    for key, one in together.items():
        for name in ("rmse", "winkler", "mpiw"):  # rank correlations of few rows turn on the last digits
            assert one.metrics[name] == pytest.approx(alone[key].metrics[name], rel=1e-3), key
        assert one.stack == (0, 1)


def test_one_law_of_noise_that_fails_takes_no_other_with_it(monkeypatch, tmp_path):
    trial = Protocol.trial

    def broken(self, table, noise, *rest):
        if noise == "trimodal":
            raise ValueError("no such noise")
        return trial(self, table, noise, *rest)

    monkeypatch.setattr(Protocol, "trial", broken)
    run_all([bundle("gaussian", noises=("clean", "trimodal"))], uci.run, tmp_path, jobs=1, progress=False)
    found = {(one.noise, one.trial): one.error for one in Journal(tmp_path).read()}
    assert found == {
        ("clean", 0): None,
        ("clean", 1): None,
        ("trimodal", 0): "ValueError: no such noise",
        ("trimodal", 1): "ValueError: no such noise",
    }


def test_larger_sets_cost_more():
    (small,) = bundle("gaussian").units
    assert dataclasses.replace(small, dataset="protein").cost > small.cost


# Wrong requests, before anything is trained


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"datasets": ["mars"]}, r"Expected datasets among boston, .*, but got mars\."),
        ({"methods": ["magic", "gaussian"]}, r"Expected methods among mc_dropout, .*, but got magic\."),
        ({"noises": ["loud"]}, r"Expected noise among clean, log_normal, trimodal, but got loud\."),
        ({"protocol": "mine"}, r"Expected protocol to be one of"),
        ({"trials": 0}, r"Expected trials >= 1, but got 0\."),
        ({"jobs": 0}, r"Expected jobs >= 1, but got 0\."),
        ({"epochs": 0}, r"Expected epochs >= 1, but got 0\."),
    ],
    ids=str,
)
def test_wrong_requests_are_one_sentence(tmp_path, change, message):
    with pytest.raises(SettingsError, match=message):
        bench_uci(tmp_path, **SETTINGS | change)
    assert not list(tmp_path.iterdir())


def test_results_of_other_epochs_do_not_count_as_done(tmp_path):
    bench_uci(tmp_path, trials=1, methods=["gaussian"], **SETTINGS)
    with pytest.raises(
        SettingsError, match=r"Expected results with epochs 400 for yacht in .*, but it has some with 2; give"
    ):
        bench_uci(tmp_path, trials=1, methods=["gaussian"], **SETTINGS | {"epochs": None})
    bench_uci(tmp_path, trials=1, methods=["gaussian"], **SETTINGS | {"epochs": 3, "datasets": ["boston"]})


def test_a_folder_that_is_a_file_is_told_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(uci, "run", None)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"Expected to write records to the folder .*file, but got: .*"):
        bench_uci(tmp_path / "file", trials=1, methods=["gaussian"], **SETTINGS)
