"""Image experiments on another device than the CPU, which is pretended: see `pretended_device`."""

import contextlib
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file, save_file
from splitpoint.bench.pictures import Sweep, trial_of
from splitpoint.bench.rows import Recorder
from torch import nn

from image_files import image_folder
from pretended_device import NAME, Away, Pretending
from splitpoint.bench import image_ablation, images
from splitpoint.bench.architectures import cifar_resnet
from splitpoint.bench.devices import check_device
from splitpoint.bench.networks import NETWORKS, factory
from splitpoint.bench.record import Journal
from splitpoint.bench.suites import bench_images, bench_images_ablation
from splitpoint.bench.training import Schedule, Training
from splitpoint.cli import main
from splitpoint.errors import SettingsError

QUICK = {"datasets": ["mnist"], "epochs": 1, "trials": 1, "jobs": 1, "progress": False}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield image_folder(tmp_path_factory.mktemp("data"), patch)


@contextlib.contextmanager
def pretending():
    """The pretended device; notes the devices of all pictures that enter a convolution."""
    entered = set()

    def note(module, args):
        if isinstance(module, nn.Conv2d):
            entered.add(args[0].device.type)

    hook = nn.modules.module.register_module_forward_pre_hook(note)
    with pytest.MonkeyPatch.context() as patch, Pretending():
        patch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # which this device has not
        try:
            yield entered
        finally:
            hook.remove()


def test_the_pretended_device_computes_and_does_not_mix():
    with Pretending():
        there = torch.ones(3).to(NAME)
        assert isinstance(there, Away)
        assert (2 * there).cpu().tolist() == [2, 2, 2]
        with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
            there + torch.ones(3)


# Experiments


@pytest.fixture(scope="module")
def both(data, tmp_path_factory):
    """The same experiment on both devices: folders, and where pictures entered networks."""
    folders = [tmp_path_factory.mktemp(name) for name in ("here", "there")]
    bench_images(folders[0], **QUICK)
    with pretending() as entered:
        bench_images(folders[1], device=NAME, **QUICK)
    return *folders, entered


def test_every_method_runs_on_the_device_and_says_the_same(both):
    here, there = ({record.method: record for record in Journal(folder).read()} for folder in both[:2])
    assert set(there) == set(images.IMAGE_METHODS)
    for method, record in there.items():
        assert record.metrics == pytest.approx(here[method].metrics, rel=1e-4, abs=1e-6, nan_ok=True)
        assert record.settings == here[method].settings | {"device": NAME}
        assert "device" not in here[method].settings


def test_no_picture_enters_a_network_elsewhere(both):
    assert both[2] == {NAME}


def test_checkpoints_and_rows_do_not_depend_on_the_device(both):
    here, there = (sorted(path.relative_to(folder) for path in folder.rglob("*.safetensors")) for folder in both[:2])
    assert here == there
    for path in here:
        one, other = (load_file(folder / path) for folder in both[:2])
        assert all(torch.equal(one[name], other[name]) for name in one)
    rows = [{path.relative_to(folder) for path in folder.rglob("*.npy")} for folder in both[:2]]
    assert rows[0] == rows[1]


def test_networks_that_were_trained_on_a_device_serve_without_it(both, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in (both[1] / "cache").rglob("*") if path.is_file()}
    bench_images(tmp_path, cache=both[1] / "cache", **QUICK)
    assert {path: path.stat().st_mtime_ns for path in (both[1] / "cache").rglob("*") if path.is_file()} == before


def unit_of(kind, folder, device, network="lenet", pictures="mnist", **rest):
    place = {"protocol": "short", "noise": "clean", "dataset": f"{pictures}/{network}", "trials": (0,)}
    return kind(**place, **rest, outside=("notmnist",), cache=folder, device=device)


@pytest.mark.parametrize(
    ("family", "variant"),
    [("joint", "splitpoint training=joint"), ("calibration 0.1", "splitpoint training=stagewise;train_fraction=0.4")],
)
def test_ablations_run_on_the_device_and_give_the_same(data, tmp_path, family, variant):
    found = {}
    for device in ("cpu", NAME):
        unit = unit_of(image_ablation.Unit, tmp_path / device, device, family=family, methods=(variant,), epochs=1)
        with pretending() as entered:
            ((found[device],),) = image_ablation.run(unit)
        assert found[device].error is None
        assert entered == {device}
    assert found[NAME].metrics == pytest.approx(found["cpu"].metrics, rel=1e-4, abs=1e-6, nan_ok=True)
    assert found[NAME].settings == found["cpu"].settings | {"device": NAME}


