"""The ablations on UCI sets: variants named as published, fits shared, records whole and resumable."""

import pytest
import torch

from splitpoint import cli
from splitpoint.bench.fitting import CALIBRATED, POST_HOC
from splitpoint.bench.record import Journal
from splitpoint.bench.run import bench
from splitpoint.bench.suites import uci_ablation
from splitpoint.bench.suites.uci_ablation import ABLATIONS, VARIANTS, Shuffled
from splitpoint.datasets import Tabular
from splitpoint.errors import SettingsError, SplitPointError
from splitpoint.regression import SplitPointRegressor

PUBLISHED = {
    "training=stagewise;train_fraction=0.2",
    "training=stagewise;train_fraction=0.4",
    "training=stagewise;train_fraction=0.6",
    "training=stagewise;train_fraction=0.8",
    "training=stagewise;train_fraction=1.0",
    "training=joint",
    "hidden_layers=1",
    "hidden_layers=2",
    "hidden_layers=3",
}
"""Variants of the published tables ``tab:training-reg-as`` and ``tab:model-reg-as``."""

QUICK = {"datasets": ["energy"], "trials": 2, "epochs": 3, "jobs": 1, "progress": False}


@pytest.fixture(scope="module", autouse=True)
def made_up_rows():
    """A table of 700 rows in the place of a real one, so that nothing has to be downloaded."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(700, 4, generator=generator, dtype=torch.float64)
    y = x.sum(1, keepdim=True) + torch.randn(700, 1, generator=generator, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("splitpoint.bench.protocols.load", lambda name, _target=None: Tabular(x, y, name, "target"))
        yield


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A folder with two trials of all variants on one set."""
    folder = tmp_path_factory.mktemp("ablation")
    bench("uci-ablation", folder, **QUICK)
    return folder


def by_variant(folder):
    found = {}
    for record in Journal(folder).read():
        found.setdefault(record.variant, {})[record.trial] = record
    return found


# Names


def test_variants_of_the_paper_are_named_as_published():
    ours = {name for name, variant in VARIANTS.items() if variant.method == "splitpoint_paper"}
    assert ours == PUBLISHED == {variant.name for key in ("training", "hidden_layers") for variant in ABLATIONS[key]}


def test_names_are_unique_and_every_variant_has_a_group():
    assert len(VARIANTS) == sum(map(len, ABLATIONS.values()))
    assert {variant.group for variant in VARIANTS.values()} == {POST_HOC, CALIBRATED, uci_ablation.JOINT}


def test_every_ablation_of_ours_holds_the_default():
    for name in ("quantile_loss", "head_layers"):
        assert SplitPointRegressor() in [SplitPointRegressor(**variant.changes) for variant in ABLATIONS[name]]
    residuals = [variant.changes["residuals"] for variant in ABLATIONS["residuals"]]
    assert "loo" in residuals  # what the default takes for networks that did not memorise their rows


# Records


def test_every_variant_has_every_trial(everything):
    found = by_variant(everything)
    assert set(found) == set(VARIANTS)
    for name, trials in found.items():
        assert set(trials) == {0, 1}
        for record in trials.values():
            assert record.error is None
            assert record.cell == ("uci-ablation", "paper", "clean", "energy", VARIANTS[name].method, name, "")
            assert {"rmse", "winkler", "piece", "piece_plus", "piece_minus", "spearman_total"} <= set(record.metrics)


def test_variants_share_their_base_networks(everything):
    found = by_variant(everything)
    for trial in (0, 1):
        errors = {found[name][trial].metrics["rmse"] for name in VARIANTS if VARIANTS[name].group == POST_HOC}
        assert len(errors) == 1
        assert found["training=joint"][trial].metrics["rmse"] not in errors
        assert found["calibration=conformal"][trial].metrics["rmse"] not in errors


def test_variants_that_are_the_same_fit_agree(everything):
    found = by_variant(everything)
    same = [
        ("training=stagewise;train_fraction=1.0", "hidden_layers=1"),
        ("residuals=loo", "quantile_loss=pinball"),
        ("residuals=loo", "quantile_layers=1;mar_layers=3"),
        ("residuals=loo", "calibration=none"),
        ("calibration=conformal", "calibration_share=0.3"),
    ]
    for one, other in same:
        assert found[one][0].metrics == found[other][0].metrics


def test_variants_that_differ_do_not(everything):
    found = by_variant(everything)
    for name in ("training", "hidden_layers", "residuals", "head_layers"):  # three passes do not tell losses apart
        scores = [found[variant.name][0].metrics["winkler"] for variant in ABLATIONS[name]]
        assert len(set(scores)) == len(scores)


