"""Units: `y -> a y + b` moves every field as it must, from 1e-30 to 1e30; what cannot be computed is flagged."""

import functools
import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

import splitpoint as sp
from properties import examples
from splitpoint.consistency import square_dtype

METHODS = {
    "default": ({}, False),
    "conformal": ({}, True),
    "sds": ({"scores": "sds", "interval": "consistent"}, False),
    "no leverage": ({"leverage": False, "shared": True, "folds": 0}, False),
}


class Scaled(nn.Module):
    """A network whose answers come in other units."""

    def __init__(self, net, a, b=0.0):
        super().__init__()
        self.net, self.a, self.b = net, a, b

    def forward(self, x):
        return self.a * self.net(x) + self.b


def network(outputs=2):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rows(seed, count, outputs=2):
    x = drawn(seed, count, 3)
    return x, network(outputs)(x).detach() + (0.2 + x[:, :1].abs()) * drawn(seed + 1, count, outputs)


NEW = torch.cat([rows(30, 150)[0], 6 * rows(40, 50)[0]])
"""Rows like those of the fit, and some far from them."""


def fitted(name, a, b, dtype):
    settings, calibrated = METHODS[name]
    data = [(x.to(dtype), a * y.to(dtype) + b) for x, y in (rows(0, 150), rows(10, 120))]
    method = sp.SplitPointRegressor((0.5, 0.9), epochs=2, **settings)
    uq = method.fit(
        Scaled(network().to(dtype), a, b), data[0], calibration=data[1] if calibrated else None, progress=False
    )
    return uq.set_threshold(rows(20, 200)[0].to(dtype), quantile=0.9)


def fields(uq, a, b, dtype):
    """Every field in the units of a = 1 and b = 0, and whether the row is flagged."""
    out = uq(NEW.to(dtype))
    found = {name: getattr(out, name).double() / a for name in ("aleatoric", "total", "mar", "mar_up", "mar_down")}
    found |= {name: (getattr(out, name).double() - b) / a for name in ("mean", "lowers", "uppers")}
    found |= {name: getattr(out, name).double() / a / a for name in ("epistemic", "sds")}
    return found, out


@functools.lru_cache
def plain(name):
    return fields(fitted(name, 1.0, 0.0, torch.float32), 1.0, 0.0, torch.float32)


def check(name, a, b, dtype):
    expected, at_one = plain(name)
    found, out = fields(fitted(name, a, b, dtype), a, b, dtype)
    for field, value in found.items():
        assert value.isfinite().all(), field
        size = float(expected[field].abs().median())
        torch.testing.assert_close(
            value, expected[field], rtol=1e-2, atol=1e-2 * size, msg=lambda m, f=field: f"{f}: {m}"
        )
    near = (at_one.support / at_one.reference.threshold - 1).abs() < 1e-3
    assert torch.equal(out.flagged | near, at_one.flagged | near)
    assert out.flagged.any()
    assert not out.flagged.all()
    torch.testing.assert_close(out.percentile, at_one.percentile.to(out.percentile), rtol=0, atol=1.5)


@examples(10)
@given(
    st.sampled_from(sorted(METHODS)),
    st.floats(-30, 30),
    st.sampled_from([0.0, -2.0, 5.0]),
    st.sampled_from([torch.float32, torch.float64]),
)
@example("default", -25.0, 0.0, torch.float32)
@example("default", -12.0, 0.0, torch.float32)
@example("conformal", 30.0, 0.0, torch.float32)
@example("sds", 20.0, 0.0, torch.float32)
@example("no leverage", -30.0, 0.0, torch.float32)
def test_predictions_follow_the_units_of_the_targets(name, exponent, offset, dtype):
    a = 10**exponent
    check(name, a, offset * a, dtype)


@pytest.mark.parametrize("a", [1e-150, 1e-60, 1e60, 1e150])
def test_models_in_float64_may_answer_beyond_the_range_of_float32(a):
    check("default", a, 0.0, torch.float64)
    check("conformal", a, 0.0, torch.float64)


def test_squares_are_kept_in_float64_where_float32_has_no_room_for_them():
    for size, expected in ((1.0, torch.float32), (1e-8, torch.float32), (1e-20, torch.float64), (1e20, torch.float64)):
        assert square_dtype(torch.tensor([0.0, size])) == expected
    assert square_dtype(torch.zeros(2)) == torch.float32
    small, usual = (fitted("default", a, 0.0, torch.float32)(NEW) for a in (1e-20, 1.0))
    assert (small.epistemic.dtype, small.total.dtype) == (torch.float64, torch.float32)
    assert usual.epistemic.dtype == torch.float32


