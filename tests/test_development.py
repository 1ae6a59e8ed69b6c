"""Development cells: read out of a network, kept whole or not at all, built once, skipped with a sentence."""

import gzip
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

ROOT = Path(__file__).parents[1]


@pytest.fixture
def development(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import development

    yield development
    for name in [name for name in sys.modules if name.startswith("development")]:
        del sys.modules[name]


@pytest.fixture
def kit(development):
    return sys.modules["development_cell"]


@pytest.fixture
def text(development, monkeypatch):
    """The module of texts, with an encoder that knows how long a text is and how it begins."""
    module = sys.modules["development_text"]

    def encode(texts):
        return torch.tensor([[len(t) / 10, *(float(t.startswith(c)) for c in "HWT")] for t in texts])

    monkeypatch.setattr(module, "encoder", lambda: encode)
    return module


@pytest.fixture
def data(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("SPLITPOINT_DATA", str(folder))
    return folder


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4)).eval()


@pytest.fixture
def cell(kit):
    x, label = torch.randn(12, 3, generator=torch.Generator().manual_seed(1)), torch.arange(12) % 4
    return kit.cell_of(network(), (x[:8], label[:8]), (x[8:], label[8:]), {"far_off": x + 9, "noise": -x})


def test_features_are_what_the_last_linear_layer_reads(kit):
    net, x = network(), torch.randn(7, 3)
    rows = kit.readout(net, x, batch=3)
    assert np.allclose(rows.features, torch.relu(net[0](x)).detach())
    assert np.allclose(rows.logits, net(x).detach(), atol=1e-6)
    assert rows.label is None
    assert np.isnan(rows.accuracy)


def test_accuracy_counts_the_largest_logits(kit):
    logits = np.eye(4, dtype=np.float32)
    assert kit.Rows(logits, logits, np.array([0, 1, 2, 0])).accuracy == 0.75


def test_a_file_holds_the_cell(kit, cell, tmp_path):
    path = tmp_path / "new" / "toy.npz"
    cell.write(path)
    with np.load(path) as file:
        shapes = {name: file[name].shape for name in file}
        assert {file[name].dtype.name for name in file if "label" not in name} == {"float32"}
    assert shapes == {
        "train_features": (8, 5),
        "train_logits": (8, 4),
        "train_label": (8,),
        "test_features": (4, 5),
        "test_logits": (4, 4),
        "test_label": (4,),
        "foreign_far_off_features": (12, 5),
        "foreign_far_off_logits": (12, 4),
        "foreign_noise_features": (12, 5),
        "foreign_noise_logits": (12, 4),
    }
    read = kit.Cell.read(path)
    assert list(read.foreign) == ["far_off", "noise"]
    assert (read.train.label == cell.train.label).all()
    assert (read.foreign["noise"].features == cell.foreign["noise"].features).all()


def test_a_write_that_breaks_off_leaves_nothing(cell, tmp_path, monkeypatch):
    def cut_short(file, **arrays):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", cut_short)
    with pytest.raises(KeyboardInterrupt):
        cell.write(tmp_path / "toy.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (lambda rows: {"features": rows.features * np.nan}, "test has NaN or inf"),
        (lambda rows: {"logits": rows.logits[:, 1:]}, "but test has"),
        (lambda rows: {"label": rows.label + 4}, "label below 4 for each of 4 rows, but test has others"),
    ],
)
def test_a_cell_that_does_not_fit_together_is_not_written(kit, cell, tmp_path, part, message):
    broken = kit.Rows(**(vars(cell.test) | part(cell.test)))
    with pytest.raises(ValueError, match=message):
        kit.Cell(cell.train, broken, cell.foreign).write(tmp_path / "toy.npz")
    assert list(tmp_path.iterdir()) == []


def test_a_source_is_built_once_and_another_is_skipped(development, kit, cell, tmp_path, capsys):
    calls = []

    def toy():
        calls.append("toy")
        return cell

    def absent():
        kit.package("no_such_module_here", "no-such-package")

    sources = {"absent": absent, "toy": toy}
    for _ in range(2):
        development.build(tmp_path, sources, sources)
        out = capsys.readouterr().out
        assert "| toy | 8 | 4 | 5 | 4 |" in out
        assert "absent is skipped. Expected the package no-such-package" in out
        assert "install it with: pip install no-such-package" in out
    assert calls == ["toy"]
    assert [path.name for path in tmp_path.iterdir()] == ["toy.npz"]


