"""`splitpoint layers` on rows of data: what a network sees of a file."""

import numpy as np
import pytest
import torch

import splitpoint as sp


def test_layers_of_a_network_for_the_rows_of_a_file(place, run):
    said = run("layers", *place.model("numbers"), "--data", "rows.npz")
    assert said == f"{sp.layers(place.numbers, place.x[:2])}\n"


def test_columns_are_chosen_as_in_a_fit(place, run, refused):
    rows = place.columns()
    np.savez("named.npz", **{name: rows[name] for name in ("age", "income", "height", "price")})
    call = ("layers", *place.model("numbers"), "--data", "named.npz")
    said = run(*call, "--target", "price")
    assert said == run(*call, "--features", "age,income,height")
    assert "2x3" in said
    refused(*call, parts=("a model that takes a batch of shape (2, 4), but it said",))


def test_images_are_brought_to_a_size(place, run):
    pytest.importorskip("PIL")
    from commands_images import image_folder

    image_folder(place.folder / "images", {"dark": 40}, 2)
    call = ("layers", *place.model("images"), "--data", "images")
    assert "2x3x12x10" in run(*call)
    assert "2x3x7x7" in run(*call, "--size", "7x7")


def test_whole_numbers_are_handed_on_as_such(place, run):
    np.savez("ids.npz", X=torch.randint(9, (5, 2)))
    assert "Embedding" in run("layers", "--model", f"{place.module}:words", "--data", "ids.npz", "--ids")
