import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import StandardScaler

from splitpoint.datasets import split, standardise
from splitpoint.errors import DataError, SettingsError


@given(st.integers(2, 400), st.integers(0, 2**32 - 1), st.floats(0.3, 0.7))
def test_parts_are_disjoint_and_complete(rows, trial, share):
    train, test = split(rows, trial, share)
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(rows))
    assert len(train) == round(rows * (1 - share))


def test_a_trial_is_the_same_everywhere():
    """The numbers of NumPy's legacy generator, which are guaranteed never to change."""
    train, test = split(10, trial=0)
    assert train.tolist() == [2, 8, 4, 9, 1, 6, 7, 3, 0]
    assert test.tolist() == [5]
    assert split(10, trial=1)[0].tolist() != train.tolist()


@pytest.mark.parametrize(("rows", "test"), [(506, 51), (1030, 103), (308, 31), (45730, 4573)])
def test_sizes_are_the_customary_ones(rows, test):
    assert len(split(rows, 0)[1]) == test


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1, float("nan")])
def test_a_share_that_is_none(share):
    with pytest.raises(SettingsError, match=r"Expected test_share in \(0, 1\), but got"):
        split(10, 0, share)


def test_too_few_rows_for_two_parts():
    with pytest.raises(DataError, match=r"Expected rows enough for both parts, but 3 rows with test_share 0.1"):
        split(3, 0)


def test_standardisation_is_that_of_scikit_learn():
    generator = torch.Generator().manual_seed(0)
    x = 100 + 7 * torch.randn(50, 4, generator=generator, dtype=torch.float64)
    y = -3 + 5 * torch.randn(50, 1, generator=generator, dtype=torch.float64)
    train, test = split(50, 0, 0.2)
    data = standardise(x, y, train, test)
    scaler, target = StandardScaler().fit(x[train].numpy()), StandardScaler().fit(y[train].numpy())
    np.testing.assert_allclose(data.x_test, scaler.transform(x[test].numpy()), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(data.y_train, target.transform(y[train].numpy()), rtol=1e-5, atol=1e-6)
    assert data.x_train.dtype == data.y_test.dtype == torch.float32
    np.testing.assert_allclose(data.in_units(data.y_test), y[test], rtol=1e-5, atol=1e-5)
    assert data.sizes_in_units(torch.ones(1)).item() == pytest.approx(float(y[train].std(correction=0)))


def test_test_rows_do_not_touch_the_statistics():
    x, y = torch.arange(20.0).reshape(10, 2), torch.arange(10.0)[:, None]
    train, test = split(10, 0, 0.3)
    wild_x, wild_y = x.clone(), y.clone()
    wild_x[test], wild_y[test] = 1e9, 1e9
    one, other = standardise(x, y, train, test), standardise(wild_x, wild_y, train, test)
    assert torch.equal(one.x_train, other.x_train)
    assert (one.centre, one.scale) == (other.centre, other.scale)


def test_a_constant_feature_stays_small():
    """The mean of 0.998 repeated is not exactly 0.998, and a standard deviation of 1e-16 must not blow that up."""
    x = torch.full((11934, 2), 0.998, dtype=torch.float64)
    x[:, 1] = torch.arange(11934)
    y = torch.full((11934, 1), 4.0)
    data = standardise(x, y, *split(11934, 0))
    assert data.x_train[:, 0].abs().max() < 1e-12
    assert (data.centre, data.scale) == (4.0, 1.0)
