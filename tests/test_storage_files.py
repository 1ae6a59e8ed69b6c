"""One sentence for every bad file, and for a base model that a file does not belong to."""

import copy
import io
import json
import os
import pickle

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

import splitpoint as sp
from splitpoint.errors import LayerError, StorageError
from splitpoint.files import write_tensors
from stored import Net, assert_same_prediction, classification, regression, saved


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


# Bad files


def test_a_missing_file_is_named(tmp_path):
    for path in (tmp_path / "missing.safetensors", tmp_path):
        with pytest.raises(StorageError, match=r"Expected a file written by uq\.save, but"):
            sp.load(path, Net())


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.999])
def test_a_truncated_file_is_refused(share, tmp_path):
    uq = regression()
    path = saved(uq, tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(StorageError, match=r"Expected a whole safetensors file, but .* is damaged or cut short"):
        sp.load(path, uq.base)


def test_random_bytes_are_refused(tmp_path):
    path = tmp_path / "uq.safetensors"
    for seed in range(5):
        noise = torch.randint(256, (3000,), generator=torch.Generator().manual_seed(seed))
        path.write_bytes(bytes(noise.tolist()))
        with pytest.raises(StorageError, match="is damaged or cut short"):
            sp.load(path, Net())


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return os.mkdir, (self.trace,)


@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_a_pickle_is_refused_and_never_run(kind, tmp_path):
    path, trace = tmp_path / "uq.safetensors", tmp_path / "exploded"
    if kind == "pickle":
        path.write_bytes(pickle.dumps(Bomb(trace)))
    else:
        torch.save(Bomb(trace), path)
    with pytest.raises(StorageError, match="is damaged or cut short"):
        sp.load(path, Net())
    assert not trace.exists()


def test_saving_and_loading_pickle_nothing(tmp_path, monkeypatch):
    uq = regression(calibrated=True)

    def refuse(*_, **__):
        raise AssertionError("pickled")

    for owner, name in ((pickle, "load"), (pickle, "loads"), (pickle, "dumps"), (torch, "load"), (torch, "save")):
        monkeypatch.setattr(owner, name, refuse)
    again = sp.load(saved(uq, tmp_path), uq.base)
    assert_same_prediction(uq(torch.ones(2, 3)), again(torch.ones(2, 3)))


def test_another_safetensors_file_is_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    for metadata in (None, {"format": "pt"}):
        save_file({"weight": torch.ones(2)}, path, metadata)
        with pytest.raises(StorageError, match=r"Expected a file written by uq\.save, but .* holds other tensors"):
            sp.load(path, Net())


def rewritten(path, change=None, text=None, drop=None):
    """The file with other metadata or without a tensor."""
    with safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["splitpoint"])
        tensors = {name: file.get_tensor(name) for name in file.keys() if name != drop}  # noqa: SIM118
    if change is not None:
        change(description)
    write_tensors(path, tensors, {"splitpoint": json.dumps(description) if text is None else text})
    return path


def test_a_newer_format_is_refused(tmp_path):
    uq = regression()
    path = rewritten(saved(uq, tmp_path), lambda description: description.update(format=99))
    with pytest.raises(
        StorageError, match=r"Expected a file of format 4 or older, but .* has format 99; install a newer"
    ):
        sp.load(path, uq.base)


def test_metadata_that_cannot_be_read_are_refused(tmp_path):
    uq = regression()
    path = rewritten(saved(uq, tmp_path), text="{half")
    with pytest.raises(StorageError, match=r"Expected readable metadata, but those of .* are damaged"):
        sp.load(path, uq.base)


@pytest.mark.parametrize("text", ["{}", "[]", "null", '"text"', "3", '{"format": "x"}', '{"format": 1}'])
@pytest.mark.parametrize("strict", [True, False])
def test_metadata_of_another_form_are_refused(text, strict, tmp_path):
    uq = regression()
    path = rewritten(saved(uq, tmp_path), text=text)
    with pytest.raises(StorageError):
        sp.load(path, uq.base, strict=strict)


