"""Training image classifiers: it learns, it is found again, and a killed one ends in the same weights."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from torch import nn

from splitpoint.baselines.evidential_classification import EvidentialClassification
from splitpoint.bench.training import PAPER, Schedule, Training, augmented, cross_entropy
from splitpoint.errors import DataError, SettingsError
from splitpoint.files import digest

SCHEDULE = Schedule(3, 0.05, batch_size=16, nesterov=True, decay="one_cycle", augment=True)


@dataclass
class Squares:
    """Images (3, 12, 12) whose brightest channel is their class; reading more than `limit` batches is an error."""

    name: str = "bright squares"
    count: int = 65
    limit: float = math.inf
    pause: float = 0.0
    shape: tuple[int, int, int] = (3, 12, 12)

    def __post_init__(self):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.randint(3, (self.count,), generator=generator)
        self.bytes = torch.randint(100, (self.count, *self.shape), generator=generator, dtype=torch.uint8)
        self.bytes[torch.arange(self.count), self.labels] += 60
        self.reads = 0

    def digest(self):
        return digest([self.labels, self.bytes])

    def pixels(self, places):
        self.reads += 1
        time.sleep(self.pause)
        if self.reads > self.limit:
            raise KeyboardInterrupt
        return self.bytes[places]


def small():
    """A network with all that has a state of its own: batch norm, and dropout, which draws global random numbers."""
    conv, grouped = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 3, stride=2, groups=2)
    return nn.Sequential(
        conv, nn.BatchNorm2d(8), nn.ReLU(), grouped, nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(200, 3)
    )


def trained(cache, data=None, schedule=SCHEDULE, progress=False, **changes):
    settings = {"seed": 0, "key": {"network": "small"}} | changes
    return Training(small, data or Squares(), schedule, cache=cache, **settings).network(progress)


def same(first, second):
    one, other = first.state_dict(), second.state_dict()
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_it_learns_a_toy_problem(tmp_path):
    data = Squares(count=200)
    network = trained(tmp_path, data, replace(SCHEDULE, epochs=8))
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())
    logits = network(data.bytes.float().div(255))
    assert (logits.argmax(1) == data.labels).float().mean() > 0.95


def test_the_log_tells_every_epoch(tmp_path):
    training = Training(small, Squares(), SCHEDULE, 0, tmp_path, {"network": "small"})
    assert training.log() == []
    training.network(progress=False)
    log = training.log()
    assert [line["epoch"] for line in log] == [1, 2, 3]
    assert log[-1]["loss"] < log[0]["loss"]
    assert all(0 <= line["accuracy"] <= 1 and line["cpu_seconds"] > 0 for line in log)
    (written,) = tmp_path.glob("*.json")
    assert json.loads(written.read_text())["settings"]["schedule"]["epochs"] == 3
    assert written.name.startswith("bright_squares-small-")


def test_the_same_settings_are_trained_once(tmp_path):
    first, again = Squares(), Squares()
    network = trained(tmp_path, first)
    assert first.reads == 12
    assert same(network, trained(tmp_path, again))
    assert again.reads == 0
    images = first.bytes.float().div(255)
    assert torch.equal(network(images), trained(tmp_path, again)(images))


def test_the_weights_depend_on_the_seed_alone(tmp_path):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = trained(tmp_path / "a")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert same(first, trained(tmp_path / "b"))
    assert not same(first, trained(tmp_path / "c", seed=1))


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"key": {"network": "small", "width": 2}},
        {"data": Squares(count=40)},
        {"schedule": replace(SCHEDULE, learning_rate=0.04)},
        {"data": Squares(name="other")},
        {"loss": EvidentialClassification()._loss},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_settings_are_trained_anew(tmp_path, change):
    trained(tmp_path)
    trained(tmp_path, **change)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_settings_of_a_loss_count(tmp_path):
    trained(tmp_path, loss=EvidentialClassification()._loss)
    trained(tmp_path, loss=EvidentialClassification(regulariser=0.1)._loss)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


def test_other_labels_of_the_same_images_are_trained_anew(tmp_path):
    trained(tmp_path)
    noisy = Squares()
    noisy.labels = noisy.labels.flip(0)
    trained(tmp_path, noisy)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2


@pytest.mark.parametrize("reads", [2, 4, 6, 8, 11])
def test_a_training_that_stopped_goes_on_to_the_same_weights(tmp_path, reads):
    undisturbed = trained(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "resumed", Squares(limit=reads))
    rest = Squares()
    assert same(undisturbed, trained(tmp_path / "resumed", rest))
    assert rest.reads == 12 - 4 * (reads // 4)
    assert {path.suffixes[0] for path in (tmp_path / "resumed").iterdir()} == {".json", ".safetensors"}


KILLED = """
import sys
from pathlib import Path
from test_training import Squares, trained
trained(Path(sys.argv[1]), Squares(pause=0.2))
"""


@pytest.mark.slow
def test_a_killed_training_goes_on_to_the_same_weights(tmp_path):
    tests = Path(__file__).parent
    env = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tests.parents[1] / "src", tests, tests.parent)))}
    process = subprocess.Popen([sys.executable, "-c", KILLED, tmp_path / "killed"], env=env)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("killed/*.state.safetensors")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    rest = Squares()
    resumed = trained(tmp_path / "killed", rest)
    assert 0 < rest.reads < 12
    assert same(resumed, trained(tmp_path / "whole"))


@pytest.mark.parametrize("finished", [True, False])
def test_a_damaged_checkpoint_is_trained_anew_with_a_warning(tmp_path, finished):
    undisturbed = trained(tmp_path / "whole")
    if finished:
        trained(tmp_path / "damaged")
    else:
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path / "damaged", Squares(limit=5))
    (path,) = (tmp_path / "damaged").glob("*.safetensors")
    content = path.read_bytes()
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with pytest.warns(UserWarning, match="cannot be trusted"):
        again = trained(tmp_path / "damaged")
    assert same(again, undisturbed)
    assert same(trained(tmp_path / "damaged"), undisturbed)


def test_other_images_with_the_same_labels_are_another_training(tmp_path):
    first = trained(tmp_path)
    other = Squares()
    other.bytes[:] = other.bytes.flip(2)
    assert not same(trained(tmp_path, other), first)


def test_labels_that_the_network_does_not_have(tmp_path):
    data = Squares()
    data.labels[30:] = 7
    with pytest.raises(DataError, match=r"labels 0 to 7, but the network gave \(16, 3\)"):
        trained(tmp_path, data)


def test_augmentation_crops_and_mirrors_every_image_on_its_own():
    height, width = torch.arange(8).repeat(8, 1).T, torch.arange(8).repeat(8, 1)
    image = (10 * (height + 1) + width + 1).to(torch.uint8)
    images = image.expand(200, 2, 8, 8)
    found = augmented(images, torch.Generator().manual_seed(0))
    assert found.shape == images.shape
    assert found.dtype == torch.uint8
    assert torch.equal(found[:, 0], found[:, 1])
    padded = nn.functional.pad(image, (4,) * 4)
    crops = [padded[i : i + 8, j : j + 8] for i in range(9) for j in range(9)]
    possible = torch.stack([side for crop in crops for side in (crop, crop.flip(1))])
    places = [int((possible == one).flatten(1).all(1).nonzero()[0, 0]) for one in found[:, 0]]
    assert len(set(places)) > 100
    assert 70 < sum(place % 2 for place in places) < 130


def test_without_augmentation_images_come_as_they_are(tmp_path):
    seen = []

    class Watching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3 * 12 * 12, 3)

        def forward(self, x):
            seen.append(x)
            return self.layer(x.flatten(1))

    data = Squares()
    plain = replace(SCHEDULE, augment=False, epochs=1)
    Training(Watching, data, plain, seed=0, cache=tmp_path, key={}).network(progress=False)
    expected = data.bytes.float().div(255).flatten(1)
    found = torch.cat(seen).flatten(1)
    assert len(found) == 64  # the last image would be a batch of its own
    assert ((found[:, None] == expected).all(2).sum(1) == 1).all()


def test_the_learning_rate_follows_the_schedule():
    rates = [PAPER.rate(epoch / 350) for epoch in (0, 149, 150, 249, 250, 349)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])
    cycle = Schedule(10, 0.2, decay="one_cycle")
    assert [cycle.rate(part) for part in (0, 0.15, 0.3, 0.65, 1)] == pytest.approx([0, 0.1, 0.2, 0.1, 0])


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 0},
        {"batch_size": 1},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"weight_decay": -1.0},
        {"momentum": 1.0},
        {"momentum": 0.0},
        {"decay": "cosine"},
        {"milestones": (150.0,)},
    ],
    ids=str,
)
def test_settings_out_of_range(change):
    with pytest.raises(SettingsError, match="Expected"):
        replace(SCHEDULE, **change)


def test_one_image_is_too_few(tmp_path):
    with pytest.raises(DataError, match="Expected at least two images to train on, but got 1"):
        trained(tmp_path, Squares(count=1))


def test_a_loss_without_a_name_and_one_that_diverges(tmp_path):
    with pytest.raises(SettingsError, match="Expected the loss to be a named function"):
        trained(tmp_path, loss=lambda logits, labels, part: cross_entropy(logits, labels, part))

    def infinite(logits, labels, part):
        return cross_entropy(logits, labels, part) * (math.inf if part > 0.4 else 1)

    with pytest.raises(SettingsError, match="Expected a finite loss, but epoch 2 gave"):
        trained(tmp_path, loss=infinite)
    assert not [path for path in tmp_path.glob("*.safetensors") if ".state" not in path.name]


def test_a_bar_tells_the_loss(tmp_path, capsys):
    trained(tmp_path, progress=True)
    assert "epoch 3/3, loss" in capsys.readouterr().err
