"""What every method predicts on small problems and what small benchmarks record, as files that tests compare with.

A difference is a change of behaviour. To make one on purpose, store the new numbers and say why in the commit:

    PYTHONPATH=src:tests OMP_NUM_THREADS=1 python -m golden.make
"""

import hashlib
import json
import platform
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import splitpoint as sp
from image_files import image_folder
from made_up import made_up_table
from problems import (
    LEVELS,
    METHODS,
    NO_MAPS,
    base,
    problem,
    settings_of,
    tensors,
)
from splitpoint.baselines import NetworkTraining
from splitpoint.bench.record import Journal
from splitpoint.cli import main
from splitpoint.datasets.registry import SETS

FOLDER = Path(__file__).parent
SHOWN = 6
"""Numbers of a field that are stored, for machines whose last bits differ; the digest tells of all of them."""

# Predictions


@dataclass(frozen=True)
class Case:
    """One fit: which method on which problem.

    Attributes:
        method: id in METHODS, or the settings of a split-point class.
        problem: name of the problem.
        settings: of the method, beside those that all cases share.
        calibrated: whether it gets calibration data; None for where it needs them.
        fit: name of the function that fits.
        fresh: whether it starts from an untrained network, where it could take a trained one.
    """

    method: Any
    problem: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    calibrated: bool | None = None
    fit: str = "fit"
    fresh: bool = False


PROBLEMS = ("scalar", "squeezed", "pair", "maps", "sequences", "classes", "label_maps")


def training(own):
    """Short training of a network."""
    return {"epochs": 4, "batch_size": own.batch_size, "learning_rate": 1e-2}


def shared_settings(name, own):
    """Short training and two levels, as far as a method has such settings."""
    trains = METHODS[name].start == "factory"
    wanted = {"confidence_level": LEVELS, "members": 3} | (training(own) if trains else {"epochs": 3})
    known = settings_of(name, own.task)
    return {key: value for key, value in wanted.items() if key in known}


def regressor(**changes):
    """Our recipe, short."""
    return sp.SplitPointRegressor(LEVELS, **({"epochs": 3} | changes))


def classifier(**changes):
    """Our recipe, short."""
    return sp.SplitPointClassifier(**({"epochs": 3} | changes))


CASES = {
    f"{name} {own}": Case(name, own)
    for own in PROBLEMS
    for name, recipe in METHODS.items()
    if problem(own).task in recipe.tasks and not (own in ("maps", "label_maps") and name in NO_MAPS)
    if name != "splitpoint_layers"  # its numbers are in the records of images
} | {
    "deep_ensemble with a temperature": Case("deep_ensemble", "classes", {"temperature": "nll"}, True),
    "ddu with a temperature": Case("ddu", "classes", {"temperature": "nll"}, True),
    "ddu of bounded networks": Case("ddu", "classes", {"spectral_norm": 3.0}, fresh=True),
    "oc with a temperature": Case("oc", "classes", {"temperature": "ece"}, True),
    "laplace of a new network": Case("laplace", "scalar", fresh=True),
    "conformal of a new network": Case("conformal", "classes", fresh=True),
    "regressor, split": Case(regressor(interval="split"), "pair"),
    "regressor, consistent": Case(regressor(interval="consistent"), "pair"),
    "regressor, conformal": Case(regressor(interval="conformal"), "pair", calibrated=True),
    "regressor, conformal maps": Case(regressor(folds=0), "maps", calibrated=True),
    "regressor, training residuals": Case(regressor(residuals="train", factor_limit=None), "scalar"),
    "regressor, coverage loss": Case(regressor(quantile_loss="coverage", folds=2), "scalar"),
    "regressor, printed loss": Case(regressor(quantile_loss="coverage_paper", folds=0), "scalar"),
    "regressor, shared trunk": Case(regressor(shared=True, leverage=False, patience=1, folds=0), "scalar"),
    "regressor, two layers": Case(regressor(layer=["1", "4:input"]), "scalar"),
    "regressor, stagewise": Case(regressor(), "scalar", fit="fit_stagewise", fresh=True),
    "regressor, jointly": Case(regressor(), "pair", fit="fit_jointly", fresh=True),
    "regressor, paper": Case(sp.SplitPointRegressor.paper(epochs=3), "pair"),
    "regressor, paper jointly": Case(sp.SplitPointRegressor.paper(epochs=3), "scalar", fit="fit_jointly", fresh=True),
    "classifier, calibrated": Case(classifier(), "classes", calibrated=True),
    "classifier, calibrated maps": Case(classifier(), "label_maps", calibrated=True),
    "classifier, free": Case(classifier(mars="free"), "classes"),
    "classifier, free and calibrated": Case(classifier(mars="free"), "classes", calibrated=True),
    "classifier, free and cross-validated": Case(classifier(mars="free", delta0="cv"), "classes", calibrated=True),
    "classifier, two layers": Case(classifier(layer=["1", "4:input"]), "classes", calibrated=True),
    "classifier, stagewise": Case(classifier(), "classes", fit="fit_stagewise", fresh=True),
    "classifier, jointly": Case(classifier(), "classes", calibrated=True, fit="fit_jointly", fresh=True),
    "classifier, paper": Case(sp.SplitPointClassifier.paper(epochs=3), "classes", calibrated=True),
}