def test_an_error_that_is_not_about_missing_things_is_not_hidden(development, tmp_path):
    with pytest.raises(ZeroDivisionError):
        development.build(tmp_path, ["bad"], {"bad": lambda: 1 / 0})


def test_every_source_says_what_is_missing(development, text, kit, data):
    for name, source in development.SOURCES.items():
        with pytest.raises(kit.MissingError, match=r"Expected .* in a folder of SPLITPOINT_DATA|pip install"):
            source()
        assert source.__doc__, name


def test_questions_and_news_become_cells(text, data):
    lines = [f"{place % 2} {'HW'[place % 2]}ow {place} \xe9 ?" for place in range(40)]
    for part in ("train", "test"):
        (data / f"trec_{part}.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode("latin-1")))
    articles = [f'"{place % 4 + 1}","Title {place}","Text, {place}"' for place in range(4100)]
    (data / "ag_news_test.csv.gz").write_bytes(gzip.compress("\n".join(articles).encode()))
    cell = text.trec()
    cell.check()
    assert (cell.train.accuracy, cell.test.accuracy) == (1.0, 1.0)
    assert {name: len(rows.features) for name, rows in cell.foreign.items()} == {"titles": 2000, "descriptions": 2000}


def test_the_linear_layer_is_at_the_minimum_that_scikit_learn_finds(text):
    linear_model = pytest.importorskip("sklearn.linear_model")
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(300) % 3
    x = torch.randn(300, 6, generator=generator) + nn.functional.one_hot(label, 6)
    layer = text.linear(x, label)
    truth = linear_model.LogisticRegression(C=1 / (300 * text.DECAY), tol=1e-8, max_iter=5000).fit(x.numpy(), label)
    expected = torch.from_numpy(truth.predict_proba(x.numpy())).float()
    assert torch.allclose(layer(x).softmax(1), expected, atol=5e-3)


def test_open_classes_are_foreign_and_the_others_are_numbered_anew(text, data):
    lines = [f"A:{chr(97 + place % 18)} {'HWT'[place % 3]}ow many {place} ?" for place in range(540)]
    (data / "train_5500.label").write_text("\n".join(lines))
    (data / "ag_news_test.csv.gz").write_bytes(gzip.compress(b'"1","Title","Text"\n' * 4000))
    cell = text.trec50_open()
    cell.check()
    assert cell.train.logits.shape == (81, 3)
    assert len(cell.test.features) == 9
    assert len(cell.foreign["open"].features) == 15 * 30


def test_shuffled_blocks_are_the_blocks_of_the_image(development):
    images = sys.modules["development_images"]
    pixels = torch.arange(2 * 3 * 64, dtype=torch.uint8).reshape(2, 3, 8, 8)
    mixed = images.shuffled_blocks(pixels, torch.Generator().manual_seed(0))

    def blocks(image):
        return {
            tuple(image[:, top : top + 2, left : left + 2].flatten().tolist())
            for top in range(0, 8, 2)
            for left in range(0, 8, 2)
        }

    assert not torch.equal(mixed, pixels)
    assert [blocks(image) for image in mixed] == [blocks(image) for image in pixels]


def test_shuffled_columns_keep_what_each_feature_is_like(development):
    rows = sys.modules["development_rows"]
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    mixed = rows.shuffled_columns(x, torch.Generator().manual_seed(1))
    assert torch.equal(mixed.sort(0).values, x.sort(0).values)
    assert not torch.equal(mixed[:, 0].argsort(), mixed[:, 1].argsort())


def test_a_pure_tone_is_loudest_in_the_band_around_it(development):
    rows = sys.modules["development_rows"]
    tone = torch.sin(2 * torch.pi * 1000 * torch.arange(4000) / rows.RATE)
    level = rows.log_mel(tone)
    assert level.shape == (1, rows.BANDS, rows.FRAMES)
    # 1000 Hz is 1000 mel; 34 edges from 77.8 to 2146 mel are 62.7 apart, so that band 14 (centre 1018) is the nearest
    assert int(level[0].mean(1).argmax()) == 14


def test_imagenet_classes_are_two_hundred_in_order(development):
    places = sys.modules["development_images"].IMAGENET_CLASSES
    assert len(set(places)) == 200
    assert list(places) == sorted(places)
    assert places[-1] < 1000
