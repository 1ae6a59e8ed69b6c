"""The command line: help for every command, tables on standard output, errors in one line on standard error."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint import cli
from splitpoint.baselines import METHODS
from splitpoint.bench.suites import SUITES
from splitpoint.errors import DataError

COMMANDS = ("demo", "layers", "fit", "predict", "export", "verdict", "methods", "bench", "data", "report")
SOURCE = Path(sp.__file__).parents[1]

MODELS = """
import torch
from torch import nn

NUMBER = 3
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

def build():
    return nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(32, 5))

def text():
    return "text"

def needs_more(width):
    return nn.Linear(width, 1)

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
    def forward(self, a, b):
        return self.fc(a + b)

class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 1)
    def forward(self, x):
        return self.fc(x), x

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.fc = nn.Embedding(9, 4), nn.Linear(4, 1)
    def forward(self, ids):
        return self.fc(self.table(ids).mean(1))
"""


@pytest.fixture
def models(tmp_path, monkeypatch):
    """An importable module with models, in the working directory."""
    name = f"models_of_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(MODELS)
    (tmp_path / f"{name}_broken.py").write_text("import nothing_of_this_name\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    for loaded in [key for key in sys.modules if key.startswith(name)]:
        del sys.modules[loaded]


def run(capsys, *argv):
    code = cli.main([str(part) for part in argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def assert_one_line_error(result, *parts):
    code, out, err = result
    assert code == 1
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("splitpoint: Expected ")
    for part in parts:
        assert part in err


# Help


def test_help_lists_every_command(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: splitpoint")
    assert all(command in out for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_of_its_own(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main([command, "--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert f"usage: splitpoint {command}" in out
    wanted = {
        "demo": ("--out", "--seed", "--quiet"),
        "layers": ("model", "shape", "--model", "--weights", "--data", "--target", "--features", "--size", "--ids"),
        "fit": (
            *(
                "--task",
                "--model",
                "--weights",
                "--data",
                "--target",
                "--features",
                "--calibration",
                "--threshold-data",
            ),
            *("--level", "--layer", "--groups", "--cache", "--device", "--seed", "--batch", "--quiet", "--out"),
        ),
        "predict": ("UQ", "--model", "--weights", "--data", "--out", "--fields", "--id", "--features", "--device"),
        "export": ("UQ", "--model", "--weights", "--example", "--format {onnx,pt2}", "--out"),
        "verdict": ("UQ", "--model", "--data", "--target", "--train", "--ood", "--out", "--json", "--fail-under"),
        "methods": (),
        "data": ("list", "check", "download"),
        "bench": ("uci",),
        "report": ("DIR", "--out"),
    }[command]
    assert all(word in out for word in wanted)


@pytest.mark.parametrize(
    "argv",
    [
        *([], ["astrology"], ["demo", "--seed", "x"]),
        *(["layers"], ["layers", "m:n"], ["layers", "--model", "m:n"], ["layers", "m:n", "2,4", "--data", "rows.npz"]),
        *(["fit"], ["fit", "--task", "astrology"], ["predict", "uq.safetensors"], ["export"], ["verdict"]),
    ],
    ids=str,
)
def test_wrong_usage_is_no_success(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(argv)
    assert stopped.value.code == 2
    assert "usage: splitpoint" in capsys.readouterr().err


def help_of(suite, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["bench", suite, "--help"])
    assert stopped.value.code == 0
    return " ".join(capsys.readouterr().out.replace("-\n", "-").split())


@pytest.mark.parametrize("suite", SUITES)
def test_the_help_of_an_experiment_lists_its_options_and_their_choices(suite, capsys):
    text = help_of(suite, capsys)
    for name in ("trials", "seeds", "epochs", "jobs", "seed", "out", "retry-failed", "quiet"):
        assert f"--{name}" in text
    for option in SUITES[suite].options:
        part = text.split(f"--{option.name} ")[-1].split(" --")[0]
        names = set() if option.choices is None else set(option.choices())
        assert names <= set(part.replace(",", " ").split())


@pytest.mark.parametrize("suite", ["uci", "cubic", "images"])
def test_the_help_of_an_experiment_lists_its_methods(suite, capsys):
    listed = help_of(suite, capsys).split("--methods")[-1].split("--trials")[0].replace(",", " ").split()
    assert {"deep_ensemble", "laplace", "splitpoint", "splitpoint_paper", "splitpoint_conformal"} <= set(listed)


def test_the_help_of_the_experiments_lists_them_all(capsys):
    with pytest.raises(SystemExit):
        cli.main(["bench", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert all(f"{suite.name} {suite.help}" in text for suite in SUITES.values())


def test_only_the_command_that_needs_the_experiments_imports_them():
    """They take a second to import."""
    code = (
        "import contextlib, sys\nfrom splitpoint.cli import main\n"
        "for argv in (['--help'], ['data', '--help'], ['bench', '--help']):\n"
        "    with contextlib.suppress(SystemExit): main(argv)\n"
        "    print('splitpoint.bench.suites' in sys.modules, file=sys.stderr)"
    )
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["False", "False", "True"]


def test_the_version_is_that_of_the_package(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"splitpoint {sp.__version__}\n"


def test_the_commands_tested_here_are_all_there_are(capsys):
    with pytest.raises(SystemExit):
        cli.main(["astrology"])
    message = capsys.readouterr().err.splitlines()[-1]
    listed = message.split("choose from")[1].strip(" ()").replace("'", "").split(", ")
    assert tuple(listed) == COMMANDS


# methods


def test_methods_lists_every_method_with_task_cost_needs_and_reference(capsys):
    assert cli.main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines[2 : 2 + len(METHODS)]}
    assert list(rows) == list(METHODS)
    assert "Guo et al. 2017" in rows["temperature_scaling"]
    assert "model + held-out" in rows["conformal"]
    assert rows["deep_ensemble"].split()[1:4] == ["both", "factory", "M"]
    assert rows["gaussian"].split()[1:4] == ["regression", "factory", "1"]


# layers


def test_layers_prints_the_table_of_a_model(models, capsys):
    code, out, err = run(capsys, "layers", f"{models}:net", "2,4")
    assert (code, err) == (0, "")
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    assert out == f"{sp.layers(net, torch.zeros(2, 4))}\n"
    assert "<- its input is chosen" in out


def test_layers_takes_a_function_that_builds_the_model(models, capsys):
    code, out, _ = run(capsys, "layers", f"{models}:build", "7, 3,6,6")
    assert code == 0
    assert "7x3x6x6" in out
    assert out.splitlines()[-1] == "layer=None reads 2:input: its output is the model's output, (7, 5)"


def test_layers_lists_a_model_with_several_outputs(models, capsys):
    code, out, _ = run(capsys, "layers", f"{models}:Pair", "2,4")
    assert code == 0
    assert "fc" in out
    assert "output_key=" in out


def test_layers_feeds_whole_numbers_where_told(models, capsys):
    assert_one_line_error(run(capsys, "layers", f"{models}:Words", "2,4"), "it said")
    code, out, _ = run(capsys, "layers", f"{models}:Words", "2,4", "--ids")
    assert code == 0
    assert "layer=None reads" in out


@pytest.mark.parametrize(
    ("name", "shape", "parts"),
    [
        ("{}:missing", "2,4", ("package.module:name of a model", "missing")),
        ("{}", "2,4", ("package.module:name of a model",)),
        ("no_such_module:net", "2,4", ("no_such_module",)),
        (":net", "2,4", (":net",)),
        (".relative:net", "2,4", (".relative:net",)),
        ("{}_broken:net", "2,4", ("nothing_of_this_name",)),
        ("{}:text", "2,4", ("torch.nn.Module", "but got str")),
        ("{}:NUMBER", "2,4", ("NUMBER",)),
        ("{}:needs_more", "2,4", ("needs_more",)),
        ("{}:net", "2,x", ("a shape such as 2,3,224,224, but got '2,x'",)),
        ("{}:net", "", ("a shape such as 2,3,224,224",)),
        ("{}:net", "2,-4", ("a shape such as 2,3,224,224, but got '2,-4'",)),
        ("{}:net", "0,4", ("a shape such as 2,3,224,224, but got '0,4'",)),
        ("{}:net", "2,5", ("takes a batch of shape (2, 5), but it said",)),
        ("{}:Two", "2,4", ("batch of shape (2, 4)", "argument")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_are_one_line_on_standard_error(name, shape, parts, models, capsys):
    assert_one_line_error(run(capsys, "layers", name.format(models), shape), *parts)


def test_the_command_can_be_run_as_a_module(models):
    """From a shell: exit codes, and a module in the working directory."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    code = (
        "import sys; from splitpoint.cli import main\n"
        f"print([main(['layers', '{models}:net', s]) for s in ('2,4', '2,5')], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[0, 1] True"
    assert done.stderr.count("\n") == 1


