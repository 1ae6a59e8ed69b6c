"""The recipes for serving run, where their packages are installed, and answer what the predictor does."""

import importlib.util
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import splitpoint as sp

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

RECIPES = Path(__file__).parents[1] / "examples" / "serving"


@pytest.fixture(scope="module")
def uq():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    method = sp.SplitPointRegressor(confidence_level=(0.5, 0.9), epochs=2, residuals="train")
    return method.fit(model, (x, x.sum(1, keepdim=True).sin()), progress=False).set_threshold(x + 0.1)


@pytest.fixture(scope="module")
def file(uq, tmp_path_factory):
    path = tmp_path_factory.mktemp("serving") / "uq.onnx"
    sp.export.onnx(uq, path, torch.randn(4, 3))
    return path


@pytest.fixture(scope="module")
def rows():
    return torch.randn(6, 3, generator=torch.Generator().manual_seed(1))


def recipe(name):
    spec = importlib.util.spec_from_file_location(name, RECIPES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_fastapi(uq, file, rows, monkeypatch):
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    monkeypatch.setenv("UQ_FILE", str(file))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the client's own packages
        from fastapi.testclient import TestClient

        client = TestClient(recipe("fastapi_app").app)
        found = client.post("/predict", json={"rows": rows.tolist()})
        wrong = client.post("/predict", json={"rows": rows[:, :2].tolist()})
    assert found.status_code == 200
    assert np.allclose(found.json()["lowers"], uq(rows).lowers, rtol=1e-4)
    assert wrong.status_code == 422
    assert wrong.json()["detail"].startswith("Expected 'input' of shape (batch, 3)")


def test_litserve(uq, file, rows, monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("litserve")
        module = recipe("litserve_app")
        api = module.UncertainApi(max_batch_size=64)
    monkeypatch.setenv("UQ_FILE", str(file))
    api.setup("cpu")
    batch = api.batch([api.decode_request({"row": row}) for row in rows.tolist()])
    answers = [json.loads(json.dumps(api.encode_response(own))) for own in api.unbatch(api.predict(batch))]
    assert len(answers) == len(rows)
    assert np.allclose([own["uppers"] for own in answers], uq(rows).uppers, rtol=1e-4)
    assert [own["flagged"] for own in answers] == uq(rows).flagged.tolist()


@pytest.mark.slow
def test_spark(uq, file, rows, monkeypatch):
    pytest.importorskip("pyspark")
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(Path(sp.__file__).parents[1]) + ":" + str(RECIPES))
    monkeypatch.syspath_prepend(RECIPES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pyspark.sql import SparkSession
        from spark_udf import uncertain

        settings = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1", "spark.driver.host": "127.0.0.1"}
        builder = SparkSession.builder.master("local[1]")
        for key, value in settings.items():
            builder = builder.config(key, value)
        session = builder.getOrCreate()
        try:
            frame = session.createDataFrame([(row,) for row in rows.tolist()], ["features"])
            found = [own["p"] for own in frame.select(uncertain(str(file), 3)("features").alias("p")).collect()]
        finally:
            session.stop()
    prediction = uq(rows)
    assert np.allclose([own["mean"] for own in found], prediction.mean[:, 0], rtol=1e-4)
    assert np.allclose([own["upper"] for own in found], prediction.upper[:, 0], rtol=1e-4)
    assert [own["flagged"] for own in found] == prediction.flagged[:, 0].tolist()


@pytest.mark.slow
def test_mlflow(uq, file, rows, tmp_path, monkeypatch):
    pytest.importorskip("pandas")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mlflow = pytest.importorskip("mlflow")
        pytest.importorskip("mlflow.pyfunc")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path}/runs")
        recipe("mlflow_model").save(str(file), str(tmp_path / "model"))
        found = mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(rows.numpy())
    assert np.allclose(found["lowers"], uq(rows).lowers, rtol=1e-4)
    assert not list((tmp_path / "model").rglob("*.pkl"))