def predicted(case):
    """The prediction of a case for the fresh inputs of its problem."""
    own = problem(case.problem)
    method, start, more = case.method, base(case.problem), {}
    held_out = bool(case.calibrated)
    if isinstance(method, str):
        recipe = METHODS[method]
        held_out = own.task in recipe.held_out if case.calibrated is None else case.calibrated
        settings = shared_settings(method, own) | dict(case.settings)
        if case.fresh or recipe.start == "factory":
            start = own.factory
        if case.fresh:
            settings["training"] = NetworkTraining(**training(own))
        method = recipe(task=own.task, **settings)
    elif case.fresh:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            start, more = own.factory(), {"base_epochs": 4}
    calibration = own.calibration if held_out else None
    return getattr(method, case.fit)(start, own.data, calibration=calibration, progress=False, **more)(own.fresh)


def digest(values):
    """A name for the bits, type and shape of an array."""
    text = f"{values.dtype} {values.shape} ".encode() + np.ascontiguousarray(values).tobytes()
    return hashlib.sha256(text).hexdigest()[:12]


def summary(prediction):
    """Of every field the digest, and some numbers from all over it."""
    found = {}
    for name, tensor in tensors(prediction).items():
        if name == "sets":  # which follow from the others
            continue
        values = tensor.numpy()
        places = np.linspace(0, values.size - 1, min(SHOWN, values.size)).astype(int)
        found[name] = [digest(values), [float(f"{number:.9g}") for number in values.ravel()[places]]]
    return found


# Files

REFUSED = "splitpoint_calibrated classes"
"""An old file whose support score is no longer in use."""

OLD_FILES = {
    path.stem: path.stem.split()[1]
    for path in sorted((FOLDER / "format1").glob("*.safetensors"))
    if path.stem != REFUSED
}
"""Predictors in files of format 1, which nothing writes any more, and the problems they are of; they hold networks."""


def loaded(name):
    """The prediction of an old file for the fresh inputs of its problem."""
    own = problem(OLD_FILES[name])
    return sp.load(FOLDER / "format1" / f"{name}.safetensors", own.factory)(own.fresh)


# Records

COMMANDS = (
    "bench cubic --noise trimodal --trials 2 --epochs 3",
    "bench images --datasets mnist --seeds 1 --epochs 1",
    "bench images-ablation --datasets mnist --ablations training hidden_layers --seeds 1 --epochs 1",
    "bench uci --datasets yacht --noise clean trimodal --trials 2 --epochs 2",
    "bench uci-ablation --datasets yacht --ablations training residuals head_layers calibration --trials 1 --epochs 2",
)
"""Experiments that need no data from outside: images are noise in the form of the true files, and so is the table."""


def recorded(command):
    """The metrics of every record that a command writes, by its place in the experiment."""
    with tempfile.TemporaryDirectory() as temporary, pytest.MonkeyPatch.context() as patch:
        folder = Path(temporary)
        (folder / "data").mkdir()
        image_folder(folder / "data", patch)
        patch.setitem(SETS, "yacht", made_up_table(folder / "data", "yacht"))
        assert main([*command.split(), "--jobs", "1", "--quiet", "--out", str(folder / "out")]) == 0
        return {place(record): record.metrics for record in Journal(folder / "out").read()}


def place(record):
    """Where a record belongs, in words."""
    names = (record.dataset, record.network, record.noise, record.method, record.variant, str(record.trial))
    return " ".join(filter(None, names))


# What is stored


def machine():
    """What the last bits of a result depend on."""
    try:
        model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())[1]
    except (OSError, TypeError):
        model = platform.processor()
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "processor": model,
        "threads": torch.get_num_threads(),
    }


def read(name):
    """A stored file, and whether it was made on a machine like this one."""
    stored = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return stored["values"], stored["machine"] == machine()


def write(name, values):
    """Store a file, one value to a line."""
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in values.items())
    text = f'{{"machine": {json.dumps(machine())},\n"values": {{\n{lines}\n}}}}\n'
    (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write("predictions", {name: summary(predicted(case)) for name, case in CASES.items()})
    write("format1", {name: summary(loaded(name)) for name in OLD_FILES})
    write("records", {command: recorded(command) for command in COMMANDS})
