import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from scene_files import SIZE, depth_bytes, noise_images, road
from splitpoint.datasets.depth_scale import InverseBytes, Steps
from splitpoint.datasets.scene_set import CHUNK, Depths, PhotographFiles, SceneSet, StoredPhotographs, resized
from splitpoint.errors import DataError, SettingsError

NAN = torch.nan


def scenes(count=5, depths=True, scale=None):
    images, stored = noise_images(count, (*SIZE, 3)), depth_bytes(count)
    source = Depths(stored, scale or Steps(0.04)) if depths else None
    names = tuple(map(str, range(count)))
    return SceneSet(
        "toy", StoredPhotographs(images, SIZE), source, torch.arange(count) // 2, names, SIZE, torch.arange(count)
    )


def test_images_and_depths_are_those_that_are_stored():
    found = scenes()
    assert (len(found), found.shape, found.unit) == (5, (3, *SIZE), "m")
    assert np.array_equal(found.pixels([3, 1]).permute(0, 2, 3, 1), noise_images(5, (*SIZE, 3))[[3, 1]])
    assert found.targets([4]).numpy() == pytest.approx(0.04 * depth_bytes(5)[[4]][:, None])
    image, target = found[-1]
    assert torch.equal(image, found.pixels([4])[0] / 255)
    assert torch.equal(target, found.targets([4])[0])
    assert (image.dtype, target.dtype, target.shape) == (torch.float32, torch.float32, (1, *SIZE))


def test_a_loader_reads_batches():
    batches = list(DataLoader(scenes(), batch_size=2))
    images, targets = scenes().tensors()
    assert torch.equal(torch.cat([x for x, _ in batches]), images)
    assert torch.equal(torch.cat([y for _, y in batches]), targets)


def test_all_are_read_in_chunks(monkeypatch):
    found, read = scenes(2 * CHUNK + 3), []
    pixels = StoredPhotographs.pixels
    monkeypatch.setattr(
        StoredPhotographs, "pixels", lambda self, rows, size: read.append(len(rows)) or pixels(self, rows, size)
    )
    images, targets = found.tensors()
    assert read == [CHUNK, CHUNK, 3]
    assert torch.equal(images[-1], found[-1][0])
    assert torch.equal(targets[CHUNK], found[CHUNK][1])


def test_without_depths_targets_are_unknown():
    found = scenes(depths=False).fitted_to((2, 3))
    assert found.targets([0, 1]).shape == (2, 1, 2, 3)
    assert found.tensors()[1].isnan().all()


def test_a_part_keeps_groups_names_and_places():
    part = scenes().at(torch.tensor([4, 1, 2])).at([0, 2])
    assert (part.names, part.groups.tolist(), part.rows.tolist()) == (("4", "2"), [2, 1], [4, 2])
    assert torch.equal(part.pixels([0, 1]), scenes().pixels([4, 2]))
    assert len(scenes().at([])) == 0
    with pytest.raises(DataError, match="Expected places of a set of 5 images, but got 7 to 7"):
        scenes().at([7])


def test_inverse_depth_is_the_target_of_the_authors():
    found = scenes(scale=InverseBytes()).inverse()
    assert found.unit == "1/m"
    assert found.targets([2]).numpy() == pytest.approx(depth_bytes(5)[[2]][:, None] / 255)
    assert scenes().inverse().targets([2]).numpy() == pytest.approx(np.minimum(1, 1 / scenes().targets([2]).numpy()))


def test_the_digest_tells_sets_sizes_units_and_places_apart():
    found = scenes()
    others = [found.inverse(), found.fitted_to((3, 4)), found.at([0, 1]), found.at([1, 0]), scenes(depths=False)]
    assert found.digest() == scenes().digest()
    assert len({found.digest(), *(other.digest() for other in others)}) == 6


# Sizes


def test_images_and_depths_shrink_together():
    found = scenes(1).fitted_to((3, 4))
    assert found.shape == (3, 3, 4)
    whole, small = scenes(1), found.targets([0])[0, 0]
    assert small[1, 2] == pytest.approx(float(whole.targets([0])[0, 0, 2:4, 4:6].mean()))
    mean = whole.pixels([0])[0, :, 2:4, 4:6].float().mean((1, 2))
    assert (found.pixels([0])[0, :, 1, 2] - mean).abs().max() <= 0.5
    with pytest.raises(SettingsError, match=r"a height and a width of at least 1, but got \(0, 4\)"):
        whole.fitted_to((0, 4))


def test_a_shrunken_depth_is_the_mean_of_what_is_known():
    maps = torch.tensor([[1.0, 3.0, NAN, NAN], [NAN, 5.0, NAN, NAN]])[None, None]
    small = resized(maps, (1, 2))[0, 0, 0]
    assert small[0] == pytest.approx(3.0)
    assert small[1].isnan()
    assert resized(torch.tensor([[[[2.0, 4.0, NAN]]]]), (1, 1)).item() == pytest.approx(3.0)


def test_a_grown_depth_repeats_the_nearest_and_invents_nothing():
    maps = torch.tensor([[1.0, NAN], [3.0, 4.0]])[None, None]
    large = resized(maps, (4, 4))[0, 0]
    expected = torch.tensor([[1, 1, NAN, NAN], [1, 1, NAN, NAN], [3, 3, 4, 4], [3, 3, 4, 4]])
    assert torch.equal(large.nan_to_num(-1), expected.nan_to_num(-1))
    both = resized(torch.tensor([[1.0, 3.0], [NAN, 5.0]])[None, None], (1, 4))
    assert both.flatten().tolist() == [1, 1, 4, 4]


def test_the_same_size_changes_nothing():
    maps = torch.tensor([[1.0, NAN], [3.0, 4.0]])[None, None]
    assert torch.equal(resized(maps, (2, 2)).nan_to_num(-1), maps.nan_to_num(-1))


# Files


def test_files_of_several_sizes_are_brought_to_one(tmp_path):
    road(tmp_path, ["a.png", "b.png"])
    road(tmp_path, ["x.png", "c.png"], size=(12, 10))
    source = PhotographFiles("toy", tmp_path, ("a.png", "b.png", "c.png"), SIZE)
    images = source.pixels(np.array([2, 0, 1]), SIZE)
    assert (images.dtype, images.shape) == (torch.uint8, (3, 3, *SIZE))
    assert images[:, 0, 0, 0].tolist() == [10, 0, 10]
    assert source.pixels(np.array([], np.int64), (2, 3)).shape == (0, 3, 2, 3)


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"Expected .*a.png to be an image of toy, but it cannot be used"):
        PhotographFiles("toy", tmp_path, ("a.png",), SIZE).pixels(np.array([0]), SIZE)
