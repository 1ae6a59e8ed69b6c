"""Benchmark scripts run, on data small enough to say nothing about speed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from splitpoint.baselines import METHODS

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_cost_of_every_method_is_measured():
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, ROOT / "benchmarks" / "methods_cost.py", "--quick", "--rounds", "1"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert {line.split()[1] for line in done.stdout.splitlines() if line.startswith("| ")} >= set(METHODS)
