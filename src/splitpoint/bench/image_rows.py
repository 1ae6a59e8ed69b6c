"""A trained classifier as recorded rows: images run through it once, and every post-hoc method starts from there.

A row holds the pooled features of some stages of the network and the input of its last layer, a linear one. Logits are
computed again from that input where they are needed, on the CPU, whatever device the network is on.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from splitpoint.batches import placement
from splitpoint.classification import ClassificationPredictor, SplitPointClassifier
from splitpoint.errors import SettingsError
from splitpoint.features import Tap
from splitpoint.files import drop_stale_drafts, model_fingerprint, replacing, text_digest, write_text
from splitpoint.hooks import INPUT
from splitpoint.layout import Layout
from splitpoint.method import PostHoc
from splitpoint.posthoc import PostHocPredictor
from splitpoint.prediction import ClassificationPrediction
from splitpoint.recording import Recording
from splitpoint.tasks import Classification

ROWS_PER_CALL = 256
"""Rows that go through the last layer at a time."""


@dataclass(frozen=True)
class Rows:
    """Recorded rows of images.

    Attributes:
        values: (N, W) pooled features of the stages and, behind them, the input of the last layer; mapped into memory
            from a file.
        last: the last layer, on the CPU.
        seconds: CPU seconds that the network took for all images.
    """

    values: Tensor
    last: nn.Linear
    seconds: float

    def __len__(self) -> int:
        return len(self.values)

    def features(self, layers: bool = False) -> Tensor:
        """The input (N, C) of the last layer; with `layers` the whole rows (N, W)."""
        return self.values if layers else self.values[:, -self.last.in_features :]

    def logits(self) -> Tensor:
        """Output (N, K) of the last layer."""
        with torch.no_grad():
            return torch.cat([self.last(part) for part in self.features().split(ROWS_PER_CALL)])

    def predicted_by(self, predictor: PostHocPredictor[ClassificationPrediction]) -> ClassificationPrediction:
        """The prediction of a method that was fitted on a recording of such rows."""
        assert predictor.tap is not None
        return predictor.predict_rows(self.features(len(predictor.tap.names) > 1), self.logits())

    def split(self, sizes: Iterable[int]) -> Iterator[Rows]:
        """Consecutive parts with so many rows each."""
        return (replace(self, values=part) for part in self.values.split(list(sizes)))


@dataclass(frozen=True)
class Recorder:
    """Runs a network over images and keeps a row for each.

    Rows are stored under the fingerprint of the network and of the images, and not made again where they are there.

    Attributes:
        network: trained, with a linear layer at its end; on any device.
        stages: names of the layers whose pooled features are kept beside the input of the last one.
        cache: folder of the rows of all networks.
    """

    network: nn.Module
    stages: tuple[str, ...]
    cache: Path

    @cached_property
    def folder(self) -> Path:
        """Where the rows of this network are."""
        return self.cache / text_digest(f"{model_fingerprint(self.network)} {self.stages}")

    @cached_property
    def last(self) -> str:
        """Name of the last linear layer."""
        names = [str(name) for name, part in self.network.named_modules() if isinstance(part, nn.Linear)]
        if not names:
            raise SettingsError("Expected a network that ends in a linear layer, but it has none.")
        return names[-1]

    @cached_property
    def on_cpu(self) -> nn.Module:
        """The network itself, or a copy of it where it is on another device: what fitted methods belong to."""
        here = placement(self.network)[0].type == "cpu"
        return self.network if here else copy.deepcopy(self.network).cpu()

    def tap(self, network: nn.Module, layers: bool = True) -> Tap:
        """Where rows are read: before the last layer, and with `layers` after all stages too."""
        return Tap(network, (*(self.stages if layers else ()), self.last + INPUT), None, "as recorded")

    def recording(self, rows: Rows, labels: Tensor, layers: bool = False) -> Recording:
        """Rows and labels as post-hoc methods are fitted on them."""
        tap = self.tap(self.on_cpu, layers)
        return Recording.of(Classification(), rows.features(layers), rows.logits(), labels, tap=tap)

    def rows(self, name: str, digest: str, images: Iterable[Tensor | tuple[Tensor, Tensor]], count: int) -> Rows:
        """Rows of images.

        Args:
            name: of the images, for people.
            digest: of everything that tells them from others.
            images: batches, with or without labels.
            count: how many images there are.
        """
        path, clock = (self.folder / f"{name}-{digest}{ending}" for ending in (".npy", ".seconds"))
        if not path.is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            for target in (path, clock):
                drop_stale_drafts(target)
            with replacing(path) as draft:
                seconds = self._write(draft, images, count)
                write_text(clock, repr(seconds))
        stored = torch.from_numpy(np.load(path, mmap_mode="c", allow_pickle=False))
        return Rows(stored, self._last_layer, float(clock.read_text(encoding="utf-8")))

    @cached_property
    def _last_layer(self) -> nn.Linear:
        found = self.on_cpu.get_submodule(self.last)
        assert isinstance(found, nn.Linear)
        return found

    def _write(self, path: Path, images: Iterable[Tensor | tuple[Tensor, Tensor]], count: int) -> float:
        """Write the rows to a file as they come, and return the CPU seconds of the network."""
        tap = self.tap(self.network)
        layout = Layout((False,) * len(tap.names), False, 1)
        device = placement(self.network)[0]
        stored, start, seconds = None, 0, 0.0
        for batch in images:
            began = time.process_time()
            logits, features, *_ = tap((batch if isinstance(batch, Tensor) else batch[0]).to(device))
            rows = layout.features(features).cpu()
            seconds += time.process_time() - began
            if stored is None:
                again = Rows(rows, self._last_layer, 0.0).logits()
                if not torch.allclose(again, logits.cpu(), rtol=1e-3, atol=1e-3):
                    raise SettingsError("Expected a network whose output is that of its last linear layer.")
                stored = np.lib.format.open_memmap(path, "w+", np.float32, (count, rows.shape[1]))
            stored[start : start + len(rows)] = rows.numpy()
            start += len(rows)
        if stored is None or start != count:
            raise SettingsError(f"Expected {count} images to record, but got {start}.")
        stored.flush()
        return seconds


@dataclass(frozen=True)
class LabelledRows:
    """Recorded rows with their labels (N,), and where they come from, such as "train"."""

    source: str
    rows: Rows
    labels: Tensor

    def at(self, places: Tensor, source: str) -> LabelledRows:
        """Some of them, as another source."""
        return LabelledRows(source, replace(self.rows, values=self.rows.values[places]), self.labels[places])


@dataclass(frozen=True)
class RowFits:
    """Fits post-hoc methods on the rows of one network; free heads of equal settings and rows only once.

    What calibration rows teach these is apart from the rest, so they are always calibrated, and handed out without
    that to those who want none. With MARs on the simplex these rows set the scale of support too: two fits.

    Attributes:
        recorder: of the network.
        calibration: rows of calibration images.
        seed: of everything random.
    """

    recorder: Recorder
    calibration: LabelledRows
    seed: int
    _known: dict[Any, tuple[Any, float]] = field(default_factory=dict)

    def fit(
        self, method: PostHoc[Any], data: LabelledRows, *, calibrated: bool, layers: bool = False
    ) -> tuple[Any, float]:
        """The fitted method and the CPU seconds of the fit.

        Args:
            method: its settings.
            data: what it learns from.
            calibrated: whether it uses calibration rows.
            layers: whether it reads the features of all stages.
        """
        separable = isinstance(method, SplitPointClassifier) and method.mars == "free"
        given = calibrated or separable
        key = method, data.source, layers, given
        if key not in self._known:
            began = time.process_time()
            parts = [data, self.calibration] if given else [data]
            rows, *held_out = (self.recorder.recording(part.rows, part.labels, layers) for part in parts)
            calibration = held_out[0] if held_out else None
            predictor = method.fit_rows(rows, calibration=calibration, seed=self.seed, progress=False)
            self._known[key] = predictor, time.process_time() - began
        predictor, seconds = self._known[key]
        return uncalibrated(predictor) if separable and not calibrated else predictor, seconds


def uncalibrated(predictor: ClassificationPredictor) -> ClassificationPredictor:
    """Free heads without what they learned from calibration rows."""
    learned = ("calibrator.", "set_scores")
    kept = {name: tensor for name, tensor in predictor.own_tensors().items() if not name.startswith(learned)}
    return ClassificationPredictor(predictor.method, predictor.tap, predictor.layout, predictor.inputs, kept)
