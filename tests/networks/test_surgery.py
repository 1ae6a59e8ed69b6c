"""Surgery: widened, conditioned, dropped-out and bounded layers against the algebra that defines them."""

import copy

import pytest
import torch
from torch import nn

from splitpoint.batches import Batch
from splitpoint.errors import SettingsError
from splitpoint.networks.surgery import (
    ChannelMaskDropout,
    Conditioned,
    MaskDropout,
    SpectralBound,
    build,
    condition,
    conditioned,
    factory_of,
    sampling,
    seeded,
    settle_spectral_norm,
    weight_layers,
    widen,
    with_condition,
    with_dropout,
    with_spectral_norm,
)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.unused = nn.Linear(3, 3)
        self.head = nn.ModuleDict({"out": nn.Linear(5, 2)})
        self.body = nn.Sequential(nn.Linear(4, 5), nn.ReLU())

    def forward(self, x):
        return self.head["out"](self.body(x))


# Fresh networks


def test_copies_of_a_network_are_initialised_anew_and_may_all_be_trained():
    template = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).requires_grad_(False)
    template[1].running_mean.fill_(7)
    before = copy.deepcopy(template.state_dict())
    factory = factory_of(template)
    first, again, other = build(factory, 1), build(factory, 1), build(factory, 2)
    assert all(p.requires_grad for p in first.parameters())
    assert torch.equal(first[0].weight, again[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)
    assert not torch.equal(first[0].weight, template[0].weight)
    assert first[1].running_mean.eq(0).all()
    assert all(torch.equal(value, before[name]) for name, value in template.state_dict().items())


def test_a_fresh_copy_is_what_its_own_constructor_gives():
    with seeded(5):
        expected = nn.Linear(4, 3)
    assert torch.equal(build(factory_of(nn.Linear(4, 3)), 5).weight, expected.weight)


def test_building_leaves_the_global_random_state():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    build(lambda: nn.Linear(4, 3), 9)
    assert torch.equal(torch.rand(4), expected)


def test_what_cannot_be_built_is_refused():
    class Free(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

    with pytest.raises(SettingsError, match="reset_parameters"):
        factory_of(nn.Sequential(Free()))()
    with pytest.raises(SettingsError, match="Expected a network, or a function"):
        factory_of(3)
    with pytest.raises(SettingsError, match=r"builds a torch\.nn\.Module"):
        build(lambda: 3, 0)


# Layers


def test_weight_layers_come_in_the_order_in_which_they_run():
    assert weight_layers(Nested(), Batch((torch.zeros(2, 4),), {}, None)) == ["body.0", "head.out"]
    assert weight_layers(nn.Linear(4, 1), Batch((torch.zeros(2, 4),), {}, None)) == [""]


WIDENED = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), "2", (7, 4), (7, 6)),
    "nested": (Nested, "head.out", (7, 4), (7, 6)),
    "whole": (lambda: nn.Linear(4, 2), "", (7, 4), (7, 6)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(1, 2, 3, stride=2, padding=1, dilation=2, padding_mode="reflect", bias=False)),
        "0", (7, 1, 9, 9), (7, 6, 4, 4),
    ),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 2, 3, padding="same")), "0", (7, 3, 9), (7, 6, 9)),
}  # fmt: skip


@pytest.mark.parametrize(("make", "name", "shape", "expected"), WIDENED.values(), ids=WIDENED.keys())
def test_a_widened_network_has_more_outputs_and_is_otherwise_the_same(make, name, shape, expected):
    network = make().double()
    before = copy.deepcopy(network)
    wide = widen(network, name, 3)
    assert wide(torch.zeros(shape, dtype=torch.float64)).shape == expected
    old, new = before.get_submodule(name), wide.get_submodule(name)
    assert type(old) is type(new)
    assert (old.bias is None) == (new.bias is None)
    for key in ("stride", "padding", "dilation", "padding_mode", "kernel_size", "in_features"):
        assert getattr(old, key, None) == getattr(new, key, None)
    others = [key for key in before.state_dict() if not key.startswith(name)] if name else []
    assert all(torch.equal(before.state_dict()[key], wide.state_dict()[key]) for key in others)


@pytest.mark.parametrize("layer", [nn.Conv2d(2, 2, 1, groups=2), nn.ConvTranspose2d(2, 2, 1), nn.Bilinear(2, 2, 2)])
def test_other_last_layers_are_refused(layer):
    with pytest.raises(SettingsError, match="end in a Linear or Conv layer"):
        widen(nn.Sequential(layer), "0", 2)


# Conditions


def test_a_conditioned_linear_layer_is_one_with_a_further_input():
    network = with_condition(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)), "0")
    layer = network[0]
    wider = nn.Linear(5, 5)
    with torch.no_grad():
        wider.weight.copy_(torch.cat([layer.layer.weight, layer.shift.weight], 1))
        wider.bias.copy_(layer.layer.bias)
    x, tau = randn(7, 4), randn(7, 1, seed=1)
    with conditioned(tau):
        found = network(x)
    torch.testing.assert_close(found, network[2](torch.tanh(wider(torch.cat([x, tau], 1)))))
    steps, shared = randn(7, 3, 4), tau[:, None].expand(7, 3, 1)
    with conditioned(tau):
        found = network(steps)
    torch.testing.assert_close(found, network[2](torch.tanh(wider(torch.cat([steps, shared], 2)))))


