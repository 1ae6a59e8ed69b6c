"""Running suites: failures that stay put, the work that is left, and wrong requests told before anything is trained."""

import dataclasses
import re

import pytest
import torch
from torch import nn

from splitpoint import cli
from splitpoint.baselines import METHODS
from splitpoint.bench import run as running
from splitpoint.bench.fitting import Methods, judge_rows
from splitpoint.bench.protocols import Protocol
from splitpoint.bench.record import RECORDS, Cell, Journal, Record
from splitpoint.bench.run import Stacked, bench, done_in, left
from splitpoint.bench.suite import Option, Request, Suite, Trial, Work
from splitpoint.bench.suites import SUITES
from splitpoint.bench.workers import run_all
from splitpoint.errors import DataError, SettingsError, SplitPointError
from splitpoint.tasks import Regression

UCI = SUITES["uci"]
SETTINGS = {"datasets": ["yacht"], "epochs": 2, "jobs": 1, "progress": False}

pytestmark = pytest.mark.usefixtures("small_table")


def broken(*_args, **_rest):
    raise ValueError("it broke")


def none_done(_cell, _seed):
    return set()


def asked(seed=0, epochs=2, **options):
    """The work that a request to the UCI suite asks for."""
    request = Request("uci", None, seed, epochs, UCI.chosen({"datasets": ["yacht"]} | options))
    return UCI.cells(request)


def stacked(*methods, trials=(0, 1), noises=("clean",)):
    (group,) = UCI.fit.groups(methods)
    works = [Work("uci", "paper", noise, "yacht", group, methods, trials, epochs=2) for noise in noises]
    return Stacked(tuple(works), 1)


def run_here(folder, *work):
    run_all(work, running.run, folder, jobs=1, progress=False, keep=lambda outcome: outcome.records)


def by_trial(folder):
    return {(one.method, one.trial): one for one in Journal(folder).read()}


# Failures


def test_a_method_that_fails_takes_no_other_with_it(monkeypatch, tmp_path):
    monkeypatch.setattr(METHODS["laplace"].method, "fit_many", broken)
    run_here(tmp_path, stacked("laplace", "splitpoint_paper"), stacked("gaussian"))
    found = by_trial(tmp_path)
    assert {key: one.error for key, one in found.items()} == {
        ("laplace", 0): "ValueError: it broke",
        ("laplace", 1): "ValueError: it broke",
        **{(method, trial): None for method in ("splitpoint_paper", "gaussian") for trial in (0, 1)},
    }
    assert found["laplace", 0].metrics == {}
    assert found["splitpoint_paper", 0].stack == (0, 1)


def test_a_trial_that_fails_takes_no_other_with_it(monkeypatch, tmp_path):
    fit_many = METHODS["gaussian"].method.fit_many

    def broken_for_one(self, models, data, *, seeds, **rest):
        if 1 in seeds:
            raise ValueError("trial 1 broke")
        return fit_many(self, models, data, seeds=seeds, **rest)

    monkeypatch.setattr(METHODS["gaussian"].method, "fit_many", broken_for_one)
    run_here(tmp_path, stacked("gaussian", trials=(0, 1, 2)))
    found = by_trial(tmp_path)
    assert [found["gaussian", trial].error for trial in range(3)] == [None, "ValueError: trial 1 broke", None]


def test_one_law_of_noise_that_fails_takes_no_other_with_it(monkeypatch, tmp_path):
    trial = Protocol.trial

    def broken_for_one(self, table, noise, *rest):
        if noise == "trimodal":
            raise ValueError("no such noise")
        return trial(self, table, noise, *rest)

    monkeypatch.setattr(Protocol, "trial", broken_for_one)
    run_here(tmp_path, stacked("gaussian", noises=("clean", "trimodal")))
    found = {(one.noise, one.trial): one.error for one in Journal(tmp_path).read()}
    assert found == {
        ("clean", 0): None,
        ("clean", 1): None,
        ("trimodal", 0): "ValueError: no such noise",
        ("trimodal", 1): "ValueError: no such noise",
    }


