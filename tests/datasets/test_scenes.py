"""Loading and splitting sets of scenes. Tests of real files are skipped where SPLITPOINT_DATA lacks them."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from image_files import noise_images
from scene_files import SIZE, authors_part, road, small_nyu
from splitpoint.datasets import SETS, inventory, scenes
from splitpoint.datasets.download import download
from splitpoint.datasets.entry import VARIABLE, Form, locate
from splitpoint.errors import DataError, SettingsError


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder with the small labelled NYU set (30 + 10 scenes in runs of 3 and 1) and five images of CamVid."""
    test = np.arange(3, 40, 4)
    train = np.setdiff1d(np.arange(40), test)
    big = {"rgb": noise_images(40, (*SIZE, 3)), "depth": np.full((40, *SIZE), 50, np.uint8)}
    small_nyu(tmp_path / "nyu_64x80.npz", train, test, **big)
    np.savez(tmp_path / "camvid_64x80.npz", rgb=noise_images(5, (*SIZE, 3)), name=[f"a_{n}.png" for n in range(5)])
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def test_sets_are_found_and_read(data):
    train, test = scenes.load("nyu_depth", "train"), scenes.load("nyu_depth", "test", size=(3, 4))
    assert (len(train), train.shape, len(test), test.shape) == (30, (3, *SIZE), 10, (3, 3, 4))
    assert test[0][1].flatten().tolist() == pytest.approx([2.0] * 12)
    found = scenes.load("camvid", "test", size=(12, 16))
    assert (found.name, len(found), found[0][0].shape) == ("camvid", 5, (3, 12, 16))


def test_the_preferred_form_wins(data):
    road(data / "701_StillsRaw_full", ["a_0.png", "a_1.png"])
    assert len(scenes.load("camvid", "test")) == 2
    pytest.importorskip("h5py", reason="h5py, which reads HDF5 files, is not installed")
    for part, count in (("train", 4), ("test", 3)):
        authors_part(data / "nyu_depth", part, count)
    assert [len(scenes.load("nyu_depth", part)) for part in ("train", "test")] == [4, 3]


def test_what_is_not_there_says_what_to_do(data):
    with pytest.raises(
        DataError, match=r"Expected to find apolloscape_test.h5 or apolloscape, but .*; put apolloscape_"
    ):
        scenes.load("apolloscape", "test")
    with pytest.raises(DataError, match="Expected the part 'test' of camvid, which has no other, but got 'train'"):
        scenes.load("camvid", "train")
    with pytest.raises(SettingsError, match="Expected the part 'train' or 'test' of nyu_depth, but got 'val'"):
        scenes.load("nyu_depth", "val")
    with pytest.raises(SettingsError, match=r"a set of scenes among nyu_depth, .*, kitti_road, but got 'mnist'"):
        scenes.load("mnist", "test")


def test_no_run_of_images_is_divided(data):
    parts = scenes.splits("nyu_depth", held_out=0.2, calibration=0.2, seed=1)
    learned = (parts.train, parts.held_out, parts.calibration)
    assert [len(part) for part in learned] == [18, 6, 6]
    owners = [set(part.groups.tolist()) for part in learned]
    assert sorted(map(len, owners)) == [2, 2, 6]
    assert set.union(*owners) == set(range(10))
    assert sorted(name for part in (*learned, parts.test) for name in part.names) == [f"{n:05d}" for n in range(1, 41)]
    assert torch.equal(parts.test.rows, torch.arange(3, 40, 4))


def test_the_seed_alone_decides_what_is_held_out(data):
    def held_out(seed):
        return scenes.splits("nyu_depth", seed=seed).held_out.names

    before = torch.get_rng_state()
    assert held_out(0) == held_out(0)
    assert len({held_out(seed) for seed in range(6)}) > 1
    assert torch.equal(torch.get_rng_state(), before)


def test_all_parts_have_the_size_that_is_asked_for(data):
    parts = scenes.splits("nyu_depth", size=(2, 3))
    assert {part.size for part in (parts.train, parts.held_out, parts.calibration, parts.test)} == {(2, 3)}