def test_a_conditioned_convolution_has_a_constant_channel_more():
    layer = Conditioned(nn.Conv2d(3, 5, 1))
    wider = nn.Conv2d(4, 5, 1)
    with torch.no_grad():
        wider.weight.copy_(torch.cat([layer.layer.weight, layer.shift.weight[..., None, None]], 1))
        wider.bias.copy_(layer.layer.bias)
    x, tau = randn(7, 3, 4, 6), randn(7, 1, seed=1)
    with conditioned(tau):
        found = layer(x)
    torch.testing.assert_close(found, wider(torch.cat([x, tau[..., None, None].expand(7, 1, 4, 6)], 1)))


def test_a_condition_is_forgotten_when_its_context_ends_and_fits_any_precision():
    network = with_condition(nn.Sequential(nn.Linear(4, 5)).double(), "0")
    with conditioned(torch.full((1, 1), 0.5)):
        assert network(randn(3, 4).double()).dtype == torch.float64
    assert condition() is None


# Dropout


def test_masks_are_the_same_for_all_rows_and_follow_the_seed():
    layer = MaskDropout(0.3).eval()
    x = torch.ones(6, 50)
    assert torch.equal(layer(x), x)
    with sampling(4):
        first, second = layer(x), layer(x)
    with sampling(4):
        again = layer(x[:1])
    assert (first == first[:1]).all()
    assert not torch.equal(first, second)
    assert torch.equal(again, first[:1])
    assert set(first.unique().tolist()) == {0.0, (x[0, 0] / 0.7).item()}
    assert torch.equal(layer(x), x)


@pytest.mark.parametrize(("layer", "shape"), [(MaskDropout(0.3), (2, 5)), (ChannelMaskDropout(0.3), (2, 5, 3, 3))])
def test_masks_keep_the_mean(layer, shape):
    x, total = randn(*shape).abs() + 1, 0
    layer.eval()
    for seed in range(4000):
        with sampling(seed):
            total = total + layer(x)
    error = (total / 4000 / x - 1).abs().max()
    assert error < 5 * (0.3 / 0.7 / 4000) ** 0.5  # five standard errors


def test_channels_are_dropped_as_a_whole():
    layer = ChannelMaskDropout(0.5).eval()
    with sampling(0):
        kept = layer(torch.ones(3, 40, 4, 5)) != 0
    assert (kept == kept[:1, :, :1, :1]).all()
    assert 5 < kept[0, :, 0, 0].sum() < 35


@pytest.mark.parametrize(
    ("own", "torchs", "shape"),
    [(MaskDropout, nn.Dropout, (9, 8)), (ChannelMaskDropout, nn.Dropout2d, (9, 8, 3, 3))],
)
def test_training_is_torchs_own_dropout(own, torchs, shape):
    x = randn(*shape)
    with seeded(2):
        found = own(0.4).train()(x)
    with seeded(2):
        expected = torchs(0.4).train()(x)
    assert torch.equal(found, expected)


def test_dropout_goes_where_it_was_or_before_the_given_layers():
    own = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.1), nn.Dropout2d(0.3), nn.Linear(5, 2))
    changed = with_dropout(own, ["3"], 0.2)
    rates = [(type(m), m.p) for m in changed.modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    assert rates == [(MaskDropout, 0.1), (ChannelMaskDropout, 0.3)]
    plain = with_dropout(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), ["2"], 0.2)
    assert [type(m) for m in plain[2]] == [MaskDropout, nn.Linear]


def test_everything_is_dropped_at_rate_one():
    layer = MaskDropout(1.0).eval()
    with sampling(0):
        assert torch.equal(layer(torch.ones(2, 3)), torch.zeros(2, 3))


# Spectral norms


def spectral(weight):
    return torch.linalg.matrix_norm(weight.flatten(1), ord=2).item()


def test_the_bound_is_exact_at_the_start_and_small_weights_are_left():
    large, small = 10 * randn(6, 4), 0.01 * randn(6, 4)
    assert spectral(SpectralBound(large, 2.0)(large)) == pytest.approx(2, rel=1e-5)
    torch.testing.assert_close(SpectralBound(small, 2.0)(small), small)
    torch.testing.assert_close(SpectralBound(large, 2.0)(large), large * 2 / spectral(large))


def test_the_bound_holds_after_training():
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 6, 3), nn.Tanh(), nn.Flatten(), nn.Linear(24, 12), nn.Tanh(),
        nn.Linear(12, 1),
    )  # fmt: skip
    network = with_spectral_norm(network, ["1", "4"], 0.8).train()
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    x = randn(128, 16)
    y = 20 * x[:, :1].sign()
    for _ in range(150):
        optimiser.zero_grad()
        (network(x) - y).square().mean().backward()
        optimiser.step()
    for layer in (network.eval()[1], network[4]):
        assert spectral(layer.parametrizations.weight.original) > 1.2  # the bound did something
        assert spectral(layer.weight) == pytest.approx(0.8, rel=0.02)
    settle_spectral_norm(network)
    for layer in (network[1], network[4]):
        assert spectral(layer.weight) == pytest.approx(0.8, rel=1e-5)


def test_a_bounded_layer_may_run_twice_in_one_step():
    layer = with_spectral_norm(nn.Linear(4, 4), [""], 0.5).train()
    layer(layer(randn(3, 4))).sum().backward()
    assert layer.parametrizations.weight.original.grad.isfinite().all()
