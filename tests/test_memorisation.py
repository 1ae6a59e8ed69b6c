"""Whether a network memorised its rows: kernel regression against least squares, and what is read to find out."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import splitpoint as sp
from splitpoint.baselines import train_network
from splitpoint.memorisation import (
    AHEAD,
    LEAST,
    OF_LARGE,
    OF_WIDE,
    SAMPLE,
    blended,
    fitted_as_well,
    is_large,
    limit,
    memorised,
    memorised_check,
    sample,
)
from splitpoint.networks.refit import reset_copy

ROWS = 200


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def least_squares(x, y):
    """A linear layer at its minimum."""
    design = torch.cat([x, torch.ones(len(x), 1)], 1).double()
    solution = torch.linalg.lstsq(design, y.double()).solution.float()
    layer = nn.Linear(x.shape[1], y.shape[1])
    with torch.no_grad():
        layer.weight.copy_(solution[:-1].T)
        layer.bias.copy_(solution[-1])
    return layer


def check_of(model, data, **settings):
    """What a fit of little else says of the network."""
    method = sp.SplitPointRegressor(0.9, residuals="loo", epochs=1, folds=0, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sp.SplitPointWarning)
        return method.fit(model, data, progress=False).checks[0]


def measured(model, data, most=500):
    recording = sp.SplitPointRegressor().record(model, data, progress=False)
    return fitted_as_well(model, sample(data, 64, most), recording.layout, None, most)


# The leverage


@pytest.mark.parametrize("width", [2, 10, 40])
def test_least_squares_decides_as_many_answers_as_it_has_parameters(width):
    """In a linear regression the mean leverage is the number of parameters over that of the rows."""
    x = drawn(0, ROWS, width)
    y = x.sum(1, keepdim=True) + drawn(1, ROWS, 1)
    expected = (width + 1) / ROWS
    assert math.isclose(measured(least_squares(x, y), (x, y)).leverage, expected, rel_tol=0.15)


@pytest.mark.parametrize("width", [2, 10, 40])
def test_the_excess_is_that_of_least_squares_with_every_row_left_out_in_turn(width):
    """The kernel of a linear layer is the same before and after training."""
    x = drawn(0, ROWS, width)
    y = x.sum(1, keepdim=True) + drawn(1, ROWS, 1)
    errors = []
    for row in range(ROWS):
        rest = torch.arange(ROWS) != row
        errors.append(float((least_squares(x[rest], y[rest])(x[row]) - y[row]).detach()))
    model = least_squares(x, y)
    own = float((model(x) - y).square().mean().sqrt().detach())
    left_out = float(torch.tensor(errors).square().mean().sqrt())
    assert math.isclose(measured(model, (x, y)).excess, left_out / own, rel_tol=0.02)
    recording = sp.SplitPointRegressor().record(model, (x, y), progress=False)
    rows = sample((x, y), 64, 500)
    by_start = fitted_as_well(model, rows, recording.layout, start=reset_copy(model, 0))
    assert math.isclose(by_start.excess, left_out / own, rel_tol=0.02)


@pytest.mark.parametrize("width", [10, 40])
def test_a_sample_tells_the_leverage_of_all_rows(width):
    """Of 4,000 rows 500 are looked at, of which each decides eight times as much."""
    x = drawn(0, 4000, width)
    y = x.sum(1, keepdim=True) + drawn(1, 4000, 1)
    model = least_squares(x, y)
    recording = sp.SplitPointRegressor().record(model, (x, y), progress=False)
    found = memorised(recording, (x, y), sp.SplitPointRegressor()._source())
    assert math.isclose(found.value - 1, (width + 1) / 4000, rel_tol=0.35)


def test_units_of_the_outputs_do_not_matter():
    x = drawn(0, ROWS, 4)
    y = torch.cat([x[:, :1] + drawn(1, ROWS, 1), 1e6 * (x[:, 1:2] + drawn(2, ROWS, 1)) - 3e6], 1)
    assert math.isclose(measured(least_squares(x, y), (x, y)).leverage, 5 / ROWS, rel_tol=0.2)


def test_pixels_of_a_map_are_answers_of_their_own():
    """Ten maps of 64 pixels are 640 rows of a linear regression, not ten."""
    x = drawn(0, 10, 3, 8, 8)
    y = x.sum(1, keepdim=True) + drawn(1, 10, 1, 8, 8)
    layer = least_squares(x.movedim(1, -1).flatten(0, 2), y.movedim(1, -1).flatten(0, 2))
    conv = nn.Conv2d(3, 1, 1)
    with torch.no_grad():
        conv.weight.copy_(layer.weight[:, :, None, None])
        conv.bias.copy_(layer.bias)
    assert measured(conv, (x, y)).leverage < 0.03


def network(epochs):
    x = drawn(3, ROWS, 6)
    y = x[:, :1].sin() + drawn(4, ROWS, 1)

    def factory():
        return nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))

    return train_network(factory, (x, y), epochs=epochs, progress=False), (x, y)


def test_the_longer_a_network_is_trained_on_noise_the_more_it_memorised():
    short, some, long = (measured(*network(epochs)).leverage for epochs in (3, 60, 600))
    assert short < 0.1 < some < 0.6 < long <= 1


def test_the_kernel_before_training_tells_how_much_larger_errors_on_new_rows_are():
    """The kernel of the trained network, turned towards the targets, says that half of the rows' noise is left."""
    for epochs in (60, 600):
        model, data = network(epochs)
        recording = sp.SplitPointRegressor().record(model, data, progress=False)
        start = reset_copy(model, 0)
        found = fitted_as_well(model, sample(data, 64, 500), recording.layout, start=start).excess
        x = drawn(13, 2000, 6)
        fresh = x, x[:, :1].sin() + drawn(14, 2000, 1)
        true, own = (float((model(a) - b).square().mean().sqrt().detach()) for a, b in (fresh, data))
        assert 0.7 < found / (true / own) < 1.5


