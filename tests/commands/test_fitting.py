"""`splitpoint fit`: the same as `fit` in Python, saved with the names of columns, and a summary of what was done."""

import numpy as np
import pytest
import torch

import splitpoint as sp
from commands_images import image_folder

FIT = ("fit", "--task", "regression")
CLASSES = ("fit", "--task", "classification")
NAMES = ("--features", "age,income,height", "--target")


def same_fit(saved, fitted):
    own, other = saved.own_tensors(), fitted.own_tensors()
    assert own.keys() == other.keys()
    assert all(torch.equal(own[name], other[name]) for name in own)


def test_it_fits_what_fit_does_in_python(place, run):
    np.savez("held.npz", X=place.x.numpy() + 0.1, y=place.y.numpy())
    options = ("--calibration", "held.npz", "--threshold-data", "held.npz", "--level", ".5", ".8", "--seed", "3")
    said = run(*FIT, *place.model("numbers"), "--data", "rows.npz", *options, "--out", "uq.safetensors")
    saved = sp.load("uq.safetensors", place.numbers)
    method = sp.SplitPointRegressor((0.5, 0.8), rows_per_call=1024, epochs=2, folds=0)
    held = (place.x.numpy() + 0.1, place.y.double())
    fitted = method.fit(place.numbers, (place.x, place.y.double()), calibration=held, seed=3, progress=False)
    same_fit(saved, fitted.set_threshold(held))
    assert (saved.method.levels, saved.method.rows_per_call) == (method.levels, method.rows_per_call)
    lines = dict(line.split(":", 1) for line in said.splitlines() if not line.startswith(" "))
    found = {name: text.strip() for name, text in lines.items()}
    assert found["fitted"] == f"SplitPointRegressor for {place.module}:numbers"
    assert (found["rows"], found["features"], found["target"]) == ("48 of rows.npz", "X", "y")
    assert found["layer"].startswith("2:input (")
    assert (found["levels"], found["calibration"]) == ("0.5, 0.8", "48 of held.npz")
    assert found["threshold"] == "95% of held.npz is below"
    assert found["model"].startswith("root mean squared error")
    warned = [check for check in saved.checks if check.verdict == "warn"]
    assert found["checks"] == f"{len(saved.checks) - len(warned)} of {len(saved.checks)} without a warning"


def test_the_self_check_is_told_not_raised(place, run):
    np.savez("few.npz", X=place.x[:12].numpy(), y=np.zeros(12))
    said = run(*FIT, *place.model("numbers"), "--data", "few.npz", "--out", "uq.safetensors")
    warned = [check for check in sp.load("uq.safetensors", place.numbers).checks if check.verdict == "warn"]
    assert warned
    for check in warned:
        assert f"  {check.name} ({check.value:.3g}): {check.advice}" in said.splitlines()


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_names_of_columns_are_saved_with_the_predictor(kind, tables, run):
    said = run(*CLASSES, *tables.model("classes"), "--data", f"rows.{kind}", *NAMES, "kind", "--out", "uq.safetensors")
    saved = sp.load("uq.safetensors", tables.classes)
    assert saved.notes == {
        "task": "classification",
        "features": '["age", "income", "height"]',
        "shape": "[3]",
        "targets": '["kind"]',
        "classes": '["cat", "dog", "eel"]',
        "model": f"{tables.module}:classes",
    }
    assert "classes:      cat, dog, eel\n" in said
    right = (tables.classes(tables.x).argmax(1) == tables.kind).float().mean()
    assert f"right on {right:.1%}, the most frequent class is" in said


def test_columns_are_those_of_the_file_but_for_target_and_groups(tables, run, refused):
    with_text = (
        *FIT,
        *tables.model("numbers"),
        "--data",
        "rows.parquet",
        "--target",
        "price",
        "--out",
        "u.safetensors",
    )
    refused(*with_text, parts=("numbers in column 'id'", "--features"))
    np.savez(
        "plain.npz", who=tables.kind.numpy(), **{k: v for k, v in tables.columns().items() if k not in ("id", "kind")}
    )
    place = ("--data", "plain.npz", "--target", "price", "--groups", "who", "--out", "u.safetensors")
    run(*FIT, *tables.model("numbers"), *place)
    saved = sp.load("u.safetensors", tables.numbers)
    assert saved.notes["features"] == '["age", "income", "height"]'
    rows = (tables.x, tables.y.double())
    method = sp.SplitPointRegressor(rows_per_call=1024, epochs=2, folds=0)
    same_fit(saved, method.fit(tables.numbers, rows, groups=tables.kind, progress=False))


