"""``splitpoint layers``: what a network is made of, and where features would be read."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from splitpoint.commands.columns import Columns
from splitpoint.commands.model import built
from splitpoint.commands.opened import names_of, rows_of
from splitpoint.errors import SettingsError
from splitpoint.files import one_line
from splitpoint.inspection import layers

EXAMPLE = 2
"""Rows of data that go through the network."""


def shown_layers(options: argparse.Namespace) -> str:
    """The table of layers, for rows of data or for zeros of a shape."""
    place = options.model or options.place
    if place is None or (options.shape is None) == (options.data is None) or (options.model and options.place):
        options.wrong("give the model and the shape of a batch, or --model and --data")
    model = built(place, options.weights)
    inputs = _zeros(options.shape) if options.data is None else _rows(options)
    inputs = inputs.long() if options.ids else inputs
    try:
        return str(layers(model, inputs))
    except Exception as error:  # whatever a forward says to what it does not take
        raise SettingsError(
            f"Expected a model that takes a batch of shape {tuple(inputs.shape)}, but it said: {one_line(error)}"
        ) from error


def _zeros(text: str) -> Tensor:
    sizes = text.split(",")
    if not all(size.strip().isdecimal() and int(size) for size in sizes):
        raise SettingsError(f"Expected a shape such as 2,3,224,224, but got {text!r}.")
    return torch.zeros(tuple(map(int, sizes)))


def _rows(options: argparse.Namespace) -> Tensor:
    table = rows_of(options.data, options.size)
    columns = Columns.of(table, "regression", names_of(options.features), names_of(options.target))
    return columns.inputs(table.beginning(columns.features, EXAMPLE))
