"""The experiments as a user starts them: what is asked for, what is left of it, and what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from splitpoint.bench import ablation, cubic, uci
from splitpoint.bench.curves import KeyedLines, curve_file
from splitpoint.bench.protocols import NOISES, protocol_of
from splitpoint.bench.record import RECORDS, Journal, Record
from splitpoint.bench.runner import done_in, run_all
from splitpoint.datasets import TABLES
from splitpoint.errors import SettingsError


def bench_uci(
    folder: Path,
    *,
    protocol: str = "paper",
    noises: Sequence[str] = ("clean",),
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    trials: int = 20,
    epochs: int | None = None,
    jobs: int = 2,
    seed: int = 0,
    progress: bool = True,
) -> str:
    """Run the UCI experiments that `folder` lacks; returns what was done, in words."""
    datasets = _among("datasets", datasets, list(TABLES))
    methods = _among("methods", methods, list(uci.UCI_METHODS))
    noises = _among("noise", noises, list(NOISES))
    _positive(trials=trials, jobs=jobs, epochs=epochs)
    chosen = protocol_of(protocol)
    for dataset in datasets:
        chosen.table(dataset)
    _check_epochs(folder, "uci", protocol, {name: epochs or chosen.budget(name).epochs for name in datasets})
    work = uci.units(protocol, noises, datasets, methods, trials, seed, epochs, done_in(folder))
    failed = run_all(work, uci.run, folder, jobs=jobs, progress=progress)
    return _summary(folder, len(work), failed)


def bench_cubic(
    folder: Path,
    *,
    noises: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    trials: int = 3,
    epochs: int | None = None,
    jobs: int = 2,
    seed: int = 0,
    progress: bool = True,
) -> str:
    """Run the cubic experiment that `folder` lacks; returns what was done, in words."""
    noises = _among("noise", noises, cubic.CUBIC_NOISES)
    methods = _among("methods", methods, cubic.CUBIC_METHODS)
    _positive(trials=trials, jobs=jobs, epochs=epochs)
    _check_epochs(folder, "cubic", "paper", {"cubic": epochs or cubic.BUDGET.epochs})
    curves = curve_file(folder)

    def keep(outcome: cubic.Outcome) -> list[Record]:
        if outcome.curve is not None:
            curves.put(asdict(outcome.curve))
        return outcome.records

    work = cubic.units(noises, methods, trials, seed, epochs, done_in(folder))
    failed = run_all(work, cubic.run, folder, jobs=jobs, progress=progress, keep=keep)
    return _summary(folder, len(work), failed)


def bench_uci_ablation(
    folder: Path,
    *,
    datasets: Sequence[str] | None = None,
    ablations: Sequence[str] | None = None,
    trials: int = 20,
    epochs: int | None = None,
    jobs: int = 2,
    seed: int = 0,
    progress: bool = True,
) -> str:
    """Run the ablations on UCI sets that `folder` lacks; returns what was done, in words."""
    datasets = _among("datasets", datasets or ablation.DATASETS, list(TABLES))
    ablations = _among("ablations", ablations, list(ablation.ABLATIONS))
    _positive(trials=trials, jobs=jobs, epochs=epochs)
    chosen = protocol_of("paper")
    for dataset in datasets:
        chosen.table(dataset)
    _check_epochs(folder, "uci-ablation", "paper", {name: epochs or chosen.budget(name).epochs for name in datasets})
    work = ablation.units(datasets, ablations, trials, seed, epochs, done_in(folder))
    failed = run_all(work, ablation.run, folder, jobs=jobs, progress=progress)
    return _summary(folder, len(work), failed)


def _summary(folder: Path, pieces: int, failed: int) -> str:
    done = f"{_count(pieces, 'piece')} of work done" if pieces else "Nothing was left to do"
    trouble = f"; {_count(failed, 'trial')} failed, see the errors in the records" if failed else ""
    return f"{done}{trouble}. Records: {folder / RECORDS}. Next: splitpoint report {folder}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _check_epochs(folder: Path, suite: str, protocol: str, wanted: Mapping[str, int]) -> None:
    """Results of another number of epochs must not stand in for those that are asked for, by data set."""
    for record in Journal(folder).read():
        same = (record.suite, record.protocol) == (suite, protocol) and record.dataset in wanted
        found = record.settings.get("epochs")
        if same and found is not None and found != wanted[record.dataset]:
            raise SettingsError(
                f"Expected results of {wanted[record.dataset]} epochs for {record.dataset} in {folder}, but it has "
                f"some of {found}; give another folder, or the same epochs."
            )


def _among(name: str, given: Sequence[str] | None, allowed: Sequence[str]) -> Sequence[str]:
    unknown = [value for value in given or () if value not in allowed]
    if unknown:
        raise SettingsError(f"Expected {name} among {', '.join(allowed)}, but got {', '.join(unknown)}.")
    return [value for value in allowed if given is None or value in given]


def _positive(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and value < 1:
            raise SettingsError(f"Expected {name} >= 1, but got {value}.")