def test_missing_targets_do_not_count():
    model, (x, y) = network(60)
    holes = y.clone()
    holes[::2] = torch.nan
    assert math.isclose(measured(model, (x, holes)).leverage, measured(model, (x[1::2], y[1::2])).leverage, rel_tol=0.3)


# The check


def test_a_memorised_network_warns_and_a_sober_one_does_not():
    sober, data = network(3)
    assert check_of(sober, data).verdict == "ok"
    memorised_one, data = network(600)
    found = check_of(memorised_one, data)
    assert found.verdict == "warn"
    assert "residuals='refit'" in found.advice
    assert "calibration data" in found.advice
    with pytest.warns(
        sp.SplitPointWarning, match="memorised base: to fit its rows as well as it does, kernel regression would err"
    ):
        sp.SplitPointRegressor(0.9, residuals="loo", epochs=1).fit(memorised_one, data, progress=False)


def test_calibration_data_leave_nothing_to_look_at():
    model, (x, y) = network(600)
    fresh = drawn(7, ROWS, 6), drawn(8, ROWS, 1)
    uq = sp.SplitPointRegressor(0.9, epochs=1).fit(model, (x, y), calibration=fresh, progress=False)
    assert "memorised base" not in [check.name for check in uq.checks]


def test_the_verdict_turns_at_the_threshold():
    for rows in (60, 1000, 10**6):
        assert limit(rows, "own") < limit(rows, "both") <= limit(rows, "before") < limit(rows - 1, "before")
        threshold = limit(rows, "before")
        assert memorised_check(threshold, threshold).verdict == "ok"
        assert memorised_check(threshold + 0.001, threshold).verdict == "warn"
    assert "(The network is large)." in memorised_check(1.9, 1.3, "The network is large.").advice


def test_the_excess_of_few_among_many_answers_lies_between_those_by_both_kernels():
    assert blended(2.0, 1.25, 1.0) == 2.0
    assert blended(2.0, 1.25, 0.25) == 1.5
    assert blended(2.0, 1.01, 1e-4) == pytest.approx(1 + 0.01**0.99)
    assert blended(0.9, 1.5, 0.25) == 1.0


def test_where_rows_are_more_than_are_looked_at_the_kernel_after_training_has_a_part(monkeypatch):
    """A network of 240 rows of which 60 are looked at."""
    monkeypatch.setattr("splitpoint.memorisation.SAMPLE", 60)
    model, (x, y) = network(60)
    more = torch.cat([x, drawn(3, 40, 6)]), torch.cat([y, drawn(4, 40, 1)])
    recording = sp.SplitPointRegressor().record(model, more, progress=False)
    rows, start = sample(more, sp.SplitPointRegressor().rows_per_call, 60), reset_copy(model, 0).eval()
    by_start, by_own = (
        fitted_as_well(model, rows, recording.layout, None, 60, len(more[0]), one).excess for one in (start, None)
    )
    assert by_own < by_start
    assert check_of(model, more).value == pytest.approx(blended(by_start, by_own, 60 / len(more[0])), rel=1e-3)


def test_few_rows_and_networks_without_parameters_say_nothing():
    x, y = drawn(0, LEAST - 1, 3), drawn(1, LEAST - 1, 1)
    assert check_of(nn.Linear(3, 1), (x, y)).verdict == "unknown"
    frozen = nn.Linear(3, 1)
    frozen.weight = None
    assert math.isnan(measured(least_squares(x, y), (x, y)).excess)


