"""The figures of a trial, by hand, by scaling and as the published code has them."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from splitpoint.bench.measures import IN_UNITS, as_published, measured
from splitpoint.errors import ShapeError
from splitpoint.prediction import RegressionPrediction

ALWAYS = {
    "rmse", "winkler", "picp", "mpiw", "piece", "piece_authors", "piece_plus", "piece_minus", "piece_floor_plus",
    "piece_floor_minus", "spearman_epistemic", "spearman_total",
}  # fmt: skip


def column(*values):
    return torch.tensor(values)[:, None]


def prediction(rows=40, level=0.95, normal=True, seed=0):
    generator = torch.Generator().manual_seed(seed)
    mean, noise, doubt = (torch.rand(rows, 1, generator=generator) for _ in range(3))
    half = (1 + noise)[..., None]
    return RegressionPrediction(
        aleatoric=noise,
        epistemic=doubt,
        total=noise + doubt,
        reference=None,
        mean=mean,
        levels=(level,),
        lowers=mean[..., None] - half,
        uppers=mean[..., None] + half,
        scale=1 + noise if normal else None,
    )


def target(rows=40, seed=1):
    return 2 * torch.randn(rows, 1, generator=torch.Generator().manual_seed(seed))


def test_figures_by_hand():
    own = RegressionPrediction(
        aleatoric=column(1.0, 2.0, 3.0, 4.0),
        epistemic=column(1.0, 2.0, 3.0, 4.0),
        total=column(4.0, 3.0, 2.0, 1.0),
        reference=None,
        mean=torch.zeros(4, 1),
        levels=(0.75,),
        lowers=column(-1.0, -1.0, -2.0, -2.0)[..., None],
        uppers=column(1.0, 1.0, 2.0, 2.0)[..., None],
    )
    found = measured("any", own, column(0.5, -1.0, 1.0, 4.0), 10.0)
    assert set(found) == ALWAYS
    assert found["rmse"] == pytest.approx(10 * math.sqrt((0.25 + 1 + 1 + 16) / 4))
    assert found["mpiw"] == pytest.approx(10 * 3)
    assert found["picp"] == 0.75
    assert found["winkler"] == pytest.approx(10 * (3 + 2 / 0.25 * 2 / 4))  # one target is 2 above its interval
    assert found["piece_plus"] == pytest.approx(0.75 - 2 / 3)
    assert found["piece_minus"] == pytest.approx(0.25)
    sizes = [0.5, 1.0, 1.0, 4.0]
    assert found["spearman_epistemic"] == pytest.approx(stats.spearmanr(sizes, [1, 2, 3, 4]).statistic)
    assert found["spearman_total"] == pytest.approx(stats.spearmanr(sizes, [4, 3, 2, 1]).statistic)


def test_units_scale_what_has_units_and_nothing_else():
    one, many = (measured("gaussian", prediction(), target(), scale) for scale in (1.0, 7.5))
    assert set(one) == ALWAYS | {"crps"}
    for name, value in one.items():
        assert many[name] == pytest.approx((7.5 if name in IN_UNITS else 1.0) * value), name
    assert set(IN_UNITS) == {"rmse", "winkler", "mpiw", "crps"}


def test_a_method_without_a_distribution_has_no_crps():
    assert set(measured("splitpoint", prediction(normal=False), target(), 1.0)) == ALWAYS


def test_floors_are_what_perfect_coverage_of_either_side_would_have():
    own, y = prediction(), target()
    found = measured("any", own, y, 3.0)
    for name, rows in (("plus", int((y > own.mean).sum())), ("minus", int((y < own.mean).sum()))):
        law = stats.binom(rows, 0.95)
        expected = sum(law.pmf(k) * abs(k / rows - 0.95) for k in range(rows + 1))
        assert found[f"piece_floor_{name}"] == pytest.approx(expected, rel=1e-6)


def test_a_side_without_rows_has_no_figures():
    own = prediction()
    found = measured("any", own, own.mean + 1, 1.0)
    assert math.isnan(found["piece_minus"])
    assert math.isnan(found["piece_floor_minus"])
    assert math.isfinite(found["piece_floor_plus"])


def test_targets_may_be_a_vector_and_must_fit():
    own, y = prediction(), target()
    assert measured("any", own, y[:, 0], 1.0) == measured("any", own, y, 1.0)
    with pytest.raises(ShapeError):
        measured("any", own, torch.zeros(3), 1.0)


# As published


@pytest.mark.parametrize("method", ["mc_dropout", "deep_ensemble"])
def test_ensembles_as_published_are_two_mean_deviations_wide_and_add_deviations(method):
    own = replace(prediction(rows=2), mean=column(1.0, 2.0), aleatoric=column(4.0, 9.0), epistemic=column(1.0, 16.0))
    found = as_published(method, own)
    assert found.lowers.tolist() == [[[1.0 - 4.0]], [[2.0 - 6.0]]]
    assert found.uppers.tolist() == [[[1.0 + 4.0]], [[2.0 + 6.0]]]
    assert found.total.tolist() == [[3.0], [7.0]]
    assert found.epistemic is own.epistemic


@pytest.mark.parametrize("method", ["splitpoint", "evidential_regression", "gaussian"])
def test_other_methods_are_published_as_they_are(method):
    own = prediction()
    assert as_published(method, own) is own


def test_the_published_form_is_used_only_when_asked_for():
    own, y = prediction(), target()
    ours, published = (measured("deep_ensemble", own, y, 1.0, authors=authors) for authors in (False, True))
    assert published["mpiw"] == pytest.approx(float(4 * own.aleatoric.sqrt().mean()), rel=1e-5)
    assert ours["mpiw"] == pytest.approx(float(2 * (1 + own.aleatoric).mean()), rel=1e-5)
    assert ours["rmse"] == published["rmse"]
