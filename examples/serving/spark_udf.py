"""Intervals as columns of a Spark data frame: the file is opened once in every worker."""

from collections.abc import Callable

import numpy as np
from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import Column
from pyspark.sql.types import FloatType, IntegerType, StructField, StructType

FIELDS = StructType(
    [StructField(name, FloatType()) for name in ("mean", "lower", "upper")] + [StructField("flagged", IntegerType())]
)


def uncertain(path: str, features: int) -> Callable[[Column], Column]:
    """A function of a column of arrays with so many features: mean, bounds at the highest level, and flag (0 or 1).

    Args:
        path: of the ONNX file, on every machine (``SparkContext.addFile`` brings it there).
        features: numbers in an array.
    """

    def opened() -> Callable[[np.ndarray], dict[str, np.ndarray]]:
        from splitpoint.runtime import load

        uq = load(path, threads=1)

        def predict(rows: np.ndarray) -> dict[str, np.ndarray]:
            found = uq(rows.astype(np.float32))
            bounds = {"lower": found["lowers"][:, 0, -1], "upper": found["uppers"][:, 0, -1]}
            return {"mean": found["mean"][:, 0], **bounds, "flagged": found["flagged"][:, 0].astype(np.int32)}

        return predict

    return predict_batch_udf(opened, return_type=FIELDS, batch_size=4096, input_tensor_shapes=[[features]])
