import pytest

from splitpoint.datasets import content, inventory
from splitpoint.datasets.folders import VARIABLE
from splitpoint.datasets.registry import SETS
from splitpoint.errors import DataError, SettingsError


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder with three files that only look like sets: whole, reordered and damaged, as a stand-in says."""
    (tmp_path / "uci").mkdir()
    for name, size in (("boston", 1200), ("wine", 2_500_000), ("yacht", 10)):
        (tmp_path / "uci" / f"{name}.npz").write_bytes(bytes(size))
    monkeypatch.setenv(VARIABLE, str(tmp_path))

    def verify(name, *_):
        if name == "yacht":
            raise DataError("Expected yacht, but got a boat.")
        return name == "wine"

    monkeypatch.setattr(content, "verify", verify)
    return tmp_path


def test_a_survey_says_what_is_where(data):
    found = {each.name: each for each in inventory.survey()}
    assert list(found) == list(SETS)
    assert found["boston"].path == data / "uci" / "boston.npz"
    assert found["svhn"].path is None
    assert "svhn" in inventory.survey().missing


def test_a_survey_prints_as_a_table(data):
    lines = str(inventory.survey(["boston", "wine", "power"])).splitlines()
    assert lines == [
        "set     rows x features  on disk  where",
        f"boston  506 x 13         1 kB     {data}/uci/boston.npz",
        f"wine    1,599 x 11       2.5 MB   {data}/uci/wine.npz",
        "power   9,568 x 4        -        missing",
        "",
        f"SPLITPOINT_DATA names {data}.",
        "To get what is missing: splitpoint data download power",
    ]


def test_a_set_is_found_in_any_of_its_forms_with_the_size_of_that_form(data):
    (data / "notmnist.npz").write_bytes(b"")
    found = next(iter(inventory.survey(["notmnist"])))
    assert (found.path, found.size) == (data / "notmnist.npz", "10,000 x 28 x 28")


def test_what_cannot_be_downloaded_has_advice_of_its_own(data):
    advice = str(inventory.survey(["imagenet", "imagenet_o"])).splitlines()[-2:]
    assert advice[0] == "To get what is missing: splitpoint data download imagenet_o"
    assert advice[1].startswith("To get imagenet: accept its licence at image-net.org")


def test_a_check_adds_what_it_found(data):
    checked = inventory.check(["boston", "wine", "yacht", "power"])
    assert [found.verdict for found in checked] == ["whole", "reordered", "DAMAGED", ""]
    assert [found.damage for found in checked.damaged] == ["Expected yacht, but got a boat."]
    lines = str(checked).splitlines()
    assert lines[0] == "set     rows x features  on disk  checked    where"
    assert lines[3].startswith("yacht   308 x 6          0 kB     DAMAGED    /")
    assert lines[4] == "power   9,568 x 4        -        -          missing"
    assert "reordered: the right rows in another order" in str(checked)


def test_without_the_variable_it_says_what_to_do(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    text = str(inventory.survey())
    assert "SPLITPOINT_DATA is not set" in text
    assert "splitpoint data download NAME --to DIR, and then: export SPLITPOINT_DATA=DIR" in text


def test_a_set_that_does_not_exist():
    with pytest.raises(SettingsError, match="Expected a data set among"):
        inventory.check(["iris"])


def test_a_folder_of_too_many_files_is_not_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(inventory, "MOST_ENTRIES", 3)
    for number in range(3):
        (tmp_path / f"{number}.bin").write_bytes(b"x" * 2000)
    assert inventory._bytes(tmp_path) == "6 kB"
    (tmp_path / "one-more").touch()
    assert inventory._bytes(tmp_path) == "-"
