"""The command as a shell starts it: Ctrl-C at any moment is one line, and never a traceback."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import splitpoint as sp

SOURCE = Path(sp.__file__).parents[1]
COMMAND = "import sys; from splitpoint_command import main; sys.exit(main())"

SLOW_IMPORT = """
import os, signal, sys
from importlib import abc

class Interrupted(abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[-1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupted())
"""
"""Ctrl-C just before a module is imported."""


def start(code, *argv):
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-c", code, *argv]
    return subprocess.Popen(line, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.parametrize("module", ["splitpoint.errors", "torch.nn", "splitpoint.cli"])
def test_ctrl_c_during_imports_is_one_line(module):
    process = start(SLOW_IMPORT + COMMAND, "methods", module)
    _, told = process.communicate(timeout=60)
    assert (told, process.returncode) == ("splitpoint: interrupted\n", 130)


def test_the_command_runs():
    process = start(COMMAND, "--version")
    told, errors = process.communicate(timeout=60)
    assert (told, errors, process.returncode) == (f"splitpoint {sp.__version__}\n", "", 0)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_during_a_run_is_one_line(jobs, tmp_path):
    """To the whole group, as a terminal sends it; one at every half of a second of the start of a run."""
    for number in range(1, 10):
        environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
        line = [sys.executable, "-m", "splitpoint_command", "bench", "cubic", "--out", tmp_path / str(number)]
        process = subprocess.Popen(
            [*line, "--quiet", "--jobs", jobs],
            env=environment,
            text=True,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        time.sleep(0.4 + number / 2)
        os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=60)
        assert (told, process.returncode) == ("splitpoint: interrupted\n", 130), number
