"""How the cache and the runner of benchmarks take two writers at a time, flipped bits and kills.

    python benchmarks/hardening_cache.py [--quick]

Every run is a process of its own, forked from one that has imported everything. A result is right if it equals that of
an undisturbed run in every bit: of the cache all numbers of the fitted predictor, of the runner all records but their
timing. A flipped bit is in any file of a finished cache; it is harmless where the next fit refuses the cache with a
`CacheError`, or gives the same predictor all the same.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import random
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

import splitpoint as sp
from hardening_figures import Figure
from splitpoint import disk_table
from splitpoint.bench.record import Cell, Journal, Record
from splitpoint.bench.run import done_in
from splitpoint.bench.sharing import Ledger, Terms
from splitpoint.bench.workers import run_all
from splitpoint.errors import CacheError, SplitPointError

BATCHES, SIZE = 12, 8
PIECES, TRIALS = 8, 3
PAUSE = 0.004
"""Seconds that a batch, or a method on a piece, takes, so that kills and other processes meet it at all points."""

PAIRS, FLIPS, KILLS = 20, 300, 30


# Processes


def forked(work: Callable[[], None]) -> int:
    """The number of a process that does some work; it ends with 0 where that is done."""
    process = os.fork()
    if not process:
        code = 1
        try:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            work()
            code = 0
        finally:
            os._exit(code)
    return process


def ended(process: int) -> bool:
    """Whether a process ended well; waits for it."""
    return os.waitpid(process, 0)[1] == 0


def killed(work: Callable[[], None], chance: random.Random, seconds: float) -> None:
    """Begin some work and kill it at a moment of so many seconds."""
    process = forked(work)
    time.sleep(chance.uniform(0, seconds))
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


# The cache


class Slow(nn.Module):
    """A small network that takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Predictions (N, 1)."""
        time.sleep(PAUSE)
        return self.head(self.body(x).relu())


def problem() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A network and batches to fit on, the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, x = Slow().eval(), torch.randn(BATCHES * SIZE, 3)
        y = x.sum(1, keepdim=True) + torch.randn(len(x), 1)
    return model, list(zip(x.split(SIZE), y.split(SIZE), strict=True))


def fit(cache: Path | str) -> dict[str, Tensor]:
    """All numbers of a predictor fitted with this cache."""
    model, data = problem()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sp.SplitPointWarning)
        method = sp.SplitPointRegressor(epochs=1, folds=0, residuals="loo", cache=cache)
        return method.fit(model, data, progress=False).own_tensors()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether two predictors are equal in every bit."""
    return one.keys() == other.keys() and all(torch.equal(one[k].nan_to_num(7), other[k].nan_to_num(7)) for k in one)


def cache_pairs(count: int) -> Figure:
    """Two processes that fit with one new cache directory at the same time."""
    alone, right, worst = fit("ram"), 0, ""

    def checked(folder: Path) -> Callable[[], None]:
        def work() -> None:
            if not same(fit(folder / "cache"), alone):
                raise SystemExit(1)

        return work

    for number in range(count):
        with temporary() as folder:
            found = [ended(process) for process in [forked(checked(folder)) for _ in range(2)]]
            found.append(same(fit(folder / "cache"), alone))
            right += all(found)
            worst = worst or ("" if all(found) else f"pair {number}: {found}")
    return Figure("two processes on one cache directory, both right and a third that reads it", right, count, worst)


