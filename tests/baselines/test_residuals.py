"""Residual quantiles against NumPy's, and the constant intervals that they give."""

import numpy as np
import torch

from splitpoint.baselines.answers import constant_answer
from splitpoint.baselines.oc import residual_quantiles
from splitpoint.cache import Table

LEVELS = (0.5, 0.9)


def test_quantiles_are_numpys_and_missing_residuals_do_not_count():
    residual = torch.randn(501, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 10.0])
    residual[::7, 1] = torch.nan
    found = residual_quantiles(Table.in_memory({"residual": residual}), LEVELS)
    for own, values in zip(found, residual.T.numpy(), strict=True):
        np.testing.assert_allclose(own, np.nanquantile(values, [[0.25, 0.05], [0.75, 0.95]]), rtol=1e-5, atol=1e-6)


def test_bounds_lie_at_the_quantiles_around_the_output():
    output = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    quantiles = torch.tensor([[[-1.0, -2.0], [1.0, 5.0]], [[0.5, -3.0], [2.0, 6.0]]])
    answer = constant_answer(output, quantiles, LEVELS, torch.zeros(2, 2))
    assert answer.lowers[0].tolist() == [[0, -1], [2, -1]]  # a lower bound above the output is the output
    assert answer.uppers[1].tolist() == [[4, 8], [6, 10]]
    assert answer.aleatoric[0].tolist() == [7, 9]


def test_bounds_cover_the_share_that_they_should():
    generator = torch.Generator().manual_seed(1)
    fitted, fresh = (torch.randn(20_000, 1, generator=generator).exp() - 1.65 for _ in range(2))
    quantiles = residual_quantiles(Table.in_memory({"residual": fitted}), LEVELS)
    answer = constant_answer(torch.zeros(len(fresh), 1), quantiles, LEVELS, torch.zeros(len(fresh), 1))
    covered = (fresh >= answer.lowers[:, 0]) & (fresh <= answer.uppers[:, 0])
    np.testing.assert_allclose(covered.float().mean(0), LEVELS, atol=0.012)
