"""Image classifiers: sizes as published, weights as published, features where they should be."""

import sys
import types

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import splitpoint as sp
from splitpoint.baselines import METHODS
from splitpoint.bench.networks import (
    NETWORKS,
    Normalise,
    cifar_resnet,
    factory,
    from_torchvision,
    lenet,
    published,
    resnet18,
    vgg16,
    wide_resnet,
)
from splitpoint.datasets.folders import locate
from splitpoint.errors import DataError, SettingsError

COLOUR, GREY = (3, 32, 32), (1, 28, 28)
IMAGENET = 1000, (3, 224, 224)
TRAINABLE = [name for name, spec in NETWORKS.items() if not spec.trained]


def parameters(network):
    return sum(parameter.numel() for parameter in network.parameters())


def test_every_name_is_there():
    assert set(TRAINABLE) == {"lenet", "vgg16", "vgg16_small", "wide_resnet", "wide_resnet_small", "resnet18"}
    assert set(NETWORKS) - set(TRAINABLE) == {
        "resnet20_published",
        "resnet32_published",
        "torchvision_vgg16",
        "torchvision_wide_resnet50_2",
    }


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (lambda: lenet(10, GREY), 61_706),
        (lambda: lenet(10, COLOUR), 62_006),
        (lambda: vgg16(10, COLOUR), 14_710_464 + 2 * 4_224 + 5_130),
        (lambda: wide_resnet(10, COLOUR), 36_479_194),
        (lambda: wide_resnet(10, COLOUR, depth=16, width=4), 2_748_890),
        (lambda: resnet18(10, COLOUR), 11_173_962),
        (lambda: resnet18(*IMAGENET), 11_689_512),
        (lambda: cifar_resnet(20), 269_722),
        (lambda: cifar_resnet(32), 464_154),
    ],
)
def test_parameters_are_as_many_as_published(build, count):
    with torch.device("meta"):
        assert parameters(build()) == count


@pytest.mark.parametrize("shape", [COLOUR, GREY])
@pytest.mark.parametrize("name", TRAINABLE)
def test_logits_and_the_penultimate_vector(name, shape):
    if name == "wide_resnet":
        network, width = wide_resnet(7, shape, depth=10, width=2), 128
    else:
        network, width = factory(name, 7, shape)(), {"lenet": 84, "vgg16_small": 128, "wide_resnet_small": 64}.get(name)
    pictures = torch.rand(2, *shape)
    assert network.eval()(pictures).shape == (2, 7)
    assert isinstance(next(iter(network.children())), Normalise)
    table = sp.layers(network, pictures)
    (chosen,) = [row for row in table if row.chosen]
    assert chosen.kind == "Linear"
    assert chosen.input_shape == (2, width or 512)


def test_pictures_are_normalised_by_channel():
    normalise = Normalise((0.5, 0.25, 0.0), (0.5, 0.25, 1.0))
    pictures = torch.tensor([1.0, 0.5, 0.25]).reshape(1, 3, 1, 1).expand(2, 3, 4, 4)
    assert torch.equal(normalise(pictures), torch.tensor([1.0, 1.0, 0.25]).reshape(1, 3, 1, 1).expand(2, 3, 4, 4))


def test_what_halves_a_picture_keeps_its_even_pixels():
    """A published block against the definition written out."""
    network = cifar_resnet(8).eval()
    block = network.get_submodule("body.layer2.0")
    maps = torch.randn(2, 16, 8, 8)
    branch = block.bn2(block.conv2(block.bn1(block.conv1(maps)).relu()))
    kept = torch.cat([torch.zeros(2, 8, 4, 4), maps[:, :, ::2, ::2], torch.zeros(2, 8, 4, 4)], 1)
    assert torch.allclose(block(maps), (branch + kept).relu())