def test_trials_that_failed_are_told_and_not_tried_again(monkeypatch, tmp_path):
    monkeypatch.setattr(METHODS["gaussian"].method, "fit_many", broken)
    again = {"trials": 1, "methods": ["gaussian"], **SETTINGS}
    message = r"Expected all 1 trial .* but 1 failed, such as gaussian on yacht, trial 0 \(ValueError: it broke\)"
    for _ in range(2):
        with pytest.raises(SplitPointError, match=message):
            bench("uci", tmp_path, **again)
        assert len((tmp_path / RECORDS).read_text().splitlines()) == 1


def test_trials_that_failed_are_tried_again_when_asked_for(monkeypatch, tmp_path):
    wanted = {"trials": 2, "methods": ["gaussian"], **SETTINGS}
    with monkeypatch.context() as patch:
        patch.setattr(METHODS["gaussian"].method, "fit_many", broken)
        with pytest.raises(SplitPointError, match="2 failed"):
            bench("uci", tmp_path, **wanted)
    assert bench("uci", tmp_path, retry=True, **wanted).startswith("1 piece of work done. ")
    assert [record.error for record in Journal(tmp_path).read()] == [None, None]
    assert bench("uci", tmp_path, retry=True, **wanted).startswith("Nothing was left to do. ")


