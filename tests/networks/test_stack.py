"""Stacks: many networks at once are the networks one by one, in outputs, gradients and after training."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from splitpoint.networks.stack import BatchedStack, ListedStack, Stack, StackedDropout
from splitpoint.networks.surgery import ChannelMaskDropout, conditioned, with_condition

E, B, C, D = 3, 7, 4, 2


class Residual(nn.Module):
    """Linear layers with residual sums, products and functions instead of modules."""

    def __init__(self):
        super().__init__()
        self.first, self.inner = nn.Linear(C, 6), nn.Linear(6, 6, bias=False)
        self.last, self.shortcut = nn.Linear(6, D), nn.Linear(C, D)

    def forward(self, x):
        hidden = torch.tanh(self.first(x))
        hidden = hidden + F.gelu(self.inner(hidden)) * 0.5
        return self.last(hidden.relu()) - self.shortcut(x)


class Shared(nn.Module):
    """One layer that runs twice."""

    def __init__(self):
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(C, 6), nn.Linear(6, 6), nn.Linear(6, D)

    def forward(self, x):
        return self.last(self.inner(self.inner(self.first(x)).tanh()).tanh())


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(C, C), nn.Linear(C, C), nn.Linear(C, D)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.last(self.second(self.first(x).tanh()).tanh())


class Viewed(nn.Module):
    """A forward that looks at shapes."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(C, D)

    def forward(self, x):
        return self.last(x.view(len(x), -1)).squeeze(-1)


