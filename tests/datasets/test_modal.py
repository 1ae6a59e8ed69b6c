"""Sets with several modalities that come as arrays; tests of real files skip where SPLITPOINT_DATA lacks them."""

import numpy as np
import pytest
import torch

from modal_files import small_three_modal, small_views
from splitpoint.datasets import SETS, inventory, modal
from splitpoint.datasets.download import download
from splitpoint.datasets.entry import VARIABLE, locate
from splitpoint.errors import DataError, SettingsError


@pytest.fixture
def data(tmp_path, monkeypatch):
    """An empty data folder."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def learned(parts):
    return parts.train, parts.validation, parts.calibration


# Three modalities


def test_parts_of_three_modalities_are_those_of_the_files(data):
    stored = small_three_modal(data / "three_modal_50.npz")
    parts = modal.splits("three_modal")
    assert [len(part) for part in (parts.calibration, parts.test, parts.ood)] == [42 * 12, 42 * 12, 2 * 60]
    assert len(parts.train) + len(parts.validation) == 42 * 36
    assert torch.bincount(parts.validation.labels).tolist() == [6] * 42
    assert len(parts.classes) == 42
    assert parts.classes[1] == "image1 / audio1 / text1"
    assert parts.ood.labels.unique().tolist() == [42, 43]
    for part, split in ((parts.test, 1), (parts.calibration, 0), (parts.train, 0), (parts.ood, 2)):
        numbers = [int(text.split()[1]) for text in part.inputs["text"]]
        assert (stored["split"][numbers] == split).all()
        assert part.labels.tolist() == stored["y"][numbers].tolist()
        image = torch.from_numpy(stored["image"][numbers]).permute(0, 3, 1, 2) / 255
        assert torch.equal(part.inputs["image"], image)
        assert torch.equal(part.inputs["audio"], torch.from_numpy(stored["audio"][numbers])[:, None] / 255)
    folds = {stored["clip"][int(text.split()[1])][0] for text in parts.calibration.inputs["text"]}
    assert folds == {"4"}


def test_no_recording_is_in_two_parts(data):
    stored = small_three_modal(data / "three_modal_50.npz")
    parts = modal.splits("three_modal", seed=3)
    clips = [
        {stored["clip"][int(text.split()[1])].rsplit("-", 2)[0] for text in part.inputs["text"]}
        for part in (*learned(parts), parts.test)
    ]
    assert len(set.union(*clips)) == sum(map(len, clips))
    groups = [set(part.groups.tolist()) for part in (*learned(parts), parts.test, parts.ood)]
    assert len(set.union(*groups)) == sum(map(len, groups))


def test_the_seed_alone_decides_what_is_for_validation(data):
    small_three_modal(data / "three_modal_50.npz")
    before = torch.get_rng_state()
    drawn = {modal.splits("three_modal", seed=seed).validation.inputs["text"] for seed in (0, 0, 1)}
    assert len(drawn) == 2
    assert torch.equal(torch.get_rng_state(), before)


def test_arrays_that_are_no_three_modalities_are_refused(data):
    path = data / "three_modal_50.npz"
    small_three_modal(path, audio=np.zeros((1320 * 2, 40, 48), np.uint8))
    with pytest.raises(DataError, match=r"an array audio of shape \(2640, 48, 48\), but it has shape \(2640, 40, 48\)"):
        modal.splits("three_modal")
    small_three_modal(path, split=np.zeros(2640, np.uint8))
    with pytest.raises(DataError, match=r"classes 0 to 41 in splits 0 and 1 .*, but a class is in another split; put"):
        modal.splits("three_modal")
    small_three_modal(path, clip=np.array(["1-2.wav"] * 2640))
    with pytest.raises(DataError, match=r"clips FOLD-SOURCE-TAKE-CLASS.wav, but a clip has another name"):
        modal.splits("three_modal")


# Views


def test_views_follow_the_protocol_of_rcml(data):
    small_views(data / "multiview" / "pie.npz")
    parts = modal.splits("pie", seed=2)
    assert len(parts.test) == 136
    assert sum(map(len, learned(parts))) == 544
    assert (parts.ood, len(parts.classes)) == (None, 68)
    assert parts.train.modalities == ("intensity", "lbp", "gabor")
    assert [parts.train.inputs[name].shape[1] for name in parts.train.modalities] == [4, 3, 2]
    groups = [set(part.groups.tolist()) for part in (*learned(parts), parts.test)]
    assert set.union(*groups) == set(range(680))
    assert 1.2 < len(parts.calibration) / 68 < 2
    assert torch.bincount(parts.train.labels, minlength=68).min() > 0
    assert modal.splits("pie", seed=2).test.groups.tolist() == parts.test.groups.tolist()
    assert modal.splits("pie", seed=1).test.groups.tolist() != parts.test.groups.tolist()


def test_training_rows_alone_scale_the_views(data):
    stored = small_views(data / "multiview" / "pie.npz", view2=np.ones((680, 2), np.float32))
    parts = modal.splits("pie")
    for number, name in enumerate(("intensity", "lbp")):
        raw = torch.from_numpy(stored[f"view{number}"])
        least, largest = raw[parts.train.groups].amin(0), raw[parts.train.groups].amax(0)
        for part in (*learned(parts), parts.test):
            expected = (raw[part.groups] - least) / (largest - least)
            assert torch.allclose(part.inputs[name], expected)
    assert (parts.train.inputs["intensity"].min(), parts.train.inputs["intensity"].max()) == (0, 1)
    rest = modal.joined([*learned(parts), parts.test]).inputs["intensity"]
    assert rest.min() < 0 or rest.max() > 1
    assert parts.train.inputs["gabor"].unique().tolist() == [0]


def test_arrays_that_are_no_views_are_refused(data):
    path = data / "multiview" / "pie.npz"
    small_views(path, view1=np.zeros((12, 3), np.float32))
    with pytest.raises(DataError, match=r"an array view1 of shape \(680, .*\), but it has shape \(12, 3\)"):
        modal.splits("pie")
    small_views(path, classes=60)
    with pytest.raises(DataError, match="classes y of 0 to 67, but they are others"):
        modal.splits("pie")
    small_views(path, view2=None)
    with pytest.raises(DataError, match=r"pie.npz to hold the arrays of pie, but they cannot be read; put the views"):
        modal.splits("pie")


# Names, lists and checks


def test_what_is_not_there_says_what_to_do(data):
    with pytest.raises(DataError, match=r"find multiview/pie.npz, but .*; put the views of PIE_face_10.mat"):
        modal.splits("pie")
    with pytest.raises(SettingsError, match=r"with several modalities among three_modal, .*, but got 'mnist'"):
        modal.splits("mnist")
    with pytest.raises(DataError, match=r"Expected pie in .*pie.npz, but it cannot be downloaded; put the views"):
        download("pie", data)


def test_sets_are_listed_and_checked(data):
    small_views(data / "multiview" / "handwritten.npz", classes=10, each=20, sizes=(4, 3, 2, 2, 2, 2))
    found = {each.name: each for each in inventory.survey(modal.MODAL)}
    assert found["handwritten"].size == "2,000 x 6 views"
    assert found["pie"].path is None
    (checked,) = inventory.check(["handwritten"])
    assert "Expected the values of handwritten, but its array y has others; put" in checked.damage


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("three_modal", (3024, 1008, 1008)), ("handwritten", (1282, 318, 400)), ("pie", (453, 91, 136))],
)
def test_real_sets(name, sizes):
    if locate(SETS[name].path) is None:
        pytest.skip(f"SPLITPOINT_DATA names no folder with {SETS[name].path}")
    parts = modal.splits(name, seed=1)
    assert (len(parts.train) + len(parts.validation), len(parts.calibration), len(parts.test)) == sizes
    groups = [set(part.groups.tolist()) for part in (*learned(parts), parts.test)]
    assert len(set.union(*groups)) == sum(map(len, groups))
    assert set(parts.test.labels.tolist()) <= set(parts.train.labels.tolist()) == set(range(len(parts.classes)))
