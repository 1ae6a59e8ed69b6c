"""What a regression fit says of its intervals and scores: by hand numbers, and nothing of what is sound."""

import math
import warnings

import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint.baselines import train_network
from splitpoint.cache import Table
from splitpoint.regression.checks import Judged, coverage, ranking, sides


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def judged(residual, width=2.0, noise=0.0):
    """Symmetric intervals whose half-widths lie around `width`."""
    half = torch.full_like(residual, width) + noise * torch.linspace(0, 1, len(residual))[:, None]
    return Judged(half, half, residual, "left-out")


# A quantile needs residuals


@pytest.mark.parametrize(("level", "needed"), [(0.5, 1), (0.9, 9), (0.95, 19), (0.99, 99)])
def test_a_side_needs_as_many_residuals_as_the_level_asks_for(level, needed):
    for count, verdict in ((needed, "ok"), (needed - 1, "warn")):
        residual = torch.cat([torch.ones(300, 1), -torch.ones(count, 1)])
        found = sides(Table.in_memory({"residual": residual}), level)
        assert found.value == count
        assert found.verdict == verdict


def test_a_model_without_errors_is_no_model_with_too_few():
    assert sides(Table.in_memory({"residual": torch.zeros(50, 1)}), 0.95).verdict == "ok"


# Coverage


def test_coverage_is_that_of_the_worst_third_by_width():
    """Rows with the widest intervals miss half of the time, the others never."""
    residual = torch.zeros(300, 1)
    residual[200::2] = 10.0
    found = coverage(judged(residual, noise=1.0), 0.9)
    assert found.value == 0.5
    assert found.verdict == "warn"
    assert "hold only 50% of some third of the left-out rows" in found.advice


@pytest.mark.parametrize(("rows", "verdict"), [(90, "ok"), (3000, "warn")])
def test_what_chance_explains_is_forgiven(rows, verdict):
    """Eight of ten inside at .90: a hundred rows may do that by chance, a thousand do not."""
    residual = torch.zeros(rows, 1)
    residual[::5] = 10.0
    found = coverage(judged(residual, noise=1.0), 0.9)
    assert found.value == pytest.approx(0.8, abs=0.02)
    assert found.verdict == verdict


def test_sides_and_outputs_count_apart():
    residual = torch.zeros(300, 2)
    residual[:, 1] = torch.where(torch.arange(300) % 3 == 0, -5.0, 0.0)
    half = torch.full((300, 2), 2.0)
    assert coverage(Judged(torch.full((300, 2), 9.0), half, residual, "left-out"), 0.9).verdict == "ok"
    found = coverage(Judged(half, torch.full((300, 2), 9.0), residual, "left-out"), 0.9)
    assert found.verdict == "warn"
    assert found.value == pytest.approx(2 / 3, abs=0.01)


def test_missing_targets_do_not_count():
    residual = torch.zeros(100, 1)
    residual[50:] = torch.nan
    assert coverage(judged(residual), 0.9).value == 1.0
    assert coverage(judged(torch.full((100, 1), torch.nan)), 0.9).verdict == "unknown"


# Ranking


def test_the_value_is_the_rank_correlation_of_width_and_error():
    size = torch.linspace(0.1, 1, 200)[:, None]
    found = ranking(Judged(size, size, size * torch.sign(drawn(0, 200, 1)), "left-out"), drawn(1, 200, 1))
    assert found.value == pytest.approx(1.0)
    assert found.verdict == "ok"


@pytest.mark.parametrize(("signal", "verdict"), [(0.05, "warn"), (3.0, "ok")])
def test_scores_that_say_nothing_fail_where_the_network_explains_nothing_too(signal, verdict):
    """Noise of one size everywhere leaves nothing to rank, which is no fault of a good network."""
    rows = 4000
    own = judged(drawn(0, rows, 1), noise=1.0)
    found = ranking(own, signal * drawn(1, rows, 1))
    assert abs(found.value) < 0.05
    assert found.verdict == verdict


def test_few_rows_say_nothing_of_ranks():
    found = ranking(judged(drawn(0, 20, 1), noise=1.0), drawn(1, 20, 1))
    assert (found.verdict, math.isnan(found.value)) == ("unknown", True)


# In a fit


def rows(count, seed):
    x = drawn(seed, count, 4)
    return x, x[:, :1].sin() + 0.2 * (1 + x[:, 1:2].abs()) * drawn(seed + 1, count, 1)


def network(data):
    def factory():
        return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 1))

    return train_network(factory, data, epochs=30, progress=False)


def test_a_sound_fit_looks_at_everything_and_says_nothing():
    data = rows(600, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", sp.SplitPointWarning)
        uq = sp.SplitPointRegressor(0.9, epochs=10).fit(network(data), data, progress=False)
        held_out = sp.SplitPointRegressor(0.9, epochs=10).fit(
            network(data), data, calibration=rows(400, 5), progress=False
        )
    names = ["features", "rows of a side", "coverage", "ranking of errors"]
    assert [check.name for check in uq.checks] == ["memorised base", *names]
    assert [check.name for check in held_out.checks] == ["features", "calibration rows", *names[1:]]
    assert {check.verdict for check in (*uq.checks, *held_out.checks)} == {"ok"}


def test_intervals_that_are_too_short_are_found_out():
    """One epoch of the paper's recipe, whose half-widths start near 1, on errors of size 100."""
    x = drawn(0, 300, 4)
    data = x, 100 * drawn(1, 300, 1)
    short = sp.SplitPointRegressor.paper(0.9, epochs=1)
    with pytest.warns(sp.SplitPointWarning, match="coverage: intervals at level 0.9 hold only .%") as caught:
        short.fit(nn.Linear(4, 1), data, progress=False)
    assert "of the training rows" in str(caught[0].message)


def test_ten_rows_warn():
    data = rows(10, 0)
    with pytest.warns(sp.SplitPointWarning, match="rows of a side: . residuals on one side are too few"):
        sp.SplitPointRegressor(0.95, epochs=1, residuals="train").fit(network(data), data, progress=False)
