"""LUMA on small files in the true formats; the published files have never been on the machines of this project."""

import numpy as np
import pytest
import torch

from luma_files import LEARNED, OTHERS, RATE, small_luma, tone
from splitpoint.datasets import inventory, modal
from splitpoint.datasets.entry import VARIABLE
from splitpoint.datasets.luma_names import CIFAR10_NAMES, CIFAR100_NAMES, CLASSES, RENAMED
from splitpoint.datasets.sounds import loudness
from splitpoint.datasets.waves import mel_power
from splitpoint.errors import DataError


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def listed(data):
    """The listed rows of a small LUMA."""
    return small_luma(data)


def images(rows):
    """The numbers in the pixels of images."""
    pixels = (rows.inputs["image"][:, 0, 0, :2] * 255).round().long()
    return (256 * pixels[:, 0] + pixels[:, 1]).tolist()


def texts(rows):
    return [int(text.split()[1]) for text in rows.inputs["text"]]


def test_names_are_those_of_cifar():
    assert (len(CLASSES), len(CIFAR10_NAMES), len(CIFAR100_NAMES)) == (50, 10, 100)
    assert list(CIFAR10_NAMES) == sorted(CIFAR10_NAMES)
    assert list(CIFAR100_NAMES) == sorted(set(CIFAR100_NAMES))
    assert set(CLASSES) <= {RENAMED.get(name, name) for name in (*CIFAR10_NAMES, *CIFAR100_NAMES)}
    assert CLASSES[42:] == ("bicycle", "truck", "elephant", "roses", "wolf", "telephone", "bee", "whale")


def test_parts_are_the_listed_rows(data, listed):
    parts = modal.splits("luma", seed=1)
    learned = modal.joined([parts.train, parts.validation, parts.calibration])
    assert [len(part) for part in (parts.train, parts.validation, parts.calibration, parts.test)] == [32, 4, 4, 12]
    for part, rows in (("train", learned), ("test", parts.test)):
        assert sorted(images(rows)) == sorted(listed["image", part])
        assert sorted(texts(rows)) == sorted(listed["text", part])
        assert sorted(rows.groups.tolist()) == sorted(listed["audio", part])
    assert parts.classes == CLASSES[:42]
    assert len(parts.ood) == 16
    assert torch.bincount(parts.ood.labels).tolist() == [0] * 42 + [2] * 8


def test_all_modalities_of_a_row_are_of_its_class(data, listed):
    parts = modal.splits("luma")
    for rows in (parts.train, parts.test, parts.ood):
        names = [CLASSES[label] for label in rows.labels.tolist()]
        assert [text.split('"')[1] for text in rows.inputs["text"]] == names
        for row, group in enumerate(rows.groups.tolist()):
            samples = np.round(tone(group) * 32767) / 32768
            expected = loudness(mel_power(torch.from_numpy(samples).float(), RATE)[None])[0]
            assert torch.allclose(rows.inputs["audio"][row], expected, atol=1e-3)
    assert {CLASSES[label] for label in parts.train.labels.tolist()} == set(LEARNED)
    assert {CLASSES[label] for label in parts.ood.labels.tolist()} == set(OTHERS)
    by_number = {}
    for name, each, first in ((CIFAR10_NAMES, 10, 0), (CIFAR100_NAMES, 10, 1000)):
        labels = np.random.default_rng(first).permutation(np.repeat(np.arange(len(name)), each))
        by_number |= {first + place: RENAMED.get(name[label], name[label]) for place, label in enumerate(labels)}
    for rows in (parts.train, parts.ood):
        assert [by_number[number] for number in images(rows)] == [CLASSES[label] for label in rows.labels.tolist()]


def test_the_seed_pairs_anew(data, listed):
    def pairs(seed):
        rows = modal.splits("luma", seed=seed).test
        return set(zip(texts(rows), images(rows), rows.groups.tolist(), strict=True))

    before = torch.get_rng_state()
    assert pairs(0) == pairs(0) != pairs(1)
    assert torch.equal(torch.get_rng_state(), before)


def test_features_of_all_texts_take_their_place(data, listed):
    vectors = np.stack([np.arange(68), np.ones(68)], 1).astype(np.float32)
    np.save(data / "luma" / "text_features.npy", vectors)
    rows = modal.splits("luma").test
    assert rows.inputs["text"].shape == (12, 2)
    assert sorted(rows.inputs["text"][:, 0].tolist()) == sorted(listed["text", "test"])
    np.save(data / "luma" / "text_features.npy", vectors[:5])
    with pytest.raises(DataError, match=r"text_features.npy to hold 68 rows, as text_data.tsv, but it has 5"):
        modal.splits("luma")
    np.save(data / "luma" / "text_features.npy", np.array([{}], object))
    with pytest.raises(DataError, match=r"an array \(N, D\), but it cannot be read"):
        modal.splits("luma")