def flipped_bits(count: int) -> Figure:
    """Bits of a finished cache flipped, one at a time."""
    chance, alone, harmless, worst = random.Random(0), fit("ram"), 0, ""
    with temporary() as folder:
        fit(folder / "cache")
        for _ in range(count):
            shutil.copytree(folder / "cache", folder / "flipped")
            files = [path for path in sorted((folder / "flipped").rglob("*")) if path.is_file()]
            path = chance.choices(files, [path.stat().st_size for path in files])[0]
            data, bit = bytearray(path.read_bytes()), chance.randrange(8 * path.stat().st_size)
            data[bit // 8] ^= 1 << bit % 8
            path.write_bytes(data)
            try:
                fine = same(fit(folder / "flipped"), alone)
            except CacheError:
                fine = True
            except Exception as error:  # a raw traceback is no refusal
                fine, worst = False, worst or f"bit {bit} of {path.name}: {error!r}"
            harmless += fine
            worst = worst or ("" if fine else f"bit {bit} of {path.name}")
            shutil.rmtree(folder / "flipped")
    return Figure("bit of a cache flipped: refused, or the same predictor", harmless, count, worst)


def cache_kills(count: int) -> Figure:
    """Fits killed again and again at any moment, four times on every cache, then done.

    On every other cache the disk is waited for after every batch, so that there is something to go on from.
    """
    chance, alone, right, done, worst = random.Random(1), fit("ram"), 0, 0, ""
    began = time.monotonic()
    fit("ram")
    took = time.monotonic() - began
    while done < count:
        with temporary() as folder:
            kills, synced = min(4, count - done), done % 8 == 0

            def work(folder: Path = folder, synced: bool = synced) -> None:
                disk_table.SYNC_SECONDS = 0.0 if synced else disk_table.SYNC_SECONDS
                fit(folder / "cache")

            for _ in range(kills):
                killed(work, chance, took)
            done += kills
            fine = same(fit(folder / "cache"), alone)
        right += kills * fine
        worst = worst or ("" if fine else f"after {done} kills")
    return Figure("kill of a fit with a cache: the next one equal in every bit", right, count, worst)


# The runner


@dataclasses.dataclass(frozen=True)
class Piece:
    """Two methods on some trials of a data set."""

    dataset: str
    trials: tuple[int, ...]
    cost: float = 1.0

    @property
    def label(self) -> str:
        """The piece in words."""
        return self.dataset


def cell(dataset: str, method: str) -> Cell:
    """The cell of a method."""
    return Cell("toy", "paper", "clean", dataset, method)


def run(piece: Piece) -> Iterator[list[Record]]:
    """Records of both methods; each says which process made it."""
    for method in ("one", "two"):
        time.sleep(PAUSE)
        parts = {"stack": piece.trials, "seed": 0, "timing": {"process": float(os.getpid())}}
        yield [
            Record(**cell(piece.dataset, method)._asdict(), trial=trial, metrics={"rmse": trial + len(method)}, **parts)
            for trial in piece.trials
        ]


def left(ledger: Ledger, piece: Piece) -> list[Piece]:
    """What is left to do of a piece."""
    done = done_in(ledger.records)
    have = done(cell(piece.dataset, "one"), 0) & done(cell(piece.dataset, "two"), 0)
    trials = tuple(trial for trial in piece.trials if trial not in have)
    return [Piece(piece.dataset, trials)] if trials else []


def runner(folder: Path) -> None:
    """Do what is left, shared with others."""
    ledger = Ledger(folder)
    work = [part for number in range(PIECES) for part in left(ledger, Piece(f"set{number}", tuple(range(TRIALS))))]
    names = lambda piece: [f"{piece.dataset} {trial}" for trial in piece.trials]  # noqa: E731
    terms = Terms(ledger, names, lambda piece: left(ledger, piece))
    run_all(work, run, folder, jobs=1, progress=False, terms=terms)


def records(folder: Path) -> list[str]:
    """All records without their timing."""
    return sorted(dataclasses.replace(record, timing={}).line() for record in Journal(folder).read())


def runner_pairs(count: int) -> Figure:
    """Two runners that begin on one folder at the same time: every trial once, by either of them."""
    with temporary() as folder:
        runner(folder)
        alone = records(folder)
    right, shares, worst = 0, [], ""
    for number in range(count):
        with temporary() as folder:
            found = [ended(process) for process in [forked(lambda: runner(folder)) for _ in range(2)]]
            lines = Journal(folder).lines()
            fine = all(found) and len(lines.found) == len(alone) and not lines.skipped and records(folder) == alone
            makers = [record.timing["process"] for record in lines.found]
            shares.append(min(makers.count(maker) for maker in set(makers)) / len(makers))
        right += fine
        worst = worst or ("" if fine else f"pair {number}")
    told = worst or f"the smaller share of the work was {min(shares):.0%} to {max(shares):.0%}"
    return Figure("two runners on one folder, every trial once", right, count, told)


def runner_kills(count: int) -> Figure:
    """Pairs of runners of which one is killed at any moment, four times on every folder, then the work is done."""
    chance, right, done, worst = random.Random(2), 0, 0, ""
    with temporary() as folder:
        began = time.monotonic()
        runner(folder)
        took, alone = time.monotonic() - began, records(folder)
    while done < count:
        with temporary() as folder:
            kills = min(4, count - done)
            for number in range(kills):
                other = forked(lambda: runner(folder)) if number == kills - 1 else 0
                killed(lambda: runner(folder), chance, took / 2)
                if other:
                    ended(other)
            done += kills
            runner(folder)
            fine = records(folder) == alone
        right += kills * fine
        worst = worst or ("" if fine else f"after {done} kills")
    return Figure("kill of a runner, alone or beside another: the same records", right, count, worst)


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """A folder that goes away."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def figures(quick: bool) -> list[Figure]:
    """All figures, or a tenth of the cases."""
    share = 10 if quick else 1
    return [
        cache_pairs(PAIRS // share),
        flipped_bits(FLIPS // share),
        cache_kills(KILLS // share),
        runner_pairs(PAIRS // share),
        runner_kills(KILLS // share),
    ]


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tenth of the cases")
    torch.set_num_threads(1)
    found = figures(parser.parse_args().quick)
    for figure in found:
        print(f"{figure.promise}: {figure.holds} of {figure.of}{f' ({figure.worst})' if figure.worst else ''}")
    if any(figure.holds < figure.of for figure in found):
        raise SplitPointError("Expected every promise to hold.")


if __name__ == "__main__":
    main()