def test_rows_alone_say_nothing():
    recording = sp.Recording.of(sp.Regression(), drawn(0, 60, 3), drawn(1, 60, 1), drawn(2, 60, 1))
    uq = sp.SplitPointRegressor(0.9, epochs=1).fit_rows(recording, progress=False)
    assert (uq.checks[0].name, uq.checks[0].verdict) == ("memorised base", "unknown")
    assert math.isnan(uq.checks[0].value)


def test_the_network_is_left_as_it_was():
    model, data = network(3)
    model.train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    grads = [(p.requires_grad, p.grad) for p in model.parameters()]
    random = torch.get_rng_state()
    recording = sp.SplitPointRegressor().record(model, data, progress=False)
    memorised(recording, data, sp.SplitPointRegressor()._source())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [(p.requires_grad, p.grad) for p in model.parameters()] == grads
    assert model.training
    assert torch.equal(torch.get_rng_state(), random)


# The sample


class Items(Dataset):
    """Rows one by one, and which were asked for."""

    def __init__(self, x, y):
        self.x, self.y, self.asked = x, y, []

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        self.asked.append(row)
        return self.x[row], self.y[row]


@pytest.mark.parametrize(
    "form",
    [
        lambda x, y: (x, y),
        lambda x, y: (x.double().numpy(), y.double().numpy()),
        lambda x, y: {"input": x, "labels": y},
        lambda x, y: TensorDataset(x, y),
        lambda x, y: Items(x, y),
        lambda x, y: DataLoader(TensorDataset(x, y), batch_size=7),
        lambda x, y: list(zip(x.split(9), y.split(9), strict=True)),
    ],
    ids=["arrays", "numpy", "names", "tensor data set", "data set", "loader", "batches"],
)
def test_a_sample_is_some_rows_each_with_its_own_target(form):
    x = drawn(0, 120, 3)
    rows = sample(form(x, x[:, :1] + 100), 16, 30)
    assert len(rows) == 30
    for row in rows:
        (inputs,) = [*row.args, *row.kwargs.values()]
        assert len(inputs) == 1
        np.testing.assert_allclose(torch.as_tensor(inputs)[:, :1] + 100, row.target)
    assert len({float(row.target) for row in rows}) == 30


def test_arrays_and_data_sets_are_read_where_the_rows_are_and_streams_only_at_their_beginning():
    x, y = drawn(0, 5000, 3), drawn(1, 5000, 1)
    items = Items(x, y)
    assert len(sample(items, 16, 50)) == 50
    assert len(items.asked) == 50
    assert max(items.asked) > 4000
    seen = []
    stream = ((seen.append(start), (x[start : start + 10], y[start : start + 10]))[1] for start in range(0, 5000, 10))
    assert len(sample(stream, 16, 50)) == 50
    assert len(seen) <= AHEAD * 50 / 10 + 1


def test_inputs_that_are_not_arrays_of_rows_say_nothing():
    x, y = drawn(0, 40, 3), drawn(1, 40, 1)
    assert sample([({"nested": ["words"] * 40}, y)], 16, 30) == []
    assert len(sample([({"nested": x}, y)], 16, 30)) == 30


@pytest.mark.parametrize(
    ("width", "dense", "most", "large"),
    [
        (50, True, SAMPLE, False),
        (400, True, OF_WIDE, False),
        (400, False, OF_LARGE, True),
        (1200, True, OF_LARGE, True),
    ],
)
def test_fewer_answers_of_larger_networks_are_looked_at(width, dense, most, large, monkeypatch):
    seen = []

    def spy(_model, rows, _layout, _key, answers, *_more):
        seen.extend([len(rows), answers])
        raise RuntimeError

    monkeypatch.setattr("splitpoint.memorisation.fitted_as_well", spy)
    middle = nn.Conv2d(width, width, 3, padding=1) if dense else nn.Linear(9 * width, width)
    ends = (nn.Conv2d(1, width, 1), nn.Conv2d(width, 1, 1)) if dense else (nn.Linear(1, 9 * width), nn.Linear(width, 1))
    model = nn.Sequential(ends[0], middle, ends[1]).eval()
    shape = (600, 1, 2, 2) if dense else (600, 1)
    data, method = (torch.randn(shape), torch.randn(shape)), sp.SplitPointRegressor()
    own = method.record(model, data, progress=False)
    memorised(own, data, method._source())
    assert seen == [most, most]
    assert is_large(model, own.layout) is large