@pytest.mark.parametrize("name", ["splitpoint", "ddu", "deep_ensemble", "evidential_classification"])
def test_methods_fit_on_the_networks(name):
    method = METHODS[name]
    generator = torch.Generator().manual_seed(0)
    data = torch.rand(24, *COLOUR, generator=generator), torch.arange(24) % 3
    settings = {"epochs": 1} | ({"members": 2} if name == "deep_ensemble" else {})
    build = factory("wide_resnet_small", 3, COLOUR)
    model = build if method.about.needs == "factory" else build().eval()
    found = method(**settings).fit(model, data, progress=False).predict(data[0])
    assert found.probs.shape == (24, 3)
    assert found.epistemic.isfinite().all()


def test_small_networks_of_any_side():
    for side in (12, 17, 40, 96):
        for build in (vgg16, wide_resnet, resnet18):
            small = {vgg16: {"width": 0.05}, wide_resnet: {"depth": 10, "width": 1}, resnet18: {"width": 2}}[build]
            assert build(2, (3, side, side + 3), **small).eval()(torch.rand(1, 3, side, side + 3)).shape == (1, 2)
        assert lenet(2, (1, side, side)).eval()(torch.rand(1, 1, side, side)).shape == (1, 2)


@pytest.mark.parametrize(
    "build",
    [
        lambda: lenet(1, GREY),
        lambda: lenet(10, (1, 8, 8)),
        lambda: lenet(10, (28, 28)),
        lambda: vgg16(10, (4, 32, 32)),
        lambda: vgg16(10, COLOUR, width=0),
        lambda: wide_resnet(10, COLOUR, depth=12),
        lambda: wide_resnet(10, COLOUR, width=0),
        lambda: resnet18(10, COLOUR, width=0),
        lambda: cifar_resnet(21),
        lambda: published(56),
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
    network = published(depth)
    assert torch.equal(torch.get_rng_state(), before)
    assert not network.training
    pictures = torch.from_numpy(rows[:, 1:].reshape(500, *COLOUR).astype(np.float32) / 255)
    with torch.no_grad():
        right = network(pictures).argmax(1).numpy() == rows[:, 0]
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
        published(20)
    path = data_folder / "models" / "resnet20_cifar10.safetensors"
    path.write_bytes(b"no weights")
    with pytest.raises(DataError, match=r"Expected a file of weights, but .* cannot be read"):
        published(20)
    body = cifar_resnet(32).get_submodule("body")
    save_file(body.state_dict(), path)
    with pytest.raises(DataError, match="Expected weights that fit the network"):
        published(20)


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
    pictures = torch.rand(2, 3, 32, 32)
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    assert torch.allclose(network(pictures), original.eval()((pictures - mean) / std), atol=1e-6)
    assert sp.layers(network, pictures).chosen == "body.classifier.3:input"


class Sneaky:
    """Would run code when unpickled."""

    def __reduce__(self):
        return print, ("unpickled",)


@pytest.mark.parametrize("content", [[1, 2], {"weights": 3}, Sneaky(), {"features.0.weight": torch.zeros(4, 3, 3, 3)}])
@pytest.mark.usefixtures("torchvision")
def test_torchvision_weights_that_are_none(data_folder, content, capsys):
    torch.save(content, data_folder / "models" / "vgg16.pth")
    with pytest.raises(DataError, match="Expected"):
        from_torchvision("vgg16")
    assert capsys.readouterr().out == ""


@pytest.mark.usefixtures("torchvision")
def test_torchvision_weights_that_are_missing(data_folder):
    (data_folder / "models" / "vgg16_bn-6c64b313.pth").touch()  # another network
    with pytest.raises(DataError, match="Expected the weights of torchvision's vgg16, but no folder"):
        from_torchvision("vgg16")
    with pytest.raises(DataError, match="cannot be read"):
        from_torchvision("vgg16", data_folder / "absent.pth")
    with pytest.raises(SettingsError, match="Expected the name of a network"):
        from_torchvision("vgg61")


def test_without_torchvision(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(SettingsError, match="Expected torchvision, which defines vgg16, but it cannot be imported"):
        factory("torchvision_vgg16", *IMAGENET)()
