"""The ``splitpoint`` command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from splitpoint import __version__
from splitpoint.commands import parsers
from splitpoint.errors import DataError, SettingsError, SplitPointError


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; errors are one sentence on standard error and a non-zero exit code."""
    argv = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="splitpoint", description="Post-hoc split-point uncertainty for trained PyTorch models."
    )
    parser.add_argument("--version", action="version", version=f"splitpoint {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands.add_parser("demo", help="fit two small networks, print tables, write figures and a page"))
    _add_layers(commands.add_parser("layers", help="list the layers of a model and the one that would be chosen"))
    _add_checkpoint(commands)
    methods = commands.add_parser("methods", help="list every method: task, cost, what it needs, who defined it")
    methods.set_defaults(run=_methods)
    bench = commands.add_parser("bench", help="run an experiment of the paper, or go on with it")
    if argv[:1] == ["bench"]:
        _add_bench(bench)
    _add_data(commands.add_parser("data", help="list, check and download data sets"))
    _add_report(commands.add_parser("report", help="tables, figures and a page of the results in a folder"))
    options = parser.parse_args(argv)
    try:
        print(options.run(options), flush=True)
    except BrokenPipeError:  # whoever read the output has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return 0
    except (SplitPointError, OSError) as error:
        code, message = 1, str(error)
    except KeyboardInterrupt:
        code, message = 130, "interrupted"
    else:
        return 0
    print(f"splitpoint: {message}", file=sys.stderr)  # out here progress bars are gone with the frames of the error
    return code


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder to write to (default: out/demo)")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
    parser.set_defaults(run=_demo)


def _demo(options: argparse.Namespace) -> str:
    try:
        demo = importlib.import_module("splitpoint.demo")
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"Expected the packages of the demonstration, but {error.name} is missing; "
            "install them with: pip install '.[demo]' in a checkout"
        ) from error
    return str(demo.run(options.out, seed=options.seed, progress=not options.quiet))


def _add_layers(parser: argparse.ArgumentParser) -> None:
    parsers.add_layers(parser)
    parser.set_defaults(run=_layers)


def _layers(options: argparse.Namespace) -> str:
    from splitpoint.commands.looking import shown_layers

    return shown_layers(options)


def _add_checkpoint(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Commands that start from a model of one's own."""
    for name, add, run, meaning in (
        ("fit", parsers.add_fit, _fit, "fit uncertainty to a trained model and a file of rows"),
        ("predict", parsers.add_predict, _predict, "write predictions, intervals and scores for every row of a file"),
        ("export", parsers.add_export, _export, "write model and uncertainty as one graph, such as ONNX"),
        ("verdict", parsers.add_verdict, _verdict, "write a page that says whether the uncertainty can be trusted"),
    ):
        parser = commands.add_parser(name, help=meaning)
        add(parser)
        parser.set_defaults(run=run)


def _fit(options: argparse.Namespace) -> str:
    from splitpoint.commands.fitting import fit

    return fit(options)


def _predict(options: argparse.Namespace) -> str:
    from splitpoint.commands.scoring import predict

    return predict(options)


def _export(options: argparse.Namespace) -> str:
    from splitpoint.commands.exporting import export

    return export(options)


def _verdict(options: argparse.Namespace) -> str:
    from splitpoint.commands.judging import judge

    judged = judge(options)
    if judged.missed:
        print(judged.text)
        raise DataError(judged.missed)
    return judged.text


def _add_bench(parser: argparse.ArgumentParser) -> None:
    """Options of every suite, from the table; importing it takes a second, which other commands are spared."""
    from splitpoint.bench.suites import SUITES

    suites = parser.add_subparsers(required=True, metavar="SUITE")
    for name, suite in SUITES.items():
        command = suites.add_parser(name, help=suite.help)
        for option in suite.options:
            several: dict[str, Any] = {"nargs": "+"} if option.many else {}
            command.add_argument(f"--{option.flag}", type=option.kind, help=option.described(), **several)
        _add_run(command, Path("out") / name, suite.trials, suite.epochs)
        command.set_defaults(run=_bench, suite=name, own=[option.name for option in suite.options])


def _add_run(parser: argparse.ArgumentParser, out: Path, trials: int, epochs: str) -> None:
    """Options that all suites have."""
    parser.add_argument(
        "--trials", "--seeds", type=int, default=trials, help=f"of every experiment (default: {trials})"
    )
    parser.add_argument("--epochs", type=int, help=f"of {epochs} (default: those of the protocol)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="of what is random but the splits of tables (default: 0)")
    parser.add_argument("--out", type=Path, default=out, help=f"folder of the records (default: {out})")
    parser.add_argument("--retry-failed", action="store_true", help="try trials again that are recorded as failed")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def _bench(options: argparse.Namespace) -> str:
    from splitpoint.bench.run import bench

    given = {name: getattr(options, name) for name in ("trials", "epochs", "jobs", "seed", *options.own)}
    return bench(options.suite, options.out, retry=options.retry_failed, progress=not options.quiet, **given)


def _methods(_: argparse.Namespace) -> str:
    from splitpoint.baselines import catalogue

    return catalogue()


def _add_data(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="name, size and place of every data set")
    listing.set_defaults(run=_data_list)
    check = actions.add_parser(
        "check", help="compare data sets with their checksums; fails if one is damaged, or missing and named"
    )
    check.add_argument("names", nargs="*", metavar="NAME", help="data sets to check (default: all there are)")
    check.set_defaults(run=_data_check)
    getting = actions.add_parser("download", help="get data sets, verified; goes on where it was interrupted")
    getting.add_argument(
        "names", nargs="+", metavar="NAME", help="data sets to get, as listed by: splitpoint data list"
    )
    getting.add_argument("--to", type=Path, metavar="DIR", help="folder (default: the first of SPLITPOINT_DATA)")
    getting.add_argument("--quiet", action="store_true", help="no progress bars")
    getting.set_defaults(run=_data_download)


def _data_list(_: argparse.Namespace) -> str:
    from splitpoint.datasets import inventory

    return str(inventory.survey())


def _data_check(options: argparse.Namespace) -> str:
    from splitpoint.datasets import inventory
    from splitpoint.datasets.entry import command_for
    from splitpoint.datasets.registry import entry

    checked = inventory.check(options.names)
    wrong = [found.damage for found in checked.damaged]
    wrong += [
        f"Expected {name}, but it is missing; {entry(name).by_hand or f'run: {command_for(name)}'}."
        for name in (checked.missing if options.names else ())
    ]
    if wrong:
        print(checked)
        raise DataError("\n".join(wrong))
    return str(checked)


def _data_download(options: argparse.Namespace) -> str:
    from splitpoint.datasets import registry
    from splitpoint.datasets.download import default_folder, download
    from splitpoint.datasets.entry import VARIABLE, folders

    registry.entries(options.names)  # a misspelt name is an error before anything is downloaded
    folder = options.to or default_folder()
    lines = [f"{name}: {download(name, folder, progress=not options.quiet)}" for name in options.names]
    known = any(folder.resolve() == named.resolve() for named in folders())
    return "\n".join(lines if known else [*lines, f"To use it: export {VARIABLE}={folder.resolve()}"])


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder that holds the records of a benchmark")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder to write to (default: the same)")
    parser.set_defaults(run=_report)


def _report(options: argparse.Namespace) -> str:
    from splitpoint.report import write

    return write(options.folder, options.out)


if __name__ == "__main__":
    sys.exit(main())
