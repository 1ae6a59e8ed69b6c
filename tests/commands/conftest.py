"""A working directory as a newcomer has it: a module with networks, their weights, and rows in several files."""

import importlib
import sys
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from splitpoint import SplitPointClassifier, SplitPointRegressor, cli
from splitpoint.commands import fitting

MODELS = """
import torch
from torch import nn

def numbers():
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))

def pair():
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 2))

def classes():
    return nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 3))

def many():
    return seeded(nn.Linear, 3, 25)

def maps():
    return seeded(nn.Conv2d, 3, 1, 1)

def images():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 2))

def words():
    return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(8, 1))

def seeded(kind, *sizes):
    torch.manual_seed(1)
    return nn.Sequential(kind(*sizes))
"""

MODULE, ROWS, QUICK = "networks_at_hand", 48, {"epochs": 2, "folds": 0}
FEATURES, KINDS = ("age", "income", "height"), ("cat", "dog", "eel")


class Place:
    """A folder, the name of its module, and the rows that its files hold."""

    def __init__(self, folder):
        self.folder, self.module = folder, MODULE
        torch.manual_seed(0)
        self.x = torch.randn(ROWS, 3)
        self.y = self.x[:, 0].sin() + 0.3 * torch.randn(ROWS)
        self.kind = (self.x[:, 1] > -0.5).long() + (self.x[:, 1] > 0.7).long()
        self.numbers, self.classes = self.built("numbers"), self.built("classes")
        self.trained(self.numbers, self.y[:, None], nn.functional.mse_loss)
        self.trained(self.classes, self.kind, nn.functional.cross_entropy)

    def built(self, name):
        return getattr(importlib.import_module(self.module), name)()

    def trained(self, net, target, loss):
        optimiser = torch.optim.Adam(net.parameters(), 1e-2)
        for _ in range(60):
            optimiser.zero_grad()
            loss(net(self.x), target).backward()
            optimiser.step()

    def write(self):
        """Weights and rows."""
        torch.save(self.numbers.state_dict(), "numbers.pt")
        torch.save(self.classes.state_dict(), "classes.pt")
        np.savez("rows.npz", X=self.x.numpy(), y=self.y.numpy())
        np.savez("kinds.npz", X=self.x.numpy(), y=self.kind.numpy())

    def columns(self):
        """The rows as named columns, with more than a network takes."""
        kinds = [KINDS[number] for number in self.kind.tolist()]
        features = dict(zip(FEATURES, self.x.numpy().T, strict=True))
        return {"id": [f"r{row}" for row in range(ROWS)], **features, "price": self.y.numpy(), "kind": kinds}

    def model(self, name):
        """Options that name a network, with its weights if it has a file of them."""
        weights = self.folder / f"{name}.pt"
        return ("--model", f"{self.module}:{name}", *(("--weights", weights) if weights.exists() else ()))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder; heads are trained for two epochs."""
    (tmp_path / f"{MODULE}.py").write_text(MODELS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setattr(fitting, "SplitPointRegressor", partial(SplitPointRegressor, **QUICK))
    monkeypatch.setattr(fitting, "SplitPointClassifier", partial(SplitPointClassifier, epochs=QUICK["epochs"]))
    with torch.random.fork_rng():
        found = Place(tmp_path)
        found.write()
        yield found
    sys.modules.pop(MODULE, None)


@pytest.fixture
def tables(place):
    """The same with its columns as parquet and csv."""
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    table = arrow.table(place.columns())
    parquet.write_table(table, "rows.parquet")
    csv.write_csv(table, "rows.csv")
    return place


@pytest.fixture
def run(capsys):
    """Run a command; what it prints, after making sure that it succeeds."""

    def command(*argv):
        code = cli.main([*map(str, argv), *(["--quiet"] if argv[0] in ("fit", "predict", "verdict") else [])])
        captured = capsys.readouterr()
        assert (code, captured.err) == (0, "")
        return captured.out

    return command


@pytest.fixture
def refused(capsys):
    """Run a command that fails, with one sentence on standard error that holds all of some parts."""

    def command(*argv, parts):
        code = cli.main([*map(str, argv), *(["--quiet"] if argv[0] in ("fit", "predict", "verdict") else [])])
        captured = capsys.readouterr()
        assert (code, captured.out) == (1, "")
        assert captured.err.count("\n") == 1
        assert captured.err.startswith("splitpoint: Expected ")
        for part in parts:
            assert part in captured.err

    return command
