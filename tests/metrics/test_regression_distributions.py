"""The continuous ranked probability score against numerical integration of its definition."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import integrate, special, stats

from properties import examples
from splitpoint import metrics
from splitpoint.errors import DataError
from splitpoint.metrics.regression import _student_half
from splitpoint.prediction import RegressionPrediction


def prediction(mean, scale, freedom=None):
    parts = (None if part is None else torch.as_tensor(part, dtype=torch.float64) for part in (mean, scale, freedom))
    mean, scale, freedom = parts
    bound = mean[..., None]
    return RegressionPrediction(mean, mean, mean, None, mean, (0.9,), bound, bound, scale=scale, freedom=freedom)


def integrated(law, y):
    below = integrate.quad(lambda x: law.cdf(x) ** 2, -np.inf, y, epsabs=1e-11, limit=400)[0]
    above = integrate.quad(lambda x: law.sf(x) ** 2, y, np.inf, epsabs=1e-11, limit=400)[0]
    return below + above


@pytest.mark.parametrize("y", [-3.0, 0.0, 0.4, 2.5])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_normal_score_is_the_integral_that_defines_it(y, scale):
    got = metrics.crps(prediction([0.3], [scale]), torch.tensor([y]).double())
    assert got == pytest.approx(integrated(stats.norm(0.3, scale), y), rel=1e-7)


@pytest.mark.parametrize("y", [-3.0, 0.3, 0.4, 12.0])
@pytest.mark.parametrize("freedom", [1.5, 2.0, 3.0, 7.5, 80.0])
def test_student_score_is_the_integral_that_defines_it(y, freedom):
    got = metrics.crps(prediction([0.3], [2.0], [freedom]), torch.tensor([y]).double())
    assert got == pytest.approx(integrated(stats.t(freedom, 0.3, 2.0), y), rel=1e-6)


@examples(60)
@given(st.floats(-60, 60), st.floats(1.0, 1e6))
@example(1e-8, 1.0)
def test_the_student_distribution_function_agrees_with_scipy(z, freedom):
    """With the incomplete beta function, since SciPy's `t.cdf` is off by 1.6e-9 near zero."""
    v = torch.tensor([freedom], dtype=torch.float64)
    log_peak = torch.lgamma((v + 1) / 2) - torch.lgamma(v / 2) - math.log(math.pi) / 2
    got = float(_student_half(torch.tensor([z], dtype=torch.float64), v, log_peak))
    expected = math.copysign(special.betainc(0.5, freedom / 2, z**2 / (freedom + z**2)) / 2, z)
    assert got == pytest.approx(expected, abs=1e-12 + 2e-15 * freedom)


@pytest.mark.parametrize("freedom", [1e7, 1e9, math.inf])
def test_a_student_with_many_degrees_of_freedom_is_normal(freedom):
    y = torch.tensor([0.7]).double()
    normal = metrics.crps(prediction([0.0], [1.5]), y)
    assert metrics.crps(prediction([0.0], [1.5], [freedom]), y) == pytest.approx(normal, rel=1e-6)


@pytest.mark.parametrize("freedom", [0.5, 1.0])
def test_a_student_without_a_mean_has_an_infinite_score(freedom):
    assert metrics.crps(prediction([0.0], [1.0], [freedom]), torch.zeros(1).double()) == math.inf


@pytest.mark.parametrize("freedom", [None, 4.0])
def test_the_score_has_the_units_of_the_target_and_is_proper(freedom):
    y = torch.tensor(stats.norm.ppf((np.arange(1, 400)) / 400))
    ones = torch.ones_like(y)
    full = None if freedom is None else freedom * ones

    def score(mean, scale, factor=1.0):
        return metrics.crps(prediction(factor * mean * ones, factor * scale * ones, full), factor * y)

    assert score(0.1, 1.2, 3.0) == pytest.approx(3 * score(0.1, 1.2))
    best = 1.0 if freedom is None else 0.9
    assert score(0.0, best) < min(score(0.0, 2 * best), score(0.0, best / 2), score(0.8, best))


@pytest.mark.parametrize("freedom", [None, [3.0, 4.0, 5.0]])
def test_missing_targets_do_not_count_and_nothing_is_nan(freedom):
    out = prediction([0.0, 1.0, 2.0], [1.0, 2.0, 3.0], freedom)
    y = torch.tensor([0.5, math.nan, 1.0], dtype=torch.float64)
    kept = torch.tensor([0, 2])
    assert metrics.crps(out, y) == pytest.approx(metrics.crps(out[kept], y[kept]))
    assert math.isnan(metrics.crps(out, torch.full((3,), math.nan)))
    assert math.isnan(metrics.crps(out[:0], y[:0]))


def test_a_prediction_without_a_distribution_is_refused():
    with pytest.raises(DataError, match="Expected a prediction with a distribution, but got one with intervals only"):
        metrics.crps(prediction([0.0], None), torch.zeros(1))