def test_rows_without_a_target_are_counted(place, run):
    np.savez("gaps.npz", X=place.x.numpy(), y=np.where(np.arange(48) < 4, np.nan, place.y.numpy()))
    said = run(*FIT, *place.model("numbers"), "--data", "gaps.npz", "--out", "uq.safetensors")
    assert "rows:         48 of gaps.npz, 4 without a target" in said


def test_features_are_kept_in_a_folder_and_used_again(place, run):
    fit = (*FIT, *place.model("numbers"), "--data", "rows.npz", "--cache", "kept", "--batch", "32")
    run(*fit, "--out", "a.safetensors")
    assert any((place.folder / "kept").rglob("*"))
    run(*fit, "--out", "b.safetensors")
    same_fit(sp.load("b.safetensors", place.numbers), sp.load("a.safetensors", place.numbers))


def test_a_folder_of_images_is_fitted(place, run):
    image_folder(place.folder / "images", {"dark": 40, "light": 200}, 8)
    fit = (*CLASSES, *place.model("images"), "--data", "images", "--out", "uq.safetensors")
    said = run(*fit)
    assert (
        "rows:         16 of images\nfeatures:     image (3, 12, 10)\ntarget:       class\nclasses:      dark, light"
        in said
    )
    run(*fit, "--size", "9x9")
    assert sp.load("uq.safetensors", place.built("images")).notes["size"] == "[9, 9]"


def test_the_layer_is_the_one_that_is_named(place, run):
    fit = (*FIT, *place.model("numbers"), "--data", "rows.npz", "--out", "uq.safetensors", "--layer")
    run(*fit, "1")
    assert sp.load("uq.safetensors", place.numbers).layer == "1"
    run(*fit, "0", "1")
    assert sp.load("uq.safetensors", place.numbers).layer == "0 + 1"


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--out", "uq.txt"), ("a file .safetensors to write to, but got uq.txt",)),
        (("--out", "no/uq.safetensors"), ("no does not exist",)),
        (("--level", "1.5"), ("confidence levels in (0, 1)",)),
        (("--classes", "a,b"), ("--classes with --task classification",)),
        (("--probs",), ("--probs with --task classification",)),
        (("--target", "z"), ("with --target, but got 'z'",)),
        (("--groups", "z"), ("a column 'z' with --groups",)),
        (("--size", "4x4"), ("--size with a folder of images",)),
        (("--batch", "0"), ("--batch >= 1, but got 0",)),
        (("--layer", "moon"), ("none called 'moon'",)),
        (("--weights", "none.pt"), ("none.pt does not exist",)),
        (("--data", "none.npz"), ("none.npz does not exist",)),
        (("--calibration", "none.npz"), ("none.npz does not exist",)),
        (("--threshold-data", "kinds.csv"), ("kinds.csv does not exist",)),
        (("--model", "nowhere:net"), ("package.module:name", "nowhere")),
    ],
    ids=str,
)
def test_what_is_wrong_is_one_sentence_and_nothing_is_written(place, refused, options, parts):
    fit = [*FIT, *place.model("numbers"), "--data", "rows.npz", "--out", "uq.safetensors"]
    refused(*fit, *options, parts=parts)
    assert not list(place.folder.rglob("uq*"))


def test_a_target_has_to_be_known(place, refused):
    np.savez("plain.npz", a=place.x[:, 0].numpy(), b=place.y.numpy())
    parts = ("the column to predict with --target", "plain.npz has a, b")
    refused(*FIT, *place.model("numbers"), "--data", "plain.npz", "--out", "u.safetensors", parts=parts)


def test_a_network_without_its_weights_is_refused(place, refused):
    model = ("--model", f"{place.module}:numbers")
    refused(
        *FIT, *model, "--data", "rows.npz", "--out", "u.safetensors", parts=("Expected trained weights", "--weights")
    )


def test_classes_that_the_network_does_not_have_are_refused(place, refused):
    np.savez("two.npz", X=place.x.numpy(), y=np.where(place.kind.numpy() > 0, "yes", "no"))
    parts = ("a name for each of the 3 classes", "has 2: no, yes", "--classes")
    refused(*CLASSES, *place.model("classes"), "--data", "two.npz", "--out", "u.safetensors", parts=parts)


def test_levels_are_no_matter_of_classes(place, refused):
    fit = (*CLASSES, *place.model("classes"), "--data", "kinds.npz", "--level", ".9", "--out", "u.safetensors")
    refused(*fit, parts=("--level with --task regression, but the task is classification",))


def test_rows_that_the_network_does_not_take_are_found_before_the_fit(place, refused):
    np.savez("wide.npz", X=np.zeros((9, 5)), y=np.zeros(9))
    parts = ("a model that takes a batch of shape (9, 5), but it said",)
    refused(*FIT, *place.model("numbers"), "--data", "wide.npz", "--out", "u.safetensors", parts=parts)
