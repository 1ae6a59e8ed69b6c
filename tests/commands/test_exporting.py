"""`splitpoint export`: a graph of network and heads, for an example of named columns."""

from pathlib import Path

import numpy as np
import pytest
import torch

import splitpoint as sp
from splitpoint import runtime


@pytest.fixture
def fitted(place, run):
    """The place with a predictor, and the command but for the file to write."""
    run("fit", "--task", "regression", *place.model("numbers"), "--data", "rows.npz", "--out", "uq.safetensors")
    place.call = ("export", "uq.safetensors", *place.model("numbers"), "--example", "rows.npz", "--format")
    return place


def test_a_graph_for_onnx_says_how_far_it_is_off(fitted, run):
    pytest.importorskip("onnxscript")
    said = run(*fitted.call, "onnx", "--out", "uq.onnx")
    size = Path("uq.onnx").stat().st_size
    assert said.startswith(f"uq.onnx: {size / 1000:,.0f} kB, answers within ")
    assert float(said.split()[-4]) <= 1e-5
    wanted = sp.load("uq.safetensors", fitted.numbers)(fitted.x)
    found = runtime.load("uq.onnx")(fitted.x.numpy())
    np.testing.assert_allclose(found["uppers"], wanted.uppers.numpy(), rtol=1e-4)


def test_a_program_of_torch_is_saved(fitted, run):
    run(*fitted.call, "pt2", "--out", "uq.pt2")
    wanted = sp.load("uq.safetensors", fitted.numbers)(fitted.x)
    found = torch.export.load("uq.pt2").module()(fitted.x)
    torch.testing.assert_close(found["uq_uppers"], wanted.uppers, rtol=1e-4, atol=1e-6)


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
def test_what_is_wrong_is_one_sentence(fitted, refused, options, parts):
    np.savez("one.npz", X=fitted.x[:1].numpy())
    refused(*fitted.call, "onnx", "--out", "uq.onnx", *options, parts=parts)
    assert not Path("uq.onnx").exists()
