"""What the split-point methods share: the settings of their heads, and fitting beside a base network in training."""

from __future__ import annotations

import itertools
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from splitpoint.batch_rows import rows_of
from splitpoint.batches import Batch, Data, labelled, output_tensor, placement
from splitpoint.cache import Table
from splitpoint.divergence import check_finite
from splitpoint.errors import DataError, SettingsError
from splitpoint.features import Tap, open_tap
from splitpoint.groups import Groups, group_ids
from splitpoint.heads import Heads
from splitpoint.image_support import PREFIX, ImageSupport
from splitpoint.layer_setting import LayerSpec
from splitpoint.layout import Layout
from splitpoint.method import P, PostHoc
from splitpoint.networks import NetworkTraining
from splitpoint.opening import layout_of
from splitpoint.recording import Recording, Source
from splitpoint.tasks import Rows
from splitpoint.training import Losses, Training

MOMENTUM = 0.05

PAPER_STEPS = 60_000
"""Iterations of the paper's training on depth maps (its Appendix on training details)."""

LEAST_HIDDEN = 16
"""Units of a hidden layer, at least."""

BaseLoss = Callable[[Tensor, Tensor], Tensor]
"""From the model's output tensor and the target to a scalar."""

LayoutLoss = Callable[[Layout, Tensor, Tensor], Tensor]
"""The same, knowing how the output is shaped."""


