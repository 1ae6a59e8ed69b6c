"""Every method and every shape of answers gets a verdict, as a page, as text and as JSON."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import splitpoint as sp
from problems import drawn, each, fitted, only, problem, vector_network


def judged(uq, own, **more):
    return sp.verdict(uq, own.calibration, ood=own.fresh + 3, cost=False, **more)


SHAPES = only(("splitpoint", "splitpoint_conformal"), ("flat", "squeezed", "pair", "maps", "label_maps"))


@each
def test_every_method_gets_one(name, own):
    gets_one(name, own)


@SHAPES
def test_every_shape_gets_one(name, own):
    gets_one(name, own)


def gets_one(name, own):
    uq, task = fitted(name, own), problem(own)
    found = judged(uq, task, train=task.data)
    assert found.light in ("green", "yellow", "red", "unknown")
    said = found.to_dict()
    text = json.dumps(said, allow_nan=False)
    assert json.loads(text)["light"] == found.light
    asked = {"regression": {"coverage", "winkler", "saved_total"}, "classification": {"ece", "accuracy", "nll"}}[
        task.task
    ]
    assert asked <= found.figures.keys()
    assert all(isinstance(value, float) for value in found.figures.values())
    assert {one["part"] for one in said["findings"]} <= said["parts"].keys()
    assert str(found).splitlines()[0].endswith(found.headline)


@pytest.mark.parametrize("own", ["pair", "maps", "classes", "label_maps"])
def test_it_does_not_matter_how_rows_come(own):
    """Batches of another size, and a stream that is read once, give the same figures."""
    uq, task = fitted("splitpoint", own), problem(own)
    whole = sp.verdict(uq, task.calibration, cost=False)
    loader = DataLoader(TensorDataset(*task.calibration), batch_size=7)
    once = sp.verdict(uq, iter(list(loader)), cost=False)
    for key in {"coverage", "winkler_ratio", "saved_total", "ece", "brier", "auroc_error"} & whole.figures.keys():
        assert once.figures[key] == pytest.approx(whole.figures[key], rel=1e-3), key
    assert [one.light for one in once.findings] == [one.light for one in whole.findings]


def test_figures_are_those_of_evaluate():
    for own in ("scalar", "pair", "classes"):
        uq, task = fitted("splitpoint", own), problem(own)
        found, other = sp.verdict(uq, task.calibration, cost=False).figures, sp.evaluate(uq, task.calibration)
        shared = found.keys() & other.keys() - {"spearman_total", "aurc", "ece_floor"}
        assert len(shared) >= 5
        for key in shared - {"rows"}:
            assert found[key] == pytest.approx(other[key], rel=1e-5, nan_ok=True), key


def test_missing_targets_do_not_count():
    uq, task = fitted("splitpoint", "pair"), problem("pair")
    x, y = task.calibration
    some = y.clone()
    some[::3, 0] = torch.nan
    found = sp.verdict(uq, (x, some), cost=False)
    assert found.figures["entries"] == int((~some.isnan()).sum())
    assert found.figures["not_finite"] == 0


def test_dictionaries_and_labels_to_ignore():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = vector_network(3)

        def forward(self, left, right):
            return {"logits": self.body(torch.cat([left, right], 1))}

    x, y = drawn(1, 90, 3), torch.arange(90) % 3
    rows = [{"left": x[i : i + 30, :1], "right": x[i : i + 30, 1:], "labels": y[i : i + 30]} for i in range(0, 90, 30)]
    uq = sp.SplitPointClassifier(ignore_index=2, epochs=1).fit(Two(), rows, progress=False)
    found = sp.verdict(uq, rows, train=rows)
    assert found.figures["entries"] == int((y != 2).sum())
    assert found.figures["cost_ratio"] > 1
    assert next(one for one in found.findings if one.name == "test_among_train").light == "red"


def test_answers_that_are_no_numbers_are_named():
    uq, task = fitted("splitpoint", "scalar"), problem("scalar")
    x, y = task.calibration
    broken = x.clone()
    broken[:5] = torch.nan
    found = sp.verdict(uq, (broken, y), cost=False)
    assert found.light == "red"
    assert "5 of 128 answers are no finite numbers" in found.reasons[0]
    assert found.figures["entries"] == 123


def test_the_base_model_stays_as_it_is():
    uq, task = fitted("splitpoint", "classes"), problem("classes")
    uq.base.train()
    before = {name: value.clone() for name, value in uq.base.state_dict().items()}
    sp.verdict(uq, task.calibration)
    assert uq.base.training
    assert all(torch.equal(value, before[name]) for name, value in uq.base.state_dict().items())
    uq.base.eval()


def test_a_model_that_was_changed_since_is_named():
    uq, task = fitted("splitpoint", "pair"), problem("pair")
    with torch.no_grad():
        uq.base[0].weight.mul_(2)
    try:
        found = sp.verdict(uq, task.calibration, cost=False)
    finally:
        with torch.no_grad():
            uq.base[0].weight.div_(2)
    changed = next(one for one in found.findings if one.name == "since_the_fit_base_model")
    assert changed.light == "yellow"
    assert "the weights differ" in changed.statement


def test_what_is_no_predictor_is_refused():
    with pytest.raises(sp.SettingsError, match="Expected a fitted predictor, but got Linear"):
        sp.verdict(nn.Linear(1, 1), (drawn(0, 2, 1), drawn(1, 2, 1)))


def test_rows_without_targets_are_refused():
    uq, task = fitted("splitpoint", "scalar"), problem("scalar")
    with pytest.raises(sp.DataError, match="with a target"):
        sp.verdict(uq, task.fresh)
    with pytest.raises(sp.DataError, match="all of them are missing"):
        sp.verdict(uq, (task.fresh, torch.full((len(task.fresh), 1), torch.nan)))
