"""The page for somebody with a checkpoint: what it makes is made, and its commands run as they stand."""

import csv
import importlib.util
import re
import shlex
import sys
import warnings
from pathlib import Path

import pytest
import torch

from splitpoint import cli

PAGE = Path(__file__).parents[1] / "docs" / "deploying.md"
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def runs(command):
    """Graphs are tried where the packages for them are."""
    return "uq.onnx" not in command or all(map(importlib.util.find_spec, ("onnxruntime", "onnxscript")))


def test_the_commands_run_in_order(tmp_path, monkeypatch, capsys):
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    seen = []
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind, text in BLOCK.findall(PAGE.read_text()):
            if kind == "python":
                exec(compile(text, PAGE.name, "exec"), {"__name__": "page"})
            for command in map(shlex.split, text.splitlines() if kind == "sh" else ()):
                seen.append(command[1])
                if runs(command):
                    assert cli.main(command[1:]) == 0, capsys.readouterr().err
    sys.modules.pop("my_model", None)
    assert seen == ["layers", "fit", "predict", "predict", "verdict", "export", "verdict"]
    said = capsys.readouterr().out
    assert "model:        root mean squared error" in said
    with open("scores.csv", newline="") as file, open("test.csv", newline="") as asked:
        scores, rows = list(csv.DictReader(file)), list(csv.DictReader(asked))
    assert [row["id"] for row in scores] == [row["id"] for row in rows]
    inside = [
        float(a["lower_0.95"]) <= float(b["price"]) <= float(a["upper_0.95"]) for a, b in zip(scores, rows, strict=True)
    ]
    assert 0.9 < sum(inside) / len(inside) < 0.99
    named = re.search(r"with the columns (.*?)\n\(\[", PAGE.read_text(), re.DOTALL)[1]
    assert re.findall(r"`([\w.]+)`", named) == list(scores[0])[1:]
