"""Runs that share a folder: every trial by one of them, what others did is not done again, drawings are not lost."""

import dataclasses
import os
import time

import pytest

from forks import ended, forked, running
from splitpoint.bench import sharing
from splitpoint.bench.record import RECORDS, Cell, Journal, Record
from splitpoint.bench.run import done_in
from splitpoint.bench.sharing import Ledger, Sharing, Terms
from splitpoint.bench.workers import run_all

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


@dataclasses.dataclass(frozen=True)
class Piece:
    """Trials of a data set."""

    dataset: str
    trials: tuple[int, ...] = (0, 1)
    cost: float = 1.0

    @property
    def label(self):
        return self.dataset


def names(piece):
    return [f"{piece.dataset} {trial}" for trial in piece.trials]


def left(ledger, piece):
    done = done_in(ledger.records)(Cell("toy", "paper", "clean", piece.dataset, "one"), 0)
    trials = tuple(trial for trial in piece.trials if trial not in done)
    return [dataclasses.replace(piece, trials=trials, cost=len(trials) / 2)] if trials else []


def terms(folder):
    ledger = Ledger(folder)
    return Terms(ledger, names, lambda piece: left(ledger, piece))


def records_of(piece):
    cell = Cell("toy", "paper", "clean", piece.dataset, "one")
    return [Record(**cell._asdict(), trial=trial, stack=piece.trials, seed=0) for trial in piece.trials]


def run(piece):
    time.sleep(0.01)
    yield records_of(piece)


def work(folder, pieces):
    own = terms(folder)
    pieces = [part for piece in pieces for part in left(own.ledger, piece)]
    return run_all(pieces, run, folder, jobs=1, progress=False, terms=own)


PIECES = [Piece(f"set{number}") for number in range(8)]


def made(folder):
    return sorted((one.dataset, one.trial) for one in Journal(folder).lines().found)


def test_two_runs_do_every_trial_once(tmp_path):
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        pair = [forked(lambda folder=folder: work(folder, PIECES)) for _ in range(2)]
        assert [ended(process) for process in pair] == [True, True]
        assert made(folder) == sorted((piece.dataset, trial) for piece in PIECES for trial in piece.trials)
        assert Journal(folder).lines().skipped == []


def test_what_another_run_did_meanwhile_is_not_done_again(tmp_path):
    skipped, own = [], terms(tmp_path)
    mine = Sharing(own.ledger, [Piece("a"), Piece("b", (0, 1, 2, 3), 2.0)], own, skipped.append)
    Journal(tmp_path).append([*records_of(Piece("a")), *records_of(Piece("b"))])
    assert mine.next() == Piece("b", (2, 3))
    assert sum(skipped) == 2
    mine.close()


def test_what_another_run_is_at_is_waited_for_and_done_where_it_dies(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(sharing, "POLL_SECONDS", 0.02)
    began = tmp_path / "began"

    def dying():
        given = terms(tmp_path)
        own = Sharing(given.ledger, [Piece("a")], given, lambda _: None)
        assert own.next() == Piece("a")
        began.touch()
        time.sleep(60)

    with running(dying):
        while not began.exists():
            time.sleep(0.01)
        other = forked(lambda: work(tmp_path, [Piece("a"), Piece("b")]))
        while made(tmp_path) != [("b", 0), ("b", 1)]:
            time.sleep(0.01)
        time.sleep(0.1)
    assert ended(other)
    assert made(tmp_path) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    told = f"Another run on {tmp_path} is at the rest of this work; waiting for it.\n"
    assert capfd.readouterr().err == told


def test_a_run_alone_reads_the_records_once(tmp_path, monkeypatch):
    reads, read = [], Journal.read
    monkeypatch.setattr(Journal, "read", lambda self: reads.append(self) or read(self))
    assert work(tmp_path, PIECES) == len(PIECES)
    assert len(reads) == 1


def test_lines_of_two_runs_are_whole(tmp_path):
    """Each line is longer than what one write need take."""

    def write():
        ledger = Ledger(tmp_path)
        for number in range(10):
            piece = Piece(f"set{number} of {os.getpid()}")
            ledger.append(lambda piece=piece: [dataclasses.replace(r, error="x" * 10**5) for r in records_of(piece)])

    pair = [forked(write) for _ in range(3)]
    assert [ended(process) for process in pair] == [True] * 3
    lines = Journal(tmp_path).lines()
    assert (len(lines.found), lines.skipped) == (60, [])
    assert (tmp_path / RECORDS).read_bytes().endswith(b"\n")
