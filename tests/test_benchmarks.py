"""Benchmark scripts run, on data small enough to say nothing about speed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from splitpoint.baselines import METHODS
from splitpoint.datasets.entry import locate

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_cost_of_every_method_is_measured():
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, ROOT / "benchmarks" / "methods_cost.py", "--quick", "--rounds", "1"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert {line.split()[1] for line in done.stdout.splitlines() if line.startswith("| ")} >= set(METHODS)


@pytest.mark.slow
def test_caches_and_runs_hold_under_two_writers_flipped_bits_and_kills():
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, ROOT / "benchmarks" / "hardening_cache.py", "--quick"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def test_labels_switched_in_each_modality_part_company():
    if locate("three_modal_50.npz") is None:
        pytest.skip("SPLITPOINT_DATA names no folder with three_modal_50.npz")
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, ROOT / "benchmarks" / "luma_labels.py"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    labels, classes, ours = (float(line.split(" | ")[1]) for line in done.stdout.splitlines()[2:])
    assert classes < labels < ours == 0.7
    page = (ROOT / "docs" / "decisions.md").read_text()
    assert all(line in page for line in done.stdout.splitlines())
