"""Statistical promises of the default recipe on the cubic task, with margins on fixed seeds."""

import pytest
import torch

import splitpoint as sp
from splitpoint.datasets import NOISE_LAWS, cubic
from splitpoint.datasets.cubic import side_quantiles
from splitpoint.demo.tasks import train_cubic
from splitpoint.metrics import auroc, picp, picp_down, picp_up

pytestmark = pytest.mark.slow
SEEDS = (0, 1)


@pytest.fixture(scope="module", params=sorted(NOISE_LAWS))
def cubic_fits(request):
    """Noise law, and for each seed a predictor of the default recipe with a generator for fresh rows."""
    generators = [torch.Generator().manual_seed(seed) for seed in SEEDS]
    train = [cubic(1000, request.param, generator=g) for g in generators]
    nets = [train_cubic(d.x, d.y, seed, progress=False, epochs=600) for seed, d in zip(SEEDS, train, strict=True)]
    found = sp.SplitPointRegressor().fit_many(nets, [(d.x, d.y) for d in train], seeds=SEEDS, progress=False)
    fresh = [cubic(4000, request.param, generator=g) for g in generators]
    return request.param, list(zip(found, fresh, strict=True))


def test_the_default_recipe_covers_its_level(cubic_fits):
    _, fits = cubic_fits
    for uq, data in fits:
        assert 0.92 <= picp(uq(data.x), data.y) <= 0.98


def test_each_side_is_covered(cubic_fits):
    _, fits = cubic_fits
    for uq, data in fits:
        out = uq(data.x)
        assert 0.90 <= picp_up(out, data.y) <= 0.99
        assert 0.90 <= picp_down(out, data.y) <= 0.99


def test_half_widths_are_near_the_true_quantiles(cubic_fits):
    noise, fits = cubic_fits
    down, up = side_quantiles(noise, 0.95, rows=200_000)
    for uq, data in fits:
        out = uq(data.x)
        assert abs(float((out.upper - out.mean).median()) / up - 1) < 0.3
        assert abs(float((out.mean - out.lower).median()) / down - 1) < 0.5


def test_the_epistemic_score_finds_the_outside(cubic_fits):
    _, fits = cubic_fits
    for uq, data in fits:
        inside = uq(data.x).epistemic.flatten()
        outside = torch.cat([torch.linspace(-8, -6, 100), torch.linspace(6, 8, 100)])[:, None]
        assert auroc(inside, uq(outside).epistemic.flatten()) > 0.8


def test_the_order_of_the_training_rows_is_no_matter():
    """Another order is another shuffle: not the same heads, but the same coverage and width."""
    generator = torch.Generator().manual_seed(5)
    train, fresh = cubic(1000, "log_normal", generator=generator), cubic(4000, "log_normal", generator=generator)
    net = train_cubic(train.x, train.y, 5, progress=False, epochs=600)
    order = torch.randperm(1000, generator=generator)
    data = [(train.x, train.y), (train.x[order], train.y[order])]
    one, other = (
        uq(fresh.x) for uq in sp.SplitPointRegressor().fit_many([net] * 2, data, seeds=(0, 0), progress=False)
    )
    assert abs(picp(one, fresh.y) - picp(other, fresh.y)) < 0.02
    width, shuffled = ((out.upper - out.lower).mean() for out in (one, other))
    assert abs(float(width / shuffled) - 1) < 0.15
    assert torch.equal(one.mean, other.mean)