KEYS = ["kind", "settings", "layer", "layout", "inputs"]


@pytest.mark.parametrize("key", KEYS)
def test_metadata_that_lack_an_entry_are_refused(key, tmp_path):
    uq = regression()
    path = rewritten(saved(uq, tmp_path), lambda description: description.pop(key))
    with pytest.raises(StorageError, match=f"lacks or garbles .*{key}"):
        sp.load(path, uq.base)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(kind="astrology"),
        lambda d: d["settings"].update(unheard_of=1),
        lambda d: d["settings"].update(epochs=-1),
        lambda d: d["settings"].update(interval="astrology"),
        lambda d: d["layout"].pop("dense"),
        lambda d: d.update(layer=None),
    ],
    ids=["kind", "unknown setting", "setting out of range", "choice", "layout", "layer"],
)
def test_garbled_metadata_are_refused(change, tmp_path):
    uq = regression()
    path = rewritten(saved(uq, tmp_path), change)
    with pytest.raises(StorageError, match=r"Expected a complete splitpoint file, but .* lacks or garbles"):
        sp.load(path, uq.base)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (regression, "scale"),
        (regression, "shape"),
        (regression, "heads.center"),
        (regression, "joint.whiten"),
        (regression, "heads.spread"),
        (regression, "heads.trunks.mar.weights.0"),
        (regression, "heads.trunks.mar.biases.3"),
        (classification, "support.whiten"),
        (lambda: classification(calibrated=True), "correction.bias"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_without_one_of_its_tensors_is_refused(make, name, tmp_path):
    uq = make()
    path = rewritten(saved(uq, tmp_path), drop=name)
    with pytest.raises(StorageError, match=r"Expected a complete splitpoint file, but .* lacks or garbles"):
        sp.load(path, uq.base)


# Another base model


def test_other_weights_are_refused_unless_one_insists(tmp_path):
    uq = regression()
    path = saved(uq, tmp_path)
    other = copy.deepcopy(uq.base)
    with torch.no_grad():
        other.fc.bias += 1e-6
    expected = "Expected the base model that .* was fitted on, but the weights differ; .* strict=False if you know"
    with pytest.raises(StorageError, match=expected):
        sp.load(path, other)
    again = sp.load(path, other, strict=False)
    x = torch.randn(4, 3)
    assert torch.equal(again(x).mean, other(x).detach())


def test_another_architecture_is_refused(tmp_path):
    path = saved(regression(), tmp_path)
    other = nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 1))
    with pytest.raises(StorageError, match="the weights differ"):
        sp.load(path, other)
    with pytest.raises((StorageError, LayerError), match="fc"):
        sp.load(path, other, strict=False)


def test_a_callable_layer_must_be_given_again(tmp_path):
    def squares(x):
        return x.square()

    uq = regression(layer=squares)
    path = saved(uq, tmp_path)
    with pytest.raises(
        StorageError, match=r"Expected the callable that .*\(callable .*squares\), but got none; pass it as"
    ):
        sp.load(path, uq.base)
    with pytest.raises(StorageError, match="Expected the callable"):
        sp.load(path, uq.base, layer="hidden")
    again = sp.load(path, uq.base, layer=squares)
    x = torch.randn(4, 3)
    assert_same_prediction(uq(x), again(x))


def test_the_file_is_plain_safetensors_with_readable_metadata(tmp_path):
    path = saved(regression(), tmp_path)
    with safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["splitpoint"])
    assert description["format"] == 4
    assert description["kind"] == "SplitPointRegressor"
    assert description["layer"]["names"] == ["fc:input"]
    length = int.from_bytes(io.BytesIO(path.read_bytes()).read(8), "little")
    assert json.loads(path.read_bytes()[8 : 8 + length])["scale"]["dtype"] == "F32"
