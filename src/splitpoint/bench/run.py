"""Running a suite: what is left of what a user asks for, what comes of it, and what went wrong.

Work is stacked where its suite allows it. What fails is tried again in smaller pieces, so that a trial that cannot be
done takes no other with it; it is recorded as failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from splitpoint.bench.artefacts import Artefact
from splitpoint.bench.record import RECORDS, Cell, Record, versions, whole_stacks
from splitpoint.bench.sharing import Ledger, Terms
from splitpoint.bench.suite import Request, Stacked, Suite, Work
from splitpoint.bench.suites import SUITES
from splitpoint.bench.workers import run_all
from splitpoint.errors import SettingsError, SplitPointError

Done = Callable[[Cell, int], set[int]]
"""From a cell and a seed to the trials that are recorded already."""


def bench(
    name: str,
    folder: Path,
    *,
    trials: int | None = None,
    epochs: int | None = None,
    jobs: int = 2,
    seed: int = 0,
    retry: bool = False,
    progress: bool = True,
    **options: Any,
) -> str:
    """Run what a folder lacks of a suite.

    Args:
        name: of the suite.
        folder: of the records.
        trials: of every cell; None for the number of the suite.
        epochs: of the networks; None for those of the protocol.
        jobs: processes.
        seed: of what is random but the splits of tables.
        retry: whether trials that are recorded as failed are tried again.
        progress: whether to show a bar.
        **options: of the suite; those that are left out have their defaults.

    Returns:
        What was done, in words.
    """
    if name not in SUITES:
        raise SettingsError(f"Expected a suite among {', '.join(SUITES)}, but got {name!r}.")
    suite = SUITES[name]
    _check_range(seed, trials=trials, jobs=jobs, epochs=epochs)
    chosen = suite.chosen(options)
    asked = suite.cells(Request(name, folder, seed, epochs, chosen))

    ledger, trials = Ledger(folder), trials or suite.trials

    def still_left(works: Sequence[Work]) -> list[Stacked]:
        _check_settings(suite, folder, asked, ledger.records)
        return left(suite, works, trials, done_in(ledger.records, retry=retry))

    def keep(outcome: Outcome) -> list[Record]:
        for drawing in outcome.drawings:
            drawing.put(folder)
        return outcome.records

    work, threads = still_left(asked), chosen.get("threads", 1)
    terms = Terms(ledger, _names, lambda piece: still_left(piece.works))
    count = run_all(work, run, folder, jobs=jobs, threads=threads, progress=progress, keep=keep, terms=terms)
    ledger.refresh()
    cells = {suite.cell(part, method) for part in asked for method in part.methods}
    wanted = [record for record in whole_stacks(ledger.records) if record.seed == seed and record.cell in cells]
    return _summary(folder, count, wanted)


def _names(stacked: Stacked) -> Iterator[str]:
    """What the records of a stack are of, in words that all runs share."""
    for work in stacked.works:
        for method in work.methods:
            cell = SUITES[work.suite].cell(work, method)
            yield from (f"{cell} {work.seed} {trial}" for trial in work.trials)


def _check_range(seed: int, **values: int | None) -> None:
    if not 0 <= seed < 2**32:
        raise SettingsError(f"Expected seed from 0 to {2**32 - 1}, but got {seed}.")
    for name, value in values.items():
        if value is not None and value < 1:
            raise SettingsError(f"Expected {name} >= 1, but got {value}.")


def _check_settings(suite: Suite, folder: Path, asked: Sequence[Work], records: Sequence[Record]) -> None:
    """Results of other settings must not stand in for those that are asked for, by data set and network."""
    wanted = {(work.protocol, work.cell("").place): suite.settings(work) for work in asked}
    for record in records:
        place = record.cell.place
        for name, value in wanted.get((record.protocol, place), {}).items():
            found = record.settings.get(name, value)
            if record.suite == suite.name and name in suite.fixed and found != value:
                raise SettingsError(
                    f"Expected results with {name} {value} for {place} in {folder}, but it has some with {found}; "
                    f"give another folder, or the same {name}."
                )


def _summary(folder: Path, pieces: int, records: Sequence[Record]) -> str:
    """What was done; an error where a trial that was asked for has failed."""
    failed = [record for record in records if record.error is not None]
    if failed:
        first = failed[0]
        raise SplitPointError(
            f"Expected all {_count(len(records), 'trial')} to succeed, but {len(failed)} failed, such as "
            f"{first.method} on {first.cell.place}, trial {first.trial} ({first.error}); {folder / RECORDS} tells the "
            "rest, and --retry-failed tries again."
        )
    done = f"{_count(pieces, 'piece')} of work done" if pieces else "Nothing was left to do"
    return f"{done}. Records: {folder / RECORDS}. Next: splitpoint report {folder}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


# What is left


def done_in(records: Iterable[Record], *, retry: bool = False) -> Done:
    """Which trials of a cell and seed are recorded already; those that failed do not count with `retry`."""
    found: dict[tuple[Cell, int], set[int]] = {}
    for record in records:
        if record.error is None or not retry:
            found.setdefault((record.cell, record.seed), set()).add(record.trial)
    return lambda cell, seed: found.get((cell, seed), set())


def left(suite: Suite, asked: Sequence[Work], trials: int, done: Done) -> list[Stacked]:
    """What is left of the work that is asked for; methods of a group that lack the same trials stay together.

    Work that names its trials is asked for with these, other work with as many as `trials`.
    """
    stacks: dict[Any, list[Work]] = {}
    for work in chain.from_iterable(_lacking(suite, whole, trials, done) for whole in asked):
        key = suite.stack(work)
        alike = len(stacks) if key is None else (key, work.group, work.methods, work.trials)
        stacks.setdefault(alike, []).append(work)
    return [Stacked(tuple(works), sum(map(suite.cost, works))) for works in stacks.values()]


def _lacking(suite: Suite, whole: Work, trials: int, done: Done) -> Iterator[Work]:
    """The parts of some work that are left, one for each set of trials that methods lack."""
    lacking: dict[tuple[int, ...], tuple[str, ...]] = {}
    for method in whole.methods:
        have = done(suite.cell(whole, method), whole.seed)
        numbers = tuple(trial for trial in whole.trials or range(trials) if trial not in have)
        lacking[numbers] = (*lacking.get(numbers, ()), method)
    for numbers, methods in lacking.items():
        if suite.one_by_one(whole):
            yield from (replace(whole, methods=methods, trials=(number,)) for number in numbers)
        elif numbers:
            yield replace(whole, methods=methods, trials=numbers)


# What comes of it


class Outcome(NamedTuple):
    """The records of a method on the trials of a stack, and what pages draw of them."""

    records: list[Record]
    drawings: list[Artefact]


def run(stacked: Stacked) -> Iterator[Outcome]:
    """What comes of every method; what fails is tried again work by work, method by method, then trial by trial."""
    if len(stacked.works) > 1:
        try:
            yield from list(_outcomes(stacked.works))
            return
        except Exception:  # one of them will say why
            pass
    for work in stacked.works:
        yield from _sheltered(work)


def _sheltered(work: Work) -> Iterator[Outcome]:
    done = 0
    try:
        for outcome in _outcomes((work,)):
            yield outcome
            done += 1
    except Exception as error:
        rest = work.methods[done:]
        if len(work.methods) > 1:
            smaller = [replace(work, methods=own) for own in (rest[:1], rest[1:]) if own]
        elif len(work.trials) > 1:
            smaller = [replace(work, trials=(trial,)) for trial in work.trials]
        else:
            parts = {"error": f"{type(error).__name__}: {error}", "settings": SUITES[work.suite].settings(work)}
            yield Outcome([_record(work, work.methods[0], work.trials[0], **parts)], [])
            return
        for part in smaller:
            yield from _sheltered(part)


def _outcomes(works: Sequence[Work]) -> Iterator[Outcome]:
    suite = SUITES[works[0].suite]
    trials = [[suite.trial(work, number) for number in work.trials] for work in works]
    for fit in suite.fit(works, list(chain.from_iterable(trials))):
        outcome, start = Outcome([], []), 0
        for work, own in zip(works, trials, strict=True):
            part = replace(fit, predictors=fit.predictors[start : start + len(own)])
            start += len(own)
            for place, trial in enumerate(own):
                result = suite.judge(work, part, place, trial)
                timing = {
                    "train_cpu_s": fit.seconds / len(fit.predictors),
                    "infer_us_per_row": 1e6 * result.seconds_per_row,
                }
                parts = {"metrics": result.metrics, "timing": timing, "settings": dict(fit.settings)}
                outcome.records.append(_record(work, fit.method, work.trials[place], **parts))
                outcome.drawings.extend([result.drawing] if result.drawing else [])
        yield outcome


def _record(work: Work, method: str, trial: int, **parts: Any) -> Record:
    cell = SUITES[work.suite].cell(work, method)
    shared: dict[str, Any] = {"stack": work.trials, "seed": work.seed, "versions": versions()}
    return Record(**cell._asdict(), trial=trial, **shared, **parts)
