"""Half-widths that calibration images teach: what they find, when they serve, and that they are kept in files."""

import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint.layout import Layout
from splitpoint.regression.held_out import FOLDS, MIXTURES, HeldOut, HeldOutRows, mixed

LEVEL = 0.9
CPU = torch.device("cpu")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# The mixture by itself: sizes whose quantiles are known


def by_prediction(prediction, _place, _chance):
    return prediction


def by_place(_prediction, place, _chance):
    return torch.where(place[:, :1] > 0, 5.0, 1.0)


def by_chance(_prediction, _place, chance):
    return chance


def rows(size_of, images=40, positions=60, seed=0):
    """Calibration rows whose residuals have the size that prediction, place and chance (n, 1) tell."""
    g, count = generator(seed), images * positions
    prediction, place = 2 + 6 * torch.rand(count, 1, generator=g), 2 * torch.rand(count, 2, generator=g) - 1
    chance = 0.2 + 2 * torch.rand(count, 1, generator=g)
    true = size_of(prediction, place, chance)
    parts = torch.ones(count, 1, 2, 1, 4)
    parts[..., 3] = prediction[:, :, None, None]
    parts[..., 0] = 0.2 + torch.rand(count, 1, 2, 1, generator=g)
    groups = torch.arange(images).repeat_interleave(positions)
    residual = true * (2 * torch.rand(count, 1, generator=g) - 1)  # of a side, uniform up to the size
    return HeldOutRows(parts, parts[..., 0], residual, prediction, place, groups), true


def test_sizes_in_proportion_to_the_prediction_are_found():
    given, true = rows(by_prediction)
    found = mixed(given, [LEVEL], generator(), CPU, False)
    assert found is not None
    assert found.shape.shape == (1, 2, 1, len(MIXTURES[0]))
    torch.testing.assert_close(found.bounds[:, 0, :, 0], LEVEL * true.expand(-1, 2), rtol=0.15, atol=0.15)


def test_sizes_that_depend_on_the_place_are_found_by_the_head():
    given, _ = rows(by_place)
    found = mixed(given, [LEVEL], generator(), CPU, False)
    assert found is not None
    assert bool((found.shape[..., 4] > 0.5).all())
    head = HeldOut(found.state)
    ends = head(torch.full((2, 1), 5.0), torch.tensor([[-0.8, 0.0], [0.8, 0.0]]), 1)[:, 0, :, 0]
    torch.testing.assert_close(ends, LEVEL * torch.tensor([[1.0, 1.0], [5.0, 5.0]]), rtol=0.3, atol=0.0)
    beyond = head(torch.full((2, 1), 5.0), torch.tensor([[1.0, 0.0], [9.0, 0.0]]), 1)
    torch.testing.assert_close(*beyond, rtol=0.02, atol=0.0)


def test_half_widths_that_are_right_stay():
    given, true = rows(by_chance)
    right = given._replace(current=true[:, :, None, None].expand_as(given.current))
    assert mixed(right, [LEVEL], generator(), CPU, False) is None
    assert mixed(given, [LEVEL], generator(), CPU, False) is not None


def test_few_images_teach_nothing():
    given, _ = rows(by_prediction, images=2 * FOLDS - 1)
    assert mixed(given, [LEVEL], generator(), CPU, False) is None


def test_missing_targets_have_no_part():
    given, _ = rows(by_prediction)
    gone = torch.arange(len(given.residual)) % 3 == 0
    holes = given._replace(residual=given.residual.masked_fill(gone[:, None], torch.nan))
    found = mixed(holes, [LEVEL], generator(), CPU, False)
    assert found is not None
    assert bool(found.shape.isfinite().all())


# In a fit


class Affine(nn.Module):
    """A network whose features are its own prediction, and noise."""

    def __init__(self):
        super().__init__()
        self.last = nn.Conv2d(2, 1, 1, bias=False)
        with torch.no_grad():
            self.last.weight.copy_(torch.tensor([[1.0, 0.0]])[:, :, None, None])

    def forward(self, x):
        return self.last(x)


def images(count, seed, scale=1.0):
    """Images whose errors are as large as their prediction in the lower half, and a tenth of that in the upper one."""
    g = generator(seed)
    x = torch.cat([1 + torch.rand(count, 1, 8, 6, generator=g), torch.randn(count, 1, 8, 6, generator=g)], 1)
    size = torch.where(torch.arange(8) >= 4, 1.0, 0.1)[:, None]
    return x, x[:, :1] * (1 + scale * size * torch.randn(count, 1, 8, 6, generator=g))


def fitted(**changes):
    method = sp.SplitPointRegressor(LEVEL, epochs=5, **changes)
    return method.fit(Affine().eval(), images(30, 0, 0.02), calibration=images(40, 1), progress=False)


def judged(uq, data):
    out, y = uq(data[0]), data[1]
    inside = ((y >= out.lower) & (y <= out.upper)).double().mean()
    return float(inside), sp.metrics.winkler(out, y), out


@pytest.mark.filterwarnings("ignore::splitpoint.errors.SplitPointWarning")
def test_intervals_of_new_images_are_better_with_what_calibration_images_teach():
    data = images(100, 2)
    without, found = fitted(folds=0), fitted()
    assert without.held_out is None
    (plain, worse, _), (covered, better, out) = judged(without, data), judged(found, data)
    assert abs(covered - LEVEL) < 0.02
    assert abs(plain - LEVEL) < 0.03
    assert better < 0.85 * worse
    width = (out.upper - out.lower).mean((0, 1, 3))
    assert width[7] > 4 * width[0]


@pytest.mark.filterwarnings("ignore::splitpoint.errors.SplitPointWarning")
def test_they_are_kept_in_a_file(tmp_path):
    uq, path, x = fitted(), tmp_path / "uq.safetensors", images(3, 4)[0]
    uq.save(path)
    again = sp.load(path, uq.base)
    assert again.held_out is not None
    assert torch.equal(again(x).upper, uq(x).upper)


@pytest.mark.filterwarnings("ignore::splitpoint.errors.SplitPointWarning")
def test_other_sizes_of_images_have_places_too():
    uq, (x, _) = fitted(), images(2, 5)
    assert uq(torch.cat([x, x], 2)).upper.shape == (2, 1, 16, 6)


@pytest.mark.filterwarnings("ignore::splitpoint.errors.SplitPointWarning")
def test_rows_that_are_no_positions_have_none_of_it():
    x, y = torch.randn(60, 3, generator=generator()), torch.randn(60, 1, generator=generator(1))
    model = nn.Linear(3, 1).eval()
    method = sp.SplitPointRegressor(0.5, epochs=2)
    rest = {"calibration": (x, y), "calibration_groups": [row % 20 for row in range(60)], "progress": False}
    uq = method.fit(model, (x, y), **rest)
    assert uq.held_out is None
    assert uq.shape.shape == (1, 2, 1, 3)


def test_places_run_from_one_end_to_the_other():
    found = Layout((False,), True, 1).places(torch.zeros(5, 1, 3, 2))
    assert found.T.tolist() == [[-1, -1], [-1, 1], [0, -1], [0, 1], [1, -1], [1, 1]]
    assert Layout((True,), True, -1).places(torch.zeros(5, 3, 7)).tolist() == [[-1, 0, 1]]