def test_a_progress_bar_is_gone_before_an_error_is_told(models, capsys):
    np.savez("rows.npz", X=np.zeros((9, 4), np.float32), y=np.zeros(9))
    call = ("fit", "--task", "regression", "--model", f"{models}:net", "--data", "rows.npz", "--out", "u.safetensors")
    code, out, err = run(capsys, *call, "--layer", "moon")
    assert (code, out) == (1, "")
    assert err.split("\r")[-1].startswith("splitpoint: Expected the name of a layer")


# demo


@pytest.fixture
def demo(monkeypatch):
    """The demonstration, replaced by one that only notes how it was called."""
    import splitpoint.demo

    calls = []

    def quick(out, seed=0, progress=True):
        calls.append((out, seed, progress))
        return "a table\nand a page"

    monkeypatch.setattr(splitpoint.demo, "run", quick)
    return calls


def test_demo_prints_the_report(demo, capsys):
    assert run(capsys, "demo") == (0, "a table\nand a page\n", "")
    assert demo == [(Path("out/demo"), 0, True)]


def test_demo_hands_its_options_on(demo, capsys, tmp_path):
    assert run(capsys, "demo", "--out", tmp_path / "here", "--seed", "7", "--quiet")[0] == 0
    assert demo == [(tmp_path / "here", 7, False)]


