"""Networks from the command line: found by name, with weights under whatever names a wrapper gave them."""

import os
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from splitpoint.commands.model import answers, built, check_trained, imported, load_weights, stripped
from splitpoint.errors import SettingsError, StorageError


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))


def equal(one, other):
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


def prefixed(net, prefix):
    return {prefix + name: value for name, value in net.state_dict().items()}


@pytest.mark.parametrize(
    "saved",
    [
        lambda net: net.state_dict(),
        lambda net: {"state_dict": net.state_dict(), "epoch": 3},
        lambda net: {"model": {"state_dict": net.state_dict()}},
        lambda net: {"model_state_dict": prefixed(net, "module."), "optimizer_state_dict": {"lr": 1}},
        lambda net: nn.DataParallel(net).state_dict(),
        lambda net: prefixed(net, "_orig_mod."),
        lambda net: prefixed(net, "module._orig_mod."),
        lambda net: {"state_dict": {**prefixed(net, "model."), "criterion.weight": torch.ones(3)}},
    ],
)
def test_weights_are_found_under_the_names_of_wrappers(saved, tmp_path):
    trained, fresh = network(), network()
    torch.save(saved(trained), tmp_path / "w.pt")
    load_weights(fresh, tmp_path / "w.pt")
    assert equal(fresh, trained)


def test_a_network_that_holds_a_model_of_its_own_keeps_its_names(tmp_path):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(3, 1)

    trained, fresh = Outer(), Outer()
    torch.save(trained.state_dict(), tmp_path / "w.pt")
    load_weights(fresh, tmp_path / "w.pt")
    assert equal(fresh, trained)
    torch.save(prefixed(trained, "model."), tmp_path / "w.pt")
    load_weights(fresh, tmp_path / "w.pt")


def test_safetensors_are_read(tmp_path):
    trained, fresh = network(), network()
    save_file(trained.state_dict(), tmp_path / "w.safetensors")
    load_weights(fresh, tmp_path / "w.safetensors")
    assert equal(fresh, trained)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda state: state.pop("2.bias"), r"lacks 2.bias;"),
        (lambda state: state.update(extra=torch.ones(1)), r"has extra;"),
        (lambda state: state.update({"0.bias": torch.ones(7)}), r"has 0.bias \(7,\) in place of \(4,\)"),
    ],
)
def test_what_does_not_fit_is_named(change, said, tmp_path):
    state = network().state_dict()
    change(state)
    for saved in (state, {f"module.{name}": value for name, value in state.items()}):
        torch.save(saved, tmp_path / "w.pt")
        fresh = network()
        before = network()
        before.load_state_dict(fresh.state_dict())
        with pytest.raises(StorageError, match=f"Expected the weights of the model, 4 tensors, but .*{said}"):
            load_weights(fresh, tmp_path / "w.pt")
        assert equal(fresh, before)


class Trap:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("write", ["torch", "pickle"])
def test_nothing_is_unpickled(write, tmp_path):
    trap = {"state_dict": network().state_dict(), "trap": Trap(str(tmp_path / "sprung"))}
    if write == "torch":
        torch.save(trap, tmp_path / "w.pt")
    else:
        (tmp_path / "w.pt").write_bytes(pickle.dumps(trap))
    with pytest.raises(StorageError, match="Expected a file of tensors only"):
        load_weights(network(), tmp_path / "w.pt")
    assert not (tmp_path / "sprung").exists()


def test_a_whole_network_is_refused_with_the_way_to_save_it(tmp_path):
    torch.save(network(), tmp_path / "w.pt")
    with pytest.raises(StorageError, match=r"torch.save\(model.state_dict\(\), path\)"):
        load_weights(network(), tmp_path / "w.pt")


@pytest.mark.parametrize(("name", "content"), [("w.safetensors", b"short"), ("w.pt", b""), ("w.pt", b"PK\x03\x04cut")])
def test_damaged_weights_are_one_sentence(name, content, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(StorageError, match=r"Expected a (whole )?file of"):
        load_weights(network(), tmp_path / name)


def test_weights_have_to_be_there_and_tensors(tmp_path):
    with pytest.raises(StorageError, match="does not exist"):
        load_weights(network(), tmp_path / "w.pt")
    torch.save([1, 2], tmp_path / "w.pt")
    with pytest.raises(StorageError, match=r"names and tensors in .* but it holds list"):
        load_weights(network(), tmp_path / "w.pt")


def test_names_that_nothing_explains_stay_as_they_are():
    assert stripped({"net.a": 1, "net.b": 2}, {"a"}) == {"net.a": 1, "net.b": 2}


def test_networks_are_found_in_the_working_directory_and_run_in_eval_mode(place):
    name = f"{place.module}:numbers"
    model = built(name, "numbers.pt")
    assert equal(model, place.numbers)
    assert not model.training
    assert len(imported(name)) == 3


def test_a_network_with_other_weights_each_time_is_not_trained(place):
    check_trained(f"{place.module}:images", imported(f"{place.module}:images"))
    with pytest.raises(SettingsError, match=r"Expected trained weights, but .*numbers builds .* --weights"):
        check_trained(f"{place.module}:numbers", imported(f"{place.module}:numbers"))


def test_devices_that_are_not_there_are_one_sentence(place):
    with pytest.raises(SettingsError, match="Expected a device such as cpu or cuda:0, but got 'moon'"):
        built(f"{place.module}:images", None, "moon")


def test_what_a_network_says_of_rows_that_it_does_not_take_is_handed_on():
    assert answers(network(), torch.ones(2, 3)).shape == (2, 1)
    with pytest.raises(SettingsError, match=r"takes a batch of shape \(2, 5\), but it said: mat1"):
        answers(network(), torch.ones(2, 5))
