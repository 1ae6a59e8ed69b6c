"""Training from scratch: what a member sees in an epoch, how long and how fast it learns, and what it ends as."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from splitpoint.errors import DataError, SettingsError
from splitpoint.networks.training import ArrayFeed, NetworkTraining, StreamFeed, feed_of, train_stack

NETWORK = nn.Linear(1, 1)


def rows(count, first=0):
    """Rows that can be told apart: the input is the row's number, the target its negative."""
    x = torch.arange(first, first + count).float()[:, None]
    return x, -x


def seen(feed):
    """Row numbers (E, steps * B) of one epoch; inputs and targets must belong together."""
    batches = list(feed.epoch())
    assert len(batches) == feed.steps
    assert all(torch.equal(batch.args[0], -batch.target) for batch in batches)
    return torch.cat([batch.args[0][..., 0] for batch in batches], 1)


class Numbers(Dataset):
    def __init__(self, count):
        self.x, self.y = rows(count)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index]


# Batches


@pytest.mark.parametrize(("count", "size", "steps"), [(12, 4, 3), (10, 4, 3), (3, 64, 1), (129, 64, 3)])
def test_every_row_comes_once_per_epoch_up_to_the_fill(count, size, steps):
    data = rows(count)
    feed = feed_of([data] * 3, size, NETWORK, [0, 1, 2])
    assert isinstance(feed, ArrayFeed)
    assert feed.steps == steps
    for _ in range(2):
        for own in seen(feed):
            assert sorted(own[:count].tolist()) == list(range(count))
            assert own[count:].tolist() == own[: len(own) - count].tolist()


def test_batches_do_not_depend_on_how_many_are_gathered_together(monkeypatch):
    data = rows(50)
    together = seen(feed_of([data] * 2, 8, NETWORK, [0, 1]))
    for numbers in (1, 2 * 2 * 8 * 3):
        monkeypatch.setattr("splitpoint.networks.training.GATHERED", numbers)
        assert torch.equal(seen(feed_of([data] * 2, 8, NETWORK, [0, 1])), together)


def test_members_have_orders_of_their_own_that_follow_the_seed():
    data = rows(50)
    first, again, other = (seen(feed_of([data] * 2, 10, NETWORK, [seed, seed + 1])) for seed in (0, 0, 7))
    assert torch.equal(first, again)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], other[0])
    feed = feed_of([data], 10, NETWORK, [0])
    assert not torch.equal(seen(feed), seen(feed))  # another order in the next epoch


def test_members_see_their_own_data_and_small_sets_come_round_again():
    feed = feed_of([rows(12), rows(5, first=100)], 4, NETWORK, [0, 1])
    large, small = seen(feed)
    assert sorted(large.tolist()) == list(range(12))
    assert set(small.tolist()) == set(range(100, 105))
    assert sorted(small[:5].tolist()) == list(range(100, 105))


FORMS = {
    "pair": rows(10),
    "numpy": tuple(part.numpy() for part in rows(10)),
    "tensor dataset": TensorDataset(*rows(10)),
    "dataset": Numbers(10),
    "loader": DataLoader(Numbers(10), 4, shuffle=True),
    "batches": [tuple(part[i : i + 4] for part in rows(10)) for i in (0, 4, 8)],
}


@pytest.mark.parametrize("data", FORMS.values(), ids=FORMS.keys())
def test_data_come_in_any_form(data):
    feed = feed_of([data, data], 4, NETWORK, [0, 1])
    assert feed.steps == 3
    for own in seen(feed):
        assert set(own.tolist()) == set(range(10))


def test_named_columns_come_as_named_arguments():
    x, y = rows(6)
    (batch,) = feed_of([{"x": x, "labels": y}], 8, NETWORK, [0]).epoch()
    assert sorted(batch.kwargs) == ["x"]
    assert torch.equal(batch.kwargs["x"], -batch.target)
    assert batch.target.shape == (1, 6, 1)


def test_a_shuffling_loader_shuffles_for_every_member_and_epoch():
    loader = DataLoader(Numbers(20), 4, shuffle=True, generator=torch.Generator().manual_seed(0))
    feed = feed_of([loader, loader], 4, NETWORK, [0, 1])
    assert isinstance(feed, StreamFeed)
    first, second = seen(feed), seen(feed)
    assert all(sorted(own.tolist()) == list(range(20)) for own in (*first, *second))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], second[0])


def test_a_pass_over_streams_ends_with_the_shortest():
    long, short = DataLoader(Numbers(12), 4), DataLoader(Numbers(6), 4)
    sizes = [tuple(batch.target.shape) for batch in feed_of([long, short], 4, NETWORK, [0, 1]).epoch()]
    assert sizes == [(2, 4, 1), (2, 2, 1)]


