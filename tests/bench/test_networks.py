"""Networks of the image experiments: facts in the table, weights as published, features where they should be."""

import sys
import types

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import splitpoint as sp
from splitpoint.baselines import METHODS
from splitpoint.bench.architectures import Normalise, cifar_resnet, wide_resnet
from splitpoint.bench.networks import NETWORKS, factory, from_torchvision, published, schedule_of
from splitpoint.bench.training import PAPER
from splitpoint.datasets.entry import locate
from splitpoint.errors import DataError, SettingsError

COLOUR, GREY = (3, 32, 32), (1, 28, 28)
IMAGENET = 1000, (3, 224, 224)
TRAINABLE = [name for name, spec in NETWORKS.items() if not spec.trained]


def test_every_name_is_there():
    assert set(TRAINABLE) == {"lenet", "vgg16", "vgg16_small", "wide_resnet", "wide_resnet_small", "resnet18"}
    assert set(NETWORKS) - set(TRAINABLE) == {
        "resnet20_published",
        "resnet32_published",
        "torchvision_vgg16",
        "torchvision_wide_resnet50_2",
    }
    assert not NETWORKS["lenet"].schedule.augment


def test_what_each_network_stands_for_in_the_published_tables():
    assert {name: spec.published for name, spec in NETWORKS.items() if not spec.differs} == {
        "lenet": "",
        "vgg16": "vgg16",
        "torchvision_vgg16": "vgg16",
        "wide_resnet": "wide_resnet",
        "torchvision_wide_resnet50_2": "wide_resnet",
    }
    assert {name: (spec.published, spec.differs) for name, spec in NETWORKS.items() if spec.differs} == {
        "vgg16_small": ("vgg16", "smaller"),
        "wide_resnet_small": ("wide_resnet", "smaller"),
        "resnet18": ("wide_resnet", "another"),
        "resnet20_published": ("wide_resnet", "smaller"),
        "resnet32_published": ("wide_resnet", "smaller"),
    }


def test_digits_are_not_mirrored_and_the_paper_trains_longer():
    assert schedule_of("paper", "cifar10", "vgg16") == PAPER
    assert not schedule_of("paper", "mnist", "lenet").augment
    assert schedule_of("short", "cifar10", "vgg16_small") == NETWORKS["vgg16_small"].schedule
    assert schedule_of("short", "mnist", "lenet", 2).epochs == 2


@pytest.mark.parametrize("shape", [COLOUR, GREY])
@pytest.mark.parametrize("name", TRAINABLE)
def test_logits_and_the_penultimate_vector(name, shape):
    if name == "wide_resnet":
        network, width = wide_resnet(7, shape, depth=10, width=2), 128
    else:
        network, width = factory(name, 7, shape)(), {"lenet": 84, "vgg16_small": 128, "wide_resnet_small": 64}.get(name)
    images = torch.rand(2, *shape)
    assert network.eval()(images).shape == (2, 7)
    assert isinstance(next(iter(network.children())), Normalise)
    table = sp.layers(network, images)
    (chosen,) = [row for row in table if row.chosen]
    assert chosen.kind == "Linear"
    assert chosen.input_shape == (2, width or 512)


@pytest.mark.parametrize("name", ["splitpoint", "ddu", "deep_ensemble", "evidential_classification"])
def test_methods_fit_on_the_networks(name):
    recipe = METHODS[name]
    generator = torch.Generator().manual_seed(0)
    data = torch.rand(24, *COLOUR, generator=generator), torch.arange(24) % 3
    settings = {"splitpoint": {"epochs": 1}, "ddu": {}, "deep_ensemble": {"epochs": 1, "members": 2}}
    build = factory("wide_resnet_small", 3, COLOUR)
    model = build if recipe.start == "factory" else build().eval()
    found = recipe(**settings.get(name, {"epochs": 1})).fit(model, data, progress=False).predict(data[0])
    assert found.probs.shape == (24, 3)
    assert found.epistemic.isfinite().all()


@pytest.mark.parametrize(
    "build",
    [
        lambda: published(56, 10, COLOUR),
        lambda: factory("alexnet", 10, COLOUR),
        factory("resnet20_published", 100, COLOUR),
        factory("resnet20_published", 10, GREY),
        factory("torchvision_vgg16", 10, COLOUR),
    ],
)
def test_what_cannot_be_built(build):
    with pytest.raises(SettingsError, match="Expected"):
        build()


needs_models = pytest.mark.skipif(
    locate("models/resnet20_cifar10.safetensors") is None, reason="SPLITPOINT_DATA has no published networks"
)


