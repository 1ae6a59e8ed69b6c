"""Loading, splitting and mixing image sets. Tests of real files are skipped where SPLITPOINT_DATA lacks them."""

import numpy as np
import pytest
import torch

from image_files import cifar_batch, cifar_records, labels_of, mnist, noise_images, tiny_imagenet, wnids
from splitpoint.datasets import images
from splitpoint.datasets.entry import VARIABLE, locate
from splitpoint.errors import DataError, SettingsError


def write_cifar10(folder, per_batch=20):
    for seed, name in enumerate([*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]):
        path = folder / "cifar-10-batches-bin" / f"{name}.bin"
        cifar_records(path, noise_images(per_batch, (3, 32, 32), seed), labels_of(per_batch, 10))


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder with CIFAR-10 (100 + 20 images), MNIST (30 + 12), notMNIST (7) and Tiny ImageNet (3 + 3)."""
    write_cifar10(tmp_path)
    for stem, count in (("train", 30), ("t10k", 12)):
        mnist(tmp_path / "MNIST" / "raw", stem, noise_images(count, (28, 28)), labels_of(count, 10), zipped=True)
    np.savez(tmp_path / "notmnist.npz", x_test=noise_images(7, (28, 28), 1), y_test=labels_of(7, 10))
    tiny_imagenet(tmp_path / "tiny-imagenet-200")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def rows_of(part, whole):
    """Places in `whole` of the images of `part`."""
    places = {image.numpy().tobytes(): place for place, image in enumerate(whole.pixels(range(len(whole))))}
    return [places[image.numpy().tobytes()] for image in part.pixels(range(len(part)))]


# Loading


@pytest.mark.parametrize(
    ("name", "part", "count", "shape"),
    [
        ("cifar10", "train", 100, (3, 32, 32)),
        ("cifar10", "test", 20, (3, 32, 32)),
        ("mnist", "train", 30, (1, 28, 28)),
        ("notmnist", "test", 7, (1, 28, 28)),
        ("tiny_imagenet", "test", 3, (3, 64, 64)),
    ],
)
def test_sets_are_found_and_read(data, name, part, count, shape):
    found = images.load(name, part)
    assert (found.name, len(found), found.shape, found.classes) == (name, count, shape, images.IMAGE_SETS[name].classes)
    x, y = found[0]
    assert (x.dtype, x.shape, y.dtype) == (torch.float32, shape, torch.int64)


def test_the_preferred_form_wins(data):
    cifar_batch(data / "cifar-10-batches-py" / "test_batch", noise_images(1, (3, 32, 32)), labels_of(1, 10))
    assert len(images.load("cifar10", "test")) == 20
    (data / "cifar-10-batches-bin").rename(data / "away")
    assert len(images.load("cifar10", "test")) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("svhn", "Expected to find svhn, but SPLITPOINT_DATA names .*; .* run: splitpoint data download svhn"),
        ("cifar100", "Expected to find cifar-100-binary or cifar-100-python, but .* splitpoint data download cifar100"),
        ("imagenet", "Expected to find imagenet, but .*; accept its licence at image-net.org and put its images"),
    ],
)
def test_a_missing_set_says_what_to_do(data, name, message):
    with pytest.raises(DataError, match=message):
        images.load(name, "test")


def test_names_and_parts_that_do_not_exist(data):
    with pytest.raises(SettingsError, match=r"Expected an image set among mnist, .*, imagenet_o, but got 'boston'"):
        images.load("boston", "test")
    with pytest.raises(SettingsError, match="Expected the part 'train' or 'test' of mnist, but got 'val'"):
        images.load("mnist", "val")
    with pytest.raises(DataError, match="Expected the part 'test' of notmnist, which has no other, but got 'train'"):
        images.load("notmnist", "train")


# Splitting


def test_splits_are_disjoint_and_complete(data):
    parts, official = images.splits("cifar10", calibration=0.3), images.load("cifar10", "train")
    train, calibration = rows_of(parts.train, official), rows_of(parts.calibration, official)
    assert (len(train), len(calibration)) == (70, 30)
    assert sorted(train + calibration) == list(range(100))
    assert train == sorted(train)
    assert torch.equal(parts.test.labels, images.load("cifar10", "test").labels)


def test_the_seed_alone_decides_what_is_held_out(data):
    official = images.load("cifar10", "train")

    def held_out(seed):
        return rows_of(images.splits("cifar10", seed=seed).calibration, official)

    before = torch.get_rng_state()
    first = held_out(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert held_out(0) == first
    assert held_out(1) != first


def test_shares_that_leave_nothing_are_refused(data):
    for share in (0.0, 1.0, -1):
        with pytest.raises(SettingsError, match=r"Expected calibration to be a share in \(0, 1\)"):
            images.splits("cifar10", calibration=share)
    with pytest.raises(DataError, match=r"but 100 with calibration 0.001 leave none"):
        images.splits("cifar10", calibration=0.001)


# Images of other sets


def test_the_parts_of_a_union_are_equal_and_have_one_shape(data):
    union = images.ood_union(["cifar10", "notmnist", "mnist"], (3, 20, 20), None, seed=0)
    assert (union.name, union.shape, union.classes) == ("cifar10+notmnist+mnist", (3, 20, 20), 3)
    assert union.labels.bincount().tolist() == [7, 7, 7]
    assert union.pixels(range(21)).shape == (21, 3, 20, 20)
    assert images.ood_union(["cifar10", "mnist"], (1, 28, 28), 11, seed=0).labels.bincount().tolist() == [5, 5]
    assert len(images.ood_union(["mnist"], (1, 28, 28), 1000, seed=0)) == 12


def test_a_union_is_drawn_by_its_seed(data):
    def drawn(seed):
        return images.ood_union(["cifar10", "mnist"], (1, 28, 28), 10, seed).pixels(range(10))

    assert torch.equal(drawn(0), drawn(0))
    assert not torch.equal(drawn(0), drawn(1))


def test_unions_of_nothing_are_refused(data):
    for names in ([], ["mnist", "mnist"]):
        with pytest.raises(SettingsError, match="Expected names of different sets, but got"):
            images.ood_union(names, (1, 28, 28), None, 0)
    with pytest.raises(SettingsError, match="at least one image from each of 2 sets, but got 1"):
        images.ood_union(["mnist", "cifar10"], (1, 28, 28), 1, 0)


# Batches


def test_batches_come_in_order_again_and_again(data):
    found = images.load("cifar10", "train")
    batches = images.Batches(found, 30)
    assert len(batches) == len(list(batches)) == 4
    for _ in range(2):
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        assert (x.dtype, y.dtype) == (torch.float32, torch.int64)
        assert torch.equal(x, found.pixels(range(100)) / 255)
        assert torch.equal(y, found.labels)


def test_a_seed_shuffles_every_pass_anew_and_the_same_way_everywhere(data):
    found = images.load("cifar10", "train")

    def passes(seed):
        batches = images.Batches(found, 30, seed=seed)
        return [torch.cat([x for x, _ in batches]) for _ in range(2)]

    before = torch.get_rng_state()
    first, second = passes(3)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first, second)
    assert torch.equal(first.sum((1, 2, 3)).sort().values, second.sum((1, 2, 3)).sort().values)
    again = passes(3)
    assert torch.equal(torch.stack(again), torch.stack([first, second]))
    assert not torch.equal(passes(4)[0], first)


def test_images_and_labels_stay_together_when_shuffled(data):
    found = images.load("cifar10", "train")
    label_of = {image.numpy().tobytes(): int(label) for image, label in found}
    for x, y in images.Batches(found, 7, seed=0):
        assert [label_of[image.numpy().tobytes()] for image in x] == y.tolist()


def test_a_batch_must_hold_an_image(data):
    with pytest.raises(SettingsError, match="Expected batch_size to be at least 1, but got 0"):
        images.Batches(images.load("mnist", "test"), 0)


def test_folders_of_images_are_decoded_batch_by_batch(data):
    last = next((data / "tiny-imagenet-200" / "train").glob(f"{wnids(200)[0]}/images/*.JPEG"))
    last.write_bytes(b"broken")
    batches = iter(images.Batches(images.load("tiny_imagenet", "train"), 2))
    x, y = next(batches)
    assert (x.shape, y.tolist()) == ((2, 3, 64, 64), [0, 1])
    with pytest.raises(DataError, match=rf"Expected .*{last.name} to be an image of tiny_imagenet"):
        next(batches)


# Real files


REAL = {
    "mnist": ((1, 28, 28), 60_000, 10_000),
    "fashion_mnist": ((1, 28, 28), 60_000, 10_000),
    "cifar10": ((3, 32, 32), 50_000, 10_000),
    "cifar100": ((3, 32, 32), 50_000, 10_000),
    "svhn": ((3, 32, 32), 73_257, 26_032),
}


def need(name):
    """Skip a test of real images that are not on this machine."""
    if locate(*images.IMAGE_SETS[name].paths) is None:
        pytest.skip(f"SPLITPOINT_DATA names no folder with {name}")


@pytest.mark.parametrize("name", REAL)
def test_real_sets_have_their_size_and_all_their_classes(name):
    need(name)
    shape, train, test = REAL[name]
    for part, count in (("train", train), ("test", test)):
        found = images.load(name, part)
        assert (found.shape, len(found)) == (shape, count)
        assert found.labels.unique().tolist() == list(range(found.classes))
        assert 0 < found.pixels([0, count - 1]).float().mean() < 255


@pytest.mark.parametrize("name", ["notmnist", "tiny_imagenet"])
def test_real_images_of_other_sets_fit_a_network_of_cifar(name):
    need(name)
    union = images.ood_union([name], (3, 32, 32), 100, seed=0)
    x, _ = next(iter(images.Batches(union)))
    assert x.shape == (100, 3, 32, 32)
    assert 0.2 < float(x.mean()) < 0.7
