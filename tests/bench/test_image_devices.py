"""Image experiments on another device than the CPU, which is pretended: see `pretended_device`."""

from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file, save_file

from image_files import image_folder
from pretended_device import NAME, Away, Pretending, pretending
from splitpoint.bench.architectures import cifar_resnet
from splitpoint.bench.image_experiments import base_network, trial
from splitpoint.bench.image_rows import Recorder
from splitpoint.bench.image_trials import Sweep, image_trial
from splitpoint.bench.networks import NETWORKS, factory
from splitpoint.bench.record import Journal
from splitpoint.bench.run import Stacked, bench, run
from splitpoint.bench.suite import Work
from splitpoint.bench.suites import images
from splitpoint.bench.training import Schedule, Training

QUICK = {"datasets": ["mnist"], "epochs": 1, "trials": 1, "jobs": 1, "progress": False}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield image_folder(tmp_path_factory.mktemp("data"), patch)


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
    """The same experiment on both devices: folders, and where images entered networks."""
    folders = [tmp_path_factory.mktemp(name) for name in ("here", "there")]
    bench("images", folders[0], **QUICK)
    with pretending() as entered:
        bench("images", folders[1], device=NAME, **QUICK)
    return *folders, entered


def test_every_method_runs_on_the_device_and_says_the_same(both):
    here, there = ({record.method: record for record in Journal(folder).read()} for folder in both[:2])
    assert set(there) == set(images.image_methods())
    for method, record in there.items():
        assert record.metrics == pytest.approx(here[method].metrics, rel=1e-4, abs=1e-6, nan_ok=True)
        assert record.settings == here[method].settings | {"device": NAME}
        assert "device" not in here[method].settings


def test_no_image_enters_a_network_on_another_device(both):
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
    bench("images", tmp_path, cache=both[1] / "cache", **QUICK)
    assert {path: path.stat().st_mtime_ns for path in (both[1] / "cache").rglob("*") if path.is_file()} == before


def work_of(suite, folder, device, network="lenet", dataset="mnist", **rest):
    options = {"ood": ("notmnist",), "cache": folder, "device": device}
    return Work(suite, "short", "clean", dataset, trials=(0,), network=network, options=options, **rest)


def only_record(work):
    ((record,),) = (outcome.records for outcome in run(Stacked((work,), 1.0)))
    return record


@pytest.mark.parametrize(
    ("group", "variant"),
    [
        ("joint", "splitpoint_paper training=joint"),
        ("calibration 0.1", "splitpoint_paper training=stagewise;train_fraction=0.4"),
    ],
)
def test_ablations_run_on_the_device_and_give_the_same(data, tmp_path, group, variant):
    found = {}
    for device in ("cpu", NAME):
        work = work_of("images-ablation", tmp_path / device, device, group=group, methods=(variant,), epochs=1)
        with pretending() as entered:
            found[device] = only_record(work)
        assert found[device].error is None
        assert entered == {device}
    assert found[NAME].metrics == pytest.approx(found["cpu"].metrics, rel=1e-4, abs=1e-6, nan_ok=True)
    assert found[NAME].settings == found["cpu"].settings | {"device": NAME}


def test_a_network_that_comes_trained_is_moved_there(data, tmp_path):
    (data / "models").mkdir()
    save_file(cifar_resnet(20).state_dict(), data / "models" / "resnet20_cifar10.safetensors")
    rest = {"network": "resnet20_published", "dataset": "cifar10", "group": "post_hoc", "methods": ("softmax",)}
    work = work_of("images", tmp_path, NAME, **rest)
    with pretending() as entered:
        base = base_network(work, trial(work, 0))
        record = only_record(work)
    assert {value.device.type for value in base.network.state_dict().values()} == entered == {NAME}
    assert record.error is None


# Parts


def lenet():
    torch.manual_seed(0)
    return factory("lenet", 10, (1, 28, 28))().eval()


def test_the_attack_is_computed_on_the_device(data):
    test, unit = image_trial("mnist", ("notmnist",), 0).test, torch.full((1, 1, 1), 0.5)
    expected = list(Sweep(test, lenet(), unit))
    with pretending():
        there = Sweep(test, lenet().to(NAME), unit)
        assert there.digest() == Sweep(test, lenet(), unit).digest()
        for batch, other in zip(there, expected, strict=True):
            assert isinstance(batch, Away)
            torch.testing.assert_close(batch.cpu(), other)


def test_rows_come_back_from_the_device_and_what_is_fitted_on_them_is_not_there(tmp_path):
    pixels = torch.rand(6, 1, 28, 28)
    here = Recorder(lenet(), NETWORKS["lenet"].stages, tmp_path / "here")
    expected = here.rows("some", "0", pixels.split(4), 6)
    with pretending():
        there = Recorder(lenet().to(NAME), NETWORKS["lenet"].stages, tmp_path / "there")
        assert there.folder.name == here.folder.name
        rows = there.rows("some", "0", pixels.split(4), 6)
        assert rows.last.weight.device.type == "cpu"
        assert there.recording(rows, torch.arange(6)).device.type == "cpu"
        kept = there.network.get_submodule(there.last)
        assert kept.weight.device.type == NAME, "the network itself has not been moved"
    torch.testing.assert_close(rows.values, expected.values)
    torch.testing.assert_close(rows.logits(), expected.logits())


@dataclass
class Noise:
    """Images of noise; reading more than `limit` batches is an error."""

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