@pytest.mark.parametrize("a", [1e-30, 1e30])
def test_features_may_have_any_units(a):
    """The same network with features that are `a` times as large, and a last layer that undoes it."""
    x, y = rows(0, 150, 1)
    supports = []
    for size in (1.0, a):
        net = nn.Sequential(network(1)[0], nn.Tanh(), Scaled(nn.Identity(), size), nn.Linear(8, 1))
        with torch.no_grad():
            net[3].weight.copy_(network(1)[2].weight / size)
            net[3].bias.copy_(network(1)[2].bias)
        uq = sp.SplitPointRegressor(0.9, epochs=2).fit(net, (x, y), progress=False).set_threshold(x, quantile=0.8)
        supports.append(uq(NEW))
    torch.testing.assert_close(supports[1].support, supports[0].support, rtol=1e-3, atol=0)
    torch.testing.assert_close(supports[1].upper, supports[0].upper, rtol=1e-2, atol=1e-2)
    assert float((supports[1].flagged == supports[0].flagged).double().mean()) > 0.98


# What cannot be computed


def relu(outputs):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, outputs))


@pytest.fixture(scope="module")
def known():
    x, y = rows(0, 200, 1)
    regressor = sp.SplitPointRegressor((0.5, 0.9), epochs=2).fit(relu(1), (x, y), progress=False)
    label = torch.arange(200) % 3
    classifier = sp.SplitPointClassifier(epochs=2).fit(relu(3), (x, label), calibration=(x, label), progress=False)
    return [uq.set_threshold(rows(20, 100)[0]) for uq in (regressor, classifier)]


@pytest.mark.filterwarnings("ignore::splitpoint.errors.SplitPointWarning")
@pytest.mark.parametrize("size", [1e6, 1e11, 1e20, 1e30, 1e37, math.inf, -math.inf, math.nan])
def test_inputs_of_any_size_are_flagged_and_finite_ones_have_finite_scores(known, size):
    x = torch.tensor([[size, size / 2, -size / 3], [-size, size, size], [0.1, 0.2, 0.3]])
    for uq in known:
        out = uq(x)
        assert out.flagged[:2].all()
        assert not out.flagged[2].any()
        assert out.support[2].isfinite().all()
        if math.isfinite(size):
            for name in ("aleatoric", "epistemic", "total", "support", "sds", "mar"):
                assert getattr(out, name).isfinite().all(), name


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_answer_that_is_no_number_is_flagged_however_ordinary_its_features_are(bad):
    class Broken(nn.Module):
        """Answers that rows of a kind lose after the last layer."""

        def __init__(self):
            super().__init__()
            self.net = network(1)

        def forward(self, x):
            return torch.where(x[:, :1] > 5, bad, self.net(x))

    x, y = rows(0, 200, 1)
    x = x.clamp(max=4)
    uq = sp.SplitPointRegressor(0.9, epochs=2, layer="net.2").fit(Broken(), (x, y), progress=False)
    out = uq.set_threshold(x)(torch.tensor([[5.5, 0.0, 0.0], [0.5, 0.0, 0.0]]))
    assert not out.mean[0].isfinite()
    assert out.flagged.tolist() == [[True], [False]]


# Residuals on one side


def one_sided(seed, count, side):
    x = drawn(seed, count, 3)
    noise = torch.empty(count, 1).exponential_(generator=torch.Generator().manual_seed(seed + 1))
    return x, network(1)(x).detach() + side * (0.2 + x[:, :1].abs()) * noise


@pytest.mark.filterwarnings("ignore:rows of a side")
@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("side", [1, -1])
def test_an_empty_side_has_the_half_widths_of_the_other(side, calibrated):
    held_out = one_sided(10, 150, side) if calibrated else None
    method = sp.SplitPointRegressor((0.5, 0.9), epochs=3)
    out = method.fit(network(1), one_sided(0, 200, side), calibration=held_out, progress=False)(NEW)
    torch.testing.assert_close(out.uppers - out.mean[..., None], out.mean[..., None] - out.lowers, rtol=1e-4, atol=1e-5)
    full, empty = (out.mar_up, out.mar_down) if side > 0 else (out.mar_down, out.mar_up)
    assert (empty < 0.01 * full).all()


@pytest.mark.parametrize("side", [1, -1])
def test_one_sided_calibration_rows_cover_their_side_and_lend_the_other_their_factors(side):
    x = drawn(0, 200, 3)
    data = (x, network(1)(x).detach() + drawn(1, 200, 1))
    shares = []
    for seed in range(20):
        uq = sp.SplitPointRegressor(0.8, epochs=1, folds=0).fit(
            network(1), data, calibration=one_sided(100 + 2 * seed, 60, side), progress=False
        )
        assert float(uq.factors[0, 0, 0]) == float(uq.factors[0, 1, 0])
        x_new, y_new = one_sided(1000 + 2 * seed, 400, side)
        out = uq(x_new)
        shares.append(float(((out.lower <= y_new) & (y_new <= out.upper)).double().mean()))
    found = torch.tensor(shares)
    assert (
        0.8 - 3 * float(found.std()) / 20**0.5 <= float(found.mean()) <= 0.8 + 1 / 61 + 3 * float(found.std()) / 20**0.5
    )