@pytest.mark.parametrize("end", ["", "_"])
def test_features_of_compiled_texts_are_found_by_the_text(data, listed, end):
    strings = modal.splits("luma")
    everything = [
        *strings.train.inputs["text"],
        *strings.validation.inputs["text"],
        *strings.calibration.inputs["text"],
    ]
    compiled = {"train": everything, "test": strings.test.inputs["text"], "ood": strings.ood.inputs["text"][::2]}
    for part, found in compiled.items():
        lines = [f'{n}\t"{text.replace(chr(34), 2 * chr(34))}"\tx' for n, text in enumerate(found)]
        (data / "luma" / f"text_data_{part}.tsv").write_text("\n".join(["\ttext\tlabel", *lines, ""]))
        numbers = [[float(text.split()[1])] for text in found]
        np.save(data / "luma" / f"text_features_{part}{end}.npy", np.array(numbers, np.float32))
    parts = modal.splits("luma")
    assert sorted(parts.test.inputs["text"][:, 0].tolist()) == sorted(listed["text", "test"])
    assert len(parts.ood) == 8
    known = {float(text.split()[1]) for text in compiled["ood"]}
    assert set(parts.ood.inputs["text"][:, 0].tolist()) == known


# Files that are something else


def test_pickles_are_refused_with_what_to_do(data, listed):
    folder = data / "luma"
    (folder / "edm_images.pickle").write_bytes(b"any")
    assert len(modal.splits("luma").test) == 12  # it is not asked for
    rows = np.loadtxt(folder / "split_indices" / "image_train_clean.txt")
    rows[0] = 510
    np.savetxt(folder / "split_indices" / "image_train_clean.txt", rows, "%d")
    with pytest.raises(DataError, match=r"rows below 510 in .*, but it asks for 510, .*; convert it .* numpy.savez\("):
        modal.splits("luma")
    random = np.random.default_rng(0)
    np.savez(
        folder / "edm_images.npz", image=random.integers(0, 9, (2, 32, 32, 3), np.uint8), label=["cup", "oak_tree"]
    )
    with pytest.raises(DataError, match="as many rows of every class in the lists train_clean of image, audio, text"):
        modal.splits("luma")


def test_generated_images_that_were_converted_follow_those_of_cifar(data, listed):
    folder = data / "luma"
    path = folder / "split_indices" / "image_train_clean.txt"
    pixels = np.zeros((2, 32, 32, 3), np.uint8)
    pixels[1, 0, :2, 0] = (255, 255)
    rows = np.loadtxt(path)
    before = modal.splits("luma").train
    horse = images(before)[before.labels.tolist().index(CLASSES.index("horse"))]
    rows[listed["image", "train"].index(horse)] = 510
    np.savetxt(path, rows, "%d")
    np.savez(folder / "edm_images.npz", image=pixels, label=["cup", "horse"])
    parts = modal.splits("luma")
    learned = modal.joined([parts.train, parts.validation, parts.calibration])
    assert 65535 in images(learned)
    assert horse not in images(learned)
    np.savez(folder / "edm_images.npz", image=pixels[0], label=["cup"])
    with pytest.raises(DataError, match=r"images uint8 \(N, 32, 32, 3\) and N names, but they are uint8 of"):
        modal.splits("luma")


def test_a_compiled_set_is_refused(data):
    (data / "luma").mkdir()
    (data / "luma" / "image_data_train.pickle").write_bytes(b"any")
    with pytest.raises(DataError, match=r"but it has image_data_train.pickle of a compiled set, and pickles are never"):
        modal.splits("luma")


def test_files_that_are_missing_are_named(data, listed):
    (data / "cifar-100-binary").rename(data / "elsewhere")
    with pytest.raises(
        DataError,
        match=r"find cifar-100-binary with images of LUMA, .*; get it with: splitpoint data download cifar100",
    ):
        modal.splits("luma")
    (data / "elsewhere").rename(data / "cifar-100-binary")
    (data / "luma" / "split_indices" / "audio_test.txt").unlink()
    with pytest.raises(DataError, match=r"luma to have a file audio_test.txt, but .*; put audio and text_data"):
        modal.splits("luma")
    (data / "luma" / "text_data.tsv").write_text("words\tlabel\nred\tdog\n")
    with pytest.raises(DataError, match=r"text_data.tsv to hold a table with columns text and label, but it has not"):
        modal.splits("luma")


def test_lists_that_do_not_fit_are_refused(data, listed):
    path = data / "luma" / "split_indices" / "audio_test.txt"
    rows, other = listed["audio", "test"], int(modal.splits("luma").ood.groups[0])
    for wrong, expected in (
        ([*rows[:-1], 68], "rows of 0 to 67, but one is outside or there is none"),
        ([*rows[:-1], rows[0]], "different whole numbers, but they are others"),
        (rows[:-1], "as many rows of every class in the lists test of image, audio, text, but their numbers differ"),
        (["seven"], "a row number in every line, but it cannot be read"),
    ):
        path.write_text("\n".join(map(str, wrong)))
        with pytest.raises(DataError, match=expected):
            modal.splits("luma")
    path.write_text("\n".join(map(str, [*rows[:-1], other])))
    with pytest.raises(DataError, match="rows of the 42 classes in distribution, but one is of none"):
        modal.splits("luma")


def test_the_set_is_listed_and_checked(data, listed):
    assert next(iter(inventory.survey(["luma"]))).path == data / "luma"
    assert [found.verdict for found in inventory.check(["luma"])] == ["whole"]
    next((data / "luma" / "audio").rglob("*.wav")).write_bytes(b"no sound")
    assert "to be a wav file" in next(iter(inventory.check(["luma"]))).damage
    (data / "luma" / "split_indices" / "text_test.txt").unlink()
    assert "to have 6 files split_indices/*.txt" in next(iter(inventory.check(["luma"]))).damage
