"""Devices: one that torch does not have is refused before anything is done."""

import pytest
import torch

from image_files import image_folder
from pretended_device import NAME
from splitpoint.bench.run import bench
from splitpoint.bench.workers import check_device
from splitpoint.cli import main
from splitpoint.errors import SettingsError

QUICK = {"datasets": ["mnist"], "epochs": 1, "trials": 1, "jobs": 1, "progress": False}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield image_folder(tmp_path_factory.mktemp("data"), patch)


MISSING = "cuda" if not torch.cuda.is_available() else "cuda:99"


@pytest.mark.parametrize("name", [MISSING, "gpu", "cuda:-1", NAME, ""])
@pytest.mark.parametrize("suite", ["images", "images-ablation"])
def test_a_device_that_torch_does_not_have_is_refused_at_once(data, tmp_path, name, suite):
    message = (
        rf"^Expected device to be cpu or one that torch can use here, .*, but got '{name}' \(.+\); leave it out .*\.$"
    )
    with pytest.raises(SettingsError, match=message):
        bench(suite, tmp_path / "none", device=name, **QUICK)
    assert not (tmp_path / "none").exists()


def test_the_cpu_is_always_there():
    assert check_device("cpu") == torch.device("cpu")


def test_the_command_tells_it_in_a_sentence(data, tmp_path, capsys):
    words = ["bench", "images", "--datasets", "mnist", "--device", MISSING, "--out", str(tmp_path / "none")]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert said.startswith("splitpoint: Expected device to be cpu")
    assert said.count("\n") == 1
    assert not (tmp_path / "none").exists()
