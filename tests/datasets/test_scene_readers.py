"""Readers of sets of scenes, on few images in the true formats."""

import sys

import numpy as np
import pytest
import scipy.io
import torch

from scene_files import SIZE, authors_part, depth_bytes, h5, noise_images, published_nyu, road, small_nyu
from splitpoint.datasets import SETS
from splitpoint.datasets import scene_readers as readers
from splitpoint.errors import DataError, SettingsError

NYU, APOLLO, CAMVID, KITTI = (SETS[name] for name in ("nyu_depth", "apolloscape", "camvid", "kitti_road"))


@pytest.fixture
def h5py():
    return pytest.importorskip("h5py", reason="h5py, which reads HDF5 files, is not installed")


def assert_images_are(found, images):
    assert (len(found), found.size) == (len(images), SIZE)
    assert np.array_equal(found.pixels(range(len(images))).permute(0, 2, 3, 1), images)


def cut_off(path):
    """The file without its second half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# The authors' HDF5 files


@pytest.mark.usefixtures("h5py")
def test_the_authors_files_hold_inverse_depth(tmp_path):
    for seed, (part, count) in enumerate((("train", 230), ("test", 3))):
        images, depths = authors_part(tmp_path, part, count, seed)
        found = readers.authors_h5(NYU, tmp_path, part)
        assert_images_are(found, images)
        everything = range(count)
        assert found.targets(everything).numpy() == pytest.approx(255 / depths.transpose(0, 3, 1, 2).astype(np.float32))
        assert found.inverse().targets(everything).numpy() == pytest.approx(depths.transpose(0, 3, 1, 2) / 255)
        assert found.groups.bincount().tolist() == ([100, 100, 30] if part == "train" else [3])
        assert found.names[1] == f"{part}/00001"


@pytest.mark.usefixtures("h5py")
def test_rows_of_a_file_come_in_any_order_and_twice(tmp_path):
    images, _ = authors_part(tmp_path, "test", 9)
    found = readers.authors_h5(NYU, tmp_path, "test")
    places = [7, 2, 3, 2, 8]
    assert np.array_equal(found.pixels(places).permute(0, 2, 3, 1), images[places])
    assert np.array_equal(found.at([5, 1]).pixels([0, 1]).permute(0, 2, 3, 1), images[[5, 1]])
    assert found.pixels([]).shape == (0, 3, *SIZE)
    assert found.targets([]).shape == (0, 1, *SIZE)


@pytest.mark.usefixtures("h5py")
def test_a_file_is_not_held_in_memory_and_its_loss_is_named(tmp_path):
    authors_part(tmp_path, "test", 4)
    found = readers.authors_h5(NYU, tmp_path, "test")
    cut_off(tmp_path / "depth_test.h5")
    with pytest.raises(DataError, match=r"Expected rows of image in .*depth_test.h5, but they cannot be read \("):
        found.pixels([0])


def images_and(depth, images=None):
    return {"image": noise_images(4, (*SIZE, 3)) if images is None else images} | (
        {} if depth is None else {"depth": depth}
    )


@pytest.mark.usefixtures("h5py")
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (images_and(None), r"an array depth of uint8 and shape \(N, 6, 8, 1\), but it cannot be read"),
        (images_and(depth_bytes(4)), r"an array depth .* \(N, 6, 8, 1\), but it is uint8 of shape \(4, 6, 8\)"),
        (
            images_and(depth_bytes(4)[..., None] / 255),
            r"an array depth of uint8 .*, but it is float64 of shape \(4, 6, 8, 1",
        ),
        (
            images_and(depth_bytes(3)[..., None]),
            "a row of image and depth for each scene, but it has 4 image and 3 depth",
        ),
        (
            images_and(None, noise_images(4, SIZE)),
            r"an array image .* \(N, any, any, 3\), but it is uint8 of shape \(4, 6, 8",
        ),
        (images_and(None, np.zeros((4, *SIZE, 3), np.float32)), "an array image of uint8 .*, but it is float32"),
        (images_and(None, noise_images(0, (*SIZE, 3))), r"an array image .*, but it is uint8 of shape \(0, 6, 8, 3\)"),
        ({"depth": depth_bytes(4)[..., None]}, "an array image .*, but it cannot be read"),
    ],
)
def test_an_authors_file_that_is_something_else(tmp_path, arrays, message):
    h5(tmp_path / "depth_train.h5", **arrays)
    with pytest.raises(DataError, match=rf"Expected .*depth_train.h5 to hold {message}.*; put depth_train.h5 and"):
        readers.authors_h5(NYU, tmp_path, "train")


@pytest.mark.usefixtures("h5py")
def test_a_group_is_no_array(h5py, tmp_path):
    with h5py.File(tmp_path / "depth_train.h5", "w") as file:
        file.create_group("image")
    with pytest.raises(DataError, match=r"to hold an array image of uint8 .*, but it cannot be read"):
        readers.authors_h5(NYU, tmp_path, "train")


@pytest.mark.usefixtures("h5py")
def test_a_file_that_is_missing_or_cut_off_is_named(tmp_path):
    with pytest.raises(
        DataError, match=r"Expected nyu_depth to have a file depth_train.h5, but .* has none; put depth_t"
    ):
        readers.authors_h5(NYU, tmp_path, "train")
    authors_part(tmp_path, "train", 40)
    cut_off(tmp_path / "depth_train.h5")
    with pytest.raises(
        DataError, match=r"depth_train.h5 to hold an array image .*, but it cannot be read \(.*truncated"
    ):
        readers.authors_h5(NYU, tmp_path, "train")


def test_without_h5py_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(DataError, match=r"to have a file depth_train.h5"):
        readers.authors_h5(NYU, tmp_path, "train")
    (tmp_path / "depth_train.h5").write_bytes(b"")
    with pytest.raises(
        SettingsError, match=r"the package h5py, which reads HDF5 files, .*: pip install '.\[images\]' in"
    ):
        readers.authors_h5(NYU, tmp_path, "train")


@pytest.mark.usefixtures("h5py")
def test_apolloscape_is_images_alone(tmp_path):
    images = noise_images(5, (*SIZE, 3))
    path = h5(tmp_path / "apolloscape_test.h5", image=images, depth=depth_bytes(5)[..., None])
    found = readers.images_h5(APOLLO, path, "test")
    assert_images_are(found, images)
    assert found.targets([0]).isnan().all()
    h5(path, image=images[..., 0])
    with pytest.raises(
        DataError, match=r"\(N, any, any, 3\), but it is uint8 of shape \(5, 6, 8\); put apolloscape_test"
    ):
        readers.images_h5(APOLLO, path, "test")


# The labelled set as it is published


@pytest.mark.usefixtures("h5py")
def test_the_published_labelled_set(tmp_path):
    images, depths = published_nyu(tmp_path, train=[0, 1, 2, 6], test=[3, 4, 5], count=7)
    train, test = (readers.nyu_mat(NYU, tmp_path, part) for part in ("train", "test"))
    assert_images_are(train, images[[0, 1, 2, 6]])
    assert_images_are(test, images[3:6])
    assert np.array_equal(train.targets([3, 1])[:, 0], depths[[6, 1]])
    assert (train.groups.tolist(), test.groups.tolist()) == ([0, 0, 0, 1], [0, 0, 0])
    assert train.names == ("00001", "00002", "00003", "00007")


@pytest.mark.usefixtures("h5py")
def test_a_published_set_that_is_something_else(tmp_path):
    published_nyu(tmp_path, [0, 1], [2, 9], count=3)
    with pytest.raises(DataError, match=r"splits.mat to hold different row numbers testNdxs of 3 images, but they are"):
        readers.nyu_mat(NYU, tmp_path, "test")
    scipy.io.savemat(tmp_path / "splits.mat", {"other": [1]})
    with pytest.raises(DataError, match=r"splits.mat to hold row numbers trainNdxs, but it cannot be read"):
        readers.nyu_mat(NYU, tmp_path, "train")
    (tmp_path / "splits.mat").unlink()
    with pytest.raises(DataError, match=r"Expected nyu_depth to have a file splits.mat, but .* has none"):
        readers.nyu_mat(NYU, tmp_path, "train")
    images, depths = noise_images(3, (3, 8, 6)), np.ones((2, 8, 6), np.float32)
    h5(tmp_path / "nyu_depth_v2_labeled.mat", images=images, depths=depths)
    with pytest.raises(DataError, match="a row of images and depths for each scene, but it has 3 images and 2 depths"):
        readers.nyu_mat(NYU, tmp_path, "train")
    h5(tmp_path / "nyu_depth_v2_labeled.mat", images=images, depths=depths.transpose(0, 2, 1))
    with pytest.raises(
        DataError, match=r"an array depths of float32 and shape \(N, 8, 6\), but it is float32 of shape \(2, 6"
    ):
        readers.nyu_mat(NYU, tmp_path, "train")


# npz files


def test_the_small_labelled_set_has_its_official_split(tmp_path):
    arrays = small_nyu(tmp_path / "nyu_64x80.npz")
    for part in ("train", "test"):
        found, rows = readers.nyu_npz(NYU, tmp_path / "nyu_64x80.npz", part), arrays[f"{part}_idx"]
        assert_images_are(found, arrays["rgb"][rows])
        everything = range(len(rows))
        assert found.targets(everything)[:, 0].numpy() == pytest.approx(0.04 * arrays["depth"][rows].astype(float))
    assert readers.nyu_npz(NYU, tmp_path / "nyu_64x80.npz", "train").groups.tolist() == [0, 0, 1, 1, 1, 2]


def test_bytes_that_say_no_depth_are_nan(tmp_path):
    depth = depth_bytes(10)
    depth[0, 0, :2] = 0, 255
    small_nyu(tmp_path / "nyu_64x80.npz", depth=depth)
    target = readers.nyu_npz(NYU, tmp_path / "nyu_64x80.npz", "train").targets([0])[0, 0]
    assert target.isnan().nonzero().tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"rgb": noise_images(10, SIZE)},
            r"an array rgb of uint8 and shape \(N, H, W, 3\), but it is uint8 of shape \(10",
        ),
        ({"rgb": np.ones((10, *SIZE, 3))}, "an array rgb of uint8 .*, but it is float64"),
        ({"rgb": noise_images(0, (*SIZE, 3))}, "an array rgb of uint8 .*, but it is"),
        (
            {"rgb": noise_images(9, (*SIZE, 3))},
            r"an array depth of uint8 and shape \(9, 6, 8\), but it is uint8 of shape \(10, 6, 8",
        ),
        ({"depth": depth_bytes(10) / 25}, r"an array depth of uint8 and shape \(10, 6, 8\), but it is float64"),
        ({"depth_scale_m": np.float32(0)}, "one number depth_scale_m above 0, but it is 0"),
        ({"depth_scale_m": np.ones(2)}, "one number depth_scale_m above 0, but it is"),
        ({"train_idx": np.array([0, 10])}, "different row numbers train_idx of 10 images, but they are something else"),
        ({"train_idx": np.array([-1, 1])}, "different row numbers train_idx"),
        ({"train_idx": np.array([1, 1])}, "different row numbers train_idx"),
        ({"train_idx": np.array([0.0, 1.0])}, "different row numbers train_idx"),
        ({"train_idx": np.array([], np.int16)}, "different row numbers train_idx"),
        ({"depth": None}, "the arrays of nyu_depth, but they cannot be read"),
    ],
)
def test_a_small_labelled_set_that_is_something_else(tmp_path, other, message):
    small_nyu(tmp_path / "nyu_64x80.npz", **other)
    with pytest.raises(DataError, match=f"nyu_64x80.npz to hold {message}"):
        readers.nyu_npz(NYU, tmp_path / "nyu_64x80.npz", "train")


@pytest.mark.parametrize("entry", [NYU, CAMVID, KITTI], ids=lambda entry: entry.name)
def test_an_npz_file_that_is_missing_or_cut_off_is_named(tmp_path, entry):
    form = next(form for form in entry.forms if form.path.endswith(".npz"))
    path = tmp_path / form.path
    with pytest.raises(
        DataError, match=f"{form.path} to hold the arrays of {entry.name}, but they cannot be read; .*put|unp"
    ):
        form.reader(entry, path, "test")
    small_nyu(path, name=np.array(["a_1.png"] * 10))
    assert len(form.reader(entry, path, "test")) in (4, 10)
    cut_off(path)
    with pytest.raises(DataError, match=f"{form.path} to hold the arrays of {entry.name}, but they cannot be read"):
        form.reader(entry, path, "test")


def test_names_say_which_images_belong_together(tmp_path):
    names = ["r/x/um_0.png", "r/x/um_1.png", "r/x/umm_0.png", "r/y/um_0.png", "r/x/um_2.png"]
    images = noise_images(5, (*SIZE, 3))
    np.savez(tmp_path / "a.npz", rgb=images, name=names)
    found = readers.named_npz(KITTI, tmp_path / "a.npz", "test")
    assert_images_are(found, images)
    assert (found.groups.tolist(), found.names) == ([0, 0, 1, 2, 0], tuple(names))
    assert found.depths is None
    for wrong in (names[:4], np.arange(5)):
        np.savez(tmp_path / "a.npz", rgb=images, name=wrong)
        with pytest.raises(DataError, match=r"a.npz to hold 5 names, but name is"):
            readers.named_npz(KITTI, tmp_path / "a.npz", "test")


# Folders


def test_apolloscape_may_be_a_folder_of_jpeg_files(tmp_path):
    road(tmp_path / "apolloscape", ["b/camera_5/1.jpg", "a/camera_5/2.jpg", "c.jpg", "a/disparity/2.png"])
    (tmp_path / "apolloscape" / "a" / "._hidden.jpg").write_bytes(b"")
    found = readers.photographs(APOLLO, tmp_path / "apolloscape", "test")
    assert found.names == ("a/camera_5/2.jpg", "b/camera_5/1.jpg", "c.jpg")
    assert found.groups.tolist() == [0, 1, 2]
    assert (found.size, found.pixels(range(3))[:, 0, 0, 0].tolist()) == (SIZE, [10, 0, 20])


def test_folders_of_the_two_road_sets(tmp_path):
    road(tmp_path / "701_StillsRaw_full", ["0001TP_1.png", "0001TP_0.png", "Seq05VD_f0.png"])
    found = readers.photographs(CAMVID, tmp_path / "701_StillsRaw_full", "test")
    assert (found.names[0], found.groups.tolist()) == ("0001TP_0.png", [0, 0, 1])
    road(tmp_path / "data_road", ["training/image_2/um_0.png", "testing/image_2/um_0.png", "training/calib/um_0.png"])
    found = readers.photographs(KITTI, tmp_path / "data_road", "test")
    assert found.names == ("testing/image_2/um_0.png", "training/image_2/um_0.png")
    assert found.groups.tolist() == [0, 1]


def test_a_folder_without_images_or_with_a_broken_one(tmp_path):
    folder = tmp_path / "701_StillsRaw_full"
    with pytest.raises(
        DataError, match=r"701_StillsRaw_full to hold images \*.png, but it has none; put the 701 images"
    ):
        readers.photographs(CAMVID, folder, "test")
    folder.mkdir()
    (folder / "a.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"a.png to hold an image, but it cannot be read \(.*; put the 701 images"):
        readers.photographs(CAMVID, folder, "test")


def test_names_are_there_without_decoding_an_image(tmp_path):
    folder = tmp_path / "701_StillsRaw_full"
    road(folder, ["a.png", "b.png"])
    (folder / "b.png").write_bytes(b"no image")
    found = readers.photographs(CAMVID, folder, "test")
    assert torch.equal(found.pixels([0]), torch.zeros(1, 3, *SIZE, dtype=torch.uint8))
    with pytest.raises(DataError, match=r"b.png to be an image of camvid"):
        found.pixels([1])