def test_failures_that_were_not_asked_for_are_no_error(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        patch.setattr(METHODS["gaussian"].method, "fit_many", broken)
        with pytest.raises(SplitPointError, match="1 failed"):
            bench("uci", tmp_path, trials=1, methods=["gaussian"], **SETTINGS)
    assert bench("uci", tmp_path, trials=1, methods=["laplace"], **SETTINGS).startswith("1 piece of work done. ")


def test_failed_trials_are_done_unless_they_are_to_be_tried_again():
    cells = [Cell("toy", "paper", "clean", dataset, "one") for dataset in ("broken", "whole")]
    records = [
        *(Record(**cells[0]._asdict(), trial=trial, stack=(0, 1), seed=0, error="it broke") for trial in (0, 1)),
        Record(**cells[1]._asdict(), trial=0, stack=(0,), seed=0),
    ]
    assert done_in(records)(cells[0], 0) == {0, 1}
    assert done_in(records, retry=True)(cells[0], 0) == set()
    assert done_in(records, retry=True)(cells[1], 0) == {0}


# What is left


def test_nothing_is_left_of_what_is_done(tmp_path):
    bench("uci", tmp_path, trials=2, methods=["gaussian", "laplace"], **SETTINGS)
    done = done_in(Journal(tmp_path).read())
    assert left(UCI, asked(methods=["gaussian", "laplace"]), 2, done) == []
    assert len(left(UCI, asked(seed=1, methods=["gaussian", "laplace"]), 2, done)) == 2  # another seed
    assert len(left(UCI, asked(), 2, done)) == len(UCI.fit.groups(UCI.fit.names())) - 1  # other methods


def test_more_trials_are_the_missing_ones_only(tmp_path):
    bench("uci", tmp_path, trials=1, methods=["gaussian"], **SETTINGS)
    first = Journal(tmp_path).read()
    (work,) = left(UCI, asked(methods=["gaussian"]), 3, done_in(first))
    assert [one.trials for one in work.works] == [(1, 2)]
    bench("uci", tmp_path, trials=3, methods=["gaussian"], **SETTINGS)
    found = Journal(tmp_path).read()
    assert found[:1] == first
    assert [one.trial for one in found] == [0, 1, 2]


def test_methods_of_a_group_with_the_same_trials_left_stay_together():
    def done(cell, _seed):
        return {0} if cell.method == "splitpoint_paper" else set()

    methods = ["laplace", "splitpoint_paper", "splitpoint_paper_calibrated", "gaussian"]
    found = left(UCI, asked(methods=methods), 2, done)
    assert [(one.methods, one.trials) for work in found for one in work.works] == [
        (("gaussian",), (0, 1)), (("laplace", "splitpoint_paper_calibrated"), (0, 1)), (("splitpoint_paper",), (1,)),
    ]  # fmt: skip


def test_trials_that_know_no_stacks_are_apart():
    suite = dataclasses.replace(UCI, one_by_one=lambda work: work.noise == "clean")
    found = left(suite, asked(methods=["gaussian"], noise=["clean", "trimodal"]), 2, none_done)
    assert sorted((one.noise, one.trials) for work in found for one in work.works) == [
        ("clean", (0,)), ("clean", (1,)), ("trimodal", (0, 1)),
    ]  # fmt: skip


def test_the_journal_is_read_once(tmp_path, monkeypatch):
    reads, read = [], Journal.read
    monkeypatch.setattr(Journal, "read", lambda self: reads.append(self) or read(self))
    for _ in range(2):
        bench("uci", tmp_path, trials=1, methods=["gaussian"], **SETTINGS)
    assert len(reads) == 2


# One line in a table


def test_a_rival_that_is_added_to_the_table_is_run_like_the_others(monkeypatch, tmp_path):
    """Trained alone, on the base networks of others, or on those that have not seen the calibration rows."""
    for name, like in {"toy": "gaussian", "toy_heads": "laplace", "toy_calibrated": "conformal"}.items():
        monkeypatch.setitem(METHODS, name, dataclasses.replace(METHODS[like], title="Toy"))
    assert list(UCI.fit.names())[-3:] == ["toy", "toy_heads", "toy_calibrated"]
    methods = ["gaussian", "laplace", "conformal", "toy", "toy_heads", "toy_calibrated"]
    bench("uci", tmp_path, trials=1, methods=methods, **SETTINGS)
    found = by_trial(tmp_path)
    assert sorted(method for method, _ in found) == sorted(methods)
    for name, like in {"toy": "gaussian", "toy_heads": "laplace", "toy_calibrated": "conformal"}.items():
        assert (
            found[name, 0].line()
            == dataclasses.replace(found[like, 0], method=name, timing=found[name, 0].timing).line()
        )


def toy_trial(_work, number):
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(300, 1, generator=generator)
    rows = x, x + 0.1 * torch.randn(300, 1, generator=generator)
    train, proper, calibration, test = ([part[first:last] for part in rows] for first, last in PARTS)
    return Trial(train, proper, calibration, test, scale=2.0, shifted=10 + torch.rand(20, 1, generator=generator))


PARTS = ((0, 200), (0, 100), (100, 200), (200, 300))
TOYS = Methods(
    Regression(), lambda _: lambda: nn.Linear(1, 1), lambda work: {"epochs": work.epochs or 3}, lambda _: {}, {}
)
TOY = Suite(
    name="toy",
    title="Toys",
    help="a line",
    trials=2,
    options=(Option("methods", "ids of methods", TOYS.names),),
    cells=lambda request: [
        request.work(dataset="line", group=group, methods=methods)
        for group, methods in TOYS.groups(request["methods"]).items()
    ],
    settings=TOYS.training,
    cost=lambda work: len(work.trials),
    trial=toy_trial,
    fit=TOYS,
    judge=judge_rows,
)


def test_a_suite_that_is_added_to_the_table_is_a_command(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(SUITES, "toy", TOY)
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    assert re.search(r"toy +a line", capsys.readouterr().out)
    argv = ["bench", "toy", "--methods", "laplace", "conformal", "--jobs", "1", "--quiet", "--out", str(tmp_path)]
    assert cli.main(argv) == 0
    assert capsys.readouterr().out.startswith("2 pieces of work done. ")
    found = by_trial(tmp_path)
    assert set(found) == {(method, trial) for method in ("laplace", "conformal") for trial in (0, 1)}
    assert {(one.suite, one.dataset, one.error, one.stack) for one in found.values()} == {("toy", "line", None, (0, 1))}
    assert found["laplace", 0].metrics["auroc_ood"] == 1.0  # ten deviations away
    assert found["laplace", 0].metrics["rmse"] < 10
    assert cli.main(["report", str(tmp_path)]) == 0
    assert "Toys" in capsys.readouterr().out
    assert cli.main([*argv, "--epochs", "4"]) == 1
    assert "Expected results with epochs 4 for line" in capsys.readouterr().err


# Wrong requests, before anything is trained


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_out_of_range_is_told(tmp_path, seed):
    with pytest.raises(SettingsError, match=f"Expected seed from 0 to 4294967295, but got {seed}"):
        bench("uci", tmp_path, seed=seed, **SETTINGS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"datasets": ["mars"]}, r"Expected datasets among boston, .*, but got mars\."),
        ({"methods": ["magic", "gaussian"]}, r"Expected methods among mc_dropout, .*, but got magic\."),
        ({"noise": ["loud"]}, r"Expected noise among clean, log_normal, trimodal, but got loud\."),
        ({"protocol": "mine"}, r"Expected protocol to be one of paper, authors, but got 'mine'\."),
        ({"colour": "red"}, r"Expected options among protocol, noise, datasets, methods, but got colour\."),
        ({"trials": 0}, r"Expected trials >= 1, but got 0\."),
        ({"jobs": 0}, r"Expected jobs >= 1, but got 0\."),
        ({"epochs": 0}, r"Expected epochs >= 1, but got 0\."),
    ],
    ids=str,
)
def test_wrong_requests_are_one_sentence(tmp_path, change, message):
    with pytest.raises(SettingsError, match=message):
        bench("uci", tmp_path, **SETTINGS | change)
    assert not list(tmp_path.iterdir())


