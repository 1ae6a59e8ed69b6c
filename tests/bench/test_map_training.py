"""Training networks for maps: it learns, stops early, is found again, and a killed one ends in the same weights."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from rooms import SIZE, rooms
from splitpoint.baselines import METHODS
from splitpoint.bench import map_training
from splitpoint.bench.map_training import MapSchedule, MapTraining, Parts, augmented
from splitpoint.bench.unet import UNet
from splitpoint.datasets.depth_scale import Metres
from splitpoint.datasets.scene_set import Depths, SceneSet, StoredPhotographs
from splitpoint.errors import SettingsError

SCHEDULE = MapSchedule(3, 5e-3, batch_size=8)
SMALL = partial(UNet, 2, "batch")


def scenes(count, seed=0, depths=None):
    images, known = rooms(count, seed=seed)
    stored = Depths((known if depths is None else depths).astype(np.float32), Metres())
    names, places = tuple(map(str, range(count))), torch.arange(count)
    return SceneSet("rooms", StoredPhotographs(images, SIZE), stored, places, names, SIZE, places)


def training(cache, parts=None, schedule=SCHEDULE, method="gaussian", **changes):
    parts = parts or Parts(scenes(24), scenes(8, seed=1))
    prepared = METHODS[method]().prepared(SMALL, parts.train)
    own = {"seed": 0, "key": {"network": "small"}, "device": "cpu"} | changes
    return MapTraining(prepared, cache=cache, parts=parts, schedule=schedule, **own)


def same(first, second):
    one, other = first.state_dict(), second.state_dict()
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_it_learns_rooms(tmp_path):
    parts = Parts(scenes(48), scenes(16, seed=1))
    once = training(tmp_path, parts, replace(SCHEDULE, epochs=25, learning_rate=2e-2))
    network = once.network(progress=False)
    center, spread = (once.prepared.trainer.targets[0][name] for name in ("center", "spread"))
    images, target = parts.held_out.tensors()
    error = (center + spread * network(images)[:, :1] - target).square().mean()
    assert error < 0.5 * (target - center).square().mean()
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())


def test_the_log_tells_every_epoch_and_the_same_training_is_found_again(tmp_path, monkeypatch):
    once = training(tmp_path)
    assert once.log() == []
    network = once.network(progress=False)
    assert [line["epoch"] for line in once.log()] == [1, 2, 3]
    assert all(line["cpu_seconds"] > 0 and np.isfinite(line["held_out"]) for line in once.log())
    monkeypatch.setattr(MapTraining, "_epoch", None)
    assert same(network, training(tmp_path).network(progress=False))


@pytest.mark.parametrize("changes", [{"seed": 1}, {"method": "evidential_regression"}, {"key": {"network": "other"}}])
def test_another_training_is_another(tmp_path, changes):
    assert training(tmp_path)._checkpoint.path != training(tmp_path, **changes)._checkpoint.path


@pytest.mark.parametrize("method", ["gaussian", "mc_dropout", "sqr_oc"])
def test_a_killed_training_ends_in_the_same_weights(tmp_path, monkeypatch, method):
    whole = training(tmp_path / "whole", method=method).network(progress=False)
    epochs, run = [], MapTraining._epoch

    def killed(self, *parts):
        epochs.append(len(parts[-2]))
        if len(epochs) == 3:
            raise KeyboardInterrupt
        return run(self, *parts)

    monkeypatch.setattr(MapTraining, "_epoch", killed)
    with pytest.raises(KeyboardInterrupt):
        training(tmp_path / "killed", method=method).network(progress=False)
    assert list((tmp_path / "killed").glob("*.state.safetensors"))
    again = training(tmp_path / "killed", method=method).network(progress=False)
    assert epochs == [0, 1, 2, 2], "it went on where it was"
    assert same(whole, again)
    assert not list((tmp_path / "killed").glob("*.state.safetensors"))


def test_it_stops_by_the_held_out_images_and_keeps_the_best_weights(tmp_path, monkeypatch):
    losses = iter([3.0, 1.0, 2.0, 2.5, 0.5])
    seen = []

    def held_out(self, stack):
        seen.append({name: value.clone() for name, value in stack.members[0].state_dict().items()})
        return next(losses)

    monkeypatch.setattr(MapTraining, "_held_out", held_out)
    once = training(tmp_path, schedule=replace(SCHEDULE, epochs=9, patience=2))
    network = once.network(progress=False)
    assert [line["held_out"] for line in once.log()] == [3.0, 1.0, 2.0, 2.5]
    assert all(torch.equal(value, seen[1][name]) for name, value in network.state_dict().items())


def test_pixels_without_a_depth_teach_nothing(tmp_path):
    _, known = rooms(24)
    known[:, :, SIZE[1] // 2 :] = np.nan
    network = training(tmp_path, Parts(scenes(24, depths=known), scenes(8, seed=1))).network(progress=False)
    assert all(value.isfinite().all() for value in network.state_dict().values())


def test_images_and_maps_are_mirrored_together_and_only_images_get_brighter():
    images = torch.rand(64, 3, 4, 6) * 0.5 + 0.2
    maps = images.mean(1, keepdim=True)
    found, moved = augmented(images, maps, torch.Generator().manual_seed(0))
    flipped = (moved == maps.flip(3)).flatten(1).all(1)
    assert ((moved == maps).flatten(1).all(1) ^ flipped).all()
    assert 16 < flipped.sum() < 48
    light = found.mean(1, keepdim=True) / moved
    assert (light.flatten(1).std(1) < 1e-4).all(), "one factor for all pixels of an image"
    assert 1 - map_training.BRIGHTNESS <= light.min() < 0.9 < 1.1 < light.max() <= 1 + map_training.BRIGHTNESS + 1e-6


def test_rates_rise_and_fall():
    schedule = MapSchedule(10, 1.0, rise=0.1)
    assert [round(schedule.rate(part), 3) for part in (0.0, 0.05, 0.1, 0.55, 1.0)] == [0, 0.5, 1, 0.5, 0]
    assert MapSchedule(None, 0.5, rise=0.0, iterations=10).rate(0.7) == 0.5
    assert [MapSchedule(None, 1.0, iterations=10).passes(steps) for steps in (10, 4)] == [1, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterations": 5}, "either epochs or iterations, but got 3 and 5"),
        ({"epochs": None}, "either epochs or iterations"),
        ({"epochs": 0}, "at least one epoch"),
        ({"patience": 0}, "patience >= 1"),
        ({"learning_rate": 0.0}, "learning_rate > 0"),
        ({"rise": 1.0}, r"rise in \[0, 1\)"),
    ],
)
def test_schedules_that_cannot_be_are_refused(changes, message):
    with pytest.raises(SettingsError, match=message):
        replace(SCHEDULE, **changes)
