"""The two prediction types: how they are cut, joined, moved and judged against a reference."""

import math
from dataclasses import FrozenInstanceError, fields
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from properties import examples
from splitpoint.errors import SettingsError
from splitpoint.prediction import (
    ClassificationPrediction,
    Reference,
    RegressionPrediction,
    channel_order,
    concatenate,
)

quick = examples(40)


def regression(rows=5, shape=(2,), levels=(0.5, 0.9), reference=None, mars=True):
    mean = torch.arange(float(rows * math.prod(shape))).reshape(rows, *shape)
    offsets = torch.arange(1.0, len(levels) + 1)
    return RegressionPrediction(
        aleatoric=mean + 100,
        epistemic=mean + 200,
        total=mean + 300,
        reference=reference,
        mean=mean,
        levels=levels,
        lowers=mean[..., None] - offsets,
        uppers=mean[..., None] + 2 * offsets,
        mar=mean + 400 if mars else None,
        mar_up=mean + 500 if mars else None,
        mar_down=mean + 600 if mars else None,
    )


def classification(rows=5, reference=None):
    score = torch.arange(float(rows))
    probs = torch.stack([score + 1, torch.ones(rows), torch.ones(rows)], 1)
    probs = probs / probs.sum(1, keepdim=True)
    return ClassificationPrediction(
        aleatoric=score,
        epistemic=score + 10,
        total=score + 20,
        reference=reference,
        probs=probs,
        base_probs=probs.flip(1),
        label=torch.arange(rows) % 3,
    )


def tensors(prediction):
    values = {f.name: getattr(prediction, f.name) for f in fields(prediction)}
    return {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}


def grid_reference(sample, threshold, grid=1001):
    """One reference per channel (C, N) from NumPy's quantiles."""
    quantiles = np.quantile(sample, np.linspace(0, 1, grid), axis=-1)
    return Reference(torch.from_numpy(np.moveaxis(quantiles, 0, -1).copy()), torch.as_tensor(threshold))


both = pytest.mark.parametrize("make", [regression, classification])

# Holding and cutting


@both
def test_predictions_cannot_be_changed(make):
    out = make()
    with pytest.raises(FrozenInstanceError):
        out.epistemic = torch.zeros(5)
    with pytest.raises(FrozenInstanceError):
        out.reference = None


def test_a_reference_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        Reference(torch.zeros(3), torch.tensor(0.0)).threshold = torch.tensor(1.0)


@both
def test_the_length_is_the_number_of_rows(make):
    assert len(make(rows=5)) == 5
    assert len(make(rows=5)[:0]) == 0


@both
@pytest.mark.parametrize(
    "rows",
    [
        slice(1, 4),
        slice(None, None, 2),
        [4, 0, 0],
        torch.tensor([3, 1]),
        torch.tensor([True, False, False, True, True]),
        slice(0, 0),
    ],
    ids=["slice", "step", "list", "indices", "mask", "empty"],
)
def test_indexing_takes_the_same_rows_of_every_tensor(make, rows):
    out = make(rows=5)
    part = out[rows]
    assert type(part) is type(out)
    order = torch.arange(5)[rows].tolist()
    for name, value in tensors(out).items():
        assert getattr(part, name).tolist() == [value[row].tolist() for row in order]
        assert getattr(part, name).shape[1:] == value.shape[1:]


def test_indexing_keeps_levels_reference_and_missing_mars():
    reference = Reference(torch.linspace(0, 1, 11), torch.tensor(0.5))
    out = regression(reference=reference, mars=False)
    part = out[1:3]
    assert part.levels == out.levels
    assert part.reference is reference
    assert part.mar is part.mar_up is part.mar_down is None


def test_indexing_leaves_the_original_alone():
    out = regression()
    out[:2]
    assert len(out) == 5


@both
@pytest.mark.parametrize("cuts", [(0, 5), (0, 2, 5), (0, 1, 2, 3, 4, 5), (0, 0, 5)])
def test_joining_the_parts_gives_the_whole_back_in_order(make, cuts):
    out = make(rows=5)
    joined = concatenate([out[a:b] for a, b in pairwise(cuts)])
    assert type(joined) is type(out)
    assert tensors(joined).keys() == tensors(out).keys()
    for name, value in tensors(out).items():
        assert torch.equal(getattr(joined, name), value)


