"""Conformal prediction: coverage over many repetitions is what the theorem says."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from splitpoint.baselines import Conformal
from splitpoint.baselines.conformal import fit_sizes, predicted_sizes
from splitpoint.cache import Table
from splitpoint.errors import DataError, SettingsError
from splitpoint.metrics import set_coverage, set_size


class Identity(nn.Module):
    """A model that returns its input."""

    def __init__(self, width=1):
        super().__init__()
        self.last = nn.Linear(width, width, bias=False)
        nn.init.eye_(self.last.weight)

    def forward(self, x):
        return self.last(x)


def noisy(count, seed, spread=lambda x: torch.ones_like(x)):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, generator=generator) * 2
    return x, x + spread(x) * torch.randn(count, 1, generator=generator)


@pytest.mark.parametrize("residual", ["absolute", "normalised"])
def test_coverage_has_the_mean_and_spread_of_the_theorem(residual):
    """Given n calibration rows, coverage is Beta(k, n + 1 - k) with k = ceil((n + 1) level), for continuous scores."""
    n, level, repetitions = 60, 0.9, 120
    k = math.ceil((n + 1) * level)
    found = []
    for seed in range(repetitions):
        train, held_out, fresh = noisy(40, seed), noisy(n, 10_000 + seed), noisy(2000, 20_000 + seed)
        method = Conformal(confidence_level=level, residual=residual)
        prediction = method.fit(Identity(), train, calibration=held_out, progress=False).predict(fresh[0])
        found.append(((fresh[1] >= prediction.lower) & (fresh[1] <= prediction.upper)).double().mean().item())
    mean, variance = k / (n + 1), k * (n + 1 - k) / ((n + 1) ** 2 * (n + 2))
    assert np.mean(found) == pytest.approx(mean, abs=4 * math.sqrt(variance / repetitions))
    assert np.std(found) == pytest.approx(math.sqrt(variance), rel=0.25)


def test_normalised_residuals_make_intervals_that_follow_the_noise():
    def spread(x):
        return torch.exp(1.5 * x) / 10

    method = Conformal(confidence_level=0.9, residual="normalised")
    train, held_out = noisy(2000, 0, spread), noisy(1000, 1, spread)
    predictor = method.fit(Identity(), train, calibration=held_out, progress=False)
    x = torch.tensor([[0.2], [1.0], [1.8]])
    half = (predictor.predict(x).upper - x) / (1.645 * spread(x))
    torch.testing.assert_close(half, torch.ones(3, 1), atol=0.15, rtol=0)
    constant = Conformal(confidence_level=0.9).fit(Identity(), train, calibration=held_out, progress=False).predict(x)
    assert constant.total.unique().numel() == 1
    assert constant.epistemic.eq(0).all()


def test_sizes_are_a_regression_of_logarithms():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(5000, 2, generator=generator)
    true = torch.exp(0.8 * features[:, :1] - 0.5 * features[:, 1:] + 0.3)
    residual = torch.cat([true, 10 * true], 1)
    residual[::5, 1] = torch.nan
    learned = fit_sizes(Table.in_memory({"features": features, "residual": residual}))
    found = predicted_sizes(features, **learned)
    torch.testing.assert_close(found / true, torch.tensor([1.0, 10.0]).expand(5000, 2), rtol=0.06, atol=0)


def classes(count, seed):
    generator = torch.Generator().manual_seed(seed)
    x = 1.5 * torch.randn(count, 4, generator=generator)
    return x, torch.multinomial((x / 2).softmax(1), 1, generator=generator)[:, 0]


@pytest.mark.parametrize("temperature", [None, "nll"])
@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
def test_prediction_sets_cover_the_label_though_the_model_is_overconfident(score, temperature):
    level, covered, sizes = 0.9, [], []
    for seed in range(20):
        method = Conformal(confidence_level=level, score=score, temperature=temperature)
        predictor = method.fit(Identity(4), classes(20, seed), calibration=classes(400, 100 + seed), progress=False)
        x, label = classes(2000, 200 + seed)
        prediction = predictor.predict(x)
        sets = prediction.sets(level)
        assert torch.equal(sets, prediction.sets(level, score))
        covered.append(sets.gather(1, label[:, None]).double().mean().item())
        sizes.append(sets.sum(1).double().mean().item())
        assert score == "lac" or sets.gather(1, prediction.label[:, None]).all()
        if temperature is None:
            torch.testing.assert_close(prediction.probs, x.softmax(1))
    assert np.mean(covered) == pytest.approx(level, abs=0.012)  # the mean of 20 draws of 400 has deviation 0.003
    assert 1 < np.mean(sizes) < 3


def test_sets_at_any_level_and_judged_at_the_highest_fitted_one():
    method = Conformal(confidence_level=(0.5, 0.8))
    predictor = method.fit(Identity(4), classes(20, 0), calibration=classes(400, 1), progress=False)
    x, label = classes(4000, 2)
    prediction = predictor.predict(x)
    assert prediction.set_level == 0.8
    assert set_coverage(prediction, label) == pytest.approx(0.8, abs=0.06)
    sizes = [prediction.sets(level).sum() for level in (0.3, 0.5, 0.8, 0.95, 0.99)]
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 5


def test_a_sure_network_of_many_classes_has_small_sets():
    """150 classes, nine of ten right, most rows sure: sets of the sum up to a class held a third of all classes."""
    generator = torch.Generator().manual_seed(0)
    label = torch.randint(150, (6000,), generator=generator)
    logits = 5 * torch.randn(6000, 150, generator=generator)
    logits[torch.arange(6000), label] += 21
    held_out, fresh = (logits[:2000], label[:2000]), logits[2000:]
    for score in ("lac", "aps", "raps"):
        predictor = Conformal(score=score).fit(Identity(150), held_out, calibration=held_out, progress=False)
        prediction = predictor.predict(fresh)
        assert set_size(prediction) < 1.5
        assert set_coverage(prediction, label[2000:]) == pytest.approx(0.95, abs=0.015)


def test_several_outputs_and_levels_have_radii_of_their_own():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(999, 2, generator=generator)
    y = x + torch.randn(999, 2, generator=generator) * torch.tensor([1.0, 5.0])
    predictor = Conformal(confidence_level=(0.5, 0.9)).fit(Identity(2), (x, y), calibration=(x, y), progress=False)
    expected = np.sort((y - x).abs().numpy(), 0)[[499, 899]].T  # the 500th and 900th of 999
    np.testing.assert_allclose(predictor.fitted["radius"], expected, rtol=1e-5)


def test_it_needs_calibration_data_and_enough_of_them():
    with pytest.raises(SettingsError, match="calibration data"):
        Conformal().fit(Identity(), noisy(20, 0), progress=False)
    with pytest.raises(DataError, match="at least 19 calibration"):
        Conformal().fit(Identity(), noisy(20, 0), calibration=noisy(18, 1), progress=False)
    with pytest.raises(DataError, match="at least 19 calibration rows"):
        Conformal().fit(Identity(4), classes(20, 0), calibration=classes(18, 1), progress=False)
    with pytest.raises(SettingsError, match="residual"):
        Conformal(residual="relative")
    with pytest.raises(SettingsError, match=r"Expected score to be .*, but got 'topk'"):
        Conformal(score="topk")