def test_an_error_of_the_demo_is_one_line(demo, capsys, monkeypatch):
    import splitpoint.demo

    def fail(*_, **__):
        raise DataError("Expected digits, but got letters.")

    monkeypatch.setattr(splitpoint.demo, "run", fail)
    assert run(capsys, "demo") == (1, "", "splitpoint: Expected digits, but got letters.\n")


def test_a_missing_package_of_the_demo_is_named_with_the_cure(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "splitpoint.demo", None)
    original = cli.importlib.import_module

    def missing(name, *rest):
        if name == "splitpoint.demo":
            raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
        return original(name, *rest)

    monkeypatch.setattr(cli.importlib, "import_module", missing)
    assert_one_line_error(run(capsys, "demo"), "sklearn is missing", "pip install '.[demo]' in a checkout")


def test_a_folder_that_cannot_be_written_is_one_line(capsys, tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("")
    code, out, err = run(capsys, "demo", "--out", occupied, "--quiet")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert str(occupied) in err


# data


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder with one damaged set in it."""
    folder = tmp_path / "data"
    (folder / "uci").mkdir(parents=True)
    (folder / "uci" / "yacht.npz").write_bytes(b"damaged")
    monkeypatch.setenv("SPLITPOINT_DATA", str(folder))
    return folder


@pytest.mark.parametrize("action", ["list", "check", "download"])
def test_every_action_on_data_has_help_of_its_own(action, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["data", action, "--help"])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert f"usage: splitpoint data {action}" in out
    assert all(
        word in out for word in {"list": (), "check": ("NAME",), "download": ("NAME", "--to", "--quiet")}[action]
    )


@pytest.mark.parametrize("argv", [["data"], ["data", "burn"], ["data", "download"]], ids=str)
def test_wrong_usage_of_data_is_no_success(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(argv)
    assert stopped.value.code == 2
    assert "usage: splitpoint data" in capsys.readouterr().err


def test_data_list_shows_what_is_where(data, capsys):
    code, out, err = run(capsys, "data", "list")
    assert (code, err) == (0, "")
    assert f"yacht          308 x 6                0 kB     {data}/uci/yacht.npz" in out
    assert "boston         506 x 13               -        missing" in out


def test_data_check_fails_on_damage_and_on_missing_sets_that_are_named(data, capsys):
    code, out, err = run(capsys, "data", "check")
    assert code == 1
    assert "DAMAGED" in out
    assert err.count("\n") == 1
    assert err.startswith("splitpoint: Expected ")
    assert "get it again with: splitpoint data download yacht" in err
    code, out, err = run(capsys, "data", "check", "boston")
    assert code == 1
    assert "missing" in out
    assert err == "splitpoint: Expected boston, but it is missing; run: splitpoint data download boston.\n"


def test_data_check_and_download_know_the_names(data, capsys):
    assert_one_line_error(run(capsys, "data", "check", "iris"), "a data set among boston", "but got 'iris'")
    assert_one_line_error(run(capsys, "data", "download", "boston", "iris"), "but got 'iris'")


def test_data_download_needs_a_folder(monkeypatch, capsys):
    monkeypatch.delenv("SPLITPOINT_DATA", raising=False)
    assert_one_line_error(run(capsys, "data", "download", "yacht"), "a folder for the data", "--to DIR")


def test_data_download_says_where_it_is_and_how_to_use_it(data, capsys, tmp_path, monkeypatch):
    from splitpoint.datasets import download

    calls = []

    def quick(name, folder, progress):
        calls.append((name, folder, progress))
        return folder / name

    monkeypatch.setattr(download, "download", quick)
    assert run(capsys, "data", "download", "yacht", "wine") == (0, f"yacht: {data}/yacht\nwine: {data}/wine\n", "")
    code, out, _ = run(capsys, "data", "download", "yacht", "--to", tmp_path / "new", "--quiet")
    assert (code, out.splitlines()[-1]) == (0, f"To use it: export SPLITPOINT_DATA={tmp_path}/new")
    assert calls == [("yacht", data, True), ("wine", data, True), ("yacht", tmp_path / "new", False)]