def test_a_network_that_comes_trained_is_moved_there(data, tmp_path):
    (data / "models").mkdir()
    save_file(cifar_resnet(20).state_dict(), data / "models" / "resnet20_cifar10.safetensors")
    rest = {"network": "resnet20_published", "pictures": "cifar10", "family": "post_hoc", "methods": ("softmax",)}
    unit = unit_of(images.Unit, tmp_path, NAME, **rest)
    with pretending() as entered:
        base = images.base_network(unit, unit.trial())
        ((record,),) = (outcome.records for outcome in images.run(unit))
    assert {value.device.type for value in base.network.state_dict().values()} == entered == {NAME}
    assert record.error is None


# Parts


def lenet():
    torch.manual_seed(0)
    return factory("lenet", 10, (1, 28, 28))().eval()


def test_the_attack_is_computed_on_the_device(data):
    pictures, unit = trial_of("mnist", ("notmnist",), 0).test, torch.full((1, 1, 1), 0.5)
    expected = list(Sweep(pictures, lenet(), unit))
    with pretending():
        there = Sweep(pictures, lenet().to(NAME), unit)
        assert there.digest() == Sweep(pictures, lenet(), unit).digest()
        for batch, other in zip(there, expected, strict=True):
            assert isinstance(batch, Away)
            torch.testing.assert_close(batch.cpu(), other)


def test_rows_come_back_from_the_device_and_the_tail_is_not_there(tmp_path):
    pictures = torch.rand(6, 1, 28, 28)
    here = Recorder(lenet(), NETWORKS["lenet"].stages, tmp_path / "here")
    expected = here.rows("some", "0", pictures.split(4), 6).rows
    with pretending():
        there = Recorder(lenet().to(NAME), NETWORKS["lenet"].stages, tmp_path / "there")
        assert there.folder.name == here.folder.name
        rows = there.rows("some", "0", pictures.split(4), 6).rows
        assert there.tail.last.weight.device.type == "cpu"
        assert there.last[1].weight.device.type == NAME, "the network itself has not been moved"
    torch.testing.assert_close(rows, expected)


@dataclass
class Noise:
    """Pictures of noise; reading more than `limit` batches is an error."""

    limit: int = 100
    name: str = "noise"
    shape: tuple[int, int, int] = (1, 28, 28)

    def __post_init__(self):
        generator = torch.Generator().manual_seed(0)
        self.labels = torch.arange(40) % 10
        self.bytes = torch.randint(256, (40, 1, 28, 28), generator=generator, dtype=torch.uint8)

    def digest(self):
        return "noise"

    def pixels(self, places):
        self.limit -= 1
        if self.limit < 0:
            raise KeyboardInterrupt
        return self.bytes[places]


def training(cache, data, device="cpu"):
    schedule = Schedule(3, 0.05, batch_size=20, augment=True)
    return Training(factory("lenet", 10, (1, 28, 28)), data, schedule, 0, cache, {}, device=device)


def test_a_training_that_was_killed_on_a_device_goes_on_without_it_and_the_reverse(tmp_path):
    expected = training(tmp_path / "whole", Noise()).network(progress=False).state_dict()
    for first, second in ((NAME, "cpu"), ("cpu", NAME)):
        with pretending() as entered:
            with pytest.raises(KeyboardInterrupt):
                training(tmp_path / first, Noise(limit=3), first).network(progress=False)
            rest = Noise()
            network = training(tmp_path / first, rest, second).network(progress=False)
            assert rest.limit == 100 - 4, "one epoch of three was done"
            assert {value.device.type for value in network.state_dict().values()} == {second}
            assert entered == {first, second}
            for name, value in network.state_dict().items():
                torch.testing.assert_close(value.cpu(), expected[name])


# Devices that are not there


MISSING = "cuda" if not torch.cuda.is_available() else "cuda:99"


@pytest.mark.parametrize("name", [MISSING, "gpu", "cuda:-1", NAME, ""])
@pytest.mark.parametrize("bench", [bench_images, bench_images_ablation])
def test_a_device_that_torch_does_not_have_is_refused_at_once(data, tmp_path, name, bench):
    message = (
        rf"^Expected device to be cpu or one that torch can use here, .*, but got '{name}' \(.+\); leave it out .*\.$"
    )
    with pytest.raises(SettingsError, match=message):
        bench(tmp_path / "none", device=name, **QUICK)
    assert not (tmp_path / "none").exists()


def test_the_cpu_is_always_there():
    check_device("cpu")


def test_the_command_tells_it_in_a_sentence(data, tmp_path, capsys):
    words = ["bench", "images", "--datasets", "mnist", "--device", MISSING, "--out", str(tmp_path / "none")]
    assert main(words) == 1
    said = capsys.readouterr().err
    assert said.startswith("splitpoint: Expected device to be cpu")
    assert said.count("\n") == 1
    assert not (tmp_path / "none").exists()
