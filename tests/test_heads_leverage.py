"""Leverage: exact leave-one-out residuals of a least-squares layer, and growth away from the data."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import splitpoint as sp
from properties import examples
from splitpoint.cache import Table, feature_moments
from splitpoint.heads import LARGEST, PROJECTED, WIDEST, Heads, fit_leverage, projection


def leverage_of(table):
    return fit_leverage(table, *feature_moments(table))


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def least_squares(features, target):
    """Weights (C, D) and bias (D,) of the optimum, by NumPy in float64."""
    design = np.column_stack([features.double().numpy(), np.ones(len(features))])
    solution = np.linalg.lstsq(design, target.double().numpy(), rcond=None)[0]
    return solution[:-1], solution[-1]


def optimal_table(rows, width, outputs=1, seed=0, scale=1.0, offset=0.0):
    features = drawn(seed, rows, width) * scale + offset
    target = features @ drawn(seed + 1, width, outputs) + drawn(seed + 2, rows, outputs)
    weight, bias = least_squares(features, target)
    output = torch.from_numpy(features.double().numpy() @ weight + bias).float()
    table = Table.in_memory({"features": features, "output": output, "residual": target - output})
    return table, features, target


def refitted_residuals(features, target):
    """Residual of every row under a least-squares fit to all the other rows."""
    left_out = []
    for row in range(len(features)):
        kept = np.arange(len(features)) != row
        weight, bias = least_squares(features[kept], target[kept])
        left_out.append(target[row].double().numpy() - features[row].double().numpy() @ weight - bias)
    return np.array(left_out)


@pytest.mark.parametrize(("rows", "width", "outputs"), [(40, 5, 1), (60, 12, 3), (25, 1, 1)])
@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (100.0, -300.0)])
def test_residuals_over_one_minus_leverage_are_brute_force_leave_one_out_residuals(rows, width, outputs, scale, offset):
    table, features, target = optimal_table(rows, width, outputs, scale=scale, offset=offset)
    leverage = leverage_of(table).own
    assert leverage.shape == (rows, 1)
    ours = (table.column("residual") / (1 - leverage)).numpy()
    np.testing.assert_allclose(ours, refitted_residuals(features, target), rtol=2e-3, atol=2e-4)


def test_leverage_is_the_diagonal_of_the_hat_matrix():
    table, features, _ = optimal_table(50, 7)
    leverage = leverage_of(table).own
    design = np.column_stack([features.double().numpy(), np.ones(50)])
    hat = design @ np.linalg.pinv(design)
    np.testing.assert_allclose(leverage.numpy()[:, 0], np.diag(hat), rtol=1e-3, atol=1e-5)
    assert math.isclose(float(leverage.sum()), 8, rel_tol=1e-3)  # the number of parameters


def test_heads_compute_the_same_leverage_as_the_table():
    table, features, _ = optimal_table(50, 7)
    state, own, left_out = leverage_of(table)
    heads = Heads({key: value[None] for key, value in state.items()})
    found = heads.pointwise(features)["leverage"]
    torch.testing.assert_close(found, own, rtol=1e-4, atol=1e-6)
    maps = features.T.reshape(1, 7, 5, 10)
    torch.testing.assert_close(heads.pointwise(maps)["leverage"].flatten(), found.flatten(), rtol=1e-4, atol=1e-6)
    log = left_out.log()
    torch.testing.assert_close(state["log_mean"].flatten(), log.mean().reshape(1))
    torch.testing.assert_close(state["log_spread"].flatten(), log.std(correction=0).reshape(1))


def test_leverage_grows_with_the_square_of_the_distance():
    table, *_ = optimal_table(50, 4)
    state = leverage_of(table).inputs
    heads = Heads({key: value[None] for key, value in state.items()})
    direction = drawn(9, 1, 4)
    center = state["center"]
    near, far = (heads.pointwise(center + step * direction)["leverage"] - 1 / 50 for step in (100.0, 300.0))
    torch.testing.assert_close(far / near, torch.full((1, 1), 9.0), rtol=1e-4, atol=0)
    torch.testing.assert_close(heads.pointwise(center)["leverage"], torch.full((1, 1), 1 / 50))


@examples(25)
@given(st.integers(3, 30), st.integers(1, 40), st.integers(0, 1000))
def test_leverage_of_training_rows_lies_between_one_over_n_and_one(rows, width, seed):
    features = drawn(seed, rows, width)
    residual = drawn(seed + 1, rows, 1)
    table = Table.in_memory({"features": features, "output": drawn(seed + 2, rows, 1), "residual": residual})
    leverage = leverage_of(table).own
    assert (leverage >= 1 / rows - 1e-6).all()
    assert (leverage <= 1 + 1e-4).all()
    assert float(leverage.sum()) <= min(rows, width + 1) * (1 + 1e-3)


def test_a_layer_that_was_stopped_early_is_ridged():
    """With weights half-way to the optimum the implied ridge is large, so leverages are smaller than the hat matrix."""
    table, features, target = optimal_table(60, 10)
    weight, bias = least_squares(features, target)
    output = torch.from_numpy(features.double().numpy() @ (weight / 2) + bias).float()
    early = Table.in_memory({"features": features, "output": output, "residual": target - output})
    assert float(leverage_of(early).own.sum()) < 0.9 * float(leverage_of(table).own.sum())


@pytest.mark.parametrize("feature", ["constant", "doubled"])
def test_degenerate_features_do_no_harm(feature):
    _, features, target = optimal_table(40, 3)
    extra = torch.full((40, 1), 5.0) if feature == "constant" else features[:, :1]
    wide = torch.cat([features, extra], 1)
    weight, bias = least_squares(features, target)
    output = torch.from_numpy(features.double().numpy() @ weight + bias).float()
    tables = [Table.in_memory({"features": f, "output": output, "residual": target - output}) for f in (features, wide)]
    one, other = (leverage_of(table).own for table in tables)
    torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_missing_targets_do_not_poison_the_leverage():
    table, *_ = optimal_table(40, 3, outputs=2)
    residual = table.column("residual").clone()
    residual[::3, 0] = torch.nan
    with_holes = Table.in_memory({**table.whole(), "residual": residual})
    assert leverage_of(with_holes).own.isfinite().all()


def test_projection_is_the_identity_up_to_the_widest_gram_and_keeps_norms_beyond():
    assert torch.equal(projection(5), torch.eye(5))
    assert torch.equal(projection(WIDEST), torch.eye(WIDEST))
    wide = projection(WIDEST + 1)
    assert wide.shape == (WIDEST + 1, PROJECTED)
    assert torch.equal(wide, projection(WIDEST + 1))
    vectors = drawn(0, 50, WIDEST + 1)
    ratio = (vectors @ wide).norm(dim=1) / vectors.norm(dim=1)
    assert (ratio - 1).abs().max() < 5 / math.sqrt(2 * PROJECTED)


def test_a_regressor_learns_from_leave_one_out_residuals():
    """An interpolating-ish last layer: training residuals are too small, leave-one-out residuals are right."""
    rows, width = 60, 30
    features = drawn(0, rows, width)
    target = drawn(2, rows, 1)
    weight, bias = least_squares(features, target)
    model = nn.Linear(width, 1)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(weight.T))
        model.bias.copy_(torch.from_numpy(bias))
    scales = {}
    for kind in ("train", "loo"):
        method = sp.SplitPointRegressor(residuals=kind, epochs=1, folds=0)
        scales[kind] = float(method.fit(model, (features, target), progress=False).scale)
    with torch.no_grad():
        residual = (target - model(features)).abs().numpy()
    assert math.isclose(scales["train"], float(residual.mean()), rel_tol=1e-4)
    hat = np.diag(
        np.column_stack([features, np.ones(rows)]) @ np.linalg.pinv(np.column_stack([features, np.ones(rows)]))
    )
    expected = (residual[:, 0] / (1 - np.minimum(hat, LARGEST))).mean()
    assert math.isclose(scales["loo"], float(expected), rel_tol=5e-3)
    assert scales["loo"] > 1.5 * scales["train"]


# A sketch of the matrix


def test_a_sketch_has_few_columns_and_keeps_leverage_about_right():
    features = drawn(0, 3000, 60)
    residual = drawn(1, 3000, 1)
    table = Table.in_memory({"features": features, "output": features[:, :1] + residual, "residual": residual})
    exact, rough = (fit_leverage(table, *feature_moments(table), columns) for columns in (None, 16))
    assert rough.inputs["whiten"].shape == (60, 16)
    assert torch.equal(rough.own, exact.own)  # residuals are left out exactly
    ratio = rough.left_out / exact.left_out
    assert float(ratio.mean()) == pytest.approx(1, abs=0.1)
    assert 0.2 < float(ratio.std()) < 0.5  # sqrt(2 / 16) = 0.35
    assert float(rough.inputs["reach"]) == pytest.approx(float(rough.left_out.quantile(0.99)), rel=0.02)


def test_a_sketch_of_fewer_features_than_columns_is_the_matrix_itself():
    features, residual = drawn(0, 50, 4), drawn(1, 50, 1)
    table = Table.in_memory({"features": features, "output": features[:, :1], "residual": residual})
    exact, rough = (fit_leverage(table, *feature_moments(table), columns) for columns in (None, 4))
    assert torch.equal(rough.inputs["whiten"], exact.inputs["whiten"])
