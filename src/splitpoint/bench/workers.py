"""Work through pieces in several processes and keep what is done: killed at any moment, the same call goes on."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from splitpoint.bench.record import RECORDS, Record
from splitpoint.bench.sharing import POLL_SECONDS, Ledger, Sharing, Terms
from splitpoint.bench.suite import Stacked
from splitpoint.errors import DataError, SettingsError, SplitPointError

BAR = "{percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Names of two settings in malloc.h."""


T = TypeVar("T")


def _only_records(stack: Any) -> list[Record]:
    return list(stack)


def run_all(
    work: Sequence[Stacked],
    run: Callable[[Stacked], Iterator[T]],
    folder: Path,
    *,
    jobs: int,
    progress: bool,
    threads: int = 1,
    keep: Callable[[T], list[Record]] = _only_records,
    terms: Terms | None = None,
) -> int:
    """Do all the work, largest pieces first, appending the records of every piece as it is done.

    Args:
        work: what is left to do.
        run: from a piece to lists of records, each written as a whole; must be importable by other processes.
        folder: where the records are.
        jobs: processes; 1 stays in this one.
        progress: whether to show one bar over all the work.
        threads: of the arithmetic in every process; sums of another number of threads round otherwise.
        keep: called in this process where `run` gives more than lists of records: it stores the rest, before the
            records say that the work is done, and returns them.
        terms: how the work is shared with other runs on the folder; None for work that is not shared.

    Returns:
        How many pieces this run did.
    """
    _check_folder(folder)
    known, count = Ledger(folder) if terms is None else terms.ledger, 0
    total, ordered = sum(piece.cost for piece in work), sorted(work, key=lambda piece: -piece.cost)
    with (
        tqdm(total=total, disable=not (progress and work), dynamic_ncols=True, bar_format=BAR) as shown,
        closing(Sharing(known, ordered, terms, shown.update)) as sharing,
    ):
        for piece, stacks in _results(sharing, run, jobs, threads, shown):
            for stack in stacks:
                known.append(partial(keep, stack))
            sharing.done(piece)
            shown.update(piece.cost)
            count += 1
    return count


def _check_folder(folder: Path) -> None:
    """Find out now, not when the first piece is done, that records cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / RECORDS, "ab"):
            pass
    except OSError as error:
        raise DataError(f"Expected to write records to the folder {folder}, but got: {error}.") from error


def _results(
    sharing: Sharing, run: Callable[[Stacked], Iterator[T]], jobs: int, threads: int, shown: tqdm[None]
) -> Iterator[tuple[Stacked, list[T]]]:
    """Pieces with what came of them, in the order in which they are done."""
    if jobs == 1:
        with _arithmetic(threads):
            while sharing.left:
                piece = sharing.next()
                if piece is None:
                    sharing.wait()
                    continue
                shown.set_postfix_str(f"{sharing.left} left: {piece.label}")
                yield piece, list(run(piece))
        return
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with _undisturbed():
        begun = ProcessPoolExecutor(jobs, context, _prepare, (os.getpid(), threads))
    with begun as pool:
        try:
            pending: dict[Future[list[T]], Stacked] = {}
            while sharing.left:
                while len(pending) < jobs and (piece := sharing.next()) is not None:
                    with _undisturbed():
                        pending[pool.submit(_collect, run, piece)] = piece
                shown.set_postfix_str(f"{sharing.left} left")
                if not pending:
                    sharing.wait()
                    continue
                finished, _ = wait(pending, POLL_SECONDS if sharing.waiting else None, FIRST_COMPLETED)
                for future in finished:
                    yield pending.pop(future), future.result()
        except BrokenProcessPool as error:
            raise SplitPointError(
                "Expected all processes to live, but one was killed, perhaps for want of memory; "
                "run the same command again, with fewer jobs."
            ) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()
            raise


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Put Ctrl-C off, for good in workers that begin here: until they are deaf to it, all of them would tell of it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def check_device(name: str) -> torch.device:
    """The device `name`; an error where torch does not know it, does not have it, or cannot compute on it."""
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).add(1).cpu()
    except Exception as error:  # of many kinds: every backend has its own
        reason = next(iter(str(error).splitlines()), type(error).__name__).strip().rstrip(".")
        raise SettingsError(
            f"Expected device to be cpu or one that torch can use here, such as cuda, cuda:1 or mps, but got {name!r} "
            f"({reason}); leave it out to run on the processor, or install a torch that has it."
        ) from error
    return device


def _collect(run: Callable[[Stacked], Iterator[T]], piece: Stacked) -> list[T]:
    return list(run(piece))


def _prepare(parent: int, threads: int) -> None:
    """Make this process a worker: few threads, no denormal numbers, deaf to Ctrl-C, and gone when its parent is."""
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    keep_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tqdm.set_lock(threading.RLock())  # one between processes would be told as left behind if this one is killed
    threading.Thread(target=_follow, args=(parent,), daemon=True).start()


def keep_memory() -> None:
    """Let this process keep memory that it frees, where the C library is glibc.

    By default it gives large pieces back at once, and every step of a stack pays for getting them again, page by page.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for parameter, size in ((M_TRIM_THRESHOLD, 2**29), (M_MMAP_THRESHOLD, 2**25)):
        mallopt(parameter, size)


def _follow(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


@contextmanager
def _arithmetic(threads: int) -> Iterator[None]:
    """`threads` and no denormal numbers, as in workers, so that results do not depend on the number of jobs."""
    before, denormals = torch.get_num_threads(), bool(torch.tensor(1e-40) * 1 > 0)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(not denormals)
