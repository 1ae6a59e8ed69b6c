"""The public contract of every method: what its predictor is, the fields of its predictions, and their rows."""

import copy
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import splitpoint as sp
from problems import (
    CLOSE,
    EXACT,
    LEVELS,
    METHODS,
    POST_HOC,
    assert_same,
    base,
    classifications,
    drawn,
    each,
    every,
    fit,
    fitted,
    only,
    over,
    problem,
    regressions,
    tensors,
)
from splitpoint.likeness import ROWS as MADE_UP
from splitpoint.metrics import auroc

WITH_SETS = ("conformal", "splitpoint_conformal", "splitpoint_paper_calibrated")
"""Methods that make prediction sets, with the calibration data of the problems."""

# The predictor


@every
def test_a_predictor_is_a_module_in_eval_mode_that_stays_so(name, own):
    uq, x = fitted(name, own), problem(own).fresh
    assert isinstance(uq, nn.Module)
    before = uq(x)
    assert uq.train() is uq
    assert [part for part, module in uq.named_modules() if module.training] == []
    assert_same(before, uq(x), **EXACT)
    assert [part for part, module in uq.named_modules() if module.training] == []


@each
def test_a_prediction_asks_for_no_gradient(name, own):
    x = problem(own).fresh.clone().requires_grad_()
    assert not any(value.requires_grad for value in tensors(fitted(name, own)(x)).values())