def test_shares_that_leave_nothing_are_refused(data):
    for held_out, calibration in ((0.0, 0.1), (0.1, 0.0), (0.5, 0.5)):
        with pytest.raises(SettingsError, match=f"shares above 0 that leave .*, but got {held_out} and {calibration}"):
            scenes.splits("nyu_depth", held_out=held_out, calibration=calibration)


# Commands


def test_sets_of_scenes_are_listed_and_checked(data, monkeypatch):
    found = {each.name: each for each in inventory.survey(scenes.SCENES)}
    assert found["nyu_depth"].size == "1,449 x 64 x 80 x 3"
    assert found["apolloscape"].path is None
    checked = {each.name: each for each in inventory.check(["nyu_depth", "camvid"])}
    assert "its array rgb has others; put" in checked["nyu_depth"].damage
    assert checked["camvid"].verdict == "DAMAGED"
    with pytest.raises(
        DataError, match=r"Expected camvid in .*701_StillsRaw_full, but it cannot be downloaded; put the"
    ):
        download("camvid", data)


def test_what_has_the_right_files_and_not_what_must_be_in_them_is_damaged(data):
    road(data / "701_StillsRaw_full", ["a_0.png", "a_1.png"])
    (found,) = inventory.check(["camvid"])
    assert "Expected camvid to have 701 files *.png, but" in found.damage
    road(data / "apolloscape", ["a.jpg"])
    assert [each.verdict for each in inventory.check(["apolloscape"])] == ["whole"]
    (data / "apolloscape" / "a.jpg").write_bytes(b"no image")
    (found,) = inventory.check(["apolloscape"])
    assert "a.jpg to hold an image" in found.damage
    pytest.importorskip("h5py", reason="h5py, which reads HDF5 files, is not installed")
    authors_part(data / "nyu_depth", "train", 2)
    assert "to have 1 files depth_test.h5, but" in next(iter(inventory.check(["nyu_depth"]))).damage
    (data / "nyu_depth" / "depth_test.h5").write_bytes(b"no HDF5")
    assert "depth_test.h5 to hold an array image" in next(iter(inventory.check(["nyu_depth"]))).damage
    authors_part(data / "nyu_depth", "test", 2)
    assert [each.verdict for each in inventory.check(["nyu_depth"])] == ["whole"]
    (data / "nyu_depth" / "depth_train.h5").write_bytes(b"no HDF5")
    assert "depth_train.h5 to hold an array image" in next(iter(inventory.check(["nyu_depth"]))).damage


def test_a_missing_package_leaves_a_set_unread_and_others_checked(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    (data / "apolloscape_test.h5").write_bytes(b"")
    checked = inventory.check(["apolloscape", "camvid"])
    assert [found.verdict for found in checked] == ["unread", "DAMAGED"]
    assert "Expected the package h5py" in checked.damaged[0].damage


def test_a_set_of_scenes_that_is_added_is_loaded_and_split(data, monkeypatch):
    form = replace(SETS["nyu_depth"].forms[-1], path="toy.npz", checksums={"rgb": ""})
    monkeypatch.setitem(SETS, "toy", replace(SETS["nyu_depth"], name="toy", forms=(form,)))
    (data / "nyu_64x80.npz").rename(data / "toy.npz")
    assert len(scenes.splits("toy").test) == 10
    assert [found.verdict for found in inventory.check(["toy"])] == ["whole"]


# Real files


@pytest.mark.parametrize(
    ("name", "count", "groups"), [("nyu_depth", 795, 123), ("camvid", 701, 4), ("kitti_road", 579, 6)]
)
def test_real_sets(name, count, groups):
    path = locate(scenes.SCENES[name].paths[-1])
    if path is None:
        pytest.skip(f"SPLITPOINT_DATA names no folder with {scenes.SCENES[name].paths[-1]}")
    entry = scenes.SCENES[name]
    form: Form = entry.forms[-1]
    found = form.reader(entry, path, "train" if entry.trainable else "test")
    assert (len(found), found.shape, len(found.groups.unique())) == (count, (3, 64, 80), groups)
    if entry.depth:
        target = found.tensors()[1]
        assert not target.isnan().any()
        assert 0.7 < target.min() < target.max() < 10
