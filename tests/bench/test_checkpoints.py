"""Checkpoints: what is stored comes back to the bit, and nothing damaged is trusted."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

from splitpoint.bench.checkpoints import Checkpoint
from splitpoint.errors import SettingsError, StorageError

SETTINGS = {"seed": 1, "schedule": {"epochs": 3, "milestones": (0.5,)}}
TENSORS = {"weight": torch.randn(4, 3), "steps": torch.tensor(7), "empty": torch.zeros(0)}
LOG = [{"epoch": 1, "loss": 0.5}]


@pytest.fixture
def checkpoint(tmp_path):
    made = Checkpoint.of(tmp_path / "nested" / "cache", "digits-lenet", SETTINGS)
    made.prepare()
    return made


def same(found, expected=TENSORS):
    return set(found) == set(expected) and all(torch.equal(found[name], expected[name]) for name in expected)


def files(checkpoint):
    return {path.name.removeprefix(checkpoint.path.stem) for path in checkpoint.path.parent.iterdir()}


def test_nothing_is_there_at_first(tmp_path):
    made = Checkpoint.of(tmp_path, "x", SETTINGS)
    assert made.weights() is None
    assert made.state() is None


def test_a_state_comes_back_and_gives_way_to_the_weights(checkpoint):
    checkpoint.keep(TENSORS, LOG)
    assert checkpoint.weights() is None
    assert same(checkpoint.state().tensors)
    assert checkpoint.state().log == LOG
    assert files(checkpoint) == {".json", ".state.safetensors"}
    checkpoint.finish(TENSORS, LOG * 2)
    assert checkpoint.state() is None
    assert checkpoint.weights().log == LOG * 2
    assert same(load_file(checkpoint.path))
    assert files(checkpoint) == {".json", ".safetensors"}


def test_settings_and_log_can_be_read_by_people(checkpoint):
    checkpoint.keep(TENSORS, LOG)
    written = json.loads(checkpoint.path.with_suffix(".json").read_text())
    assert written == {"settings": json.loads(json.dumps(SETTINGS)), "log": LOG}


def test_other_settings_have_other_files(checkpoint):
    folder = checkpoint.path.parent
    assert Checkpoint.of(folder, "digits-lenet", SETTINGS).path == checkpoint.path
    assert Checkpoint.of(folder, "digits-lenet", SETTINGS | {"seed": 2}).path != checkpoint.path


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "renamed", "other"])
def test_a_damaged_file_is_left_out_with_a_warning(checkpoint, damage):
    checkpoint.finish(TENSORS, LOG)
    path, whole = checkpoint.path, checkpoint.path.read_bytes()
    if damage == "cut":
        path.write_bytes(whole[:-5])
    elif damage == "flipped":
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    elif damage == "renamed":
        other = Checkpoint.of(path.parent, "digits-lenet", SETTINGS | {"seed": 2})
        other.finish(TENSORS, LOG)
        os.replace(other.path, path)
    elif damage == "other":
        save_file(TENSORS, path)
    else:
        path.write_bytes(b"" if damage == "empty" else b"not a checkpoint at all")
    with pytest.warns(UserWarning, match=r"Expected a whole checkpoint, but .* cannot be trusted"):
        assert checkpoint.weights() is None


def test_a_draft_that_was_never_finished_does_no_harm(checkpoint):
    checkpoint.keep(TENSORS, LOG)
    (checkpoint.path.parent / f"{checkpoint.path.name}abc.tmp").write_bytes(b"half a fi")
    assert same(checkpoint.state().tensors)
    assert checkpoint.weights() is None


@pytest.mark.parametrize("ending", [".safetensors", ".state.safetensors"])
def test_a_draft_of_yesterday_goes_away(checkpoint, ending):
    checkpoint.prepare()
    draft = checkpoint.path.parent / f"{checkpoint.path.stem}{ending}.00000000-1-abc.tmp"
    draft.write_bytes(b"half a fi")
    os.utime(draft, (0, 0))
    checkpoint.prepare()
    assert not draft.exists()


def test_a_folder_that_is_none_is_found_at_once(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Expected to write checkpoints to the folder"):
        Checkpoint.of(tmp_path / "file", "x", SETTINGS).prepare()


def test_settings_that_json_cannot_hold():
    with pytest.raises(SettingsError, match="Expected settings that JSON can hold"):
        Checkpoint.of(None, "x", {"key": torch.zeros(2)})
