"""The cache under damage, strangers' hands and two writers: refused, begun anew or waited for, and never wrong."""

import os
import random
import shutil
import threading
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import splitpoint as sp
from forks import ended, forked
from splitpoint import disk_table
from splitpoint.collector import disagreement
from splitpoint.disk_table import DiskTable
from splitpoint.errors import CacheError, SettingsError

SIZE = 8


def network(activation=nn.ReLU, outputs=1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), activation(), nn.Linear(6, outputs)).eval()


def batches(count=5, size=SIZE):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count * size, 3, generator=generator)
    y = x.sum(1, keepdim=True) + torch.randn(len(x), 1, generator=generator)
    return list(zip(x.split(size), y.split(size), strict=True))


def fit(model, cache, data=None):
    method = sp.SplitPointRegressor(epochs=1, folds=0, residuals="loo", cache=cache)
    return method.fit(model, batches() if data is None else data, progress=False).own_tensors()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[k].nan_to_num(7), other[k].nan_to_num(7)) for k in one)


# Two writers


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_two_processes_on_one_directory_get_the_same_as_one_alone(tmp_path):
    alone = fit(network(), "ram")

    def slowly():
        for batch in batches():
            time.sleep(0.01)
            yield batch

    def work():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert same(fit(network(), tmp_path, slowly()), alone)

    for _ in range(3):
        pair = [forked(work) for _ in range(2)]
        assert [ended(process) for process in pair] == [True, True]
        assert same(fit(network(), tmp_path), alone)
        shutil.rmtree(tmp_path / "train")


def test_two_threads_on_one_directory_get_the_same_as_one_alone(tmp_path):
    alone, found = fit(network(), "ram"), []
    models = [network(), network()]
    threads = [threading.Thread(target=lambda own=own: found.append(fit(own, tmp_path))) for own in models]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    assert all(same(own, alone) for own in found)


def test_a_fit_within_the_data_of_another_is_told(tmp_path):
    def data():
        yield from batches()[:1]
        fit(network(), tmp_path)

    with pytest.raises(sp.errors.SplitPointError, match="give one of them another folder"):
        fit(network(), tmp_path, data())


def test_a_directory_without_facts_is_begun_anew_and_what_others_put_there_stays(tmp_path):
    """Rows of another network, whose facts are gone, were once added to."""
    fit(network(nn.Tanh), tmp_path)
    (tmp_path / "train" / "meta.json").unlink()
    (tmp_path / "train" / "mine.bin").write_text("mine")
    assert same(fit(network(), tmp_path), fit(network(), "ram"))
    assert (tmp_path / "train" / "mine.bin").read_text() == "mine"


def test_a_directory_that_is_deleted_while_it_is_written_to_is_told(tmp_path):
    def data():
        yield from batches()[:3]
        shutil.rmtree(tmp_path / "train")
        yield from batches()[3:]

    with pytest.raises(CacheError, match="but it was deleted while rows were recorded"):
        fit(network(), tmp_path, data())
    assert same(fit(network(), tmp_path), fit(network(), "ram"))


# Damage


def files(folder):
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "lock"]


def flip(path, bit):
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["meta.json", "journal.jsonl", "features.bin", "residual.bin", "output.bin"])
def test_a_flipped_bit_is_refused_or_changes_nothing(name, tmp_path):
    model, chance, refused = network(), random.Random(0), 0
    alone = fit(model, tmp_path / "whole")
    for _ in range(8):
        shutil.copytree(tmp_path / "whole", tmp_path / "flipped")
        path = tmp_path / "flipped" / "train" / name
        flip(path, chance.randrange(8 * path.stat().st_size))
        try:
            assert same(fit(model, tmp_path / "flipped"), alone)
        except CacheError:
            refused += 1
        shutil.rmtree(tmp_path / "flipped")
    assert refused >= 7  # a flipped end of the last line is a line cut short


def test_a_flipped_bit_of_rows_is_told_as_damage(tmp_path):
    fit(network(), tmp_path)
    flip(tmp_path / "train" / "features.bin", 7)
    with pytest.raises(CacheError, match=r"Expected a feature cache in .*train, but it is damaged; delete it\."):
        fit(network(), tmp_path)


def test_vectors_of_whole_maps_are_checked_too(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1)).eval()
    data = [(torch.randn(4, 1, 5, 5), torch.randn(4, 1, 5, 5)) for _ in range(3)]
    method = sp.SplitPointRegressor(epochs=1, folds=0, cache=tmp_path)
    method.fit(model, data, progress=False)
    flip(tmp_path / "train" / "images" / "features.bin", 7)
    with pytest.raises(CacheError, match=r"images, but it is damaged"):
        method.fit(model, data, progress=False)


def test_a_cache_of_an_older_format_is_refused_in_a_sentence(tmp_path):
    fit(network(), tmp_path)
    (tmp_path / "train" / "meta.json").write_text('{"format": 1, "identity": {}, "meta": {}}')
    with pytest.raises(CacheError, match=r"format 2 in .*train, but got 1; delete it or name another directory"):
        fit(network(), tmp_path)