@needs_models
@pytest.mark.skipif(locate("cifar-10-batches-bin") is None, reason="SPLITPOINT_DATA has no CIFAR-10")
@pytest.mark.parametrize(("depth", "expected"), [(20, 0.917), (32, 0.926)])
def test_published_networks_are_as_accurate_as_published(depth, expected):
    rows = np.fromfile(locate("cifar-10-batches-bin") / "test_batch.bin", np.uint8, 500 * 3073).reshape(500, 3073)
    before = torch.get_rng_state()
    network = published(depth, 10, COLOUR)
    assert torch.equal(torch.get_rng_state(), before)
    assert not network.training
    images = torch.from_numpy(rows[:, 1:].reshape(500, *COLOUR).astype(np.float32) / 255)
    with torch.no_grad():
        right = network(images).argmax(1).numpy() == rows[:, 0]
    assert abs(right.mean() - expected) < 3 * (expected * (1 - expected) / 500) ** 0.5


@needs_models
def test_a_published_network_comes_frozen_from_the_table():
    network = factory("resnet20_published", 10, COLOUR)()
    assert not any(parameter.requires_grad or parameter.is_meta for parameter in network.parameters())
    assert sp.layers(network, torch.rand(2, *COLOUR)).chosen == "body.linear:input"


@pytest.fixture
def data_folder(tmp_path, monkeypatch):
    (tmp_path / "models").mkdir()
    monkeypatch.setenv("SPLITPOINT_DATA", str(tmp_path))
    return tmp_path


def test_published_weights_that_are_missing_or_wrong(data_folder):
    with pytest.raises(DataError, match=r"Expected to find models/resnet20_cifar10\.safetensors"):
        published(20, 10, COLOUR)
    path = data_folder / "models" / "resnet20_cifar10.safetensors"
    path.write_bytes(b"no weights")
    with pytest.raises(DataError, match=r"Expected a file of weights, but .* cannot be read"):
        published(20, 10, COLOUR)
    body = cifar_resnet(32)
    save_file(body.state_dict(), path)
    with pytest.raises(DataError, match="Expected weights that fit the network"):
        published(20, 10, COLOUR)


class TinyVgg(nn.Module):
    """Stands for a network of torchvision, of its form but small."""

    def __init__(self, weights=None):
        super().__init__()
        assert weights is None
        self.features = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.classifier = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(8, 1000))

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


@pytest.fixture
def torchvision(monkeypatch):
    package, models = types.ModuleType("torchvision"), types.ModuleType("torchvision.models")
    package.models, models.vgg16 = models, TinyVgg
    monkeypatch.setitem(sys.modules, "torchvision", package)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)


@pytest.mark.parametrize("file", ["vgg16.safetensors", "vgg16.pth", "vgg16-397923af.pth"])
@pytest.mark.usefixtures("torchvision")
def test_torchvision_networks_take_their_weights_from_a_local_file(data_folder, file):
    original = TinyVgg()
    (save_file if file.endswith("safetensors") else torch.save)(original.state_dict(), data_folder / "models" / file)
    network = factory("torchvision_vgg16", *IMAGENET)()
    images = torch.rand(2, 3, 32, 32)
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    assert torch.allclose(network(images), original.eval()((images - mean) / std), atol=1e-6)
    assert sp.layers(network, images).chosen == "body.classifier.3:input"


class Sneaky:
    """Would run code when unpickled."""

    def __reduce__(self):
        return print, ("unpickled",)


@pytest.mark.parametrize("content", [[1, 2], {"weights": 3}, Sneaky(), {"features.0.weight": torch.zeros(4, 3, 3, 3)}])
@pytest.mark.usefixtures("torchvision")
def test_torchvision_weights_that_are_none(data_folder, content, capsys):
    torch.save(content, data_folder / "models" / "vgg16.pth")
    with pytest.raises(DataError, match="Expected"):
        from_torchvision("vgg16", *IMAGENET)
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("torchvision")
def test_torchvision_weights_that_are_missing(data_folder):
    (data_folder / "models" / "vgg16_bn-6c64b313.pth").touch()  # another network
    with pytest.raises(DataError, match="Expected the weights of torchvision's vgg16, but no folder"):
        from_torchvision("vgg16", *IMAGENET)
    with pytest.raises(SettingsError, match="Expected the name of a network"):
        from_torchvision("vgg61", *IMAGENET)


def test_without_torchvision(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(SettingsError, match="Expected torchvision, which defines vgg16, but it cannot be imported"):
        factory("torchvision_vgg16", *IMAGENET)()