def test_an_unknown_suite_lists_those_there_are(tmp_path):
    with pytest.raises(SettingsError, match=r"Expected a suite among uci, cubic, .*, but got 'mars'\."):
        bench("mars", tmp_path)


def test_results_of_other_epochs_do_not_count_as_done(tmp_path):
    bench("uci", tmp_path, trials=1, methods=["gaussian"], **SETTINGS)
    with pytest.raises(
        SettingsError, match=r"Expected results with epochs 400 for yacht in .*, but it has some with 2; give"
    ):
        bench("uci", tmp_path, trials=1, methods=["gaussian"], **SETTINGS | {"epochs": None})
    bench("uci", tmp_path, trials=1, methods=["gaussian"], **SETTINGS | {"epochs": 3, "datasets": ["boston"]})


def test_a_folder_that_is_a_file_is_told_before_anything_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "run", None)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"Expected to write records to the folder .*file, but got: .*"):
        bench("uci", tmp_path / "file", trials=1, methods=["gaussian"], **SETTINGS)


# The command


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--datasets", "mars"], "Expected datasets among boston, "),
        (["--methods", "magic"], "Expected methods among mc_dropout, "),
        (["--noise", "loud"], "Expected noise among clean, "),
        (["--protocol", "mine"], "Expected protocol to be one of "),
        (["--trials", "0"], "Expected trials >= 1, but got 0."),
        (["--jobs", "0"], "Expected jobs >= 1, but got 0."),
        (["--epochs", "-3"], "Expected epochs >= 1, but got -3."),
    ],
    ids=str,
)
def test_wrong_requests_are_one_sentence_and_no_success(tmp_path, monkeypatch, capsys, argv, message):
    monkeypatch.setenv("SPLITPOINT_DATA", str(tmp_path / "empty"))
    assert cli.main(["bench", "uci", "--out", str(tmp_path / "out"), *argv]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"splitpoint: {message}")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_an_interruption_is_no_traceback(monkeypatch, capsys, tmp_path):
    def interrupted(*_args, **_rest):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "bench", interrupted)
    assert cli.main(["bench", "uci", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "splitpoint: interrupted\n"