@dataclass(frozen=True)
class Companion:
    """Heads that learn beside the base network.

    Attributes:
        heads: a stack of one.
        loss: from heads and rows (1, B, ...) to the loss of every trunk.
        follow: called with the rows of every batch, before the loss, to keep scales up to date.
        extras: tensors that belong to the heads, such as the scale of their targets.
    """

    heads: Heads
    loss: Callable[[Heads, Rows], Losses]
    follow: Callable[[Rows], None]
    extras: dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class HeadMethod(Training, PostHoc[P]):
    """Settings of methods that train heads on recorded rows; see `Training` and `PostHoc` for the others.

    Attributes:
        layer: where the features are read: None for the input of the last Linear or Conv that produces the output
            (checked and reported; of every branch where the output is put together from several), a name, a module, a
            list of them, a mapping from names of modalities to them, or a callable on the model's own arguments.
        cache: "ram", or a directory for recorded features, which later runs with the same data resume or reuse.
        width: most units of a hidden layer, which has as many as there are features, but at least 16 (half as many for
            maps and sequences, where every position pays for it, and 16 for several of them); None for as many as there
            are features, whatever they are.
        dense_steps: most steps of the optimiser for maps and sequences, in whole passes; None for no limit. Every map
            gives many rows, so that passes over them say little of how long training takes.
    """

    layer: LayerSpec = None
    cache: str | os.PathLike[str] = "ram"
    width: int | None = 64
    dense_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        super(Training, self).__post_init__()
        if not isinstance(self.cache, str | os.PathLike) or not os.fspath(self.cache):
            raise SettingsError(f"Expected cache to be 'ram' or the name of a directory, but got {self.cache!r}.")
        if self.width is not None and self.width < 1:
            raise SettingsError(f"Expected width >= 1 or None, but got {self.width}.")
        if self.dense_steps is not None and self.dense_steps < 1:
            raise SettingsError(f"Expected dense_steps >= 1 or None, but got {self.dense_steps}.")

    @property
    def _layer(self) -> LayerSpec:
        return self.layer

    @property
    def _cache(self) -> Path | None:
        return None if self.cache == "ram" else Path(self.cache)

    def _hidden(self, table: Table, several: bool = False) -> int:
        """Units of a hidden layer; `several` maps are brought to one resolution by it, which costs for every unit."""
        features = table.width("features")
        if self.width is None:
            return max(features, LEAST_HIDDEN)
        wanted = LEAST_HIDDEN if several else features // 2 if table.dense else features
        return min(max(wanted, LEAST_HIDDEN), self.width)

    def _schedule(self, table: Table) -> Training:
        """The settings of the optimiser for these rows, with as many passes as `dense_steps` allows, at least one."""
        if self.dense_steps is None or not table.dense:
            return self
        steps = -(-table.rows // self.batch(table.rows))
        return replace(self, epochs=min(self.passes(table.rows), max(1, self.dense_steps // steps)))

    def _describe(self, recording: Recording, calibration: Recording | None) -> dict[str, Tensor]:
        """Tensors that tell how little the training set says about a whole image, where that is recorded."""
        if recording.images is None:
            return {}
        held_out = None if calibration is None or calibration.images is None else calibration.images.table
        found = ImageSupport.fit(recording.images.table, recording.images.widths, held_out)
        return {} if found is None else dict(found.state_dict(prefix=PREFIX))

    @abstractmethod
    def _predictor(self, tap: Tap | None, layout: Layout, inputs: int, tensors: Mapping[str, Tensor]) -> P:
        """The predictor that these fitted tensors make, as `fit` and `load` build it."""

    def _check_alike(self, recordings: Sequence[Recording]) -> None:
        """Refuse recordings whose heads could not be trained as one stack."""
        shapes = {(recording.table.width("features"), recording.layout) for recording in recordings}
        if len(shapes) > 1:
            raise SettingsError(
                "Expected models with equal feature widths and outputs to fit as one stack, but got "
                f"{sorted(width for width, _ in shapes)}; fit them one by one."
            )

    def fit_stagewise(
        self,
        model: nn.Module,
        data: Data,
        *,
        loss: BaseLoss | None = None,
        base_epochs: int = 100,
        base_learning_rate: float = 1e-3,
        groups: Groups | None = None,
        calibration: Data | None = None,
        calibration_groups: Groups | None = None,
        seed: int = 0,
        progress: bool = True,
    ) -> P:
        """Train an untrained model first, in place, and fit the heads after.

        Args:
            model: the untrained base model.
            data: to train both on; must allow one pass per epoch.
            loss: of the base model, from its output and the target; squared error or log loss by default.
            base_epochs: passes over the data.
            base_learning_rate: of Adam.
            groups: as in `fit`.
            calibration: as in `fit`.
            calibration_groups: as in `fit`.
            seed: of the heads; the model brings its own initial weights, the data their own order.
            progress: whether to show progress bars.
        """
        self._check_calibration(calibration is not None)
        settings = NetworkTraining(epochs=base_epochs, learning_rate=base_learning_rate)
        train_base(model, data, self._layout_loss(loss), settings, self._source(), progress)
        return self.fit(
            model,
            data,
            groups=groups,
            calibration=calibration,
            calibration_groups=calibration_groups,
            seed=seed,
            progress=progress,
        )

    def fit_jointly(
        self,
        model: nn.Module,
        data: Data,
        *,
        loss: BaseLoss | None = None,
        base_epochs: int = 100,
        base_learning_rate: float = 1e-3,
        calibration: Data | None = None,
        calibration_groups: Groups | None = None,
        seed: int = 0,
        progress: bool = True,
    ) -> P:
        """Train an untrained model and its heads together, in place, on the sum of their losses.

        Arguments as in `fit_stagewise`. The heads learn from residuals of training rows, since the base model moves
        all the time; cross-fitting and leverage have no part in it.
        """
        self._check_calibration(calibration is not None)
        settings = NetworkTraining(epochs=base_epochs, learning_rate=base_learning_rate)
        device = placement(model)[0]
        companion = train_together(
            model,
            data,
            self._layout_loss(loss),
            settings,
            self._source(),
            lambda rows: self._companion(rows, seed, device),
            progress,
        )
        recording = self._record(model, data, "train", progress)
        held_out = None
        if calibration is not None and self._reads_calibration:
            owners = None if calibration_groups is None else group_ids(calibration_groups)
            held_out = self._record(model, calibration, "calibration", progress, recording, owners)
        return self._after_joint(recording, companion, held_out, seed, progress).fitted_on(recording)

    @abstractmethod
    def _companion(self, rows: Rows, seed: int, device: torch.device) -> Companion:
        """Heads to train beside the model, of the shape that the rows of a first batch ask for."""

    @abstractmethod
    def _after_joint(
        self, recording: Recording, companion: Companion, calibration: Recording | None, seed: int, progress: bool
    ) -> P:
        """The predictor, once model and heads have been trained together."""

    def _layout_loss(self, loss: BaseLoss | None) -> LayoutLoss:
        if loss is None:
            return self._task.loss
        chosen = loss
        return lambda _layout, output, target: chosen(output, target)


# When there is no trained model yet: base network first and heads after, or both in one loop


def train_base(
    model: nn.Module, data: Data, loss: LayoutLoss, settings: NetworkTraining, source: Source, progress: bool
) -> None:
    """Train the base network alone, in place."""
    _, layout, _ = _first_look(model, data, source)
    optimiser = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)

    def step(batch: Batch) -> Tensor:
        output = output_tensor(model(*batch.args, **batch.kwargs), source.output_key)
        return loss(layout, output, _target(batch))

    _loop(model, data, settings.epochs_for(1), optimiser, step, source.batch_size, "training base model", progress)


def train_together(
    model: nn.Module,
    data: Data,
    loss: LayoutLoss,
    settings: NetworkTraining,
    source: Source,
    companion_for: Callable[[Rows], Companion],
    progress: bool,
) -> Companion:
    """Train the base network and its heads on the sum of their losses, in place; returns the heads.

    Residuals are detached, so that the heads' losses shape the features but never the targets they are judged by.
    """
    tap, layout, rows = _first_look(model, data, source)
    companion = companion_for(rows)
    parameters = [*model.parameters(), *companion.heads.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=settings.learning_rate)
    numbers = itertools.count()

    def step(batch: Batch) -> Tensor:
        reading = tap.live(*batch.args, **batch.kwargs)
        output = reading.output
        detached = reading._replace(output=output.detach())
        rows = rows_of(layout, detached, batch.target, source.task, source.positions, next(numbers))
        stacked = {name: values.to(output.device)[None] for name, values in rows.items()}
        companion.follow(stacked)
        own = torch.stack(list(companion.loss(companion.heads, stacked).values())).sum()
        return loss(layout, output, _target(batch)) + own

    _loop(model, data, settings.epochs_for(1), optimiser, step, source.batch_size, "training jointly", progress)
    return companion


def _first_look(model: nn.Module, data: Data, source: Source) -> tuple[Tap, Layout, Rows]:
    """Tap, layout and rows of a first batch, which also shows whether targets fit the output."""
    _check_repeatable(data)
    first = next(labelled(data, source.batch_size), None)
    if first is None:
        raise DataError("Expected data to train on, but got none; pass at least two rows.")
    moved = first.to(model)
    tap, reading = open_tap(model, source.layer, moved, source.output_key)
    layout = layout_of(tap, reading, source.task)
    return tap, layout, rows_of(layout, reading, moved.target, source.task, source.positions, 0)


def follow_features(heads: Heads, rows: Rows) -> None:
    """Let the standardisation follow the features, which move while the base network learns."""
    features = rows["features"].detach()
    if features.shape[1] > 1:
        heads.center.lerp_(features.mean(1, keepdim=True), MOMENTUM)
        heads.spread.lerp_(features.std(1, keepdim=True).clamp(min=1e-3), MOMENTUM)


def _loop(
    model: nn.Module,
    data: Data,
    epochs: int,
    optimiser: torch.optim.Optimizer,
    step: Callable[[Batch], Tensor],
    rows_per_call: int,
    label: str,
    progress: bool,
) -> None:
    _check_repeatable(data)
    with _train_mode(model), tqdm(total=epochs, desc=label, leave=False, disable=not progress) as shown:
        for _ in range(epochs):
            loss = torch.zeros(())
            for batch in labelled(data, rows_per_call):
                optimiser.zero_grad()
                loss = step(batch.to(model))
                loss.backward()
                optimiser.step()
            check_finite([model], "base model", optimiser.param_groups[0]["lr"])
            shown.set_postfix_str(f"loss {float(loss.detach()):.4g}", refresh=False)
            shown.update()
    optimiser.zero_grad()


@contextmanager
def _train_mode(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.train()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _check_repeatable(data: Data) -> None:
    if isinstance(data, Iterator):
        raise DataError(
            "Expected data that can be read once per epoch, but got an iterator; pass a DataLoader or a list."
        )


def _target(batch: Batch) -> Tensor:
    assert batch.target is not None
    return batch.target
