"""Recording: which rows and positions the heads are trained on, and which never."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import splitpoint as sp
from splitpoint.errors import DataError, LayerError, SettingsError, ShapeError
from splitpoint.recording import record

NAN = math.nan


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


class Vector(nn.Module):
    """Features and outputs that can be read off the input: the output is the sum of the input and its negative."""

    def __init__(self, outputs=1):
        super().__init__()
        self.fc = nn.Linear(3, outputs)
        with torch.no_grad():
            self.fc.weight.copy_(torch.tensor([[1.0], [-1.0]])[:outputs].expand(outputs, 3))
            self.fc.bias.zero_()

    def forward(self, x):
        return self.fc(x)


class Pixels(nn.Module):
    """A 1x1 convolution that hands on the first channel."""

    def __init__(self, channels=2, outputs=1):
        super().__init__()
        self.out = nn.Conv2d(channels, outputs, 1, bias=False)
        with torch.no_grad():
            self.out.weight.copy_(torch.eye(outputs, channels)[:, :, None, None])

    def forward(self, x):
        return self.out(x)


def recorded(model, data, method=None, **settings):
    method = method or sp.SplitPointRegressor(**settings)
    return record(model, data, method._source(), cache=None, label="train", progress=False)


def classifier(**settings):
    return sp.SplitPointClassifier(**settings)


# Vectors


def test_residuals_are_target_minus_output_with_the_features_beside_them():
    x, y = torch.randn(10, 3), torch.randn(10, 2)
    table = recorded(Vector(2), [(x[:6], y[:6]), (x[6:], y[6:])]).table.whole()
    expected = torch.stack([x.sum(1), -x.sum(1)], 1)
    assert torch.equal(table["features"], x)
    torch.testing.assert_close(table["output"], expected)
    torch.testing.assert_close(table["residual"], y - expected)


def test_rows_without_any_target_are_dropped_and_single_gaps_kept():
    x = torch.randn(4, 3)
    y = torch.tensor([[1.0, 2.0], [NAN, NAN], [NAN, 3.0], [4.0, 5.0]])
    table = recorded(Vector(2), (x, y)).table.whole()
    assert torch.equal(table["features"], x[[0, 2, 3]])
    assert table["residual"].isnan().tolist() == [[False, False], [True, False], [False, False]]


def test_missing_targets_change_nothing_but_their_own_rows():
    x, y = torch.randn(40, 3), torch.randn(40, 1)
    gaps = y.clone()
    gaps[::4] = NAN
    kept = torch.arange(40) % 4 != 0
    method = sp.SplitPointRegressor(epochs=2, folds=0)
    with_gaps = method.fit(Vector(), (x, gaps), progress=False).own_tensors()
    without = method.fit(Vector(), (x[kept], y[kept]), progress=False).own_tensors()
    assert all(torch.equal(with_gaps[name], without[name]) for name in without)


@pytest.mark.parametrize("interval", ["split", "consistent", "conformal"])
def test_gaps_in_several_outputs_leave_every_prediction_finite(interval):
    x, y = torch.randn(60, 3), torch.randn(60, 2)
    y[torch.rand(60, 2) < 0.3] = NAN
    calibration = (x, y) if interval == "conformal" else None
    method = sp.SplitPointRegressor((0.3, 0.6), epochs=3, folds=2, interval=interval)
    uq = method.fit(Vector(2), (x, y), calibration=calibration, progress=False)
    assert all(torch.isfinite(tensor).all() for tensor in uq.own_tensors().values())
    out = uq(x)
    assert all(torch.isfinite(v).all() for v in vars(out).values() if isinstance(v, torch.Tensor))
    assert (out.lowers.diff(dim=-1) <= 0).all()


@pytest.mark.parametrize("cache", ["ram", "disk"])
@pytest.mark.parametrize("x", [torch.randn(8, 3), torch.randn(0, 3)], ids=["all missing", "no rows"])
def test_data_without_a_single_target_are_refused(x, cache, tmp_path):
    method = sp.SplitPointRegressor(epochs=1, folds=0, cache="ram" if cache == "ram" else tmp_path)
    with pytest.raises(DataError, match="at least two rows"):
        method.fit(Vector(), [(x, torch.full((len(x), 1), NAN))], progress=False)


@pytest.mark.parametrize("mars", ["simplex", "free"])
def test_labels_that_are_all_ignored_are_refused(mars):
    data = (torch.randn(8, 3), torch.full((8,), -100))
    with pytest.raises(DataError, match="at least two rows"):
        classifier(epochs=1, mars=mars).fit(Vector(2), data, progress=False)


def test_no_batches_at_all_are_refused():
    with pytest.raises(DataError, match="Expected data to fit on, but the train data are empty; pass at least two"):
        recorded(Vector(), [])


@pytest.mark.parametrize("value", [math.inf, -math.inf])
def test_infinite_targets_are_refused(value):
    y = torch.zeros(4, 1)
    y[2] = value
    with pytest.raises(DataError, match=r"Expected finite targets \(NaN marks a missing one\), but got inf"):
        recorded(Vector(), (torch.zeros(4, 3), y))


@pytest.mark.parametrize("value", [NAN, math.inf])
def test_outputs_that_are_not_finite_are_refused(value):
    x = torch.zeros(4, 3)
    x[1, 0] = value
    with pytest.raises(DataError, match="Expected finite outputs of the base model, but got NaN or inf; check the"):
        recorded(Vector(), (x, torch.zeros(4, 1)))
    with pytest.raises(DataError, match="Expected finite outputs"):
        recorded(Vector(2), (x, torch.zeros(4).long()), classifier())


def test_features_that_are_not_finite_are_refused():
    with pytest.raises(DataError, match=r"Expected finite features, but got NaN or inf; .* choose another layer"):
        recorded(Vector(), (torch.zeros(4, 3), torch.zeros(4, 1)), layer=lambda x: x / 0)


def test_a_flat_target_is_the_same_target():
    x, y = torch.randn(5, 3), torch.randn(5)
    flat, column = (recorded(Vector(), (x, target)).table.whole()["residual"] for target in (y, y[:, None]))
    assert torch.equal(flat, column)


@pytest.mark.parametrize("shape", [(4, 2), (4, 1, 1), (1, 4), (8,)], ids=str)
def test_any_other_shape_of_target_is_refused(shape):
    with pytest.raises(ShapeError, match=r"Expected targets of the shape of the model's output, \(4, 1\), but got"):
        recorded(Vector(), [(torch.zeros(4, 3), torch.zeros(shape))])


def test_the_residual_of_a_large_target_keeps_its_digits():
    """In float32 alone 16777217 would be 16777216."""
    y = torch.tensor([[16777217.0], [16777219.0]], dtype=torch.float64)
    model = Vector()
    with torch.no_grad():
        model.fc.bias.fill_(16777216.0)
    assert recorded(model, (torch.zeros(2, 3), y)).table.whole()["residual"].tolist() == [[1.0], [3.0]]


def test_the_number_of_inputs_is_that_of_the_models_arguments():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(3, 1)

        def forward(self, a, b):
            return self.fc(a + b)

    x, y = torch.randn(4, 3), torch.randn(4, 1)
    assert recorded(Sum(), (x, x, y)).inputs == 2
    assert recorded(Vector(), (x, y)).inputs == 1


def test_only_a_module_can_be_fitted():
    with pytest.raises(SettingsError, match=r"Expected a torch\.nn\.Module, or a function .* but got <lambda>, which"):
        sp.SplitPointRegressor().fit(lambda x: x, (torch.zeros(4, 3), torch.zeros(4, 1)), progress=False)


# Labels


def test_ignored_labels_are_dropped_and_logits_kept():
    x = torch.randn(5, 3)
    table = recorded(Vector(2), (x, torch.tensor([0, -100, 1, -100, 1])), classifier()).table.whole()
    assert table["label"].tolist() == [[0], [1], [1]]
    torch.testing.assert_close(table["logits"], torch.stack([x.sum(1), -x.sum(1)], 1)[[0, 2, 4]])


def test_the_ignored_label_can_be_any_number():
    x = torch.randn(4, 3)
    table = recorded(Vector(2), (x, torch.tensor([0, 255, 1, 255])), classifier(ignore_index=255)).table.whole()
    assert table["label"].tolist() == [[0], [1]]
    table = recorded(Vector(2), (x, torch.tensor([0, 1, 1, 0])), classifier(ignore_index=0)).table.whole()
    assert table["label"].tolist() == [[1], [1]]


@pytest.mark.parametrize("label", [-1, 2, 255])
def test_labels_out_of_range_are_refused(label):
    with pytest.raises(DataError, match=rf"Expected labels from 0 to 1, but got {label}; .* ignore_index="):
        recorded(Vector(2), (torch.randn(3, 3), torch.tensor([0, label, 1])), classifier())


@pytest.mark.parametrize("value", [0.5, NAN])
def test_labels_that_are_no_indices_are_refused(value):
    with pytest.raises(DataError, match="Expected labels that are class indices, but got fractions or NaN"):
        recorded(Vector(2), (torch.randn(2, 3), torch.tensor([0.0, value])), classifier())


@pytest.mark.parametrize("shape", [(4,), (4, 1)], ids=str)
@pytest.mark.parametrize("outputs", [1, 2])
def test_labels_may_have_an_axis_of_their_own(shape, outputs):
    labels = torch.tensor([0, 1, 1, 0]).reshape(shape)
    for target in (labels, labels.float(), labels.int()):
        table = recorded(Vector(outputs), [(torch.randn(4, 3), target)], classifier()).table.whole()
        assert table["label"].tolist() == [[0], [1], [1], [0]]
        assert table["logits"].shape == (4, 2)


def test_one_hot_labels_are_refused():
    with pytest.raises(ShapeError, match=r"Expected class indices of shape \(4,\), but got \(4, 2\); .* argmax"):
        recorded(Vector(2), (torch.randn(4, 3), torch.eye(2).repeat(2, 1)), classifier())


# Dense outputs: some positions of every row, never one without a target


def numbered_maps(rows, height=6, width=5):
    """Maps whose first channel numbers every position of every row, and whose second says whether it is valid."""
    number = torch.arange(float(rows * height * width)).reshape(rows, 1, height, width)
    valid = torch.rand(rows, 1, height, width, generator=torch.Generator().manual_seed(1)) < 0.5
    return torch.cat([number, valid.float()], 1), valid


@pytest.mark.parametrize("positions", [1, 4, 15, 29, 30, 1000])
def test_no_position_without_a_target_is_ever_used_and_none_twice(positions):
    x, valid = numbered_maps(7)
    y = torch.where(valid, x[:, :1] + 1, NAN)
    table = recorded(Pixels(), [(x[:4], y[:4]), (x[4:], y[4:])], positions=positions).table.whole()
    number, usable = table["features"].T
    assert (usable == 1).all()
    assert len(number.unique()) == len(number)
    assert torch.equal(table["output"][:, 0], number)
    assert (table["residual"] == 1).all()
    row = number.long() // 30
    available = valid.flatten(1).sum(1)
    assert torch.equal(row.bincount(minlength=7), available.clamp(max=positions))


def test_a_map_without_targets_is_passed_over():
    x, valid = numbered_maps(3)
    valid[1] = False
    table = recorded(Pixels(), (x, torch.where(valid, x[:, :1], NAN)), positions=8).table.whole()
    assert set((table["features"][:, 0] // 30).tolist()) == {0.0, 2.0}
    assert len(table["features"]) == 16


def test_ignored_pixels_are_never_used():
    x, valid = numbered_maps(4)
    labels = torch.where(valid[:, 0], x[:, 0].long() % 2, -100)
    table = recorded(Pixels(2, 2), (x, labels), classifier(positions=9)).table.whole()
    number, usable = table["features"].T
    assert (usable == 1).all()
    assert torch.equal(table["label"][:, 0], number.long() % 2)
    torch.testing.assert_close(table["logits"], table["features"])
    assert len(number) == 4 * 9


def test_positions_are_drawn_evenly():
    x, _ = numbered_maps(1)
    data = [(x, x[:, :1])] * 400
    table = recorded(Pixels(), data, positions=6).table.whole()
    counts = table["features"][:, 0].long().bincount(minlength=30)
    assert counts.sum() == 2400
    assert counts.min() > 80 - 5 * math.sqrt(80)  # binomial with mean 80
    assert counts.max() < 80 + 5 * math.sqrt(80)


def test_positions_depend_on_the_number_of_the_batch_alone():
    x, _ = numbered_maps(4)
    data = [(x[:2], x[:2, :1]), (x[2:], x[2:, :1])]
    model = Pixels()
    torch.manual_seed(1)
    one = recorded(model, data, positions=5).table.whole()["features"]
    torch.manual_seed(2)
    state = torch.get_rng_state()
    other = recorded(model, data, positions=5).table.whole()["features"]
    assert torch.equal(one, other)
    assert torch.equal(torch.get_rng_state(), state)
    local = one[:, 0].reshape(4, 5) % 30
    assert not torch.equal(local[0].sort().values, local[2].sort().values)


def test_features_at_another_resolution_are_taken_at_the_nearest_position():
    class Up(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Conv2d(1, 1, 1)

        def forward(self, x):
            return F.interpolate(self.out(x), scale_factor=2.0)

    x = torch.arange(6.0).reshape(1, 1, 2, 3)
    y = torch.arange(24.0).reshape(1, 1, 4, 6)
    table = recorded(Up(), (x, y), positions=1000).table.whole()
    position = (table["residual"] + table["output"])[:, 0].round().long()
    expected = (position // 6 // 2) * 3 + position % 6 // 2
    assert torch.equal(table["features"][:, 0].long(), expected)
    assert len(position.unique()) == 24


def test_sequences_keep_tokens_and_channels_apart():
    model = nn.Sequential(nn.Linear(2, 1, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0]]))
    x = torch.stack([torch.arange(12.0).reshape(3, 4), torch.ones(3, 4)], 2)
    y = x[..., :1] + 0.5
    y[1, 2] = NAN
    table = recorded(model, (x, y), positions=100).table.whole()
    assert sorted(table["features"][:, 0].tolist()) == [n for n in range(12) if n != 6]
    assert (table["residual"] == 0.5).all()


def test_a_layer_without_the_rows_of_the_output_is_refused_in_every_batch():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.same, self.fc = nn.Identity(), nn.Linear(3, 1)

        def forward(self, x):
            self.same(x if len(x) == 4 else x[:1])
            return self.fc(x)

    data = [(torch.zeros(4, 3), torch.zeros(4, 1)), (torch.zeros(3, 3), torch.zeros(3, 1))]
    with pytest.raises(LayerError, match=r"the output's 3 rows from layer 'same', but got \(1, 3\)"):
        recorded(Odd(), data, layer="same")