def test_joining_keeps_levels_reference_and_missing_mars():
    reference = Reference(torch.linspace(0, 1, 11), torch.tensor(0.5))
    out = regression(reference=reference, mars=False)
    joined = concatenate([out, out])
    assert len(joined) == 10
    assert joined.levels == (0.5, 0.9)
    assert joined.reference is reference
    assert joined.mar is None


@both
def test_to_moves_every_tensor_and_nothing_else(make):
    out = make()
    moved = out.to("meta")
    assert type(moved) is type(out)
    for name, value in tensors(out).items():
        assert getattr(moved, name).device.type == "meta"
        assert getattr(moved, name).shape == value.shape
        assert value.device.type == "cpu"


@both
def test_to_the_same_device_keeps_every_value(make):
    out = make()
    for name, value in tensors(out.to(torch.device("cpu"))).items():
        assert torch.equal(value, getattr(out, name))


# Intervals


@pytest.mark.parametrize(("level", "reach"), [(0.5, 1.0), (0.9, 2.0)])
def test_interval_gives_the_bounds_of_a_fitted_level(level, reach):
    out = regression()
    low, high = out.interval(level)
    assert torch.equal(low, out.mean - reach)
    assert torch.equal(high, out.mean + 2 * reach)


def test_lower_and_upper_belong_to_the_highest_level():
    out = regression(levels=(0.5, 0.8, 0.95))
    assert torch.equal(out.lower, out.mean - 3)
    assert torch.equal(out.upper, out.mean + 6)


def test_interval_forgives_rounding_of_the_level():
    out = regression(levels=(0.3,))
    assert torch.equal(out.interval(0.1 + 0.2)[0], out.lower)


def test_interval_of_a_level_that_was_not_fitted_says_how_to_get_it():
    expected = (
        r"Expected one of the fitted confidence levels \(0\.5, 0\.9\), but got 0\.8; "
        r"fit with confidence_level=\(0\.5, 0\.8, 0\.9\) to have it\."
    )
    with pytest.raises(SettingsError, match=expected):
        regression().interval(0.8)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 4, 5)])
def test_bounds_have_the_shape_of_the_mean_never_squeezed(shape):
    out = regression(rows=2, shape=shape)
    assert out.lower.shape == out.upper.shape == out.interval(0.5)[0].shape == out.mean.shape == (2, *shape)


# Flags and percentiles


@both
@pytest.mark.parametrize("name", ["flagged", "percentile"])
def test_flags_without_a_threshold_say_what_to_call(make, name):
    with pytest.raises(SettingsError, match=r"call uq\.set_threshold\(in_distribution_data\) first"):
        getattr(make(), name)


def test_flagged_is_true_above_the_threshold_and_for_nan():
    reference = Reference(torch.linspace(0, 1, 11), torch.tensor(0.5))
    score = torch.tensor([0.4, 0.5, 0.5001, math.inf, -math.inf, math.nan])
    assert reference.flagged(score).tolist() == [False, False, True, True, False, True]


def test_a_prediction_flags_its_epistemic_score():
    out = classification(reference=Reference(torch.linspace(0.5, 18.5, 19), torch.tensor(12.0)))
    assert out.flagged.tolist() == [False, False, False, True, True]
    assert out.percentile.tolist() == pytest.approx([50, 55, 60, 65, 70])


def test_percentile_by_hand():
    reference = Reference(torch.tensor([0.0, 1.0, 3.0, 7.0, 8.0]), torch.tensor(7.0))
    score = torch.tensor([-5.0, 0.0, 0.5, 1.0, 2.0, 7.5, 8.0, 99.0])
    shares = [0, 0, 1, 1, 2, 4, 4, 5]
    assert reference.percentile(score).tolist() == pytest.approx([100 * below / 6 for below in shares])


def test_percentile_keeps_nan_and_bounds_infinity():
    reference = Reference(torch.linspace(0, 1, 11), torch.tensor(0.5))
    low, high, bad = reference.percentile(torch.tensor([-math.inf, math.inf, math.nan])).tolist()
    assert low == 0
    assert high == pytest.approx(100 * 11 / 12)
    assert math.isnan(bad)


def test_percentile_of_a_constant_reference_is_zero_up_to_it_and_highest_above():
    reference = Reference(torch.full((5,), 2.0), torch.tensor(2.0))
    assert reference.percentile(torch.tensor([1.0, 2.0, 3.0])).tolist() == pytest.approx([0, 0, 100 * 5 / 6])