def test_data_that_cannot_be_read_again_are_refused():
    with pytest.raises(DataError, match="once per epoch"):
        feed_of([iter([rows(4)])], 4, NETWORK, [0])
    with pytest.raises(DataError, match="at least two rows"):
        feed_of([rows(1)], 4, NETWORK, [0])
    with pytest.raises(DataError, match="no batch"):
        feed_of([DataLoader(Numbers(0), 4)], 4, NETWORK, [0])


# Settings


@pytest.mark.parametrize(
    ("steps", "epochs"), [(1, 2000), (4, 500), (5, 400), (6, 400), (50, 400), (100, 200), (20_000, 1), (10**6, 1)]
)
def test_default_epochs_are_400_but_2000_to_20000_steps(steps, epochs):
    assert NetworkTraining().epochs_for(steps) == epochs
    assert NetworkTraining(epochs=3).epochs_for(steps) == 3


def test_the_rate_is_divided_by_ten_at_every_milestone():
    settings = NetworkTraining(learning_rate=1.0, milestones=(0.5, 0.75))
    assert [settings.rate(part) for part in (0, 0.49, 0.5, 0.74, 0.75, 1)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01]
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0}, {"batch_size": 0}, {"learning_rate": 0.0}, {"learning_rate": math.nan}, {"weight_decay": -1.0},
        {"optimiser": "lbfgs"}, {"milestones": (1.5,)},
    ],
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(SettingsError, match="Expected"):
        NetworkTraining(**wrong)


# Training


def squared(stack, batch, _part):
    return (stack(*batch.args) - batch.target).square().mean((1, 2))


def regression(count=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator)
    return x, x @ torch.tensor([[1.0], [-2.0], [0.5]]) + 3


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_linear_networks_find_the_line(optimiser):
    settings = NetworkTraining(epochs=100, learning_rate=0.1, optimiser=optimiser, batch_size=16, milestones=(0.8,))
    data = regression()
    for network in train_stack(
        [nn.Linear(3, 1), nn.Linear(3, 1)], [data] * 2, squared, settings, seeds=[0, 1], progress=False
    ):
        torch.testing.assert_close(network.weight, torch.tensor([[1.0, -2.0, 0.5]]), atol=1e-3, rtol=0)
        assert network.bias.item() == pytest.approx(3, abs=1e-3)
        assert not network.training
        assert not any(p.requires_grad for p in network.parameters())


@pytest.mark.parametrize("optimiser", ["adam", "sgd"])
def test_training_is_a_loop_that_anyone_would_write(optimiser):
    """One batch per epoch, so that the order of rows does not matter."""
    torch.manual_seed(0)
    networks = [nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)) for _ in range(3)]
    data = [regression(seed=seed) for seed in range(3)]
    settings = NetworkTraining(epochs=40, learning_rate=0.02, weight_decay=0.01, optimiser=optimiser, milestones=(0.5,))
    found = train_stack(networks, data, squared, settings, seeds=range(len(networks)), progress=False)
    for network, (x, y), trained in zip(networks, data, found, strict=True):
        make = {
            "adam": lambda p: torch.optim.Adam(p, 0.02, weight_decay=0.01),
            "sgd": lambda p: torch.optim.SGD(p, 0.02, momentum=0.9, nesterov=True, weight_decay=0.01),
        }[optimiser]
        own = make(network.parameters())
        schedule = torch.optim.lr_scheduler.MultiStepLR(own, [20], 0.1)
        for _ in range(40):
            own.zero_grad()
            (network(x) - y).square().mean().backward()
            own.step()
            schedule.step()
        for name, value in network.state_dict().items():
            torch.testing.assert_close(trained.state_dict()[name], value, rtol=1e-3, atol=1e-4)


def test_training_repeats_itself_and_leaves_the_global_random_state():
    def run():
        network = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.fill_(0.1)
        settings = NetworkTraining(epochs=3, batch_size=8)
        return train_stack([network, network], [regression()] * 2, squared, settings, seeds=[5, 6], progress=False)

    torch.manual_seed(1)
    first = run()
    torch.manual_seed(2)
    again = run()
    for a, b in zip(first, again, strict=True):
        assert all(torch.equal(v, b.state_dict()[k]) for k, v in a.state_dict().items())
    state = torch.get_rng_state()
    train_stack([NETWORK], [rows(4)], squared, NetworkTraining(epochs=1), seeds=[0], progress=False)
    assert torch.equal(state, torch.get_rng_state())


def test_the_loss_is_told_how_much_of_the_training_is_done():
    told = []

    def loss(stack, batch, part):
        told.append(part)
        return squared(stack, batch, part)

    train_stack([NETWORK], [rows(8)], loss, NetworkTraining(epochs=2, batch_size=4), seeds=[0], progress=False)
    assert told == [0, 0.25, 0.5, 0.75]
