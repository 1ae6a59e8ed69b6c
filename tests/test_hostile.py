"""Bad inputs over the whole public surface end in one sentence, and legitimate ones in the right answer."""

import sys
import tracemalloc

import pytest

import hostile_files
import hostile_inputs
from splitpoint.datasets import cifar_batches

CASES = [case for part in (*hostile_inputs.PARTS, *hostile_files.FILE_PARTS) for case in part()]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_bad_input_is_told_in_one_sentence(case):
    assert hostile_inputs.complaint(case) == ""


def test_the_corpus_is_large_and_its_names_tell_cases_apart():
    names = [case.name for case in CASES]
    assert len(names) >= 400
    assert len(set(names)) == len(names)


def test_the_corpus_sees_what_it_must():
    def raises():
        return [][1]

    def whispers():
        raise hostile_inputs.sp.DataError("no")

    kinds = {"raised": raises, "accepted": lambda: 3, "no sentence": whispers}
    for part, call in kinds.items():
        assert part in hostile_inputs.complaint(hostile_inputs.Case("a", call))
    assert "wrong answer" in hostile_inputs.complaint(hostile_inputs.Case("a", lambda: 3, lambda found: found == 4))


def test_mutated_files_are_read_or_refused():
    assert hostile_files.fuzzed(400)[1] == []


def test_nothing_of_a_batch_is_unpickled(monkeypatch):
    for module in ("pickle", "_pickle"):
        for name in ("load", "loads", "Unpickler"):
            monkeypatch.setattr(sys.modules[module], name, None)
    for content in hostile_files.batches():
        assert hostile_files.read_cifar(content).labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04\x8e" + (2**40).to_bytes(8, "little") + b"a.",
        b"\x80\x02X" + (2**31).to_bytes(4, "little") + b"a.",
        b"\x80\x02U\x40" + b"k" * 64 + b"q\x00" + b"}h\x00h\x00s" * 300_000 + b".",
    ],
    ids=["bytes", "text", "repeated"],
)
def test_memory_is_bounded_by_the_file(content):
    tracemalloc.start()
    with pytest.raises(cifar_batches.NotABatchError):
        cifar_batches.read_batch(content, "labels")
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 10 * len(content) + 2**20
