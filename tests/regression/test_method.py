"""Regression: targets of any shape, units, levels, calibrations of the interval, and what the scores are worth."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

import splitpoint as sp
from properties import examples
from splitpoint.metrics import picp, picp_down, picp_up, spearman

QUICK = {"epochs": 3, "folds": 0}


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network(outputs=1, inputs=2, width=16, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs)).eval()


def noisy(model, x, noise):
    with torch.no_grad():
        output = model(x)
        return output + noise.reshape(output.shape)


def simple(rows=200, seed=1):
    model = network()
    x = drawn(seed, rows, 2)
    return model, x, noisy(model, x, drawn(seed + 1, rows))


def fit(method, model, data, **arguments):
    return method.fit(model, data, progress=False, **arguments)


# Shapes


class Squeezed(nn.Module):
    def __init__(self, inner, axis):
        super().__init__()
        self.inner, self.axis = inner, axis

    def forward(self, x):
        return self.inner(x).squeeze(self.axis)


def conv(outputs):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, outputs, 1))


SHAPES = {
    "(N,)": (lambda: Squeezed(network(), 1), (40, 2), (40,)),
    "(N, 1)": (lambda: network(), (40, 2), (40, 1)),
    "(N, D)": (lambda: network(4), (40, 2), (40, 4)),
    "(N, D, H, W)": (lambda: conv(2), (10, 3, 5, 6), (10, 2, 5, 6)),
    "(N, 1, H, W)": (lambda: conv(1), (10, 3, 5, 6), (10, 1, 5, 6)),
    "(N, H, W)": (lambda: Squeezed(conv(1), 1), (10, 3, 5, 6), (10, 5, 6)),
    "(N, T, D)": (lambda: network(3), (10, 7, 2), (10, 7, 3)),
    "(N, T)": (lambda: Squeezed(network(), 2), (10, 7, 2), (10, 7)),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("preset", [sp.SplitPointRegressor, sp.SplitPointRegressor.paper])
def test_every_field_has_the_shape_of_the_target(shape, preset):
    make, inputs, targets = SHAPES[shape]
    model, x = make(), drawn(0, *inputs)
    y = noisy(model, x, drawn(1, *targets))
    uq = fit(preset((0.5, 0.9), **QUICK), model, (x, y))
    uq.set_threshold((x, y), quantile=0.9)
    out = uq(x)
    for name in ("mean", "lower", "upper", "aleatoric", "epistemic", "total", "mar", "mar_up", "mar_down", "flagged"):
        assert getattr(out, name).shape == targets, name
    assert out.percentile.shape == targets
    assert out.lowers.shape == out.uppers.shape == (*targets, 2)
    with torch.no_grad():
        torch.testing.assert_close(out.mean, model(x))
    assert (out.lower < out.mean).all()
    assert (out.mean < out.upper).all()


@pytest.mark.parametrize("shape", ["(N, D)", "(N, D, H, W)", "(N, T, D)"])
def test_every_output_has_its_own_scale(shape):
    make, inputs, targets = SHAPES[shape]
    axis = 2 if shape == "(N, T, D)" else 1
    model, x = make(), drawn(0, 20 * inputs[0], *inputs[1:])
    shaped = [1] * len(targets)
    shaped[axis] = -1
    scale = (10.0 ** torch.arange(targets[axis])).reshape(shaped)
    y = noisy(model, x, drawn(1, 20 * targets[0], *targets[1:]) * scale)
    out = fit(sp.SplitPointRegressor(0.9, **QUICK), model, (x, y))(x)
    others = [a for a in range(len(targets)) if a != axis]
    quantile, mar = stats.norm.ppf(0.95), math.sqrt(2 / math.pi)
    exact = scale.flatten()
    torch.testing.assert_close(out.aleatoric.mean(others), 2 * quantile * exact, rtol=0.15, atol=0)
    torch.testing.assert_close(out.mar.mean(others), mar * exact, rtol=0.15, atol=0)


def test_outputs_of_maps_have_thresholds_of_their_own():
    make, inputs, targets = SHAPES["(N, D, H, W)"]
    model, x = make(), drawn(0, *inputs)
    y = noisy(model, x, drawn(1, *targets) * torch.tensor([1.0, 100.0]).reshape(2, 1, 1))
    uq = fit(sp.SplitPointRegressor(**QUICK), model, (x, y)).set_threshold((x, y), quantile=0.8)
    assert uq.reference.threshold.shape == (2, 1, 1)
    share = uq(x).flagged.double().mean((0, 2, 3))
    torch.testing.assert_close(share, torch.full((2,), 0.2, dtype=torch.float64), rtol=0, atol=0.02)


def test_one_missing_entry_leaves_the_other_outputs_of_a_row():
    model, x = network(2), drawn(0, 300, 2)
    y = noisy(model, x, drawn(1, 300, 2))
    y[::2, 0] = torch.nan
    out = fit(sp.SplitPointRegressor(0.9, residuals="train", **QUICK), model, (x, y))(x)
    assert all(t.isfinite().all() for t in (out.lower, out.upper, out.epistemic, out.total))
    residual = (y - out.mean)[:, 1]
    expected = float(residual.abs().mean())
    assert math.isclose(float(out.mar[:, 1].mean()), expected, rel_tol=0.15)


# Units


def affine(model, a, b):
    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed[2].weight.mul_(a)
        changed[2].bias.mul_(a).add_(b)
    return changed


@examples(8)
@given(st.sampled_from([1e-6, 0.01, 0.7, 3.0, 1000.0, 1e6]), st.floats(-5, 5))
def test_an_affine_change_of_the_target_moves_every_field_as_it_must(a, shift):
    model, x, y = simple()
    b = a * shift
    method = sp.SplitPointRegressor((0.5, 0.9), held_back=0.0, **QUICK)  # nothing chosen, so rounding stays small
    inputs = torch.cat([x, 5 * x])
    one, other = fit(method, model, (x, y))(inputs), fit(method, affine(model, a, b), (x, a * y + b))(inputs)
    close, tight = {"rtol": 0.02, "atol": 0.1 * a}, {"rtol": 1e-3, "atol": 1e-3 * a}
    torch.testing.assert_close(other.mean, a * one.mean + b, **tight)
    for name in ("lowers", "uppers"):  # quantile heads start on a residual, where rounding turns the pinball gradient
        torch.testing.assert_close(getattr(other, name), a * getattr(one, name) + b, **close)
    torch.testing.assert_close(other.aleatoric, a * one.aleatoric, **close)
    for name in ("mar", "mar_up", "mar_down"):
        torch.testing.assert_close(getattr(other, name), a * getattr(one, name), **tight)
    torch.testing.assert_close(other.epistemic, a**2 * one.epistemic, rtol=1e-3, atol=1e-3 * a**2)
    torch.testing.assert_close(other.total, a * one.total, rtol=1e-3, atol=0.05 * a)


@pytest.mark.parametrize("a", [2.0**-20, 0.25, 1024.0])
@pytest.mark.parametrize("folds", [0, 2])
def test_a_power_of_two_moves_every_field_without_rounding(a, folds):
    """Floats lose nothing to such a factor, so choices among folds and epochs fall the same way."""
    model, x, y = simple()
    method = sp.SplitPointRegressor((0.5, 0.9), epochs=3, folds=folds)
    inputs = torch.cat([x, 5 * x])
    one, other = fit(method, model, (x, y))(inputs), fit(method, affine(model, a, 0), (x, a * y))(inputs)
    for name in ("mean", "lowers", "uppers", "aleatoric", "mar", "mar_up", "mar_down", "total"):
        torch.testing.assert_close(getattr(other, name), a * getattr(one, name), rtol=1e-4, atol=1e-4 * a)
    torch.testing.assert_close(other.epistemic, a**2 * one.epistemic, rtol=1e-3, atol=1e-5 * a**2)


def test_turning_the_target_over_swaps_the_sides():
    model, x, _ = simple(800)
    y = noisy(model, x, torch.empty(800).exponential_(generator=torch.Generator().manual_seed(0)) - 1)
    turned = copy.deepcopy(model)
    with torch.no_grad():
        turned[2].weight.neg_()
        turned[2].bias.neg_()
    method = sp.SplitPointRegressor(0.9, **QUICK)
    one, other = fit(method, model, (x, y))(x), fit(method, turned, (x, -y))(x)
    torch.testing.assert_close(other.mean, -one.mean)
    torch.testing.assert_close((other.mean - other.lower).mean(), (one.upper - one.mean).mean(), rtol=0.1, atol=0)
    torch.testing.assert_close(other.mar_up.mean(), one.mar_down.mean(), rtol=0.1, atol=0)


# Levels


LEVELS = st.lists(st.integers(1, 95), min_size=2, max_size=5, unique=True).map(lambda v: tuple(n / 100 for n in v))


@examples(15)
@given(LEVELS, st.sampled_from(["split", "consistent", "conformal"]), st.integers(0, 3), st.integers(0, 50))
def test_levels_never_cross_however_far_from_the_data(levels, interval, folds, seed):
    model, x, y = simple(seed=seed)
    held_out = (x, y) if interval == "conformal" else None
    method = sp.SplitPointRegressor(levels, interval=interval, epochs=2, folds=folds, learning_rate=0.02)
    uq = fit(method, model, (x, y), calibration=held_out, seed=seed)
    for reach in (1.0, 10.0, 1000.0):
        out = uq(reach * drawn(seed + 7, 50, 2))
        assert out.levels == tuple(sorted(levels))
        assert (out.lowers.diff(dim=-1) <= 0).all()
        assert (out.uppers.diff(dim=-1) >= 0).all()
        assert (out.uppers[..., 0] >= out.mean).all()
        assert (out.lowers[..., 0] <= out.mean).all()
        assert out.uppers.isfinite().all()


# Calibrations of the interval


def kinds(limit=2.0, level=0.9):
    model, x, y = simple(400)
    held_out = (drawn(30, 300, 2), None)
    held_out = (held_out[0], noisy(model, held_out[0], 2 * drawn(31, 300)))
    found = {}
    for kind in ("split", "consistent", "conformal"):
        method = sp.SplitPointRegressor(level, interval=kind, factor_limit=limit, epochs=10, folds=2)
        found[kind] = fit(method, model, (x, y), calibration=held_out)
    return found, held_out


@pytest.mark.parametrize("limit", [1.0, 1.2, 2.0, None])
def test_consistent_intervals_are_split_intervals_times_the_factor_of_the_mars(limit):
    found, _ = kinds(limit)
    x = torch.cat([drawn(40, 200, 2), 20 * drawn(41, 200, 2)])
    plain, wide = found["split"](x), found["consistent"](x)
    z, up, down = (t.double() for t in (plain.mar, plain.mar_up, plain.mar_down))

    def factor(own, other):
        implied = z * other / (2 * other - z)
        ratio = torch.maximum(own, implied) / own
        if limit is None:
            return torch.where(2 * other > z, ratio, 1.0)
        return torch.where(2 * other > z, ratio.clamp(max=limit), limit)

    expected_up, expected_down = factor(up, down).float(), factor(down, up).float()
    close = {"rtol": 2e-3, "atol": 1e-4}
    torch.testing.assert_close(wide.upper - wide.mean, (plain.upper - plain.mean) * expected_up, **close)
    torch.testing.assert_close(wide.mean - wide.lower, (plain.mean - plain.lower) * expected_down, **close)
    assert (wide.upper - plain.upper >= -1e-4).all()
    assert (wide.lower - plain.lower <= 1e-4).all()
    if limit is not None:
        width, base = wide.upper - wide.lower, plain.upper - plain.lower
        assert (width <= limit * base * (1 + 1e-3) + 1e-4).all()
    torch.testing.assert_close(wide.aleatoric, plain.aleatoric)


def test_conformal_intervals_are_split_intervals_times_the_rank_of_the_calibration_rows():
    found, (x, y) = kinds()
    plain, conformal = found["split"](x), found["conformal"](x)
    residual = y - plain.mean
    for side, sign in ((plain.upper - plain.mean, 1), (plain.mean - plain.lower, -1)):
        rows = residual.sign() == sign
        ratio = np.sort((residual.abs() / side)[rows].numpy())
        expected = ratio[math.ceil((len(ratio) + 1) * 0.9) - 1]
        ours = (conformal.upper - conformal.mean) if sign == 1 else (conformal.mean - conformal.lower)
        torch.testing.assert_close(ours / side, torch.full_like(side, float(expected)), rtol=1e-3, atol=0)
        assert expected > 1.5  # the calibration noise is twice that of the training rows
    assert picp_up(conformal, y) >= 0.9
    assert picp_down(conformal, y) >= 0.9
    torch.testing.assert_close(conformal.aleatoric, plain.aleatoric)


def test_auto_is_conformal_with_calibration_data_and_split_without():
    model, x, y = simple()
    method = sp.SplitPointRegressor(0.9, **QUICK)
    without, given_data = fit(method, model, (x, y)), fit(method, model, (x, y), calibration=(x, y))
    assert method.interval == "auto"
    assert without.method.interval == "split"
    assert given_data.method.interval == "conformal"
    for kind, uq in (("split", without), ("conformal", given_data)):
        named = sp.SplitPointRegressor(0.9, interval=kind, **QUICK)
        held_out = (x, y) if kind == "conformal" else None
        assert torch.equal(uq(x).upper, fit(named, model, (x, y), calibration=held_out)(x).upper)


# Odd residuals


@pytest.mark.parametrize("folds", [0, 5])
@pytest.mark.parametrize("sign", [1, -1])
def test_all_residuals_on_one_side(folds, sign):
    model, x, _ = simple()
    y = noisy(model, x, sign * (drawn(3, 200).abs() + 0.1))
    out = fit(sp.SplitPointRegressor(0.9, epochs=20, folds=folds), model, (x, y))(x)
    assert all(t.isfinite().all() for t in (out.lower, out.upper, out.epistemic, out.total))
    assert 0.82 <= picp(out, y) <= 0.98


def test_all_residuals_on_one_side_are_a_bias_that_the_consistency_score_shows():
    """`sample_mars` gives an empty side MAR 0, so the score of such a sample is its squared mean size."""
    model, x, _ = simple()
    residual = drawn(3, 200).abs() + 0.1
    expected = float(sp.consistency.sds(sp.consistency.sample_mars(residual)))
    assert math.isclose(expected, float(residual.mean()) ** 2, rel_tol=1e-5)
    out = fit(sp.SplitPointRegressor(0.9, epochs=20, folds=0), model, (x, noisy(model, x, residual)))(x)
    assert float(out.sds.median()) > 0.3 * expected


@pytest.mark.parametrize("folds", [0, 5])
@pytest.mark.parametrize("constant", [0.0, 7.0])
def test_constant_targets(folds, constant):
    model, x, _ = simple()
    y = torch.full((200, 1), constant)
    out = fit(sp.SplitPointRegressor(0.9, epochs=5, folds=folds), model, (x, y))(x)
    assert all(t.isfinite().all() for t in (out.lower, out.upper, out.epistemic, out.total))
    assert picp(out, y) > 0.75


@pytest.mark.parametrize("folds", [0, 5])
@pytest.mark.parametrize("interval", ["split", "consistent"])
def test_a_perfect_model_has_intervals_of_no_width(folds, interval):
    model, x, _ = simple()
    y = noisy(model, x, torch.zeros(200))
    method = sp.SplitPointRegressor((0.5, 0.9), interval=interval, epochs=2, folds=folds, residuals="loo")
    out = fit(method, model, (x, y))(x)
    assert torch.equal(out.lower, y)
    assert torch.equal(out.upper, y)
    assert not out.epistemic.any()
    assert not out.total.any()


def test_a_model_of_constant_output():
    model = network()
    with torch.no_grad():
        model[2].weight.zero_()
    x = drawn(0, 200, 2)
    y = noisy(model, x, drawn(1, 200))
    out = fit(sp.SplitPointRegressor(0.9, epochs=5), model, (x, y))(x)
    assert 0.84 <= picp(out, y) <= 0.96


# What the scores are worth

ROWS = 2000
LAWS = ["gaussian", "exponential", "heteroscedastic", "biased"]


def sample(law, model, seed, rows=ROWS):
    x = drawn(seed, rows, 2)
    generator = torch.Generator().manual_seed(seed + 1)
    noise = torch.randn(rows, generator=generator)
    if law == "exponential":
        noise = torch.empty(rows).exponential_(generator=generator) - 1
    if law == "heteroscedastic":
        noise = noise * true_scale(x)
    if law == "biased":
        noise = noise - 2 * (x[:, 0] > 0)
    return x, noisy(model, x, noise)


def true_scale(x):
    return 0.2 + x[:, 0].abs()


@pytest.fixture(scope="module")
def known():
    """Predictors of the default recipe on base models that are the true mean, noise of known laws."""
    model = network()
    data = [sample(law, model, 100 * (i + 1)) for i, law in enumerate(LAWS)]
    found = sp.SplitPointRegressor().fit_many([model] * len(LAWS), data, progress=False)
    return dict(zip(LAWS, found, strict=True))


def fresh(law, known):
    x, y = sample(law, known[law].base, 9000, 4000)
    return known[law](x), x, y


def test_gaussian_noise_has_the_mars_and_quantiles_of_a_half_normal(known):
    out, _, y = fresh("gaussian", known)
    mar, quantile = math.sqrt(2 / math.pi), stats.norm.ppf(0.975)
    for found in (out.mar, out.mar_up, out.mar_down):
        assert math.isclose(float(found.mean()), mar, rel_tol=0.1)
    assert math.isclose(float((out.upper - out.mean).mean()), quantile, rel_tol=0.12)
    assert math.isclose(float((out.mean - out.lower).mean()), quantile, rel_tol=0.12)
    for share in (picp, picp_up, picp_down):
        assert abs(share(out, y) - 0.95) < 0.02


def test_skewed_noise_has_asymmetric_intervals_and_mars(known):
    out, _, y = fresh("exponential", known)
    up = stats.expon.ppf(0.95)  # without memory: the noise above its mean is exponential again
    down = 1 + math.log1p(-0.05 * (1 - math.exp(-1)))
    ratio = float((out.upper - out.mean).median() / (out.mean - out.lower).median())
    assert math.isclose(ratio, up / down, rel_tol=0.15)
    assert math.isclose(float(out.mar.mean()), 2 / math.e, rel_tol=0.1)
    assert math.isclose(float(out.mar_up.mean()), 1, rel_tol=0.1)
    assert math.isclose(float(out.mar_down.mean()), 1 / (math.e - 1), rel_tol=0.1)
    assert abs(picp(out, y) - 0.95) < 0.02


def test_widths_follow_the_scale_of_the_noise(known):
    out, x, y = fresh("heteroscedastic", known)
    assert spearman(out.upper - out.lower, true_scale(x)) > 0.9
    assert spearman(out.mar, true_scale(x)) > 0.9
    assert abs(picp(out, y) - 0.95) < 0.02


def test_a_biased_region_has_the_larger_consistency_score(known):
    out, x, _ = fresh("biased", known)
    there = x[:, 0] > 0
    score = out.sds.flatten()
    assert score[there].median() > 4 * score[~there].median()
    ours = sp.metrics.auroc(score[~there], score[there])
    assert ours > 0.9


@pytest.mark.parametrize("reach", [8.0, 100.0, 1000.0])
def test_far_from_the_data_the_epistemic_score_exceeds_its_threshold(known, reach):
    uq = copy.deepcopy(known["gaussian"]).set_threshold(drawn(50, 4000, 2))
    assert float(uq(drawn(52, 4000, 2)).flagged.double().mean()) < 0.07
    directions = nn.functional.normalize(drawn(51, 500, 2))
    assert float(uq(reach * directions).flagged.double().mean()) > 0.95
