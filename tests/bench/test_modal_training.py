"""Training networks of several modalities: the rate falls as torch has it, it stops early, and goes on when killed."""

from functools import partial

import pytest
import torch

from splitpoint.baselines import METHODS
from splitpoint.bench.modal_networks import late_fusion
from splitpoint.bench.modal_training import ModalSchedule, ModalTraining
from splitpoint.bench.modal_trials import Rows
from splitpoint.errors import SettingsError


def rows(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(3, (count,), generator=generator)
    views = {
        name: torch.randn(count, size, generator=generator) + labels[:, None] for name, size in (("a", 4), ("b", 2))
    }
    return Rows(views, labels, torch.arange(count))


def training(cache, schedule=None, seed=0, method="deep_ensemble"):
    train, validation = rows(64), rows(40, seed=1)
    prepared = METHODS[method]().prepared(partial(late_fusion, train.shapes, 3), train.data)
    schedule = schedule or ModalSchedule(epochs=4, batch_size=16)
    key = {"network": "all", "loss": method}
    return ModalTraining(prepared, seed, cache, key, "cpu", "views", train, validation, schedule)


@pytest.mark.parametrize("seed", range(4))
def test_the_rate_falls_as_torch_lets_it(seed):
    generator = torch.Generator().manual_seed(seed)
    losses = (1 + torch.rand(60, generator=generator)).cummin(0).values + 0.01 * torch.rand(60, generator=generator)
    schedule = ModalSchedule(learning_rate=0.1, plateau=3)
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, factor=0.33, patience=3, eps=0)
    for count, loss in enumerate(losses.tolist(), start=1):
        plateau.step(loss)
        assert schedule.rate(losses.tolist()[:count]) == pytest.approx(optimiser.param_groups[0]["lr"])


def test_steps_bound_the_passes():
    assert ModalSchedule(epochs=300, steps=240).passes(19) == 13
    assert ModalSchedule(epochs=5, steps=240).passes(19) == ModalSchedule(epochs=5).passes(19) == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": 0}, "epochs, patience, plateau and steps >= 1"),
        ({"steps": 0}, "steps >= 1"),
        ({"batch_size": 1}, "batch_size >= 2"),
        ({"learning_rate": 0.0}, "learning_rate > 0"),
        ({"factor": 0.0}, r"factor in \(0, 1\]"),
    ],
)
def test_schedules_that_cannot_be_are_refused(changes, message):
    with pytest.raises(SettingsError, match=message):
        ModalSchedule(**changes)


@pytest.mark.parametrize("method", ["deep_ensemble", "rcml"])
def test_a_killed_training_ends_in_the_same_weights(tmp_path, monkeypatch, method):
    monkeypatch.setattr(ModalTraining, "least_seconds", 0.0)
    whole = training(tmp_path / "whole", method=method).network(progress=False)
    run, epochs = ModalTraining._epoch, []

    def killed(self, stack, optimiser, log, count):
        epochs.append(len(log))
        if len(epochs) == 3:
            raise KeyboardInterrupt
        return run(self, stack, optimiser, log, count)

    monkeypatch.setattr(ModalTraining, "_epoch", killed)
    with pytest.raises(KeyboardInterrupt):
        training(tmp_path / "killed", method=method).network(progress=False)
    again = training(tmp_path / "killed", method=method).network(progress=False)
    assert epochs == [0, 1, 2, 2, 3]
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in whole.state_dict().items())


def test_it_learns_and_keeps_the_weights_of_the_lowest_validation_loss(tmp_path):
    once = training(tmp_path, ModalSchedule(epochs=60, learning_rate=1e-2, batch_size=16, patience=5))
    network, log = once.network(progress=False), once.log()
    losses = [epoch["held_out"] for epoch in log]
    assert len(log) == losses.index(min(losses)) + 6 < 60
    validation = rows(40, seed=1)
    loss = torch.nn.functional.cross_entropy(network(*validation.arguments), validation.labels)
    assert float(loss) == pytest.approx(min(losses), rel=1e-5)
    assert min(losses) < 0.6 * losses[0]
