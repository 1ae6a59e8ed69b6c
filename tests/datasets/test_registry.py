import re
from dataclasses import replace

import numpy as np
import pytest

from made_up import checksums_of
from splitpoint.datasets import SETS, TABLES, images, inventory, load, registry
from splitpoint.datasets.download import default_folder, download
from splitpoint.datasets.entry import VARIABLE, Form
from splitpoint.datasets.image_set import StoredImages
from splitpoint.datasets.registry import IMAGE_SETS, MODAL, SCENES
from splitpoint.errors import SettingsError


@pytest.mark.parametrize("name", SETS)
def test_entries_are_complete(name):
    entry = SETS[name]
    assert entry.name == name
    assert entry.title
    assert bool(entry.sources) != bool(entry.by_hand)
    assert entry.licence
    for source in entry.sources:
        assert re.fullmatch(r"https?://[\w.-]+/[\w./+~-]+", source.url)
        assert source.file_name
    tables = [entry.checksums] if entry.kind in ("table", "modal") else [form.checksums for form in entry.forms]
    sums = [checksum for checksums in tables for checksum in checksums.values()]
    if entry.kind == "scenes":  # of some nobody published any
        sums = [checksum for checksum in sums if checksum]
    for checksum in [*sums, *(source.checksum for source in entry.sources if source.checksum)]:
        assert re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}|size:\d+|files:\d+(-\d+)?", checksum)
    if entry.kind == "table":
        several = ["y_all"] if len(entry.targets) > 1 else []
        assert list(entry.checksums) == ["X", "y", *several, "rows"]
        assert len(entry.sources) == 1
    elif entry.kind == "scenes":
        assert all(tables)
        assert set(entry.ood) <= set(SCENES)
    elif entry.kind == "modal":
        assert all(tables)
        assert len(entry.modalities) == len(set(entry.modalities)) > 1
    else:
        assert all(tables)
        assert all(source.checksum for source in entry.sources)


def test_paths_are_different():
    paths = [path for entry in SETS.values() for path in entry.paths]
    assert len(set(paths)) == len(paths)


def test_tables_images_scenes_and_several_modalities_are_all_there_is():
    assert [*TABLES, *IMAGE_SETS, *SCENES, *MODAL] == list(SETS)
    assert {entry.kind for entry in TABLES.values()} == {"table"}
    assert {entry.kind for entry in IMAGE_SETS.values()} == {"images"}
    assert ("mnist" in TABLES, "boston" in IMAGE_SETS, "iris" in TABLES) == (False, False, False)
    assert {entry.kind for entry in SCENES.values()} == {"scenes"}
    assert {entry.kind for entry in MODAL.values()} == {"modal"}
    assert (len(TABLES), len(IMAGE_SETS), len(SCENES), len(MODAL)) == (9, 10, 4, 4)


def test_digits_and_letters_are_not_mirrored():
    assert [name for name, entry in IMAGE_SETS.items() if not entry.mirrored] == ["mnist", "svhn", "notmnist"]


def test_the_sets_out_of_distribution_are_those_of_the_experiments():
    assert {name: entry.ood for name, entry in IMAGE_SETS.items() if entry.ood} == {
        "mnist": ("fashion_mnist", "notmnist"),
        "fashion_mnist": ("mnist", "notmnist"),
        "cifar10": ("svhn", "tiny_imagenet"),
        "cifar100": ("svhn", "tiny_imagenet"),
        "imagenet": ("imagenet_o",),
    }
    assert {name: entry.adversarial for name, entry in IMAGE_SETS.items() if entry.adversarial} == {
        "imagenet": "imagenet_a"
    }
    assert {name: entry.ood for name, entry in SCENES.items() if entry.depth} == {"nyu_depth": ("apolloscape",)}
    assert not any(entry.trainable for entry in SCENES.values() if not entry.depth)


def test_titles_are_what_people_call_the_sets():
    assert ", ".join(entry.title for entry in IMAGE_SETS.values()) == (
        "MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100, SVHN, notMNIST, Tiny ImageNet, ImageNet, ImageNet-A, ImageNet-O"
    )


def test_entries_by_name_and_all_of_them():
    assert list(registry.entries([])) == list(SETS)
    assert list(registry.entries(["yacht", "boston"])) == ["yacht", "boston"]
    with pytest.raises(SettingsError, match="Expected a data set among boston"):
        registry.entries(["yacht", "iris"])


# A new set is one entry and its reader


@pytest.fixture
def data(tmp_path, monkeypatch):
    """An empty data folder."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


def test_a_table_that_is_added_is_listed_loaded_and_checked(data, monkeypatch):
    arrays = {"X": np.arange(6.0).reshape(3, 2), "y": np.arange(3.0)}
    entry = replace(TABLES["yacht"], name="toy", rows=3, features=2, checksums=checksums_of(arrays))
    monkeypatch.setitem(SETS, "toy", entry)
    assert re.search(r"^toy +3 x 2 +- +missing$", str(inventory.survey()), re.MULTILINE)
    (data / "uci").mkdir()
    np.savez(data / "uci" / "toy.npz", **arrays)
    assert load("toy").y[:, 0].tolist() == [0, 1, 2]
    assert [found.verdict for found in inventory.check(["toy"])] == ["whole"]
    assert download("toy", default_folder()) == data / "uci" / "toy.npz"


def test_images_that_are_added_are_listed_loaded_and_split(data, monkeypatch):
    def read(entry, path, part):
        pixels = np.frombuffer((path / f"{part}.bin").read_bytes(), np.uint8).reshape(-1, 1, 2, 2)
        return StoredImages(entry.name, pixels, np.arange(len(pixels)) % entry.classes, entry.classes)

    form = Form("toy", read, {"train.bin": "size:40", "test.bin": "size:8"})
    monkeypatch.setitem(SETS, "toy", replace(IMAGE_SETS["svhn"], name="toy", classes=2, forms=(form,)))
    assert inventory.survey(["toy"]).missing == ("toy",)
    (data / "toy").mkdir()
    for part, size in (("train", 40), ("test", 8)):
        (data / "toy" / f"{part}.bin").write_bytes(bytes(range(size)))
    assert images.load("toy", "test").pixels([1]).flatten().tolist() == [4, 5, 6, 7]
    parts = images.splits("toy", calibration=0.3)
    assert (len(parts.train), len(parts.calibration), len(parts.test)) == (7, 3, 2)
    assert len(images.ood_union(["toy"], (3, 4, 4), None, 0)) == 2
    assert [found.verdict for found in inventory.check(["toy"])] == ["whole"]
