"""Heads: a stack is its members one by one, a map is its pixels one by one, and the leverage is linear algebra."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from splitpoint.cache import Table, feature_moments
from splitpoint.heads import CACHE_POSITIONS, Heads, StackedMlp, fit_leverage, inverse_softplus, projection

E, C = 3, 4
WIDTHS = {"no hidden layer": [C, 2], "one": [C, 5, 2], "three": [C, 6, 5, 4, 2]}
every_depth = pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS.keys())


def leverage_of(table):
    return fit_leverage(table, *feature_moments(table))


def generators(count, first=0):
    return [torch.Generator().manual_seed(first + seed) for seed in range(count)]


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def as_torch(mlp, member):
    """The same network built of torch's own layers."""
    layers = []
    for weight, bias in zip(mlp.weights, mlp.biases, strict=True):
        linear = nn.Linear(weight.shape[1], weight.shape[2])
        linear.load_state_dict({"weight": weight[member].T, "bias": bias[member, 0]})
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def inputs_of(count, with_leverage, seed=1):
    state = {"center": randn(count, 1, C, seed=seed), "spread": randn(count, 1, C, seed=seed + 1).abs() + 0.5}
    if with_leverage:
        state |= {
            "whiten": randn(count, C, 3, seed=seed + 2),
            "floor": torch.full((count, 1, 1), 0.01),
            "log_mean": randn(count, 1, 1, seed=seed + 3),
            "reach": 2 + randn(count, 1, 1, seed=seed + 5).abs(),
            "log_spread": randn(count, 1, 1, seed=seed + 4).abs() + 0.5,
        }
    return state


SIZES = {"quantile": [5, 4], "mar": [6, 5, 3]}


def heads_of(count, with_leverage):
    return Heads.random(inputs_of(count, with_leverage), SIZES, generators(count))


with_and_without = pytest.mark.parametrize("with_leverage", [False, True], ids=["plain", "leverage"])


# Stacks


@every_depth
def test_a_stack_equals_its_members_built_of_torch_layers(widths):
    mlp = StackedMlp.random(widths, generators(E))
    x = randn(E, 7, C)
    got = mlp(x)
    for member in range(E):
        torch.testing.assert_close(got[member], as_torch(mlp, member)(x[member]), rtol=1e-5, atol=1e-6)


@every_depth
def test_gradients_of_a_stack_are_those_of_its_members(widths):
    mlp = StackedMlp.random(widths, generators(E))
    x = randn(E, 7, C)
    mlp(x).square().sum().backward()
    for member in range(E):
        alone = as_torch(mlp, member)
        alone(x[member]).square().sum().backward()
        linears = [layer for layer in alone if isinstance(layer, nn.Linear)]
        for layer, linear in enumerate(linears):
            torch.testing.assert_close(mlp.weights[layer].grad[member], linear.weight.grad.T, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(mlp.biases[layer].grad[member, 0], linear.bias.grad, rtol=1e-4, atol=1e-5)


@every_depth
def test_a_member_starts_as_it_would_alone(widths):
    stack = StackedMlp.random(widths, generators(E))
    for member in range(E):
        alone = StackedMlp.random(widths, generators(1, first=member))
        for kept, own in zip(stack.parameters(), alone.parameters(), strict=True):
            assert torch.equal(kept[member], own[0])


def test_initial_weights_fill_the_range_of_torch_linear():
    mlp = StackedMlp.random([100, 200, 3], generators(2))
    for layer, inputs in enumerate((100, 200)):
        bound = 1 / math.sqrt(inputs)
        for tensor in (mlp.weights[layer], mlp.biases[layer]):
            assert tensor.abs().max() <= bound
        assert mlp.weights[layer].abs().max() > 0.95 * bound
        deviation = 2 * bound / math.sqrt(12)
        assert float(mlp.weights[layer].detach().std()) == pytest.approx(deviation, rel=0.1)
    assert not torch.equal(mlp.weights[0][0], mlp.weights[0][1])


def test_all_randomness_comes_from_the_generators():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    one = heads_of(E, True)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(4)
    other = heads_of(E, True)
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name])
    third = Heads.random(inputs_of(E, True), SIZES, generators(E, first=50))
    assert not torch.equal(one.trunk("mar").weights[0], third.trunk("mar").weights[0])


