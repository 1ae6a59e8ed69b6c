"""Requests of one row each that are answered in batches: UQ_FILE=uq.onnx python litserve_app.py."""

import os

import litserve
import numpy as np

from splitpoint.runtime import Array, Runtime, load


class UncertainApi(litserve.LitAPI):
    """A row in, the fields of its prediction out."""

    uq: Runtime

    def setup(self, device: str) -> None:  # noqa: ARG002
        """Open the file, once in every worker."""
        self.uq = load(os.environ["UQ_FILE"], threads=1)

    def decode_request(self, request: dict[str, list[float]]) -> Array:
        """The row of a request."""
        return np.asarray(request["row"], dtype=np.float32)

    def batch(self, inputs: list[Array]) -> Array:
        """Rows that came within a few milliseconds."""
        return np.stack(inputs)

    def predict(self, x: Array) -> dict[str, Array]:
        """Their predictions."""
        return self.uq(x)

    def unbatch(self, output: dict[str, Array]) -> list[dict[str, Array]]:
        """One prediction for every request."""
        rows = len(next(iter(output.values())))
        return [{name: values[row] for name, values in output.items()} for row in range(rows)]

    def encode_response(self, output: dict[str, Array]) -> dict[str, object]:
        """Numbers and lists."""
        return {name: values.tolist() for name, values in output.items()}


def server() -> litserve.LitServer:
    """Batches of at most 64 requests, which wait for each other for 5 milliseconds."""
    return litserve.LitServer(UncertainApi(max_batch_size=64, batch_timeout=0.005), accelerator="cpu")


if __name__ == "__main__":
    server().run(port=8000)
