import re
from pathlib import Path

import pytest

from splitpoint.datasets import raw, registry, uci
from splitpoint.datasets.folders import VARIABLE
from splitpoint.errors import SettingsError


@pytest.mark.parametrize("name", registry.SETS)
def test_entries_are_complete(name):
    entry = registry.SETS[name]
    assert bool(entry.sources) != bool(entry.by_hand)
    assert entry.licence
    for source in entry.sources:
        assert re.fullmatch(r"https?://[\w.-]+/[\w./+~-]+", source.url)
        assert source.file_name
    contents = [entry.content, *(other.content for other in entry.others.values())]
    sums = [checksum for content in contents for checksum in content.values()]
    for checksum in [*sums, *(source.checksum for source in entry.sources if source.checksum)]:
        assert re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}|size:\d+|files:\d+", checksum)
    if entry.form == "table":
        assert (name in uci.TABLES, name in raw.RAW, len(entry.sources)) == (True, True, 1)
    else:
        assert entry.content
        assert all(source.checksum for source in entry.sources)


def test_paths_are_different():
    paths = [path for entry in registry.SETS.values() for path in entry.paths]
    assert len(set(paths)) == len(paths)


def test_every_form_of_a_set_has_its_own_content_and_size():
    entry = registry.SETS["notmnist"]
    assert entry.content_at(Path("data/notMNIST_small")) == {"[A-J]/*.png": "files:18726"}
    assert entry.size_at(Path("data/notMNIST_small")) == entry.size_at(None) == "18,726 x 28 x 28"
    assert list(entry.content_at(Path("data/notmnist.npz"))) == ["x_test", "y_test"]
    assert entry.size_at(Path("data/notmnist.npz")) == "10,000 x 28 x 28"
    assert registry.SETS["mnist"].size_at(Path("data/MNIST/raw")) == "70,000 x 28 x 28"


def test_a_set_that_cannot_be_downloaded_has_another_cure(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert registry.cure("mnist") == "get it again with: splitpoint data download mnist"
    monkeypatch.delenv(VARIABLE)
    assert registry.cure("mnist") == "get it again with: splitpoint data download mnist --to DIR"
    assert registry.cure("imagenet").startswith("accept its licence at image-net.org and put its pictures into")


def test_entries_by_name_and_all_of_them():
    assert list(registry.entries([])) == list(registry.SETS)
    assert list(registry.entries(["yacht", "boston"])) == ["yacht", "boston"]
    with pytest.raises(SettingsError, match="Expected a data set among boston"):
        registry.entries(["yacht", "iris"])