# Heads on features


@with_and_without
def test_heads_standardise_and_add_the_logarithm_of_the_leverage(with_leverage):
    heads = heads_of(E, with_leverage)
    features = 3 * randn(E, 7, C) + 1
    got = heads(features)
    assert set(got) == {"quantile", "mar"} | ({"leverage"} if with_leverage else set())
    for member in range(E):
        x = (features[member] - heads.center[member]) / heads.spread[member]
        if with_leverage:
            leverage = 0.01 + (x @ heads.whiten[member]).pow(2).sum(1, keepdim=True)
            torch.testing.assert_close(got["leverage"][member], leverage, rtol=1e-5, atol=1e-6)
            within = leverage.clamp(max=heads.reach[member].item())
            x = x * (within / leverage).sqrt()
            x = torch.cat([x, (within.log() - heads.log_mean[member]) / heads.log_spread[member]], 1)
        for name in SIZES:
            expected = as_torch(heads.trunk(name), member)(x)
            torch.testing.assert_close(got[name][member], expected, rtol=1e-4, atol=1e-5)


def test_a_leverage_that_is_known_is_taken_as_it_is():
    heads, features = heads_of(E, True), randn(E, 7, C)
    plain = heads(features)
    again = heads(features, plain["leverage"])
    assert all(torch.equal(plain[name], again[name]) for name in plain)
    other = heads(features, 2 * plain["leverage"])
    assert torch.equal(other["leverage"], 2 * plain["leverage"])
    assert not torch.equal(other["mar"], plain["mar"])


@with_and_without
def test_pointwise_on_vectors_is_the_forward_pass(with_leverage):
    heads = heads_of(1, with_leverage)
    features = randn(9, C)
    got, expected = heads.pointwise(features), heads(features[None])
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(got[name], value[0])