@quick
@given(st.integers(0, 10_000), st.integers(200, 600))
def test_percentile_is_the_empirical_share_of_scores_below(seed, rows):
    rng = np.random.default_rng(seed)
    sample = rng.gamma(2.0, size=rows)
    reference = grid_reference(sample[None], [1.0])
    score = np.concatenate([rng.gamma(2.0, size=20), [-1.0, 50.0]])
    got = reference.percentile(torch.from_numpy(score)[:, None])[:, 0].numpy()
    expected = stats.percentileofscore(sample, score, kind="mean")
    np.testing.assert_allclose(got, expected, atol=100 / rows + 0.2)


@quick
@given(
    st.lists(st.integers(0, 12), min_size=2, max_size=12).map(sorted),
    st.lists(st.floats(-2, 14), min_size=2, max_size=8).map(sorted),
)
def test_percentile_never_falls_as_the_score_rises_and_stays_between_0_and_100(grid, scores):
    reference = Reference(torch.tensor(grid, dtype=torch.float64), torch.tensor(0.0))
    percent = reference.percentile(torch.tensor(scores, dtype=torch.float64))
    assert ((percent >= 0) & (percent <= 100)).all()
    assert (percent.diff() >= 0).all()


CHANNELS = {
    "one for all, rows": ((), (6,)),
    "one for all, map": ((), (6, 2, 4, 5)),
    "outputs": ((3,), (6, 3)),
    "maps": ((3, 1, 1), (6, 3, 4, 5)),
    "one map": ((1, 1, 1), (6, 1, 4, 5)),
    "sequences": ((1, 3), (6, 4, 3)),
    "every position": ((2, 3), (6, 2, 3)),
}


@pytest.mark.parametrize(("channels", "shape"), CHANNELS.values(), ids=CHANNELS.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_channel_is_judged_by_its_own_reference(channels, shape, dtype):
    generator = torch.Generator().manual_seed(0)
    quantiles = torch.rand(*channels, 11, generator=generator, dtype=dtype).cumsum(-1)
    reference = Reference(quantiles, quantiles[..., 9])
    score = 7 * torch.rand(shape, generator=generator, dtype=dtype)
    percent, flagged = reference.percentile(score), reference.flagged(score)
    assert percent.shape == flagged.shape == shape
    assert percent.dtype == dtype
    for index in np.ndindex(*shape):
        own = tuple(i if size > 1 else 0 for i, size in zip(index[1:], channels, strict=False))[: len(channels)]
        grid = quantiles[own].double().numpy()
        expected = 100 * int((grid < score[index].item()).sum()) / 12
        assert percent[index].item() == pytest.approx(expected, abs=1e-3)
        assert flagged[index].item() == (score[index].item() > grid[9])


@pytest.mark.parametrize(("shape", "dims", "order"), [((), 1, [0]), ((3,), 2, [1, 0]), ((3, 1, 1), 4, [1, 0, 2, 3])])
def test_channel_order_puts_the_axes_with_their_own_reference_first(shape, dims, order):
    assert channel_order(shape, dims) == order
    assert channel_order((1, 3), 3) == [2, 0, 1]


def test_a_reference_of_other_precision_serves_a_half_precision_score():
    reference = Reference(torch.linspace(0.01, 0.99, 99, dtype=torch.float64), torch.tensor(0.5, dtype=torch.float64))
    score = torch.tensor([0.255, 0.755], dtype=torch.bfloat16)
    assert reference.flagged(score).tolist() == [False, True]
    assert reference.percentile(score.float()).tolist() == pytest.approx([25, 75])


def test_permuting_the_rows_permutes_flags_and_percentiles():
    generator = torch.Generator().manual_seed(1)
    reference = Reference(torch.rand(2, 11, generator=generator).cumsum(-1) * 100, torch.tensor([203.0, 206.0]))
    out, order = regression(reference=reference), torch.tensor([3, 0, 4, 1, 2])
    assert torch.equal(out[order].flagged, out.flagged[order])
    assert torch.equal(out[order].percentile, out.percentile[order])
    assert out.flagged.any()
    assert not out.flagged.all()


def test_percentile_of_a_tied_score_is_the_share_below():
    sample = np.repeat([0.0, 1.0, 2.0], [10, 60, 30])
    got = grid_reference(sample[None], [1.0]).percentile(torch.ones(1, 1, dtype=torch.float64)).item()
    assert got == pytest.approx(stats.percentileofscore(sample, 1.0, kind="strict"), abs=0.2)
