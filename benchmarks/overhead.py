"""What a prediction costs beside the bare model: ratios of CPU time, predictor / base, measured in turns in one run.

    python benchmarks/overhead.py [--rounds 25] [--networks mlp resnet18 unet transformer] [--forms eager] [--quick]

Every round times a block of calls of the base network and one of the predictor, in CPU time of the process on one
thread, so that other jobs on the machine do not count but for what they do to its caches. Printed are the median times
of base and predictor, and the median and quartiles of the ratios of the rounds. Weights are random: speed does not
depend on them. Both run in the same form: "eager", "compiled" by torch.compile (the predictor as `sp.export.module`
gives it), or "onnx" with ONNX Runtime, where its packages are installed. All heads have their default size.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import splitpoint as sp
from networks import UNet
from splitpoint.bench.architectures import resnet18

BLOCK = 0.02
"""Seconds of a block of calls, at least one call."""


class Encoder(nn.Module):
    """A transformer of the size of a small BERT: 4 layers of width 256, one number for a sequence."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.words, self.layers = nn.Embedding(1000, 256), nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.pooled, self.last = nn.Linear(256, 256), nn.Linear(256, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        """(N, T) -> (N, 1)."""
        return self.last(self.pooled(self.layers(self.words(tokens))[:, 0]).tanh())


def small() -> tuple[nn.Module, Any, list[Tensor]]:
    """MLP 13-50-1, trained a little on rows of its own, and its regressor."""
    x = torch.randn(2000, 13)
    y = x[:, :1] + torch.randn(2000, 1)
    net = nn.Sequential(nn.Linear(13, 50), nn.ReLU(), nn.Linear(50, 1)).eval()
    uq = sp.SplitPointRegressor(epochs=1, residuals="loo").fit(net, (x, y), progress=False)
    return net, uq, [torch.randn(count, 13) for count in (1, 1024)]


def images() -> tuple[nn.Module, Any, list[Tensor]]:
    """ResNet-18 on 224 pixels, a thousand classes."""
    net, x = resnet18(1000, (3, 224, 224)).eval(), torch.randn(16, 3, 224, 224)
    uq = sp.SplitPointClassifier(epochs=1).fit(net, (x, torch.arange(16) % 4), progress=False)
    return net, uq, [x[:1], x[:8]]


def maps() -> tuple[nn.Module, Any, list[Tensor]]:
    """U-Net on maps of 128 x 160."""
    net, x = UNet().eval(), torch.randn(8, 3, 128, 160)
    uq = sp.SplitPointRegressor(epochs=1).fit(net, (x, torch.randn(8, 1, 128, 160)), progress=False)
    return net, uq, [x[:1], x]


def tokens() -> tuple[nn.Module, Any, list[Tensor]]:
    """The transformer on 64 tokens."""
    net, x = Encoder().eval(), torch.randint(1000, (64, 64))
    uq = sp.SplitPointRegressor(epochs=1, residuals="loo").fit(net, (x, torch.randn(64, 1)), progress=False)
    return net, uq, [x[:1], x[:8]]


NETWORKS: dict[str, tuple[str, Callable[[], tuple[nn.Module, Any, list[Tensor]]]]] = {
    "mlp": ("MLP 13-50-1", small),
    "resnet18": ("ResNet-18, 224 px", images),
    "unet": ("U-Net, 128x160", maps),
    "transformer": ("transformer 4x256, 64 tokens", tokens),
}
FORMS = ("eager", "compiled", "onnx")


def callables(form: str, net: nn.Module, uq: Any, example: Tensor) -> tuple[Callable[[Tensor], object], ...] | None:
    """Base and predictor in one form; None where its packages are not installed."""
    if form == "eager":
        return net, uq
    graph = sp.export.module(uq)
    if form == "compiled":
        return torch.compile(net, dynamic=True), torch.compile(graph, dynamic=True)
    if any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")):
        return None
    return of_runtime(net, uq, example)


def of_runtime(net: nn.Module, uq: Any, example: Tensor) -> tuple[Callable[[Tensor], object], ...]:
    """Sessions of ONNX Runtime on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    found: list[Callable[[Tensor], object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("base", "uq"):
            path = Path(folder) / f"{name}.onnx"
            if name == "uq":
                sp.export.onnx(uq, path, example, tolerance=1e-3)  # SDS is a difference that may be next to nothing
            else:
                rows = {0: torch.export.Dim.DYNAMIC}
                torch.onnx.export(net, (example,), path, dynamo=True, dynamic_shapes=(rows,), verbose=False)
            session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
            key = session.get_inputs()[0].name
            found.append(lambda x, session=session, key=key: session.run(None, {key: x.numpy()}))
    return tuple(found)


def ratios(base: Callable[[Tensor], object], own: Callable[[Tensor], object], x: Tensor, rounds: int) -> Tensor:
    """(R, 2) seconds of a call of base and predictor in every round."""

    def block(call: Callable[[Tensor], object], repeats: int) -> float:
        began = time.process_time()
        for _ in range(repeats):
            call(x)
        return (time.process_time() - began) / repeats

    repeats = []
    for call in (base, own):
        block(call, 3)
        repeats.append(max(1, int(BLOCK / max(block(call, 1), 1e-6))))
    return torch.tensor([[block(base, repeats[0]), block(own, repeats[1])] for _ in range(rounds)], dtype=torch.float64)


def main() -> None:
    """Print one Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--quick", action="store_true", help="five rounds, without compiling")
    options = parser.parse_args()
    forms = [form for form in options.forms if form != "compiled"] if options.quick else options.forms
    torch.set_num_threads(1)
    print(
        "| network | batch | form | base ms | ms | ratio (median) | quartiles |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    for name in options.networks:
        torch.manual_seed(0)
        title, make = NETWORKS[name]
        net, uq, batches = make()
        for form in forms:
            with torch.no_grad():
                calls = callables(form, net, uq, batches[1])
                for x in batches if calls is not None else ():
                    times = ratios(*calls, x, 5 if options.quick else options.rounds)
                    found = times[:, 1] / times[:, 0]
                    low, middle, high = found.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
                    base, own = (f"{1000 * value:.3g}" for value in times.median(0).values.tolist())
                    spread = f"{middle:.3f} | {low:.3f} .. {high:.3f}"
                    print(f"| {title} | {len(x)} | {form} | {base} | {own} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
