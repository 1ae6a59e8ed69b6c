"""Every example runs from anywhere, without a warning, and prints what it promises."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KEY_LINES = {
    "classification": "of digits with shuffled pixels",
    "dense_map": "shapes: target (40, 1, 24, 24), lower (40, 1, 24, 24), flagged (40, 1, 24, 24)",
    "deploy_onnx": "without torch: ",
    "depth_map": "pixels inside the 90% interval: 0.9",
    "hugging_face": "features: classifier:input",
    "multi_output": "rows with at least one flagged output",
    "regression": "level  inside  mean width",
    "which_modality": "right one blamed",
}
NEEDS = {
    "classification": "sklearn",
    "deploy_onnx": "onnxscript",
    "hugging_face": "transformers",
    "multi_output": "sklearn",
    "regression": "sklearn",
}


def test_every_example_is_listed():
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} == set(KEY_LINES)


@pytest.mark.parametrize("example", KEY_LINES)
def test_example_runs(example, tmp_path):
    if example in NEEDS:
        pytest.importorskip(NEEDS[example])
    env = os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    script = ROOT / "examples" / f"{example}.py"
    done = subprocess.run([sys.executable, script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert KEY_LINES[example] in done.stdout


@pytest.mark.parametrize("example", KEY_LINES)
def test_example_is_short(example):
    assert len((ROOT / "examples" / f"{example}.py").read_text().splitlines()) < 60
