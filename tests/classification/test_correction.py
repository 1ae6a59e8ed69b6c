"""Calibrated logits from held-out rows: the temperature, the linear correction, and when it is not worth it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar
from scipy.special import log_softmax
from torch.nn import functional as F

from properties import examples
from splitpoint.calibration import probable_factor
from splitpoint.classification import correction as module
from splitpoint.classification.correction import Correction, fit_correction
from splitpoint.metrics import nll


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sampled(logits, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.multinomial(logits.softmax(1), 1, generator=generator).flatten()


def folds(seed=0):
    return torch.Generator().manual_seed(seed)


# Temperature


@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0, 10.0])
def test_the_temperature_of_scaled_logits_is_recovered(factor):
    logits = 2 * drawn(0, 20_000, 5)
    found = probable_factor(factor * logits, sampled(logits))
    assert math.isclose(float(found), 1 / factor, rel_tol=0.05)


@examples(15)
@given(st.integers(2, 200), st.integers(2, 6), st.integers(0, 1000))
def test_the_temperature_is_the_minimum_that_scipy_finds(rows, classes, seed):
    logits = 3 * drawn(seed, rows, classes)
    label = torch.arange(rows) % classes

    def objective(log_factor):
        scores = log_softmax(math.exp(log_factor) * logits.double().numpy(), axis=1)
        return -scores[np.arange(rows), label.numpy()].mean() + 5 * log_factor**2 / (2 * rows)

    found = float(probable_factor(logits, label).log())
    best = minimize_scalar(objective, bounds=(-12, 6), method="bounded")
    assert objective(found) <= best.fun + 1e-5


def test_separable_labels_keep_the_temperature_finite():
    logits = torch.eye(3).repeat(10, 1)
    found = float(probable_factor(logits, torch.arange(3).repeat(10)))
    assert math.isfinite(found)
    assert found > 2


def test_logits_without_information_leave_the_temperature_at_one():
    found = probable_factor(torch.zeros(50, 3), torch.arange(50) % 3)
    assert math.isclose(float(found), 1, rel_tol=1e-4)


def test_the_temperature_works_without_gradients_enabled():
    with torch.no_grad():
        found = probable_factor(2 * drawn(0, 100, 3), torch.arange(100) % 3)
    assert not found.requires_grad


# The linear correction


def test_the_linear_fit_is_the_minimum_that_scipy_finds():
    rows, width, classes, prior = 80, 2, 3, 0.5
    logits, x = 2 * drawn(0, rows, classes), drawn(1, rows, width)
    label = sampled(logits + x @ drawn(2, width, classes))
    factor, bias, weight = module._fit_linear(logits, x, label, prior)

    def objective(flat):
        log_factor, b, w = flat[0], flat[1 : 1 + classes], flat[1 + classes :].reshape(width, classes)
        scores = math.exp(log_factor) * logits.double().numpy() + b + x.double().numpy() @ w
        loss = -log_softmax(scores, axis=1)[np.arange(rows), label.numpy()].mean()
        size = (width * (w**2).sum() + (b**2).sum()) / prior**2 + 5 * log_factor**2
        return loss + size / (2 * rows)

    ours = np.concatenate([[float(factor.log())], bias.numpy(), weight.flatten().numpy()])
    best = minimize(objective, np.zeros(1 + classes + width * classes))
    assert objective(ours) <= best.fun + 1e-5


def test_a_tighter_prior_gives_a_smaller_correction():
    logits, x = drawn(0, 200, 3), drawn(1, 200, 4)
    label = sampled(logits + 2 * x @ drawn(2, 4, 3))
    sizes = [float(module._fit_linear(logits, x, label, prior)[2].norm()) for prior in (0.01, 0.1, 1.0, 10.0)]
    assert sizes == sorted(sizes)
    assert sizes[0] < 0.01 * sizes[-1]


def test_a_bias_that_features_explain_is_corrected():
    logits, x = drawn(0, 3000, 3), drawn(1, 3000, 4)
    true = logits + x @ drawn(2, 4, 3)
    label = sampled(true)
    factor, bias, weight = fit_correction(logits[:2000], x[:2000], label[:2000], 0.5, folds())
    ours = (factor * logits + bias + x @ weight).softmax(1)[2000:]
    scaled = (probable_factor(logits[:2000], label[:2000]) * logits).softmax(1)[2000:]
    fresh = label[2000:]
    assert nll(ours, fresh) < nll(scaled, fresh) - 0.1
    assert nll(ours, fresh) < nll(true.softmax(1)[2000:], fresh) + 0.02


def test_a_bias_of_the_classes_is_corrected():
    logits, x = drawn(0, 2000, 3), torch.zeros(2000, 1)
    shift = torch.tensor([1.5, 0.0, -1.5])
    label = sampled(logits + shift)
    factor, bias, weight = fit_correction(logits, x, label, 2.0, folds())
    torch.testing.assert_close(bias - bias.mean(), shift, rtol=0, atol=0.2)
    assert math.isclose(float(factor), 1, rel_tol=0.1)
    assert weight.abs().max() < 1e-3


def test_without_anything_to_gain_the_answer_is_plain_temperature_scaling():
    logits, x = drawn(0, 60, 3), drawn(1, 60, 30)
    label = sampled(logits, seed=3)
    factor, bias, weight = fit_correction(4 * logits, x, label, 20.0, folds())
    torch.testing.assert_close(factor, probable_factor(4 * logits, label))
    assert not bias.any()
    assert not weight.any()


@pytest.mark.parametrize("rows", [1, 9])
def test_with_fewer_than_ten_rows_the_answer_is_plain_temperature_scaling(rows):
    logits, x = drawn(0, rows, 3), drawn(1, rows, 4)
    label = torch.arange(rows) % 3
    factor, bias, weight = fit_correction(logits, x, label, 0.5, folds())
    torch.testing.assert_close(factor, probable_factor(logits, label))
    assert not bias.any()
    assert not weight.any()
    assert weight.shape == (4, 3)


def test_many_classes_and_features_are_corrected_along_principal_components(monkeypatch):
    x = drawn(1, 500, 6) * torch.tensor([5.0, 4.0, 0.1, 0.1, 0.1, 0.1])
    logits = drawn(0, 500, 3)
    label = sampled(logits + 0.3 * x @ drawn(2, 6, 3))
    monkeypatch.setattr(module, "LARGEST", 6)  # room for two components of three classes
    _, _, weight = fit_correction(logits, x, label, 0.5, folds())
    assert weight.shape == (6, 3)
    assert torch.linalg.matrix_rank(weight, rtol=1e-4) == 2
    leading = torch.linalg.eigh(x.T @ x).eigenvectors[:, -2:]
    torch.testing.assert_close(leading @ (leading.T @ weight), weight, rtol=1e-4, atol=1e-5)


def test_the_folds_come_from_the_generator():
    logits, x = drawn(0, 300, 3), drawn(1, 300, 4)
    label = sampled(logits + x @ drawn(2, 4, 3))
    one, same, other = (fit_correction(logits, x, label, 0.5, folds(seed)) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not torch.equal(one[2], other[2])


# The module


def test_the_shift_is_linear_in_the_standardised_features():
    made = Correction(
        torch.tensor(0.5),
        torch.tensor([1.0, -1.0]),
        torch.tensor([[2.0, 0.0], [0.0, 3.0]]),
        torch.tensor([10.0, 20.0]),
        torch.tensor([5.0, 2.0]),
    )
    found = made.shift(torch.tensor([[15.0, 20.0], [10.0, 24.0]]))
    assert found.tolist() == [[3.0, -1.0], [1.0, 5.0]]


def test_the_fitted_module_does_not_depend_on_the_units_of_the_features():
    features = drawn(1, 500, 4)
    logits = drawn(0, 500, 3)
    label = sampled(logits + features @ drawn(2, 4, 3))
    units = torch.tensor([1.0, 100.0, 0.01, 7.0])
    shifts = []
    for scaled in (features, features * units + 5):
        rows = {"features": scaled, "logits": logits, "label": label[:, None]}
        shifts.append(Correction.fit(rows, 0.5, folds()).shift(scaled))
    torch.testing.assert_close(shifts[0], shifts[1], rtol=1e-2, atol=5e-3)


def test_constant_features_are_harmless():
    logits = drawn(0, 100, 3)
    rows = {"features": torch.ones(100, 2), "logits": logits, "label": sampled(logits)[:, None]}
    made = Correction.fit(rows, 0.5, folds())
    assert made.shift(torch.ones(5, 2)).isfinite().all()
    assert F.softmax(made.factor * logits, 1).isfinite().all()
