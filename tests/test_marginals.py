"""Distances without some of the features: those of the marginal covariance of the others."""

import math

import pytest
import torch

from splitpoint.marginals import complement, without

MISSING = torch.tensor([False, True, False, True, False])


def whitening(generator):
    """A covariance and the matrix whose product with x has the squared Mahalanobis distance as its length."""
    root = torch.randn(5, 5, generator=generator, dtype=torch.float64)
    covariance = root @ root.T + 0.1 * torch.eye(5, dtype=torch.float64)
    return covariance, torch.linalg.inv(torch.linalg.cholesky(covariance)).T


def test_the_distance_is_that_of_the_marginal_covariance_brought_to_the_number_of_all_features():
    generator = torch.Generator().manual_seed(0)
    covariance, whiten = whitening(generator)
    x = torch.randn(7, 5, generator=generator, dtype=torch.float64)
    known = x[:, ~MISSING]
    inverse = torch.linalg.inv(covariance[~MISSING][:, ~MISSING])
    expected = ((known @ inverse) * known).sum(1) * 5 / 3
    torch.testing.assert_close((x @ without(whiten, MISSING)).square().sum(1), expected)


def test_missing_features_have_no_part_in_it():
    _, whiten = whitening(torch.Generator().manual_seed(1))
    assert without(whiten, MISSING)[MISSING].abs().max() < 1e-12


def test_ordinary_rows_stay_as_far_as_they_were_on_average():
    generator = torch.Generator().manual_seed(2)
    covariance, whiten = whitening(generator)
    x = torch.randn(20_000, 5, generator=generator, dtype=torch.float64) @ torch.linalg.cholesky(covariance).T
    for matrix in (whiten, without(whiten, MISSING)):
        assert float((x @ matrix).square().sum(1).mean()) == pytest.approx(5, rel=0.03)


def test_more_features_than_dimensions_leave_what_they_do_not_reach():
    """Two parts with two dimensions each, as wide features of branches have after their projection."""
    generator = torch.Generator().manual_seed(3)
    whiten = torch.block_diag(torch.randn(6, 2, generator=generator), torch.randn(6, 2, generator=generator))
    gone = torch.arange(12) < 6
    x = torch.randn(4, 12, generator=generator)
    expected = (x[:, 6:] @ whiten[6:, 2:]).square().sum(1) * 2
    torch.testing.assert_close((x @ without(whiten, gone)).square().sum(1), expected)


def test_nothing_is_taken_out_where_nothing_would_be_left():
    sketch = torch.randn(9, 2, generator=torch.Generator().manual_seed(4))
    assert torch.equal(complement(sketch, torch.arange(9) < 5), torch.eye(2, dtype=torch.float64))
    assert torch.equal(without(sketch, torch.zeros(9, dtype=torch.bool)), sketch)
    assert math.isfinite(float(without(sketch, torch.ones(9, dtype=torch.bool)).sum()))