class Counting(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.rows = 0

    def forward(self, x):
        self.rows += len(x) * (not torch.is_grad_enabled())
        return self.inner(x)


@pytest.mark.parametrize("task", ["given", "auto"])
@only(POST_HOC)
def test_a_post_hoc_method_asks_the_model_once_about_a_row(name, own, task):
    """Only a first batch is looked at again, where it decides the task or the layers; and a few rows are made up."""
    given, counting, size = problem(own), Counting(base(own)), 16
    x, y = given.data
    rows = [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]
    uq = fit(name, own, model=counting, data=rows, task=given.task if task == "given" else task)
    held_out = len(given.calibration[0]) if given.task in METHODS[name].held_out else 0
    looks = (len(METHODS[name].tasks) == 2 and task == "auto") + (name == "splitpoint_layers")
    assert counting.rows == len(x) + held_out + looks * size + 2 * MADE_UP
    asked = counting.rows
    uq(given.fresh)
    assert counting.rows == asked + len(given.fresh)


@each
def test_the_representation_names_the_method(name, own):
    text = repr(fitted(name, own))
    assert "fitted:" in text
    assert type(fitted(name, own).method).__name__ in text


@only([name for name in POST_HOC if name != "splitpoint_layers"])
def test_a_post_hoc_predictor_names_its_layer_and_why(name, own):
    uq = fitted(name, own)
    assert uq.layer == sp.layers(base(own), problem(own).fresh).chosen == "4:input"
    assert "4:input" in repr(uq)
    assert "model's output" in repr(uq)


# Fields


@regressions
def test_regression_fields_have_the_shape_of_the_output_and_bounds_are_ordered(name, own):
    uq, output = fitted(name, own), problem(own).output
    prediction = uq(problem(own).fresh)
    assert isinstance(prediction, sp.RegressionPrediction)
    assert prediction.levels == LEVELS
    for field, value in tensors(prediction).items():
        extra = (len(LEVELS),) if field in ("lowers", "uppers") else ()
        assert value.shape == (output.shape[:1] if field == "image_epistemic" else output.shape + extra), field
        assert torch.isfinite(value).all(), field
    edges = [prediction.lowers[..., 1], prediction.lowers[..., 0], prediction.mean]
    edges += [prediction.uppers[..., 0], prediction.uppers[..., 1]]
    assert all((low <= high).all() for low, high in pairwise(edges))
    assert prediction.lower.shape == prediction.upper.shape == output.shape
    assert (prediction.aleatoric >= 0).all()
    for place, level in enumerate(LEVELS):
        lower, upper = prediction.interval(level)
        assert torch.equal(lower, prediction.lowers[..., place])
        assert torch.equal(upper, prediction.uppers[..., place])
    assert torch.equal(prediction.lower, prediction.interval(LEVELS[-1])[0])
    assert torch.equal(prediction.upper, prediction.interval(LEVELS[-1])[1])


@classifications
def test_classification_fields_have_the_shape_of_the_logits(name, own):
    uq, output = fitted(name, own), problem(own).output
    prediction = uq(problem(own).fresh)
    without = output.shape[:1] + output.shape[2:]
    assert isinstance(prediction, sp.ClassificationPrediction)
    for field, value in tensors(prediction).items():
        own_shape = output.shape[:1] if field == "image_epistemic" else without
        assert value.shape == (output.shape if field in ("probs", "base_probs", "mar", "sets") else own_shape), field
        assert torch.isfinite(value.double()).all(), field
    for probs in (prediction.probs, prediction.base_probs):
        assert (probs >= 0).all()
        torch.testing.assert_close(probs.sum(1), torch.ones(without))
    assert torch.equal(prediction.label, prediction.probs.argmax(1))
    assert (prediction.aleatoric >= 0).all()
    assert (prediction.conformity is not None) == (name in WITH_SETS)
    if name in WITH_SETS:
        assert prediction.sets(0.8).shape == output.shape
        assert prediction.sets(0.8).dtype == torch.bool


@only(POST_HOC, ["scalar", "pair", "maps", "classes", "label_maps"])
def test_a_post_hoc_method_reports_what_the_model_itself_says(name, own):
    prediction = fitted(name, own)(problem(own).fresh)
    with torch.no_grad():
        output = base(own)(problem(own).fresh)
    if problem(own).task == "regression":
        assert torch.equal(prediction.mean, output)
    else:
        torch.testing.assert_close(prediction.base_probs, output.softmax(1))


def test_targets_with_and_without_a_channel_axis_mean_the_same():
    for name in ("gaussian", "deep_ensemble", "sqr_oc", "laplace", "splitpoint"):
        one, other = fit(name, "flat", model=base("scalar") if name in POST_HOC else None), fitted(name, "scalar")
        assert_same(one(drawn(3, 12, 3)), other(drawn(3, 12, 3)), **CLOSE)


@over(["scalar", "pair", "maps", "classes", "label_maps"])
def test_answers_come_in_the_units_of_the_targets(name, own):
    """The trained networks are better than a constant, though targets are neither centred nor scaled."""
    prediction, (_, y) = fitted(name, own).predict(problem(own).data[0]), problem(own).data
    if problem(own).task == "classification":
        seen = y != -100
        rate = (prediction.label == y)[seen].float().mean()
        assert rate > y[seen].bincount().max() / seen.sum()
    else:
        axes = [axis for axis in range(y.dim()) if axis != 1]
        error = (prediction.mean - y).square().mean(axes)
        assert (error < 0.75 * y.var(axes)).all(), error / y.var(axes)


# Rows

MIXTURES = ("mc_dropout", "deep_ensemble")
"""Methods that solve for quantiles row by row, and cannot without a row."""


@every
def test_rows_do_not_depend_on_the_rest_of_their_batch(name, own):
    uq, x = fitted(name, own), problem(own).fresh
    whole = uq(x)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    assert_same(uq(x[order]), whole[order], **CLOSE)
    for row in range(3):
        assert_same(uq(x[row : row + 1]), whole[row : row + 1], **CLOSE)


@only([name for name in METHODS if name not in MIXTURES], ["scalar", "maps", "classes", "label_maps"])
def test_an_empty_batch_gives_an_empty_prediction(name, own):
    uq, x = fitted(name, own), problem(own).fresh
    whole, empty = uq(x), uq(x[:0])
    assert len(empty) == 0
    for field, value in tensors(whole).items():
        assert tensors(empty)[field].shape == (0, *value.shape[1:]), field


@over(["scalar", "maps", "classes", "label_maps"])
def test_predict_gives_every_row_in_order_on_the_cpu(name, own):
    uq, x = fitted(name, own), problem(own).fresh
    whole, y = uq(x), torch.zeros(len(x))
    loader = DataLoader(TensorDataset(x, y), batch_size=3)
    for data in (loader, (x, y), x, TensorDataset(x, y), [(x[:2], y[:2]), (x[2:], y[2:])], iter([x[:2], x[2:]])):
        found = uq.predict(data)
        assert all(value.device.type == "cpu" for value in tensors(found).values())
        assert_same(found, whole, **CLOSE)
    assert_same(uq.predict(DataLoader(TensorDataset(x), batch_size=3)), whole, **CLOSE)


@each
def test_a_stream_has_one_batch_in_memory_at_a_time(name, own):
    uq, x = fitted(name, own), problem(own).fresh
    read = []

    def batches():
        for start in range(0, len(x), 2):
            read.append(start)
            yield x[start : start + 2]

    stream = uq.stream(batches())
    for number, prediction in enumerate(stream):
        assert read == [2 * place for place in range(number + 1)]
        assert_same(prediction, uq(x[2 * number : 2 * number + 2]).to("cpu"), **CLOSE)
    assert number > 0


# Scores


OOD = [
    ("deep_ensemble", "scalar"), ("mc_dropout", "scalar"), ("sqr_oc", "scalar"), ("oc", "scalar"), ("oc", "classes"),
    ("ddu", "classes"), ("laplace", "scalar"), ("laplace", "classes"), ("splitpoint", "scalar"),
    ("splitpoint", "classes"), ("splitpoint_conformal", "scalar"), ("splitpoint_conformal", "classes"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "own"), OOD, ids=[f"{name}-{own}" for name, own in OOD])
def test_the_epistemic_score_is_larger_far_from_the_data(name, own):
    uq, x = fitted(name, own), drawn(11, 100, 3)
    near, away = (uq(part).epistemic.flatten() for part in (x, 12 + 4 * x))
    assert auroc(near, away) > 0.85


@over(["scalar", "pair", "maps", "classes", "label_maps"])
def test_methods_without_an_epistemic_part_say_zero(name, own):
    score = fitted(name, own)(problem(own).fresh).epistemic
    if METHODS[name].epistemic == "none":
        assert (score == 0).all()
    else:
        assert score.unique().numel() > 1


@each
def test_a_threshold_flags_the_scores_above_its_quantile(name, own):
    uq, data = copy.deepcopy(fitted(name, own)), problem(own).data
    assert uq.set_threshold(data, quantile=0.9) is uq
    prediction = uq.predict(data)
    scores = np.sort(prediction.support.numpy().ravel())
    expected = scores[math.ceil(0.9 * (len(scores) + 1)) - 1]
    np.testing.assert_allclose(float(uq.reference.threshold), expected, rtol=1e-5)
    assert prediction.flagged.dtype == torch.bool
    assert prediction.flagged.shape == prediction.epistemic.shape
    assert torch.equal(prediction.flagged, prediction.support > uq.reference.threshold.to(prediction.support))
    assert ((prediction.percentile >= 0) & (prediction.percentile <= 100)).all()
    if METHODS[name].epistemic == "none":
        assert not prediction.flagged.any()
    else:
        assert 0.07 <= prediction.flagged.double().mean() <= 0.1
    if name.startswith("splitpoint"):
        assert uq(torch.full((2, 3), torch.nan)).flagged.all()
