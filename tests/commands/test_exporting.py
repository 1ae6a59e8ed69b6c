"""`splitpoint export`: a graph of network and heads, for an example of named columns."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import splitpoint as sp


@pytest.fixture
def fitted(place, run):
    run("fit", "--task", "regression", *place.model("numbers"), "--data", "rows.npz", "--out", "uq.safetensors")
    return place


@pytest.fixture
def graphs(monkeypatch):
    """A stand-in for the export, and what it was asked for."""
    calls = []

    def onnx(uq, path, *example):
        calls.append((uq, *example))
        Path(path).write_bytes(b"graph")
        return 2e-6

    def program(uq, *example):
        calls.append((uq, *example))
        return torch.export.export(nn.Linear(3, 1), example)

    monkeypatch.setitem(sys.modules, "splitpoint.export", SimpleNamespace(onnx=onnx, program=program))
    return calls


def test_a_graph_for_onnx_says_how_far_it_is_off(fitted, graphs, run):
    call = ("export", "uq.safetensors", *fitted.model("numbers"), "--example", "rows.npz", "--format", "onnx")
    assert run(*call, "--out", "uq.onnx") == "uq.onnx: 0 kB, answers within 2.0e-06 of the predictor's\n"
    ((uq, example),) = graphs
    assert isinstance(uq, sp.RegressionPredictor)
    assert torch.equal(example, fitted.x[:8])


def test_a_program_of_torch_is_saved(fitted, graphs, run):
    call = ("export", "uq.safetensors", *fitted.model("numbers"), "--example", "rows.npz", "--format", "pt2")
    run(*call, "--out", "uq.pt2")
    assert torch.export.load("uq.pt2").module()(fitted.x[:8]).shape == (8, 1)


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--out", "uq.pt2"), ("a file .onnx to write to, but got uq.pt2",)),
        (("--example", "one.npz"), ("an example of two rows or more, but one.npz has one",)),
        (("--example", "none.npz"), ("none.npz does not exist",)),
        (("--example", "kinds.csv"), ("kinds.csv does not exist",)),
    ],
    ids=str,
)
def test_what_is_wrong_is_one_sentence(fitted, graphs, refused, options, parts):
    np.savez("one.npz", X=fitted.x[:1].numpy())
    call = ["export", "uq.safetensors", *fitted.model("numbers"), "--example", "rows.npz", "--format", "onnx"]
    refused(*call, "--out", "uq.onnx", *options, parts=parts)
    assert not graphs


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_the_export_of_the_library_serves(kind, fitted, run):
    """Without a stand-in."""
    pytest.importorskip("splitpoint.export")
    if kind == "onnx":
        pytest.importorskip("onnxruntime")
    call = ("export", "uq.safetensors", *fitted.model("numbers"), "--example", "rows.npz", "--format", kind)
    run(*call, "--out", f"uq.{kind}")
    assert Path(f"uq.{kind}").stat().st_size > 1000
