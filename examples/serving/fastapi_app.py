"""Predictions with intervals over HTTP, without PyTorch: UQ_FILE=uq.onnx uvicorn fastapi_app:app --workers 2."""

import os

import numpy as np
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from splitpoint.errors import SplitPointError
from splitpoint.runtime import load

app, uq = FastAPI(), load(os.environ["UQ_FILE"], threads=1)


class Rows(BaseModel):
    """Rows of features."""

    rows: list[list[float]]


@app.post("/predict")
def predict(request: Rows) -> dict[str, list]:
    """Every field of the prediction as nested lists; requests run in threads and share the file."""
    try:
        found = uq(np.asarray(request.rows, dtype=np.float32))
    except SplitPointError as error:  # another number of features, say
        raise HTTPException(422, str(error)) from error
    return {name: values.tolist() for name, values in found.items()}
