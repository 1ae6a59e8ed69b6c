"""Simultaneous quantile regression with orthonormal certificates (Tagasovska & Lopez-Paz 2019)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from splitpoint.baselines.answers import central_quantiles, quantile_answer
from splitpoint.baselines.oc import certificate_score, check_certificates, fit_certificates
from splitpoint.baselines.settings import RegressionMethod
from splitpoint.baselines.trained import NetworkBaseline, NetworkPredictor, Runs
from splitpoint.batches import Batch, Data, placement
from splitpoint.errors import SettingsError
from splitpoint.hooks import INPUT
from splitpoint.layout import Layout
from splitpoint.losses import pinball_errors
from splitpoint.networks import Architecture
from splitpoint.networks.stack import Stack
from splitpoint.networks.surgery import conditioned, widen, with_condition
from splitpoint.recording import Source, record
from splitpoint.tasks import Answer, Regression, Targets

MEDIAN = 0.5


@dataclass(frozen=True, kw_only=True)
class SqrOc(NetworkBaseline, RegressionMethod[NetworkPredictor]):
    """One network that takes the quantile level tau as a further input and learns all quantiles at once.

    In training every row gets its own tau, uniform in (0, 1), and the pinball loss at that tau. Prediction asks for
    the median, which serves as the mean, and for both bounds of every level; quantiles that cross are put in order.
    Certificates on the penultimate features at the median give the epistemic score; see `OrthonormalCertificates`.

    Attributes:
        positions: most positions used of one map or sequence when certificates are fitted.
        tau: "input" as above, or "outputs" for a network with one output for each quantile that is asked for, in place
            of the further input: the form that Zhao & Chen compare with.
        certificates: most certificates k; there are no more than features.
        penalty: weight of the orthonormality.
    """

    positions: int = 256
    tau: Literal["input", "outputs"] = "input"
    certificates: int = 100
    penalty: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tau not in ("input", "outputs"):
            raise SettingsError(f"Expected tau to be 'input' or 'outputs', but got {self.tau!r}.")
        check_certificates(self.certificates, self.penalty)

    @property
    def _width(self) -> int:
        return len(central_quantiles(self.levels)) if self.tau == "outputs" else 1

    def _changed(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        if self.tau == "outputs":
            return widen(network, architecture.last, self._width)
        return with_condition(network, architecture.layers[0])

    def _step(self, stack: Stack, architecture: Architecture, batch: Batch, target: Tensor, part: float) -> Tensor:
        assert batch.target is not None
        if self.tau == "outputs":
            return super()._step(stack, architecture, batch, target, part)
        tau = torch.rand(*batch.target.shape[:2], 1, device=target.device, dtype=torch.float32)
        with conditioned(scaled(tau)):
            raw = architecture.canonical(stack(*batch.args, **batch.kwargs).flatten(0, 1), self._width)
        quantile = self._parts(raw, architecture)
        levels = tau.reshape(-1, *[1] * (quantile.dim() - 1)).expand_as(quantile)
        return pinball_errors(target.unsqueeze(1) - quantile, levels).squeeze(1)

    def _loss(self, raw: Tensor, target: Tensor, part: float) -> Tensor:  # noqa: ARG002
        """Mean pinball loss of the `central_quantiles` raw (R, Q, D, ...)."""
        quantiles = raw.new_tensor(central_quantiles(self.levels)).reshape(-1, *[1] * (raw.dim() - 2))
        return pinball_errors(target.unsqueeze(1) - raw, quantiles).mean(1)

    def _finish(self, predictor: NetworkPredictor, data: Data, progress: bool) -> None:
        network = predictor.networks[0]
        source = Source(EveryRow(), self._features(predictor), self.output_key, self.rows_per_call, self.positions)
        with fixed(MEDIAN, network):
            rows = record(network, data, source, cache=None, label="reading features", progress=progress)
        for name, tensor in fit_certificates(rows.table, self.certificates, self.penalty).items():
            predictor.fitted.add(f"oc_{name}", tensor.to(predictor.fitted["center"].device))

    def _features(self, predictor: NetworkPredictor) -> str:
        """Place of the penultimate features."""
        return predictor.architecture.last + INPUT

    def _runs(self, predictor: NetworkPredictor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Runs:
        fitted = [predictor.fitted[f"oc_{name}"] for name in ("center", "spread", "certificates")]
        tap = predictor.tap(self._features(predictor))
        outputs, score = [], None
        for tau in central_quantiles(self.levels) if self.tau == "input" else [MEDIAN]:
            with fixed(tau, predictor.base):
                reading = tap.attached(*args, **kwargs)
            outputs.append(reading.output)
            if tau == MEDIAN:
                score = predictor.layout.pointwise(
                    lambda rows: certificate_score(rows, *fitted),
                    predictor.layout.features(reading.features),
                    reading.output,
                )
        return Runs(outputs, score)

    def _answer(self, predictor: NetworkPredictor, runs: Tensor, score: Tensor | None) -> Answer:
        assert score is not None
        raw = torch.cat(list(runs), 1)
        quantiles = torch.stack([predictor.in_units(values)[0] for values in raw.unbind(1)])
        return quantile_answer(quantiles, self.levels, score.expand_as(quantiles[0]))


class EveryRow(Regression):
    """Rows without anything of the targets: certificates look at features alone."""

    def targets(self, layout: Layout, output: Tensor, target: Tensor) -> Targets:  # noqa: ARG002
        """Every row counts."""
        return Targets({}, torch.ones_like(layout.output(output)[:, 0], dtype=torch.bool))


def scaled(tau: Tensor) -> Tensor:
    """The quantile level as the network sees it, ``12 (tau - 1/2)``."""
    return 12 * (tau - MEDIAN)


@contextmanager
def fixed(tau: float, network: nn.Module) -> Iterator[None]:
    """Ask for the `tau`-quantile of every row for as long as the context lasts, on the device of the network."""
    with conditioned(scaled(torch.full((1, 1), tau, device=placement(network)[0]))):
        yield
