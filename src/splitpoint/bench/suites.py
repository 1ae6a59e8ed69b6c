"""The experiments as a user starts them: what is asked for, what is left of it, and what came out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from splitpoint.bench import ablation, cubic, image_ablation, images, uci
from splitpoint.bench.curves import KeyedLines, curve_file
from splitpoint.bench.devices import check_device
from splitpoint.bench.judging import SHEETS
from splitpoint.bench.networks import NETWORKS
from splitpoint.bench.picture_piece import schedule_of
from splitpoint.bench.pictures import OUTSIDE
from splitpoint.bench.protocols import NOISES, Protocol, protocol_of
from splitpoint.bench.record import RECORDS, Journal, Record
from splitpoint.bench.runner import done_in, run_all
from splitpoint.datasets import TABLES
from splitpoint.datasets.images import IMAGE_SETS
from splitpoint.errors import SettingsError, SplitPointError


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
    retry: bool = False,
    progress: bool = True,
) -> str:
    """Run the UCI experiments that `folder` lacks; returns what was done, in words."""
    datasets = _among("datasets", datasets, list(TABLES))
    methods = _among("methods", methods, list(uci.UCI_METHODS))
    noises = _among("noise", noises, list(NOISES))
    _in_range(seed, trials=trials, jobs=jobs, epochs=epochs)
    chosen = protocol_of(protocol)
    for dataset in datasets:
        chosen.table(dataset)
    _check_settings(folder, "uci", protocol, _epochs(chosen, datasets, epochs))
    work = uci.bundles(protocol, noises, datasets, methods, trials, seed, epochs, done_in(folder, retry=retry))
    run_all(work, uci.run, folder, jobs=jobs, progress=progress)
    return _summary(folder, len(work), Asked("uci", protocol, noises, datasets, methods, seed))


def bench_cubic(
    folder: Path,
    *,
    noises: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    trials: int = 3,
    epochs: int | None = None,
    jobs: int = 2,
    seed: int = 0,
    retry: bool = False,
    progress: bool = True,
) -> str:
    """Run the cubic experiment that `folder` lacks; returns what was done, in words."""
    noises = _among("noise", noises, cubic.CUBIC_NOISES)
    methods = _among("methods", methods, cubic.CUBIC_METHODS)
    _in_range(seed, trials=trials, jobs=jobs, epochs=epochs)
    _check_settings(folder, "cubic", "paper", {"cubic": {"epochs": epochs or cubic.BUDGET.epochs}})
    curves = curve_file(folder)

    def keep(outcome: cubic.Outcome) -> list[Record]:
        if outcome.curve is not None:
            curves.put(asdict(outcome.curve))
        return outcome.records

    work = cubic.units(noises, methods, trials, seed, epochs, done_in(folder, retry=retry))
    run_all(work, cubic.run, folder, jobs=jobs, progress=progress, keep=keep)
    return _summary(folder, len(work), Asked("cubic", "paper", noises, None, methods, seed))


def bench_uci_ablation(
    folder: Path,
    *,
    datasets: Sequence[str] | None = None,
    ablations: Sequence[str] | None = None,
    trials: int = 20,
    epochs: int | None = None,
    jobs: int = 2,
    seed: int = 0,
    retry: bool = False,
    progress: bool = True,
) -> str:
    """Run the ablations on UCI sets that `folder` lacks; returns what was done, in words."""
    datasets = _among("datasets", datasets or ablation.DATASETS, list(TABLES))
    ablations = _among("ablations", ablations, list(ablation.ABLATIONS))
    _in_range(seed, trials=trials, jobs=jobs, epochs=epochs)
    chosen = protocol_of("paper")
    for dataset in datasets:
        chosen.table(dataset)
    _check_settings(folder, "uci-ablation", "paper", _epochs(chosen, datasets, epochs))
    work = ablation.units(datasets, ablations, trials, seed, epochs, done_in(folder, retry=retry))
    run_all(work, ablation.run, folder, jobs=jobs, progress=progress)
    return _summary(folder, len(work), Asked("uci-ablation", "paper", None, datasets, None, seed))


def bench_images(
    folder: Path,
    *,
    datasets: Sequence[str] = ("mnist", "fashion_mnist"),
    networks: Sequence[str] = ("lenet",),
    outside: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    protocol: str = "short",
    cache: Path | None = None,
    device: str = "cpu",
    threads: int = 1,
    trials: int = 5,
    epochs: int | None = None,
    jobs: int = 2,
    seed: int = 0,
    retry: bool = False,
    progress: bool = True,
) -> str:
    """Run the image experiments that `folder` lacks; returns what was done, in words."""
    _in_range(seed, trials=trials, jobs=jobs, threads=threads, epochs=epochs)
    check_device(device)
    plan = _pictures(folder, "images", datasets, networks, outside, protocol, epochs, device)
    ready = all(NETWORKS[name].trained for name in networks)
    methods = _among("methods", methods, list(images.FAMILIES["post_hoc"] if ready else images.IMAGE_METHODS))
    sheets = KeyedLines(folder / SHEETS, ("protocol", "dataset", "method"))

    def keep(outcome: images.Outcome) -> list[Record]:
        if outcome.sheet is not None:
            sheets.put(outcome.sheet)
        return outcome.records

    wholes = [images.Unit(**piece, seed=seed, cache=cache or folder / "cache") for piece in plan]
    work = images.units(wholes, methods, trials, done_in(folder, retry=retry))
    run_all(work, images.run, folder, jobs=jobs, threads=threads, progress=progress, keep=keep)
    places = [piece["dataset"] for piece in plan]
    return _summary(folder, len(work), Asked("images", protocol, None, places, methods, seed))


def bench_images_ablation(
    folder: Path,
    *,
    datasets: Sequence[str] = ("fashion_mnist",),
    networks: Sequence[str] = ("lenet",),
    outside: Sequence[str] | None = None,
    ablations: Sequence[str] | None = None,
    protocol: str = "short",
    cache: Path | None = None,
    device: str = "cpu",
    threads: int = 1,
    trials: int = 3,
    epochs: int | None = None,
    jobs: int = 2,
    seed: int = 0,
    retry: bool = False,
    progress: bool = True,
) -> str:
    """Run the ablations on pictures that `folder` lacks; returns what was done, in words."""
    _in_range(seed, trials=trials, jobs=jobs, threads=threads, epochs=epochs)
    check_device(device)
    plan = _pictures(folder, "images-ablation", datasets, networks, outside, protocol, epochs, device)
    ablations = _among("ablations", ablations, list(image_ablation.ABLATIONS))
    wholes = [image_ablation.Unit(**piece, seed=seed, cache=cache or folder / "cache") for piece in plan]
    work = image_ablation.units(wholes, ablations, trials, done_in(folder, retry=retry))
    run_all(work, image_ablation.run, folder, jobs=jobs, threads=threads, progress=progress)
    places = [piece["dataset"] for piece in plan]
    return _summary(folder, len(work), Asked("images-ablation", protocol, None, places, None, seed))


def _pictures(
    folder: Path,
    suite: str,
    datasets: Sequence[str],
    networks: Sequence[str],
    outside: Sequence[str] | None,
    protocol: str,
    epochs: int | None,
    device: str,
) -> list[dict[str, Any]]:
    """What the units of every data set and network have in common; what cannot be run is an error now."""
    datasets = _among("datasets", datasets, list(OUTSIDE))
    networks = _among("network", networks, list(NETWORKS))
    if outside is not None:
        outside = _among("ood", outside, list(IMAGE_SETS))
    if protocol not in ("short", "paper"):
        raise SettingsError(f"Expected protocol to be short or paper, but got {protocol!r}.")
    ready = [name for name in networks if NETWORKS[name].trained]
    if ready and epochs is not None:
        raise SettingsError(
            f"Expected no epochs with networks that come trained ({', '.join(ready)}), but got {epochs}."
        )
    found = []
    for dataset in datasets:
        others = tuple(outside or OUTSIDE[dataset])
        if dataset in others:
            raise SettingsError(f"Expected ood to name other sets than {dataset} itself, but got {', '.join(others)}.")
        for network in networks:
            images.check(dataset, network, others)
            known: dict[str, Any] = {"outside": " + ".join(others)}
            if not NETWORKS[network].trained:
                known |= {"epochs": schedule_of(protocol, dataset, network, epochs).epochs}
            place = f"{dataset}/{network}"
            _check_settings(folder, suite, protocol, {place: known})
            empty = {"noise": "clean", "family": "", "methods": (), "trials": (), "protocol": protocol}
            found.append(empty | {"dataset": place, "epochs": epochs, "outside": others, "device": device})
    return found


class Asked(NamedTuple):
    """Which trials of a folder a command asked for; None stands for all."""

    suite: str
    protocol: str
    noises: Sequence[str] | None
    datasets: Sequence[str] | None
    methods: Sequence[str] | None
    seed: int

    def has(self, record: Record) -> bool:
        """Whether a record is of such a trial."""
        lists = ((self.noises, record.noise), (self.datasets, record.dataset), (self.methods, record.method))
        same = (record.suite, record.protocol, record.seed) == (self.suite, self.protocol, self.seed)
        return same and all(names is None or name in names for names, name in lists)


def _summary(folder: Path, pieces: int, asked: Asked) -> str:
    """What was done; an error where a trial that was asked for has failed."""
    records = [record for record in Journal(folder).read() if asked.has(record)]
    failed = [record for record in records if record.error is not None]
    if failed:
        first = failed[0]
        raise SplitPointError(
            f"Expected all {_count(len(records), 'trial')} to succeed, but {len(failed)} failed, such as "
            f"{first.method} on {first.dataset}, trial {first.trial} ({first.error}); {folder / RECORDS} tells the "
            "rest, and --retry-failed tries again."
        )
    done = f"{_count(pieces, 'piece')} of work done" if pieces else "Nothing was left to do"
    return f"{done}. Records: {folder / RECORDS}. Next: splitpoint report {folder}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def _epochs(protocol: Protocol, datasets: Sequence[str], given: int | None) -> dict[str, dict[str, int]]:
    """Epochs of the networks by data set."""
    return {name: {"epochs": given or protocol.budget(name).epochs} for name in datasets}


def _check_settings(folder: Path, suite: str, protocol: str, wanted: Mapping[str, Mapping[str, Any]]) -> None:
    """Results of other settings must not stand in for those that are asked for, by data set."""
    for record in Journal(folder).read():
        if (record.suite, record.protocol) != (suite, protocol) or record.dataset not in wanted:
            continue
        for name, value in wanted[record.dataset].items():
            found = record.settings.get(name, value)
            if found != value:
                raise SettingsError(
                    f"Expected results with {name} {value} for {record.dataset} in {folder}, but it has some with "
                    f"{found}; give another folder, or the same {name}."
                )


def _among(name: str, given: Sequence[str] | None, allowed: Sequence[str]) -> Sequence[str]:
    unknown = [value for value in given or () if value not in allowed]
    if unknown:
        raise SettingsError(f"Expected {name} among {', '.join(allowed)}, but got {', '.join(unknown)}.")
    return [value for value in allowed if given is None or value in given]


def _in_range(seed: int, **values: int | None) -> None:
    if not 0 <= seed < 2**32:
        raise SettingsError(f"Expected seed from 0 to {2**32 - 1}, but got {seed}.")
    for name, value in values.items():
        if value is not None and value < 1:
            raise SettingsError(f"Expected {name} >= 1, but got {value}.")