def test_calibration_has_its_share_of_the_rows(everything):
    found = [by_variant(everything)[variant.name][0] for variant in ABLATIONS["calibration_share"]]
    assert [record.settings["calibration_rows"] for record in found] == [63, 126, 189, 252, 315]  # of 630
    assert len({record.metrics["winkler"] for record in found}) == len(found)


def test_consistent_intervals_are_never_narrower(everything):
    found = by_variant(everything)
    for trial in (0, 1):
        widths = [found[f"calibration={kind}"][trial].metrics["mpiw"] for kind in ("none", "consistent")]
        assert widths[0] <= widths[1]


def test_trials_are_stacks_but_those_of_joint_training(everything):
    for name, trials in by_variant(everything).items():
        assert {record.stack for record in trials.values()} == ({(0,), (1,)} if "joint" in name else {(0, 1)})


# Rows


def test_smaller_shares_are_parts_of_larger_ones():
    rows = torch.arange(100.0)[:, None], torch.arange(100.0)[:, None]
    parts = [set(uci_ablation._share_of(rows, share, 3)[0].flatten().tolist()) for share in (0.2, 0.6, 1.0)]
    assert [len(part) for part in parts] == [20, 60, 100]
    assert parts[0] < parts[1] < parts[2]


def test_shuffled_batches_hold_every_row_once_in_another_order_each_time():
    rows = torch.arange(10.0)[:, None], -torch.arange(10.0)[:, None]
    data = Shuffled(rows, 4, seed=0)
    passes = [list(data) for _ in range(2)]
    assert [len(x) for x, _ in passes[0]] == [4, 4, 2]
    orders = [torch.cat([x for x, _ in batches]).flatten().tolist() for batches in passes]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(10))
    assert all(torch.equal(x, -y) for x, y in passes[0])


# Going on


def test_nothing_is_done_twice(everything):
    before = (everything / "records.jsonl").read_bytes()
    assert "Nothing was left to do" in bench("uci-ablation", everything, **QUICK)
    assert (everything / "records.jsonl").read_bytes() == before


def test_what_is_lacking_is_added(tmp_path):
    bench("uci-ablation", tmp_path, ablations=["hidden_layers"], **(QUICK | {"trials": 1}))
    bench("uci-ablation", tmp_path, ablations=["hidden_layers", "training"], **QUICK)
    found = by_variant(tmp_path)
    assert set(found) == PUBLISHED
    assert all(set(trials) == {0, 1} for trials in found.values())
    assert found["hidden_layers=2"][0].stack == (0,)
    assert found["hidden_layers=2"][1].stack == (1,)


def test_a_variant_that_fails_takes_no_other_with_it(tmp_path, monkeypatch):
    fit_many = SplitPointRegressor.fit_many

    def fails_with_two_layers(self, *args, **kwargs):
        if self.mar_layers == 2:
            raise RuntimeError("no two layers")
        return fit_many(self, *args, **kwargs)

    monkeypatch.setattr(SplitPointRegressor, "fit_many", fails_with_two_layers)
    with pytest.raises(SplitPointError, match=r"Expected all 6 trials .* but 2 failed"):
        bench("uci-ablation", tmp_path, ablations=["hidden_layers"], **QUICK)
    errors = {name: trials[0].error for name, trials in by_variant(tmp_path).items()}
    assert errors == {
        "hidden_layers=1": None,
        "hidden_layers=2": "RuntimeError: no two layers",
        "hidden_layers=3": None,
    }


# Arguments


def test_the_command_says_what_was_done(tmp_path, capsys):
    argv = ["bench", "uci-ablation", "--datasets", "energy", "--ablations", "hidden_layers", "--trials", "1"]
    assert cli.main([*argv, "--epochs", "2", "--jobs", "1", "--quiet", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("1 piece")
    assert set(by_variant(tmp_path)) == {"hidden_layers=1", "hidden_layers=2", "hidden_layers=3"}


def test_the_command_tells_a_bad_argument_in_one_line(tmp_path, capsys):
    assert cli.main(["bench", "uci-ablation", "--ablations", "width", "--out", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("splitpoint: Expected ablations among")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ({"datasets": ["mars"]}, ("Expected datasets among", "mars")),
        ({"ablations": ["width"]}, ("Expected ablations among training, hidden_layers", "width")),
        ({"trials": 0}, ("Expected trials >= 1", "0")),
    ],
)
def test_bad_arguments_are_told_in_one_sentence(tmp_path, arguments, parts):
    with pytest.raises(SettingsError) as caught:
        bench("uci-ablation", tmp_path, **arguments)
    assert all(part in str(caught.value) for part in parts)
