"""Folded heads against the heads themselves, and when they are worked out again."""

import copy
import dataclasses
import pickle

import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint.folded import Derived, Standardised, answer, folded, sources_of
from splitpoint.heads import FARTHEST, Heads

C, EXTRA = 7, 4
SIZES = {
    "two trunks": {"quantile": [9, 4], "mar": [9, 9, 9, 3]},
    "the shallow one last": {"mar": [6, 6, 3], "quantile": [2]},
    "one trunk": {"shared": [5, 5]},
    "no hidden layer": {"quantile": [3], "mar": [3]},
}


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heads_of(sizes, leverage, seed=0):
    inputs = {"center": 3 * drawn(1, 1, C, seed=seed), "spread": drawn(1, 1, C, seed=seed + 1).exp()}
    if leverage:
        inputs |= {"whiten": drawn(1, C, C, seed=seed + 2) / 10}
        scales = {"floor": 0.01, "reach": 0.3, "log_mean": -1.5, "log_spread": 0.7}
        inputs |= {name: torch.full((1, 1, 1), value) for name, value in scales.items()}
    return Heads.random(inputs, sizes, [torch.Generator().manual_seed(seed)])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("leverage", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_folded_heads_say_what_heads_say_near_and_far(sizes, leverage, seed):
    heads = heads_of(SIZES[sizes], leverage, seed)
    near = heads.center[0] + heads.spread[0] * drawn(60, C, seed=9)
    rows = torch.cat([near, 100 * near, 1e9 * near])
    found = answer(folded(heads, list(SIZES[sizes])), rows)
    with torch.no_grad():
        expected = heads.pointwise(rows)
    raw = torch.cat([expected[name] for name in SIZES[sizes]], 1)
    size = raw.abs().amax(1, keepdim=True)
    torch.testing.assert_close(found.raw / size, raw / size, rtol=0.0, atol=4e-6)
    if leverage:
        torch.testing.assert_close(found.leverages, expected["leverage"], rtol=4e-6, atol=0.0)
        beyond = (expected["leverage"] / heads.reach[0]).clamp(min=1)
        torch.testing.assert_close(found.far.exp(), beyond, rtol=2e-5, atol=0.0)
    else:
        assert found.leverages is None


def test_a_leverage_of_more_features_comes_out_of_the_same_product():
    heads = heads_of(SIZES["two trunks"], True)
    around = torch.cat([drawn(1, EXTRA, seed=3), heads.center[0] + 0.1 * heads.spread[0]], 1)
    spread = torch.cat([drawn(1, EXTRA, seed=4).exp(), 2 * heads.spread[0]], 1)
    more = Standardised(around, spread, drawn(C + EXTRA, 6, seed=5), torch.full((1, 1), 0.02))
    rows = around + spread * drawn(40, C + EXTRA, seed=6)
    found = answer(folded(heads, SIZES["two trunks"], more), rows)
    expected = (((rows - around) / spread) @ more.whiten).square().sum(1) + 0.02
    torch.testing.assert_close(found.leverages[:, 0], expected, rtol=4e-6, atol=0.0)
    alone = answer(folded(heads, list(heads.trunks)), rows[:, EXTRA:])
    torch.testing.assert_close(found.raw, alone.raw, rtol=4e-6, atol=4e-6)
    torch.testing.assert_close(found.leverages[:, 1:], alone.leverages, rtol=4e-6, atol=0.0)


def test_features_far_from_zero_lose_nothing_to_rounding():
    """Multiplying out the mean as well would leave differences of numbers a million times as large."""
    heads = heads_of(SIZES["two trunks"], True)
    heads.center.add_(2.0**20 * heads.spread)
    rows = heads.center[0] + heads.spread[0] * drawn(30, C, seed=1)
    with torch.no_grad():
        expected = heads.pointwise(rows)
    torch.testing.assert_close(
        answer(folded(heads, list(heads.trunks)), rows).leverages, expected["leverage"], rtol=4e-6, atol=0.0
    )


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e9])
def test_the_farthest_features_leave_numbers(size):
    heads = heads_of(SIZES["two trunks"], True)
    heads.whiten.mul_(size)
    rows = torch.full((1, C), torch.inf).repeat(2, 1)
    rows[1, 0] = -3e38
    found = answer(folded(heads, list(heads.trunks)), rows)
    assert bool(found.raw.isfinite().all())
    assert bool((found.leverages <= FARTHEST).all())
    assert bool((found.leverages > 1e6).all())


def test_derived_tensors_know_of_changes_and_are_not_saved():
    source = nn.Linear(2, 2)
    made = Derived(list(sources_of(source)), {"twice": source.weight * 2})
    assert made.current
    assert not made.state_dict()
    with torch.no_grad():
        source.weight.mul_(3)
    assert not made.current
    again = Derived(list(sources_of(source)), {"twice": source.weight * 2})
    source.weight = nn.Parameter(source.weight.detach().clone() + 1)
    assert not again.current


# Predictors

X = drawn(120, 5)
Y = X[:, :2] * 2 + drawn(120, 2, seed=1)
SETTINGS = {
    "default": {},
    "levels": {"confidence_level": (0.5, 0.8, 0.95)},
    "consistent": {"interval": "consistent"},
    "no leverage": {"leverage": False},
    "paper's scores": {"scores": "sds"},
    "shared": {"shared": True},
    "named layer": {"layer": "2:input"},
    "paper": None,
}
FIELDS = ("mean", "lowers", "uppers", "aleatoric", "epistemic", "total", "support", "mar", "mar_up", "mar_down")


def network(outputs):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, outputs))


