"""A model of MLflow: python mlflow_model.py uq.onnx model_folder.

MLflow keeps this file and the ONNX file; nothing is pickled.
"""

import sys
from pathlib import Path

import mlflow.pyfunc
import numpy as np
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext

from splitpoint.runtime import Array, load


class UncertainModel(PythonModel):
    """Rows of features in, the fields of the prediction out."""

    def load_context(self, context: PythonModelContext) -> None:
        """Open the file."""
        self.uq = load(context.artifacts["uq"], threads=1)

    def predict(self, context, model_input, params=None) -> dict[str, Array]:  # noqa: ARG002
        """The prediction for a data frame or an array."""
        return self.uq(np.asarray(model_input, dtype=np.float32))


def save(onnx: str, folder: str) -> None:
    """Write the model to a folder; `mlflow.pyfunc.log_model` takes the same arguments."""
    mlflow.pyfunc.save_model(
        path=folder,
        python_model=str(Path(__file__)),
        artifacts={"uq": onnx},
        pip_requirements=["splitpoint", "onnxruntime", "numpy"],
    )


set_model(UncertainModel())

if __name__ == "__main__":
    save(*sys.argv[1:])
