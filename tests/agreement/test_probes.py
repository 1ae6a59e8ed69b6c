"""Probes: scikit-learn's logistic regression, balance, calibration, and features that are hard to fit."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from splitpoint.agreement.probes import COMPONENTS, Rows, balanced, cross_fitted, known, log_loss, path


def blobs(rows, classes, width, apart, seed=0):
    """Features around one centre for each class; the centres are those of seed 0."""
    centres = apart * torch.randn(classes, width, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed + 1)
    label = torch.arange(rows) % classes
    return Rows(centres[label] + torch.randn(rows, width, generator=generator), label)


def folds(count, number=4):
    return torch.arange(count) // 7 % number


def test_a_fit_is_that_of_scikit_learn():
    rows = blobs(300, 3, 4, 1.0)
    standard = ((rows.features - rows.features.mean(0)) / rows.features.std(0, correction=0)).double().numpy()
    with_bias = np.concatenate([standard, np.ones((300, 1))], 1)
    for ridge, probe in path(rows, 3):
        if ridge not in (1.0, 1e-2, 1e-3):
            continue
        model = LogisticRegression(C=1 / (300 * ridge), fit_intercept=False, tol=1e-10, max_iter=10_000)
        expected = model.fit(with_bias, rows.label.numpy()).predict_proba(with_bias)
        np.testing.assert_allclose(probe.logits(rows.features).softmax(1), expected, atol=5e-3)


def test_classes_count_the_same_so_that_noise_says_nothing():
    """A probe of noise gives the uniform law, not the shares of the classes."""
    label = (torch.arange(400) % 10 == 0).long()
    features = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
    assert balanced(label, 2)[label == 1].sum().item() == pytest.approx(0.5)
    found = cross_fitted(Rows(features, label), folds(400), 2)
    probs = found.probe.logits(torch.randn(1000, 5, generator=torch.Generator().manual_seed(1))).softmax(1)
    torch.testing.assert_close(probs, torch.full((1000, 2), 0.5))
    assert known(found.loss, 2) == 0


def test_probabilities_are_calibrated_on_new_rows():
    rows, new = blobs(600, 5, 10, 0.5), blobs(4000, 5, 10, 0.5, seed=1)
    found = cross_fitted(rows, folds(600), 5)
    probs = found.probe.logits(new.features).softmax(1)
    right = (probs.argmax(1) == new.label).float().mean()
    assert abs(probs.amax(1).mean() - right) < 0.04
    assert log_loss(probs.log(), new.label, balanced(new.label, 5)).item() == pytest.approx(found.loss, abs=0.08)


def test_memorised_rows_teach_but_do_not_calibrate():
    """Features of training rows that give the class away, of calibration rows that do not: what holds for new rows."""
    label = torch.arange(200) % 4
    giveaway = torch.nn.functional.one_hot(label, 4).float()
    noise = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    alone = cross_fitted(Rows(giveaway, label), folds(200), 4)
    honest = cross_fitted(Rows(noise, label), folds(200), 4, more=Rows(giveaway, label))
    assert alone.loss < 0.1
    assert honest.loss > 1.2
    assert honest.probe.logits(giveaway).softmax(1).amax() < 0.5


@pytest.mark.parametrize("width", [30, COMPONENTS + 100])
def test_more_features_than_rows(width):
    rows, new = blobs(40, 4, width, 1.0), blobs(400, 4, width, 1.0, seed=1)
    found = cross_fitted(rows, folds(40), 4)
    assert torch.isfinite(found.probe.weight).all()
    assert (found.probe.logits(new.features).argmax(1) == new.label).float().mean() > 0.8


def test_constant_and_huge_features_are_no_trouble():
    rows = blobs(120, 3, 3, 2.0)
    odd = torch.cat([rows.features * torch.tensor([1e6, 1e-6, 1.0]), torch.full((120, 1), 1e5)], 1)
    found = cross_fitted(Rows(odd, rows.label), folds(120), 3)
    assert (found.probe.logits(odd).argmax(1) == rows.label).float().mean() > 0.9