class Named(nn.Module):
    """A mapping instead of a tensor."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(C, D)

    def forward(self, x):
        return {"logits": self.last(x)}


class Free(nn.Module):
    """A parameter that belongs to no layer."""

    def __init__(self):
        super().__init__()
        self.last, self.scale = nn.Linear(C, D), nn.Parameter(torch.ones(D))

    def forward(self, x):
        return self.last(x) * self.scale


def mlp():
    return nn.Sequential(nn.Linear(C, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, D))


def image():
    return nn.Sequential(
        nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(12, D)
    )


BATCHED = {"mlp": mlp, "residual": Residual, "shared layer": Shared}
LISTED = {"conv and norm": image, "view": Viewed, "mapping": Named, "own parameter": Free, "tied weights": Tied}
batched = pytest.mark.parametrize("make", BATCHED.values(), ids=BATCHED.keys())
listed = pytest.mark.parametrize("make", LISTED.values(), ids=LISTED.keys())
every = pytest.mark.parametrize("make", [*BATCHED.values(), *LISTED.values()], ids=[*BATCHED, *LISTED])


def members(make, count=E):
    torch.manual_seed(0)
    return [make().double() for _ in range(count)]


def randn(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def alone(network, x):
    output = network(x)
    return output["logits"] if isinstance(output, dict) else output


@batched
def test_linear_layers_and_pointwise_functions_run_as_one_product(make):
    assert isinstance(Stack.of(members(make)), BatchedStack)
    assert isinstance(Stack.of(members(make, 1)), ListedStack)


@listed
def test_any_other_architecture_runs_member_by_member(make):
    assert isinstance(Stack.of(members(make)), ListedStack)


def test_frozen_layers_run_member_by_member_and_stay_frozen():
    networks = members(mlp)
    for network in networks:
        network[0].requires_grad_(False)
    stack = Stack.of(networks)
    assert isinstance(stack, ListedStack)
    assert sum(p.requires_grad for p in stack.parameters()) == E * 4


def test_hooked_networks_run_member_by_member():
    networks = members(mlp)
    networks[0][0].register_forward_hook(lambda *_: None)
    assert isinstance(Stack.of(networks), ListedStack)


@every
def test_outputs_and_gradients_are_those_of_each_network_alone(make):
    networks, x, weight = members(make), randn(E, B, C), randn(E, B, D, seed=2)
    stack = Stack.of(networks).eval()
    output = stack(x)
    (output * weight).sum().backward()
    for number, network in enumerate(networks):
        own = alone(network.eval(), x[number])
        torch.testing.assert_close(output[number], own)
        (own * weight[number]).sum().backward()
        for name, parameter in network.named_parameters():
            torch.testing.assert_close(gradient(stack, number, name), parameter.grad)


def gradient(stack, number, name):
    """Gradient of one parameter of one member."""
    if isinstance(stack, ListedStack):
        return stack.members[number].get_parameter(name).grad
    grad = stack.graph.get_parameter(name).grad[number]
    return grad.T if name.endswith("weight") else grad[0]


def test_rows_that_are_sequences_go_through_as_they_do_alone():
    networks, x = members(mlp), randn(E, B, 5, C)
    stack = Stack.of(networks).eval()
    expected = torch.stack([network.eval()(own) for network, own in zip(networks, x, strict=True)])
    torch.testing.assert_close(stack(x), expected)


@every
def test_networks_come_back_as_they_went_in(make):
    networks = members(make)
    for before, after in zip(networks, Stack.of(networks).networks(), strict=True):
        assert type(before) is type(after)
        assert after is not before
        states = before.state_dict(), after.state_dict()
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_stack_does_not_touch_the_networks_it_was_made_of():
    networks = members(mlp)
    kept = [copy.deepcopy(network.state_dict()) for network in networks]
    stack = Stack.of(networks)
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.add_(1)
    for network, state in zip(networks, kept, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())


OPTIMISERS = {
    "adam": lambda p: torch.optim.Adam(p, 1e-2, weight_decay=1e-3),
    "sgd": lambda p: torch.optim.SGD(p, 1e-2, momentum=0.9, nesterov=True, weight_decay=1e-3),
}


def train(network, batches, optimiser):
    for x, y in batches:
        optimiser.zero_grad()
        output = network(x)
        output = output["logits"] if isinstance(output, dict) else output
        (output - y).square().mean((-1, -2)).sum().backward()
        optimiser.step()


@pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=OPTIMISERS.keys())
@pytest.mark.parametrize("make", [Residual, Shared, Tied, image, Named, Free])
def test_training_a_stack_is_training_each_network_alone(make, optimiser):
    networks = members(make)
    batches = [(randn(E, B, C, seed=i), randn(E, B, D, seed=100 + i)) for i in range(25)]
    stack = Stack.of(networks).train()
    train(stack, batches, optimiser(stack.parameters()))
    for number, (network, found) in enumerate(zip(networks, stack.networks(), strict=True)):
        own = [(x[number], y[number]) for x, y in batches]
        train(network.train(), own, optimiser(network.parameters()))
        for name, value in network.state_dict().items():
            torch.testing.assert_close(found.state_dict()[name], value, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("make", [mlp, image], ids=["batched", "listed"])
def test_every_member_has_its_own_condition(make):
    networks, tau = [with_condition(net, "0" if make is mlp else "1").eval() for net in members(make)], randn(E, B, 1)
    x = randn(E, B, C)
    stack = Stack.of(networks).eval()
    assert isinstance(stack, BatchedStack) == (make is mlp)
    with conditioned(tau):
        found = stack(x)
    for number, network in enumerate(networks):
        with conditioned(tau[number]):
            torch.testing.assert_close(found[number], network(x[number]))


# Dropout of a stack


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.5, 0.9])
def test_dropout_drops_its_share_of_independent_numbers_and_keeps_the_mean(rate):
    torch.manual_seed(0)
    rounds, rows = 400, 499  # an odd number: the bits come four at a time
    layer, x = StackedDropout(rate), torch.ones(rows)
    found = torch.stack([layer(x) for _ in range(rounds)])
    values = found.unique()
    assert values.tolist() == pytest.approx([0.0, 1 / (1 - rate)], rel=1e-4)
    dropped = (found == 0).double()
    deviation = (rate * (1 - rate)) ** 0.5
    assert dropped.mean() == pytest.approx(rate, abs=5 * deviation / (rounds * rows) ** 0.5)
    assert (dropped.mean(0) - rate).abs().max() < 5 * deviation / rounds**0.5
    for lag in range(1, 5):
        ahead, behind = dropped[:, lag:] - rate, dropped[:, :-lag] - rate
        assert abs((ahead * behind).mean()) < 5 * deviation**2 / (rounds * (rows - lag)) ** 0.5


def test_dropout_lets_gradients_through_where_it_keeps():
    torch.manual_seed(0)
    x = torch.ones(5, 6, requires_grad=True)
    found = StackedDropout(0.5)(x)
    found.sum().backward()
    assert torch.equal(x.grad, found)


def test_dropout_at_rate_one_leaves_nothing():
    assert torch.equal(StackedDropout(1.0)(torch.randn(1000)).abs(), torch.zeros(1000))


@pytest.mark.parametrize(("rate", "training"), [(0.5, False), (0.0, True)])
def test_dropout_is_nothing_in_eval_mode_or_at_rate_zero(rate, training):
    x = torch.randn(4, 5)
    assert torch.equal(StackedDropout(rate).train(training)(x), x)


def test_dropout_of_channels_runs_member_by_member():
    networks = [nn.Sequential(nn.Linear(C, 8), ChannelMaskDropout(0.5), nn.Linear(8, D)) for _ in range(E)]
    assert isinstance(Stack.of(networks), ListedStack)
