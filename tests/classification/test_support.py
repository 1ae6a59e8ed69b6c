"""Support of a classifier's inputs: distances, evidence, prior and the mass on the training rows."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from properties import examples
from splitpoint.cache import Table
from splitpoint.classification.support import RIDGE, Support


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def table(rows=200, width=5, classes=3, seed=0, spread=2.0, labels=None):
    label = torch.arange(rows) % classes if labels is None else labels
    centres = spread * drawn(seed + 1, classes, width)
    features = centres[label] + drawn(seed, rows, width) * torch.linspace(0.5, 3, width)
    logits = features @ drawn(seed + 2, width, classes)
    return Table.in_memory({"features": features, "logits": logits, "label": label[:, None]})


def columns(rows):
    return rows.column("features"), rows.column("logits"), rows.column("label")[:, 0]


def test_distance_is_the_tied_mahalanobis_distance_to_the_nearest_centre():
    rows = table()
    features, _, label = columns(rows)
    support = Support.fit(rows, 3, 2.0, 0.005)
    x = features.double().numpy()
    x = (x - x.mean(0)) / x.std(0)
    centres = np.stack([x[label.numpy() == k].mean(0) for k in range(3)])
    centred = x - centres[label.numpy()]
    within = centred.T @ centred / len(x)
    within += RIDGE * np.trace(within) / len(within) * np.eye(len(within))
    expected = cdist(x, centres, "mahalanobis", VI=np.linalg.inv(within)).min(1)
    np.testing.assert_allclose(support.distance(features), expected, rtol=1e-3, atol=1e-3)


def test_evidence_is_distance_minus_energy_and_minus_log_odds():
    support = Support.fit(table(), 3, 2.0, 0.005)
    logits = np.array([[3.0, 1.0, -1.0], [0.0, 0.0, 0.0], [10.0, 9.0, 8.0]])
    distance = torch.tensor([1.0, 2.0, 3.0])
    found = support.evidence(distance, torch.tensor(logits))
    centred = logits - logits.mean(1, keepdims=True)
    ordered = np.sort(centred, 1)
    odds = ordered[:, 2] - logsumexp(ordered[:, :2], axis=1)
    np.testing.assert_allclose(found[:, 0], distance)
    np.testing.assert_allclose(found[:, 1], -logsumexp(centred, axis=1), rtol=1e-12)
    np.testing.assert_allclose(found[:, 2], -odds, rtol=1e-9)
    assert found.dtype == torch.float64


def test_evidence_ignores_a_constant_added_to_all_logits():
    support = Support.fit(table(), 3, 2.0, 0.005)
    logits = drawn(4, 10, 3)
    one, other = (support.evidence(torch.ones(10), logits + shift) for shift in (0.0, 50.0))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_evidence_of_huge_logits_is_finite():
    support = Support.fit(table(), 3, 2.0, 0.005)
    found = support.evidence(torch.zeros(1), torch.tensor([[1e4, 0.0, -1e4]]))
    assert found.isfinite().all()
    assert float(-found[0, 2]) == 80


@examples(15)
@given(st.sampled_from([0.001, 0.005, 0.1, 0.5]), st.sampled_from([0.5, 2.0, 5.0]), st.integers(0, 100))
def test_the_mean_over_the_training_rows_is_the_mass(mass, steepness, seed):
    rows = table(seed=seed)
    features, logits, _ = columns(rows)
    support = Support.fit(rows, 3, steepness, mass)
    share = support(support.distance(features), logits)
    assert math.isclose(float(share.mean()), mass, rel_tol=1e-6)
    assert ((share > 0) & (share < 1)).all()


def test_evidence_is_standardised_over_the_training_rows():
    rows = table()
    features, logits, _ = columns(rows)
    support = Support.fit(rows, 3, 2.0, 0.005)
    evidence = support.evidence(support.distance(features), logits)
    torch.testing.assert_close(support.usual, evidence.mean(0))
    torch.testing.assert_close(support.deviation, evidence.std(0, correction=0))
    logit = torch.logit(support(support.distance(features), logits))
    scaled = (evidence - evidence.mean(0)) / evidence.std(0, correction=0)
    expected = 2 * (scaled[:, 0] + scaled[:, 1:].clamp(min=-2).sum(1)) + support.offset
    torch.testing.assert_close(logit, expected, rtol=1e-6, atol=1e-6)


def test_the_share_grows_with_distance_and_falls_with_confidence():
    support = Support.fit(table(), 3, 2.0, 0.005)
    logits = torch.tensor([[2.0, 0.0, -2.0]]).repeat(5, 1)
    by_distance = support(torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0]), logits)
    assert (by_distance.diff() > 0).all()
    by_confidence = support(torch.ones(5), logits * torch.tensor([[0.0], [0.5], [1.0], [2.0], [4.0]]))
    assert (by_confidence.diff() < 0).all()


def test_the_prior_is_the_class_frequency_with_one_more_row_each():
    labels = torch.tensor([0] * 6 + [1] * 3 + [3])
    support = Support.fit(table(10, classes=5, labels=labels), 5, 2.0, 0.005)
    torch.testing.assert_close(support.prior.float(), torch.tensor([7.0, 4.0, 1.0, 2.0, 1.0]) / 15)


def test_classes_without_rows_have_no_centre():
    labels = torch.tensor([0, 2] * 20)
    support = Support.fit(table(40, classes=4, labels=labels), 4, 2.0, 0.005)
    assert support.centres.shape == (2, 5)


@pytest.mark.parametrize("kind", ["one row", "one class", "constant features", "fewer rows than features"])
def test_degenerate_training_rows(kind):
    labels = torch.zeros(30, dtype=torch.long)
    rows = {
        "one row": lambda: table(1),
        "one class": lambda: table(30, labels=labels),
        "constant features": lambda: Table.in_memory(
            {"features": torch.ones(30, 5), "logits": torch.zeros(30, 3), "label": labels[:, None]}
        ),
        "fewer rows than features": lambda: table(6, width=20),
    }[kind]()
    features, logits, _ = columns(rows)
    support = Support.fit(rows, 3, 2.0, 0.005)
    share = support(support.distance(features), logits)
    assert share.isfinite().all()
    assert math.isclose(float(share.mean()), 0.005, rel_tol=1e-4)


def test_maps_are_rows_in_another_shape():
    rows = table()
    features, logits, _ = columns(rows)
    support = Support.fit(rows, 3, 2.0, 0.005)
    distance = support.distance(features)
    flat = support(distance, logits)
    mapped = support(distance.reshape(10, 20), logits.reshape(10, 20, 3).movedim(2, 1))
    torch.testing.assert_close(mapped.flatten(), flat)