POSITIONS = {
    "sequence": (5,),
    "map": (3, 4),
    "volume": (2, 3, 2),
    "as many as go at once": (64, CACHE_POSITIONS // 64),
    "one more": (CACHE_POSITIONS + 1,),
    "several pieces": (70, 130),
}


@with_and_without
@pytest.mark.parametrize("positions", POSITIONS.values(), ids=POSITIONS.keys())
def test_pointwise_on_maps_is_the_forward_pass_at_every_pixel(positions, with_leverage):
    heads = heads_of(1, with_leverage)
    features = randn(2, C, *positions)
    before = features.clone()
    with torch.no_grad():
        got = heads.pointwise(features)
        pixels = features.flatten(2).movedim(1, 2).reshape(-1, C)
        expected = heads.pointwise(pixels)
    assert torch.equal(features, before)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        rebuilt = value.reshape(2, -1, value.shape[1]).movedim(2, 1).reshape(2, -1, *positions)
        torch.testing.assert_close(got[name], rebuilt, rtol=1e-4, atol=1e-5)


def test_maps_are_split_into_pieces_of_bounded_size(monkeypatch):
    heads, seen = heads_of(1, False), []
    original = Heads._piece
    monkeypatch.setattr(Heads, "_piece", lambda self, piece: (seen.append(piece.shape), original(self, piece))[1])
    with torch.no_grad():
        heads.pointwise(randn(2, C, 2 * CACHE_POSITIONS + 5))
    assert [shape[2] for shape in seen] == [CACHE_POSITIONS, CACHE_POSITIONS, 5] * 2


@with_and_without
def test_pixels_do_not_see_each_other(with_leverage):
    heads = heads_of(1, with_leverage)
    features = randn(2, C, 4, 5)
    other = features.clone()
    other[1, :, 2, 3] += 1
    with torch.no_grad():
        one, two = heads.pointwise(features), heads.pointwise(other)
    for name in one:
        changed = (one[name] != two[name]).any(1)
        assert changed.nonzero().tolist() == [[1, 2, 3]]


@with_and_without
def test_a_member_answers_as_it_did_in_the_stack_and_is_a_copy(with_leverage):
    heads = heads_of(E, with_leverage)
    features = randn(E, 7, C)
    expected = {name: value.detach().clone() for name, value in heads(features).items()}
    members = [heads.member(index) for index in range(E)]
    with torch.no_grad():
        for parameter in heads.parameters():
            parameter.zero_()
    for index, member in enumerate(members):
        got = member(features[index : index + 1])
        assert got.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(got[name][0], value[index], rtol=1e-6, atol=1e-6)


@with_and_without
def test_heads_are_rebuilt_from_their_state(with_leverage):
    heads = heads_of(E, with_leverage)
    twin = Heads(heads.state_dict())
    features = randn(E, 7, C)
    one, other = heads(features), twin(features)
    assert list(one) == list(other)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert twin.state_dict().keys() == heads.state_dict().keys()


def test_deep_networks_are_rebuilt_with_their_layers_in_order():
    heads = Heads.random(inputs_of(1, False), {"deep": [4] * 12 + [2]}, generators(1))
    twin = Heads(heads.state_dict())
    features = randn(1, 3, C)
    assert torch.equal(twin(features)["deep"], heads(features)["deep"])


def test_a_trunk_can_start_at_a_constant():
    heads = heads_of(E, True)
    raw = randn(E, 3, seed=8)
    other = copy.deepcopy(heads)
    heads.start_at("mar", raw)
    got = heads(100 * randn(E, 7, C))
    assert torch.equal(got["mar"], raw[:, None].expand(E, 7, 3))
    features = randn(E, 7, C)
    assert torch.equal(heads(features)["quantile"], other(features)["quantile"])


@pytest.mark.parametrize("value", [1e-3, 0.1, 1.0, 20.0, 80.0])
def test_inverse_softplus_is_the_inverse(value):
    assert float(F.softplus(inverse_softplus(torch.tensor(value)))) == pytest.approx(value, rel=1e-4)


# Leverage


def linear_task(rows=60, noise=0.0, seed=0):
    """Features, outputs of a linear layer with an intercept, and its residuals."""
    x = randn(rows, C, seed=seed) @ torch.diag(torch.tensor([1.0, 5.0, 0.1, 2.0])) + torch.tensor([3.0, 0, -1, 2])
    y = x @ torch.tensor([[1.0], [-2.0], [3.0], [0.5]]) + noise * randn(rows, 1, seed=seed + 1)
    design = torch.cat([torch.ones(rows, 1), x], 1).double()
    weights = torch.linalg.lstsq(design, y.double()).solution
    output = design @ weights
    return x, y, output.float(), (y - output).float(), design


def by_heads(state, x):
    heads = Heads({name: value[None] for name, value in state.items()})
    return heads(x[None])["leverage"][0]


def test_leverage_of_a_fitted_layer_is_the_diagonal_of_the_hat_matrix():
    x, _, output, residual, design = linear_task(noise=1.0)
    table = Table.in_memory({"features": x, "output": output, "residual": residual})
    state, own, _ = leverage_of(table)
    hat = design @ torch.linalg.inv(design.T @ design) @ design.T
    torch.testing.assert_close(own[:, 0].double(), hat.diagonal(), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(by_heads(state, x), own, rtol=1e-4, atol=1e-5)


def test_leverage_of_new_rows_is_the_quadratic_form():
    x, _, output, residual, design = linear_task(noise=1.0)
    state = leverage_of(Table.in_memory({"features": x, "output": output, "residual": residual})).inputs
    new = 10 * randn(5, C, seed=9)
    row = torch.cat([torch.ones(5, 1), new], 1).double()
    expected = (row @ torch.linalg.inv(design.T @ design) * row).sum(1, keepdim=True)
    torch.testing.assert_close(by_heads(state, new).double(), expected, rtol=1e-3, atol=1e-4)


def test_residuals_over_one_minus_leverage_are_those_of_refitting_without_the_row():
    x, y, output, residual, design = linear_task(rows=30, noise=1.0)
    table = Table.in_memory({"features": x, "output": output, "residual": residual})
    shortcut = (residual / (1 - leverage_of(table).own))[:, 0]
    refitted = []
    for row in range(30):
        rest = torch.arange(30) != row
        weights = torch.linalg.lstsq(design[rest], y.double()[rest]).solution
        refitted.append(y.double()[row] - design[row] @ weights)
    torch.testing.assert_close(shortcut.double(), torch.cat(refitted), rtol=1e-3, atol=1e-3)


def test_leverage_of_a_ridge_fit_uses_its_ridge():
    """The layer of a ridge regression satisfies X'r = n ridge w, so that the ridge is read off the residuals."""
    x, y, *_ = linear_task(noise=1.0)
    x = (x - x.mean(0)) / x.std(0, correction=0)
    rows, ridge = len(x), 0.05
    gram = x.double().T @ x.double() / rows
    layer = torch.linalg.solve(gram + ridge * torch.eye(C).double(), x.double().T @ (y - y.mean()).double() / rows)
    output = (y.mean() + x.double() @ layer).float()
    table = Table.in_memory({"features": x, "output": output, "residual": y - output})
    inverse = torch.linalg.inv(gram + ridge * torch.eye(C).double())
    expected = 1 / rows + (x.double() @ inverse * x.double()).sum(1) / rows
    torch.testing.assert_close(leverage_of(table).own[:, 0].double(), expected, rtol=1e-3, atol=1e-5)


def test_leverage_is_between_one_nth_and_one_and_sums_to_the_number_of_parameters():
    x, _, output, residual, _ = linear_task(noise=1.0)
    table = Table.in_memory({"features": x, "output": output, "residual": residual})
    leverage = leverage_of(table).own
    assert leverage.min() >= 1 / 60
    assert leverage.max() < 1
    assert float(leverage.sum()) == pytest.approx(C + 1, rel=1e-2)


def test_the_logarithm_of_the_leverage_is_standardised():
    x, _, output, residual, _ = linear_task(noise=1.0)
    table = Table.in_memory({"features": x, "output": output, "residual": residual})
    state, _, left_out = leverage_of(table)
    scaled = (left_out.log() - state["log_mean"]) / state["log_spread"]
    assert float(scaled.mean()) == pytest.approx(0, abs=1e-5)
    assert float(scaled.std(correction=0)) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("kind", ["constant feature", "copied feature", "more features than rows", "no residual"])
def test_leverage_of_degenerate_features_is_finite(kind):
    x = randn(20, C)
    if kind == "constant feature":
        x[:, 1] = 7.0
    if kind == "copied feature":
        x[:, 1] = x[:, 0]
    if kind == "more features than rows":
        x = randn(5, 30)
    residual = torch.zeros(len(x), 1) if kind == "no residual" else randn(len(x), 1, seed=5)
    table = Table.in_memory({"features": x, "output": x.sum(1, keepdim=True), "residual": residual})
    state, leverage, _ = leverage_of(table)
    assert all(torch.isfinite(value).all() for value in state.values())
    assert torch.isfinite(leverage).all()
    assert leverage.min() > 0
    assert leverage.max() <= 1.01


def test_wide_features_are_projected_the_same_way_every_time_without_global_randomness():
    state = torch.get_rng_state()
    one, other = projection(5000), projection(5000)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(one) == 5000
    assert one.shape[1] < 5000
    assert torch.equal(one, other)
    lengths = (torch.eye(5000)[:20] @ one).norm(dim=1)  # a random projection keeps lengths on average
    assert float(lengths.mean()) == pytest.approx(1, abs=0.05)
    assert torch.equal(projection(7), torch.eye(7))
