"""Damaged and hostile files: refused in one sentence, or the same predictions; nothing in between."""

import json
import random
import struct

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import splitpoint as sp
from problems import fitted, problem
from splitpoint.errors import StorageError
from splitpoint.files import read_tensors, write_tensors
from stored import Net, assert_same_prediction, classification, regression, saved


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def refused(path, model, match="Expected"):
    """That the file is refused in one sentence, whether one insists or not."""
    for strict in (True, False):
        with pytest.raises(StorageError, match=match) as caught:
            sp.load(path, model, strict=strict)
        assert "\n" not in str(caught.value)


def rewritten(path, change):
    """The file with other tensors or metadata, and the digest that belongs to them."""
    metadata, tensors = read_tensors(path)
    description = json.loads(metadata["splitpoint"])
    change(description, tensors)
    write_tensors(path, tensors, {"splitpoint": json.dumps(description), "format": "pt"})
    return path


KINDS = {
    "regression": lambda: (uq := regression(), uq.base),
    "classification": lambda: (uq := classification(calibrated=True), uq.base),
    "post hoc": lambda: (uq := fitted("laplace", "scalar"), uq.base),
    "networks": lambda: (fitted("deep_ensemble", "scalar"), problem("scalar").factory),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_refused_or_harmless(kind, tmp_path):
    uq, start = KINDS[kind]()
    path = saved(uq, tmp_path)
    whole, dice, x = path.read_bytes(), random.Random(kind), torch.randn(5, 3)
    length, sentences = int.from_bytes(whole[:8], "little"), []
    places = [dice.randrange(64), *(8 * dice.randrange(8, 8 + length) for _ in range(15))]
    places += [dice.randrange(8 * len(whole)) for _ in range(40)]
    for place in places:
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            again = sp.load(path, start)
        except StorageError as error:
            sentences.append(str(error))
        else:
            assert_same_prediction(again(x), uq(x))
    assert len(sentences) > 40
    assert not any("\n" in sentence for sentence in sentences)


def test_a_digest_that_is_gone_or_of_another_file_is_missed(tmp_path):
    uq = regression()
    path = saved(uq, tmp_path)
    metadata, tensors = read_tensors(path)
    for told in ({}, {"contents": "0" * 40}):
        others = {name: text for name, text in metadata.items() if name != "contents"}
        save_file(tensors, path, others | told)
        refused(path, uq.base, "lacks the digest of its contents|contents are not those that were written")


def test_tensors_of_another_file_under_the_same_metadata_are_refused(tmp_path):
    one, other = regression(), regression(confidence_level=0.5)
    other.save(tmp_path / "other")
    path = saved(one, tmp_path)
    save_file(read_tensors(tmp_path / "other")[1], path, read_tensors(path)[0])
    refused(path, one.base, "is damaged: its contents are not those that were written")


def cut(name):
    return lambda _, tensors: tensors.update({name: tensors[name][..., :-1].contiguous()})


def typed(name, dtype):
    return lambda _, tensors: tensors.update({name: tensors[name].to(dtype)})


def filled(name, value):
    return lambda _, tensors: tensors.update({name: torch.full_like(tensors[name], value)})


@pytest.mark.parametrize(
    "change",
    [
        lambda _, tensors: tensors.pop("heads.center"),
        cut("heads.center"),
        cut("heads.trunks.mar.weights.0"),
        typed("heads.trunks.mar.weights.0", torch.int64),
        filled("heads.spread", torch.nan),
        filled("heads.trunks.mar.weights.0", torch.inf),
        lambda description, _: description.update(layout=[]),
        lambda description, _: description["layout"].update(axis="x", last=5),
        lambda description, _: description.update(fingerprint=[1]),
        lambda description, _: description["fingerprint"].update(dtype="nothing"),
        lambda description, _: description["fingerprint"].update(likeness={}),
        lambda description, _: description["fingerprint"]["likeness"].update(
            args={"tensor": [10**400], "dtype": "int8"}
        ),
        lambda description, _: description["settings"].update(epochs=10**400, confidence_level=10**400),
        lambda description, _: description["settings"].update(confidence_level="high"),
        lambda description, _: description.update(checks=[{"name": 1}]),
        lambda description, _: description.update(kind="Net"),
    ],
    ids=range(16),
)
def test_what_no_save_wrote_is_refused_even_with_a_right_digest(change, tmp_path):
    uq = regression()
    refused(rewritten(saved(uq, tmp_path), change), uq.base)


def test_as_many_networks_as_a_file_likes_are_not_built(tmp_path):
    path = saved(fitted("deep_ensemble", "scalar"), tmp_path)
    rewritten(path, lambda description, _: description.update(networks=10**9))
    refused(path, problem("scalar").factory, "lacks or garbles networks")


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        "1" * 5_000,
        "NaN",
        '"text"',
        "{",
        "\ud7ff",
    ],
    ids=["deep list", "deep dict", "long number", "nan", "text", "cut", "no json"],
)
def test_metadata_that_are_no_description_are_refused(text, tmp_path):
    uq = regression()
    path = saved(uq, tmp_path)
    write_tensors(path, read_tensors(path)[1], {"splitpoint": text})
    refused(path, uq.base)


def header(entries, data=b""):
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + data


HOSTILE = {
    "terabytes in all": struct.pack("<Q", 1 << 42) + b"{}",
    "a header of all bits": b"\xff" * 8 + b"{}",
    "a tensor of terabytes": header({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}, b"0000"),
    "a shape that overflows": header({"a": {"dtype": "F32", "shape": [1 << 63, 4], "data_offsets": [0, 4]}}, b"0000"),
    "a negative shape": header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"0000"),
    "an unknown type": header({"a": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}}, b"0000"),
    "overlapping tensors": header(
        {name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for name in "ab"}, b"0000"
    ),
    "a deep header": struct.pack("<Q", 200_000) + b"[" * 100_000 + b"]" * 100_000,
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_headers_that_claim_what_is_not_there_are_refused(name, tmp_path):
    path = tmp_path / "uq.safetensors"
    path.write_bytes(HOSTILE[name])
    refused(path, Net(), "Expected a whole safetensors file, but .* is damaged or cut short")


def test_nothing_but_an_ordinary_file_is_read(tmp_path):
    for path, words in ((tmp_path, "is no ordinary file"), (tmp_path / "none", "does not exist")):
        refused(path, Net(), words)


def test_a_file_of_an_older_format_has_no_digest_and_no_answers_to_compare(tmp_path):
    uq = regression()
    path = saved(uq, tmp_path)
    with safe_open(path, framework="pt") as file:
        description = json.loads(file.metadata()["splitpoint"])
    tensors = {name: value for name, value in read_tensors(path)[1].items() if not name.startswith("seen.")}
    weights = description.pop("fingerprint")["weights"]
    save_file(tensors, path, {"splitpoint": json.dumps(description | {"format": 3, "base_model": weights})})
    again = sp.load(path, uq.base)
    x = torch.randn(5, 3)
    assert_same_prediction(again(x), uq(x))
    assert again.verify().verdict == "unknown"
    again.save(tmp_path / "new")
    assert sp.load(tmp_path / "new", uq.base).verify().verdict == "unknown"
    with pytest.raises(StorageError, match="the weights differ"):
        sp.load(tmp_path / "new", Net())
