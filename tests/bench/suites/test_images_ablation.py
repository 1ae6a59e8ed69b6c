"""The ablations on images from end to end, on a few images of noise and networks of one epoch."""

import math

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from image_files import image_folder
from splitpoint.bench.architectures import cifar_resnet
from splitpoint.bench.image_rows import LabelledRows, Rows
from splitpoint.bench.record import Journal
from splitpoint.bench.run import bench
from splitpoint.bench.suites.images_ablation import VARIANTS, fraction_of


@pytest.fixture
def data(tmp_path_factory, monkeypatch):
    return image_folder(tmp_path_factory.mktemp("data"), monkeypatch)


@pytest.mark.usefixtures("data")
def test_every_variant_is_run_and_named_as_published(tmp_path):
    bench("images-ablation", tmp_path, datasets=["mnist"], epochs=1, trials=1, jobs=1, progress=False)
    records = Journal(tmp_path).read()
    assert [record.error for record in records if record.error] == []
    assert len(records) == 11 + 40 + 6
    assert {record.suite for record in records} == {"images-ablation"}
    variants = {record.variant for record in records}
    assert {"training=joint", "training=stagewise;train_fraction=0.2", "hidden_layers=3"} <= variants
    assert "calib_fraction=0.5;uq_train_set=calibration" in variants
    assert all(math.isfinite(record.metrics["accuracy"]) for record in records)


def test_nothing_about_the_training_of_a_network_that_comes_trained_is_ablated(data, tmp_path):
    (data / "models").mkdir()
    torch.manual_seed(0)
    save_file(cifar_resnet(20).state_dict(), data / "models" / "resnet20_cifar10.safetensors")
    place = {"datasets": ["cifar10"], "network": ["resnet20_published"], "ood": ["mnist"]}
    ablations = ["training", "hidden_layers"]
    bench("images-ablation", tmp_path, ablations=ablations, trials=1, jobs=1, progress=False, **place)
    records = Journal(tmp_path).read()
    assert [record.error for record in records if record.error] == []
    variants = {record.variant for record in records}
    assert "hidden_layers=2" in variants
    assert "training=joint" not in variants
    assert not any(VARIANTS[f"{record.method} {record.variant}"].trains for record in records)


def test_a_smaller_fraction_is_part_of_a_larger_one():
    values = torch.arange(40.0).reshape(20, 2)
    whole = LabelledRows("train", Rows(values, nn.Linear(2, 3), 0.0), torch.arange(20))
    assert fraction_of(whole, 1.0, seed=0) is whole
    small, large = (fraction_of(whole, fraction, seed=0) for fraction in (0.2, 0.6))
    assert (len(small.rows), len(large.rows)) == (4, 12)
    assert set(small.labels.tolist()) < set(large.labels.tolist())
    assert torch.equal(small.rows.values, values[small.labels])
    assert len({part.source for part in (whole, small, large)}) == 3
