import re

import pytest

from splitpoint.datasets import raw, registry, uci
from splitpoint.errors import SettingsError


@pytest.mark.parametrize("name", registry.SETS)
def test_entries_are_complete(name):
    entry = registry.SETS[name]
    assert entry.sources
    assert entry.licence
    for source in entry.sources:
        assert re.fullmatch(r"https?://[\w.-]+/[\w./+~-]+", source.url)
        assert source.file_name
    for checksum in [*entry.content.values(), *(source.checksum for source in entry.sources if source.checksum)]:
        assert re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}|size:\d+", checksum)
    if entry.form == "table":
        assert (name in uci.TABLES, name in raw.RAW, len(entry.sources)) == (True, True, 1)
    else:
        assert entry.content
        assert all(source.checksum for source in entry.sources)


def test_paths_are_different():
    assert len({entry.path for entry in registry.SETS.values()}) == len(registry.SETS)


def test_entries_by_name_and_all_of_them():
    assert list(registry.entries([])) == list(registry.SETS)
    assert list(registry.entries(["yacht", "boston"])) == ["yacht", "boston"]
    with pytest.raises(SettingsError, match="Expected a data set among boston"):
        registry.entries(["yacht", "iris"])
