"""`splitpoint predict`: what the predictor says of every row, in order, whatever else the file holds."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import splitpoint as sp
from commands_images import image_folder

arrow = pytest.importorskip("pyarrow")
from pyarrow import csv, parquet  # noqa: E402

ROOT = Path(__file__).parents[2]
READ = {".parquet": parquet.read_table, ".csv": csv.read_csv}


@pytest.fixture
def fitted(tables, run):
    """The place, with predictors of numbers (a threshold, two levels) and of classes."""
    names = ("--data", "rows.parquet", "--features", "age,income,height", "--target")
    more = ("--level", ".5", ".9", "--threshold-data", "rows.parquet")
    fit = ("fit", "--out", "uq.safetensors", *tables.model("numbers"), *names, "price")
    run(*fit, "--task", "regression", *more)
    return tables


def predict(place, run, data, out, *more):
    run("predict", "uq.safetensors", *place.model("numbers"), "--data", data, "--out", out, *more)
    return READ[Path(out).suffix](out)


@pytest.mark.parametrize("out", ["scores.parquet", "scores.csv"])
@pytest.mark.parametrize("data", ["rows.parquet", "rows.csv", "moved.parquet"])
def test_every_row_is_what_the_predictor_says(fitted, run, data, out):
    table = arrow.table(fitted.columns())
    moved = table.select(["kind", "height", "id", "age", "income"]).append_column("more", arrow.array([True] * 48))
    parquet.write_table(moved, "moved.parquet")
    found = predict(fitted, run, data, out, "--id", "id", "kind", "--batch", "7")
    uq = sp.load("uq.safetensors", fitted.numbers)
    wanted = uq.predict(fitted.x)
    assert found.column_names == [
        *("id", "kind", "mean", "lower_0.5", "lower_0.9", "upper_0.5", "upper_0.9"),
        *("aleatoric", "epistemic", "total", "support", "percentile", "flagged"),
    ]
    assert found["id"].to_pylist() == [f"r{row}" for row in range(48)]
    assert found["kind"].to_pylist() == fitted.columns()["kind"]
    for name, values in {"mean": wanted.mean, "lower_0.9": wanted.lower, "support": wanted.support}.items():
        assert np.allclose(found[name].to_numpy(), values.flatten(), rtol=1e-5, atol=1e-6)
    one_rank = 100 / 49 + 1e-3  # the rows are those of the threshold, and the last bits of a score hang on the batch
    assert np.allclose(found["percentile"].to_numpy(), wanted.percentile.flatten(), rtol=0, atol=one_rank)
    assert np.mean(found["flagged"].to_numpy() != wanted.flagged.flatten().numpy()) <= 1 / 48


def test_classes_are_told_by_name(tables, run):
    fit = ("fit", "--task", "classification", *tables.model("classes"), "--data", "rows.csv", "--target", "kind")
    run(*fit, "--features", "age,income,height", "--out", "uq.safetensors")
    predict = ("predict", "uq.safetensors", *tables.model("classes"), "--data", "rows.csv", "--out", "scores.parquet")
    assert run(*predict) == "scores.parquet: 48 rows, 8 columns\n"
    found = parquet.read_table("scores.parquet")
    wanted = sp.load("uq.safetensors", tables.classes).predict(tables.x)
    assert found["label"].to_pylist() == [("cat", "dog", "eel")[label] for label in wanted.label.tolist()]
    assert np.allclose(found["prob_eel"].to_numpy(), wanted.probs[:, 2], rtol=1e-5, atol=1e-6)
    run(*predict, "--fields", "total", "label")
    assert parquet.read_table("scores.parquet").column_names == ["total", "label"]


def test_images_are_told_by_their_path(place, run):
    image_folder(place.folder / "images", {"dark": 40, "light": 200}, 8)
    image_folder(place.folder / "new", {"": 40}, 3, size=(20, 20))
    model = place.model("images")
    run("fit", "--task", "classification", *model, "--data", "images", "--size", "9x9", "--out", "uq.safetensors")
    run("predict", "uq.safetensors", *model, "--data", "new", "--out", "scores.csv")
    found = csv.read_csv("scores.csv")
    assert found["file"].to_pylist() == ["0.png", "1.png", "2.png"]
    assert set(found["label"].to_pylist()) <= {"dark", "light"}


def test_a_predictor_that_was_fitted_in_python_needs_names(tables, run, refused):
    uq = sp.SplitPointRegressor(epochs=2, folds=0).fit(tables.numbers, (tables.x, tables.y), progress=False)
    uq.save("uq.safetensors")
    call = ("predict", "uq.safetensors", *tables.model("numbers"), "--out", "scores.csv", "--data")
    refused(*call, "rows.csv", parts=("fitted in Python", "--features a,b,c"))
    run(*call, "rows.csv", "--features", "age,income,height")
    found = csv.read_csv("scores.csv")
    run(*call, "rows.npz")
    assert csv.read_csv("scores.csv").equals(found)
    assert np.allclose(found["mean"].to_numpy(), tables.numbers(tables.x).detach().flatten(), atol=1e-6)


def test_several_files_of_rows_at_once_are_groups_of_a_parquet_file(fitted, run, monkeypatch):
    from splitpoint.commands import writing

    monkeypatch.setattr(writing, "GROUP", 20)
    predict(fitted, run, "rows.csv", "scores.parquet", "--batch", "8")
    file = parquet.ParquetFile("scores.parquet")
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [24, 24]


def test_rows_are_read_when_they_are_needed(fitted, run, monkeypatch):
    """The next batch is not read before the last one is written down."""
    from splitpoint.commands import scoring, tables

    log, parts, add = [], tables.Parquet.parts, scoring.RowFile.add

    def reading(self, names, size):
        for part in parts(self, names, size):
            log.append("read")
            yield part

    def writing(self, columns):
        log.append("written")
        add(self, columns)

    monkeypatch.setattr(tables.Parquet, "parts", reading)
    monkeypatch.setattr(scoring.RowFile, "add", writing)
    predict(fitted, run, "rows.parquet", "scores.parquet", "--batch", "16")
    assert log == ["read", *["read", "written"] * 3]  # a first look


def test_drafts_of_killed_commands_go_away(fitted, run):
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    code = (
        f"from pathlib import Path\nfrom splitpoint.files import replacing\nwith replacing(Path('scores.csv')): {kill}"
    )
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=False)
    assert len(list(fitted.folder.glob("scores.csv.*"))) == 1
    predict(fitted, run, "rows.csv", "scores.csv")
    assert not list(fitted.folder.glob("scores.csv.*"))


def test_a_bad_row_leaves_nothing_behind_and_an_old_file_in_place(fitted, refused):
    values = fitted.columns()["income"].tolist()
    gaps = arrow.table(fitted.columns() | {"income": [*values[:40], None, *values[41:]]})
    parquet.write_table(gaps, "gaps.parquet")
    Path("scores.csv").write_text("old")
    call = ("predict", "uq.safetensors", *fitted.model("numbers"), "--data", "gaps.parquet", "--batch", "4")
    refused(*call, "--out", "scores.csv", parts=("column 'income' of gaps.parquet has no value in row 41",))
    assert Path("scores.csv").read_text() == "old"
    assert [path.name for path in Path().iterdir() if path.name.startswith("scores")] == ["scores.csv"]


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (("--data", "less.parquet"), ("the features age, income, height, but less.parquet lacks height; it has age",)),
        (("--data", "text.parquet"), ("numbers in column 'age' of text.parquet, but it holds text",)),
        (("--data", "none.parquet"), ("Expected rows in none.parquet, but there are none",)),
        (("--data", "rows.npz"), ("rows.npz lacks age, income, height",)),
        (("--id", "who"), ("--id, but rows.parquet has no 'who'",)),
        (("--id", "mean"), ("--id columns with other names than mean",)),
        (("--fields", "men"), ("--fields of a regression among mean",)),
        (("--features", "age,height"), ("the features of the fit, age, income, height, but got age, height",)),
        (("--out", "scores.xlsx"), ("a file .parquet or .csv to write to, but got scores.xlsx",)),
        (("--weights", "classes.pt"), ("the weights of the model",)),
    ],
    ids=str,
)
def test_what_is_wrong_is_one_sentence(fitted, refused, options, parts):
    table = arrow.table(fitted.columns() | {"mean": [0.0] * 48})
    parquet.write_table(table, "rows.parquet")
    parquet.write_table(table.select(["age", "income"]), "less.parquet")
    parquet.write_table(table.slice(0, 0), "none.parquet")
    parquet.write_table(table.set_column(1, "age", table["id"]), "text.parquet")
    call = ["predict", "uq.safetensors", *fitted.model("numbers"), "--data", "rows.parquet", "--out", "scores.csv"]
    refused(*call, *options, parts=parts)
    assert not Path("scores.csv").exists()


def test_a_model_has_to_be_named_and_to_be_the_one(fitted, refused):
    call = ("predict", "uq.safetensors", "--data", "rows.parquet", "--out", "scores.csv")
    refused(*call, parts=(f"it was fitted with --model {fitted.module}:numbers",))
    refused(*call, "--model", f"{fitted.module}:numbers", parts=("Expected trained weights", "--weights"))
    torch.save(fitted.built("numbers").state_dict(), "other.pt")
    model = ("--model", f"{fitted.module}:numbers", "--weights", "other.pt")
    refused(*call, *model, parts=("the base model that uq.safetensors was fitted on",))
    refused("predict", "none.safetensors", *call[2:], parts=("none.safetensors does not exist",))


def test_maps_are_no_rows(place, run, refused):
    np.savez("maps.npz", X=torch.rand(12, 3, 4, 4), y=torch.rand(12, 1, 4, 4))
    model = place.model("maps")
    run("fit", "--task", "regression", *model, "--data", "maps.npz", "--out", "uq.safetensors")
    call = ("predict", "uq.safetensors", *model, "--data", "maps.npz", "--out", "scores.csv")
    refused(*call, parts=("its answers have shape (1, 4, 4)",))


@pytest.mark.slow
def test_memory_is_bounded_by_a_batch():
    """What is on top of the libraries does not grow with the rows."""
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, ROOT / "benchmarks" / "predict_rows.py", "--rows", "300000"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    few, many = (float(line.split("peak ")[1].split(" MB")[0]) for line in done.stdout.splitlines() if "peak" in line)
    assert many < few + 100
