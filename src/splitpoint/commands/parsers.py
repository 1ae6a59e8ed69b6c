"""What the commands for a checkpoint take, and how their help explains it."""

from __future__ import annotations

import argparse

MODEL = "the trained network, as package.module:factory: a function without arguments that builds it"
DATA = "a file .npz, .parquet or .csv, or a folder of images with one sub-folder for each class"


def add_fit(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``splitpoint fit``."""
    parser.description = (
        "Fit uncertainty to a trained network. The network stays as it is; what is fitted is written to one file, "
        "which predict, export and verdict take together with the network."
    )
    parser.add_argument("--task", choices=("regression", "classification"), required=True, help="what it predicts")
    _add_model(parser, required=True)
    parser.add_argument("--data", required=True, metavar="FILE", help=f"rows that it was trained on: {DATA}")
    parser.add_argument(
        "--target",
        metavar="COLUMN",
        help="the column to predict, or several: a,b (default: array y, or the sub-folder)",
    )
    _add_features(parser, "all but the target")
    parser.add_argument("--calibration", metavar="FILE", help="rows that it was not trained on, to calibrate with")
    parser.add_argument(
        "--threshold-data", metavar="FILE", help="ordinary rows that it was not trained on: stranger ones are flagged"
    )
    parser.add_argument(
        "--level", type=float, nargs="+", help="confidence levels of intervals, such as .8 .95 (default: .95)"
    )
    parser.add_argument(
        "--classes",
        metavar="A,B,C",
        help="names of the classes in the order of the outputs (default: sorted, or the numbers)",
    )
    parser.add_argument("--probs", action="store_true", help="the network answers with probabilities, not with logits")
    parser.add_argument(
        "--layer",
        nargs="+",
        metavar="NAME",
        help="where features are read (default: before the last layer; see splitpoint layers)",
    )
    parser.add_argument("--groups", metavar="COLUMN", help="rows with equal values belong together, such as patients")
    _add_size(parser)
    parser.add_argument(
        "--cache", metavar="DIR", help="keep features in this folder: less memory, and a fit goes on where it stopped"
    )
    _add_run(parser)
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    parser.add_argument("--out", required=True, metavar="UQ.safetensors", help="file to write")


def add_predict(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``splitpoint predict``."""
    parser.description = (
        "Predict every row of a file: prediction, interval or probabilities, and scores. Features are found by their "
        "names; rows are read and written a batch at a time."
    )
    _add_predictor(parser)
    parser.add_argument("--data", required=True, metavar="FILE", help=f"rows to predict: {DATA}, or of images alone")
    parser.add_argument("--out", required=True, metavar="SCORES", help="file .parquet or .csv to write")
    parser.add_argument(
        "--fields",
        nargs="+",
        metavar="FIELD",
        help="what to write, such as mean lower upper flagged, "
        "or label probs total (default: all but sds, mar, mar_up, mar_down and base_probs)",
    )
    parser.add_argument("--id", nargs="+", metavar="COLUMN", help="columns to copy from the data")
    _add_features(parser)
    _add_run(parser)


def add_export(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``splitpoint export``."""
    parser.description = "Write network and uncertainty as one graph: for ONNX Runtime, or for torch.export."
    _add_predictor(parser)
    parser.add_argument(
        "--example", required=True, metavar="FILE", help=f"at least two rows like those to come: {DATA}"
    )
    parser.add_argument("--format", choices=("onnx", "pt2"), required=True, help="kind of file")
    parser.add_argument("--out", required=True, metavar="GRAPH", help="file .onnx or .pt2 to write")
    _add_features(parser)


def add_verdict(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``splitpoint verdict``."""
    parser.description = (
        "Write one page that says whether the uncertainty can be trusted, judged on rows that neither the network nor "
        "the fit has seen."
    )
    _add_predictor(
        parser, "what splitpoint fit wrote, or a graph .onnx that splitpoint export wrote, which needs no --model"
    )
    parser.add_argument("--data", required=True, metavar="FILE", help=f"test rows: {DATA}")
    parser.add_argument("--target", metavar="COLUMN", help="what to compare with (default: the target of the fit)")
    parser.add_argument("--train", metavar="FILE", help="rows of the fit, to look for memorised and leaked ones")
    parser.add_argument("--calibration", metavar="FILE", help="rows that were calibrated with, to look for leaked ones")
    parser.add_argument("--ood", metavar="FILE", help="rows that should be found strange")
    parser.add_argument("--out", required=True, metavar="PAGE.html", help="page to write")
    parser.add_argument("--json", metavar="FILE.json", help="write the same for programs")
    parser.add_argument(
        "--fail-under",
        nargs="+",
        metavar="FIGURE=NUMBER",
        help="exit with an error where a figure is lower, such as coverage=.93",
    )
    _add_features(parser)
    _add_run(parser)


def add_layers(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``splitpoint layers``."""
    parser.description = (
        "List the layers of a network, and the one whose input is read as features unless one is named."
    )
    parser.add_argument("place", nargs="?", metavar="model", help="the same as --model")
    parser.add_argument("shape", nargs="?", help="shape of one input batch, such as 2,3,224,224; or give --data")
    _add_model(parser, required=False)
    parser.add_argument("--data", metavar="FILE", help=f"rows that the network takes: {DATA}")
    parser.add_argument("--target", metavar="COLUMN", help="column of the data that the network does not take")
    _add_features(parser, "all but the target")
    _add_size(parser)
    parser.add_argument("--ids", action="store_true", help="the input is whole numbers, such as token ids")
    parser.set_defaults(wrong=parser.error)


def _add_predictor(parser: argparse.ArgumentParser, meaning: str = "what splitpoint fit wrote") -> None:
    parser.add_argument("predictor", metavar="UQ", help=meaning)
    _add_model(parser, required=False)


def _add_model(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--model", required=required, metavar="MODULE:NAME", help=MODEL)
    parser.add_argument(
        "--weights",
        metavar="FILE",
        help="its weights, .safetensors or what torch.save wrote of a state "
        "dict or checkpoint (default: those that the function loads)",
    )


def _add_features(parser: argparse.ArgumentParser, default: str = "those that the fit recorded") -> None:
    meaning = f"columns that the network takes, in order (default: {default})"
    parser.add_argument("--features", metavar="A,B,C", help=meaning)


def _add_size(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", metavar="HxW", help="bring images to this size (default: all have to be of one size)")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, help="rows at a time (default: 1024, or 64 images)")
    parser.add_argument(
        "--device", help="where to compute, such as cpu or cuda:0 (default: where the function puts the network)"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bars")