def test_rows_are_on_the_disk_before_the_line_that_vouches_for_them(tmp_path, monkeypatch):
    """In the order of calls; a power failure between two of them leaves no line without its rows."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("open files are looked up in /proc")
    done, fsync, write = [], os.fsync, disk_table._write

    def synced(number):
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{number}")).name))
        fsync(number)

    def written(file, data):
        done.append(("write", Path(file.name).name))
        write(file, data)

    table = DiskTable.open(tmp_path, {})
    table.start({"columns": {"features": (2, "float32")}})
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(disk_table, "_write", written)
    for number in range(2):
        table.append({"features": torch.randn(3, 2)}, str(number))
        table.sync()
    one = [("write", "features.bin"), ("sync", "features.bin"), ("write", "journal.jsonl"), ("sync", "journal.jsonl")]
    assert done == [*one, *one]
    table.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a full disk is /dev/full")
def test_a_full_disk_is_told_and_gone_on_from(tmp_path):
    fit(network(), tmp_path, batches()[:2])
    kept = tmp_path / "train" / "features.bin"
    kept.rename(tmp_path / "kept")
    table = DiskTable(tmp_path / "train", {}, meta={"columns": {}})
    kept.symlink_to("/dev/full")
    with pytest.raises(CacheError, match=r"Expected to write to the feature cache .* goes on where it stopped"):
        table.append({"features": torch.ones(4, 6)}, "")
    table.close()
    kept.unlink()
    (tmp_path / "kept").rename(kept)
    assert same(fit(network(), tmp_path), fit(network(), "ram"))


@pytest.mark.parametrize("cache", ["", 3, None])
def test_a_cache_that_names_no_directory_is_refused(cache):
    with pytest.raises(SettingsError, match=r"Expected cache to be .* but got"):
        sp.SplitPointRegressor(cache=cache)


# Behaviour


class Scaled(nn.Sequential):
    """The same weights on inputs of another scale."""

    def forward(self, x):
        return super().forward(255 * x)


@pytest.mark.parametrize("size", [1, 8, 40])
@pytest.mark.parametrize("change", ["activation", "inputs"])
def test_a_model_of_the_same_weights_that_behaves_otherwise_is_refused(change, size, tmp_path):
    data = batches(40 // size, size)
    fit(network(), tmp_path, data)
    other = network(nn.Tanh) if change == "activation" else Scaled(*network())
    with pytest.raises(CacheError, match="one of the same weights gives features for the same rows that differ by"):
        fit(other, tmp_path, data)
    assert same(fit(network(), tmp_path, data), fit(network(), "ram", data))


def test_a_last_layer_that_behaves_otherwise_is_refused(tmp_path):
    class Doubled(nn.Sequential):
        def forward(self, x):
            return 2 * super().forward(x)

    method = sp.SplitPointRegressor(epochs=1, folds=0, layer="0", cache=tmp_path)
    method.fit(network(), batches(), progress=False)
    with pytest.raises(CacheError, match="gives output for the same rows that differ by 50%"):
        method.fit(Doubled(*network()), batches(), progress=False)


def test_another_device_or_version_may_differ_by_what_arithmetic_does(tmp_path, monkeypatch):
    class Rounded(nn.Sequential):
        def forward(self, x):
            return super().forward(x * 1.004)

    fit(network(), tmp_path)
    with pytest.raises(CacheError, match="differ by"):
        fit(Rounded(*network()), tmp_path)
    monkeypatch.setattr(torch, "__version__", "9.9")
    fit(Rounded(*network()), tmp_path)
    with pytest.raises(CacheError, match="differ by"):
        fit(network(nn.Tanh), tmp_path)


@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, lambda net: torch.compile(net, backend="eager")], ids=["parallel", "compiled"]
)
def test_a_wrapped_model_shares_the_cache_of_the_plain_one(wrap, tmp_path):
    model = network()
    alone = fit(model, "ram")
    assert same(fit(wrap(model), tmp_path), alone)
    assert same(fit(model, tmp_path), alone)
    assert same(fit(wrap(model), tmp_path), alone)


def test_a_disagreement_is_relative_to_the_size_of_a_channel_or_the_usual_one():
    then = torch.tensor([[3.0, 4.0], [3.0, 4.0]])
    assert disagreement(then, then) == 0
    assert disagreement(then * torch.tensor([1.0, 2.0]), then) == 0.5
    assert disagreement(then + torch.tensor([0.1, 0]), then) == pytest.approx(0.1 / ((16 + 3.1**2) / 2) ** 0.5)
    assert disagreement(then + torch.tensor([0, 0.1]), then) == pytest.approx(0.1 / 4.1)
    assert disagreement(-then, then) == pytest.approx(2)
    assert disagreement(then[:1], then) == float("inf")
    assert disagreement(torch.zeros(2, 2), torch.zeros(2, 2)) == 0
    assert not disagreement(then * float("nan"), then) <= 1