def fitted(name="default", outputs=1, **data):
    settings = SETTINGS[name]
    method = (
        sp.SplitPointRegressor.paper(epochs=2) if settings is None else sp.SplitPointRegressor(epochs=2, **settings)
    )
    if settings is not None:
        method = sp.SplitPointRegressor(epochs=2, residuals="loo", **settings)
    return method.fit(network(outputs), (X, Y[:, :outputs]), progress=False, **data)


def unfolded(uq, x):
    """The prediction as the heads themselves have it, in the order of the rows of maps."""
    with torch.no_grad():
        reading = uq.tap(x)
        answer = uq._answer(uq._features(reading.features), reading.output)
        if reading.context is not None:
            support = uq.joint(reading.context, uq._features(reading.features))
            answer = dataclasses.replace(answer, support=support.expand_as(answer.epistemic))
        return answer.prediction(uq.layout, reading.output, uq.reference)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("name", SETTINGS)
def test_predictions_are_those_of_the_heads(name, outputs):
    uq = fitted(name, outputs)
    rows = torch.cat([X[:40] + 0.1, 30 * X[:20]])
    found, expected = uq(rows), unfolded(uq, rows)
    for field in FIELDS:
        own, other = getattr(found, field), getattr(expected, field)
        squares = field in ("epistemic", "support") and bool((expected.sds == expected.epistemic).all())
        size = float(expected.mar.square().max()) if squares else 1.0  # a difference of products, small beside them
        torch.testing.assert_close(own, other, rtol=2e-5, atol=4e-6 * size, msg=lambda text, f=field: f"{f}: {text}")


def test_conformal_predictions_are_those_of_the_heads():
    base = network(1)
    with torch.no_grad():
        above = base(X) + Y[:, :1].abs()
        above[::9] -= 2 * Y[::9, :1].abs()
    method = sp.SplitPointRegressor((0.5, 0.6), epochs=2, residuals="loo")
    uq = method.fit(base, (X, above), calibration=(X[:60] + 0.1, above[:60]), progress=False)
    found, expected = uq(X), unfolded(uq, X)
    for field in FIELDS:
        torch.testing.assert_close(getattr(found, field), getattr(expected, field), rtol=2e-5, atol=1e-5)


def test_a_side_without_residuals_has_the_half_widths_of_the_other():
    base = network(1)
    with torch.no_grad():
        above = base(X) + Y[:, :1].abs()
    uq = sp.SplitPointRegressor((0.5, 0.6), epochs=2, residuals="train").fit(base, (X, above), progress=False)
    assert bool((uq.shape == 0).all(-1).any())
    found, expected = uq(X), unfolded(uq, X)
    torch.testing.assert_close(found.lowers, expected.lowers, rtol=2e-5, atol=1e-5)


def test_changed_heads_are_folded_again():
    uq = fitted()
    before = uq(X[:5])
    with torch.no_grad():
        uq.scale.mul_(2)
        uq.heads.trunk("mar").biases[-1].add_(1)
    after = uq(X[:5])
    torch.testing.assert_close(after.aleatoric, unfolded(uq, X[:5]).aleatoric)
    assert not torch.equal(after.mar, before.mar)
    uq.joint.whiten = uq.joint.whiten * 2
    assert not torch.equal(uq(X[:5]).support, after.support)


def test_what_is_saved_does_not_grow_and_copies_predict_alike(tmp_path):
    uq = fitted()
    names = list(uq.state_dict())
    size = uq.own_tensors().keys()
    expected = uq(X[:5])
    assert list(uq.state_dict()) == names
    assert uq.own_tensors().keys() == size
    uq.save(tmp_path / "uq.safetensors")
    others = [copy.deepcopy(uq), pickle.loads(pickle.dumps(uq)), sp.load(tmp_path / "uq.safetensors", uq.base)]
    for other in others:
        with torch.no_grad():
            assert torch.equal(other(X[:5]).uppers, expected.uppers)
            other.scale.mul_(2)
            assert not torch.equal(other(X[:5]).uppers, expected.uppers)
    assert torch.equal(uq(X[:5]).uppers, expected.uppers)


def test_the_order_of_trunks_in_a_file_does_not_matter():
    uq = fitted()
    state = dict(uq.heads.state_dict())
    turned = {name: state[name] for name in sorted(state)}
    assert list(Heads(turned).trunks) != list(uq.heads.trunks)
    other = copy.deepcopy(uq)
    other.heads = Heads(turned).eval()
    expected = uq(X[:5]).uppers
    assert torch.equal(other(X[:5]).uppers, expected)
    other.heads = Heads({name: value + 0.5 for name, value in turned.items()}).eval()
    assert not torch.equal(other(X[:5]).uppers, expected)


def test_a_first_prediction_in_inference_mode_does_not_bind_later_ones():
    uq = fitted()
    with torch.inference_mode():
        inside = uq(X[:5]).uppers.clone()
    assert torch.equal(uq(X[:5]).uppers, inside)
    assert not uq.folded.matrix.is_inference()


def test_graphs_hold_the_folded_heads_alone():
    uq = fitted("levels", 2)
    graph = sp.export.module(uq, fields=("uppers", "support"))
    program = torch.export.export(graph, (X[:6],), strict=False)
    found, expected = program.module()(X[:6]), uq(X[:6])
    torch.testing.assert_close(found["uq_uppers"], expected.uppers)
    torch.testing.assert_close(found["uq_support"], expected.support)
    assert sum("addmm" in str(node.target) or "linear" in str(node.target) for node in program.graph.nodes) <= 8


def test_predictions_of_single_rows_are_few_operators():
    """Every small operator takes microseconds, whatever it computes: there were 166 a call."""
    uq = fitted()
    uq(X[:1])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        uq(X[:1])
    outer = [event for event in profile.events() if event.cpu_parent is None or "aten" not in event.cpu_parent.name]
    assert sum(event.name.startswith("aten::") for event in outer) < 70
