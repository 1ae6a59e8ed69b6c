"""Student's quantiles against SciPy's."""

import numpy as np
import pytest
import torch
from scipy import stats

from splitpoint.baselines.evidential_regression import student_quantiles

FREEDOM = np.concatenate([[2.0, 2.0001, 2.5, 3, 4, 7.7], np.geomspace(2.0001, 1e9, 300), [1e9]])


@pytest.mark.parametrize("probability", [0.001, 0.05, 0.25, 0.5, 0.6, 0.75, 0.9, 0.975, 0.995, 0.9995])
def test_quantiles_are_scipys(probability):
    found = student_quantiles(torch.from_numpy(FREEDOM), probability).numpy()
    np.testing.assert_allclose(found, stats.t.ppf(probability, FREEDOM), rtol=2e-6, atol=1e-9)


def test_shape_and_precision_are_kept():
    found = student_quantiles(torch.full((2, 3), 5.0), 0.9)
    assert found.shape == (2, 3)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, stats.t.ppf(0.9, 5), rtol=1e-6)
