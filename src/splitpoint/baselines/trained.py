"""Rivals that train networks of their own, all on the backbone that a factory builds."""

from __future__ import annotations

import copy
import dataclasses
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from splitpoint.baselines.answers import check_answer
from splitpoint.baselines.posthoc import Fitted
from splitpoint.baselines.settings import Rival
from splitpoint.batches import Batch, Data, first_batch, labelled, output_tensor
from splitpoint.calibration import fit_temperature, tempered
from splitpoint.consistency import square_dtype
from splitpoint.errors import DataError, SettingsError
from splitpoint.features import Tap
from splitpoint.fingerprint import Fingerprint
from splitpoint.hooks import Watched
from splitpoint.likeness import Likeness
from splitpoint.method import Given
from splitpoint.model_inputs import retold
from splitpoint.networks import Architecture, Factory, NetworkTraining, Prepared, Trainer
from splitpoint.networks.stack import Stack
from splitpoint.networks.surgery import widen
from splitpoint.prediction import Prediction
from splitpoint.predictor import Predictor
from splitpoint.recording import Recording, bar
from splitpoint.tasks import Answer, ClassAnswer, Classification


class NetworkPredictor(Predictor[Prediction]):
    """A fitted baseline with networks of its own, which are its `base`.

    Attributes:
        architecture: how the networks are built and read.
        fitted: what was learned beside them, such as the units of the targets.
    """

    method: NetworkBaseline

    def __init__(
        self,
        method: NetworkBaseline,
        networks: Sequence[nn.Module],
        architecture: Architecture,
        tensors: Mapping[str, Tensor],
    ) -> None:
        super().__init__(method, nn.ModuleList(networks), architecture.layout, architecture.inputs, tensors)
        self.architecture = architecture
        self.fitted = Fitted.among(tensors)
        self.base.eval().requires_grad_(False)
        self._views = [Watched(network, []) for network in networks]
        self._taps: dict[str, Tap] = {}

    @property
    def networks(self) -> list[nn.Module]:
        """The trained networks."""
        return list(self.base.children())

    @property
    def running(self) -> list[nn.Module]:
        """Frozen views of them, which make predictions whatever modes the networks are in."""
        return [view.module for view in self._views]

    def tap(self, place: str) -> Tap:
        """The first network, with its features read at `place`."""
        if place not in self._taps:
            self._taps[place] = Tap(self.networks[0], (place,), None, "as the method reads it", self.method.output_key)
        return self._taps[place]

    def forward(self, *args: Any, **kwargs: Any) -> Prediction:
        """Run the networks and return the prediction for these inputs."""
        answer, like = self.answer(*args, **kwargs)
        if isinstance(answer, ClassAnswer) and "temperature" in self.fitted:
            answer = tempered(answer, self.fitted["temperature"])
        return answer.prediction(self.layout, like, self.reference)

    @torch.no_grad()
    def answer(self, *args: Any, **kwargs: Any) -> tuple[Answer, Tensor]:
        """The canonical answer before any temperature, and a tensor in the shape of the output."""
        return self.live_answer(*args, **kwargs)

    def live_answer(self, *args: Any, **kwargs: Any) -> tuple[Answer, Tensor]:
        """The same with gradients for the inputs, as attacks need them."""
        try:
            runs = self.method._runs(self, args, kwargs)
        except Exception as error:
            retold(error, self.networks[0])
            raise
        width = self.method._width
        found = [self.architecture.canonical(run, width) for run in runs.outputs]
        parts = torch.stack([self.method._parts(own, self.architecture) for own in found])
        like = self.architecture.like(runs.outputs[0], len(found[0]), width)
        return self.method._answer(self, parts, runs.score), like

    def observed(self, *args: Any, **kwargs: Any) -> Sequence[Tensor]:
        """See `Predictor`: outputs of all runs of the networks."""
        return self.method._runs(self, args, kwargs).outputs

    def in_units(self, mean: Tensor, *variances: Tensor) -> tuple[Tensor, ...]:
        """A mean and variances (N, D, ...) of standard targets in their units, in float64 where squares need it."""
        wide = [-1, *[1] * (mean.dim() - 2)]
        center, spread = self.fitted["center"].reshape(wide), self.fitted["spread"].reshape(wide)
        kind = square_dtype(spread)
        squared = spread.to(kind).square()
        return (center + spread * mean).to(kind), *(squared * variance for variance in variances)

    def own_tensors(self) -> dict[str, Tensor]:
        """Everything fitted, by name, the networks included."""
        return dict(self.state_dict())

    def description(self) -> dict[str, Any]:
        """See `Predictor`; also the architecture of the networks and their number."""
        architecture = dataclasses.asdict(self.architecture)
        return super().description() | {"architecture": architecture, "networks": len(self.networks)}

    def _described(self) -> list[str]:
        return [f"networks: {len(self.networks)} x {type(self.networks[0]).__name__}"]


class Runs(NamedTuple):
    """Raw outputs of all runs of the networks on a batch, and a score (N, 1) or (N, 1, P) if one was read off them."""

    outputs: list[Tensor]
    score: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class NetworkBaseline(NetworkTraining, Rival[NetworkPredictor]):
    """A rival that trains networks with a loss of its own; its settings are those of `NetworkTraining` too.

    Regression networks learn targets of mean 0 and deviation 1; answers come in the targets' own units.
    """

    width: ClassVar[int] = 1
    """Numbers that the network gives for every output of a regression task."""

    def __post_init__(self) -> None:
        super().__post_init__()
        super(NetworkTraining, self).__post_init__()

    @property
    def _width(self) -> int:
        """Numbers that the network gives for every output of the plain one."""
        return 1 if isinstance(self._task, Classification) else self.width

    @property
    def _members(self) -> int:
        """Networks of one fit."""
        return 1

    def _changed(self, network: nn.Module, architecture: Architecture) -> nn.Module:
        """The fresh network as this method trains it."""
        return widen(network, architecture.last, self._width) if self._width > 1 else network

    @abstractmethod
    def _loss(self, raw: Tensor, target: Tensor, part: float) -> Tensor:
        """Loss of every target when a share `part` of the training is done.

        Regression: raw (R, k, D, ...) and targets (R, D, ...) in standard units -> (R, D, ...).
        Classification: logits (R, K, ...) and labels (R, ...) -> (R, ...).
        """

    @abstractmethod
    def _answer(self, predictor: NetworkPredictor, runs: Tensor, score: Tensor | None) -> Answer:
        """The answer from raw outputs (M, N, k, D, ...) or logits (M, N, K, ...) of M runs, and their score."""

    def _step(self, stack: Stack, architecture: Architecture, batch: Batch, target: Tensor, part: float) -> Tensor:
        """See `networks.trainer.Step`."""
        raw = architecture.canonical(stack(*batch.args, **batch.kwargs).flatten(0, 1), self._width)
        return self._loss(self._parts(raw, architecture), target, part)

    def _runs(self, predictor: NetworkPredictor, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Runs:
        """Run the networks on a batch."""
        return Runs([output_tensor(network(*args, **kwargs), self.output_key) for network in predictor.running])

    def _finish(self, predictor: NetworkPredictor, data: Data, progress: bool) -> None:
        """Whatever is left to learn once the networks are trained."""

    def _parts(self, raw: Tensor, architecture: Architecture) -> Tensor:
        """Canonical outputs (R, k D, ...) as numbers (R, k, D, ...) or logits (R, K, ...).

        Numbers of one kind lie side by side in memory, where pointwise functions are several times as fast.
        """
        if isinstance(self._task, Classification):
            return self._task.canonical(raw)
        parts: Tensor = raw.float().unflatten(1, (-1, architecture.outputs))
        return parts if parts.dim() > 3 else parts.transpose(0, 1).contiguous().transpose(0, 1)

    def _fit_many(self, given: Given) -> list[NetworkPredictor]:
        starts, data, calibration, seeds, progress, *_ = given
        trainer = self._trainer(starts[0], data, seeds[0], progress)
        method, architecture = self._of_task(trainer.task), trainer.architecture
        if not isinstance(trainer.task, Classification) and not architecture.direct:
            raise SettingsError(
                f"Expected a network that ends in its last layer, but something follows '{architecture.last}' and "
                "changes its output; leave it out, since targets are standardised."
            )
        trained = trainer.train(
            starts, data, seeds, method._changed, method._step, members=method._members, progress=progress
        )
        held_out: Sequence[Data | None] = calibration or [None] * len(data)
        parts = zip(trained, trainer.targets, data, held_out, strict=True)
        return [method._predictor(trainer, *part, progress) for part in parts]

    def _trainer(
        self, model_or_factory: nn.Module | Factory, data: Sequence[Data], seed: int, progress: bool
    ) -> Trainer:
        return Trainer.of(
            model_or_factory,
            data,
            self,
            lambda output, target: self._decided(output, target)._task,
            output_key=self.output_key,
            seed=seed,
            progress=progress,
        )

    def fit_rows(self, recording: Recording, **_: Any) -> NetworkPredictor:
        """Refused: rows of a trained network are no use to a method that trains its own."""
        raise SettingsError(
            f"Expected a post-hoc method to fit on {recording.table.rows} recorded rows, but {type(self).__name__} "
            "trains networks of its own; call fit with a function that builds a network, and data."
        )

    def assemble(
        self,
        networks: Sequence[nn.Module],
        data: Data,
        *,
        pattern: nn.Module | Factory | None = None,
        calibration: Data | None = None,
        progress: bool = True,
    ) -> NetworkPredictor:
        """The predictor of networks that were trained elsewhere with this method's loss, as `fit` makes it.

        Args:
            networks: trained, of one architecture, as many as one fit of this method has; they are not changed.
            data: some rows that classifiers were trained on; all rows of networks for numbers, which learned them in
                units of their mean and deviation.
            pattern: of networks for numbers, the plain network or a function that builds it, see `prepared`.
            calibration: held-out data for the temperature.
            progress: whether to show bars.
        """
        if len(networks) != self._members:
            raise SettingsError(f"Expected {self._members} networks to assemble, but got {len(networks)}.")
        target = first_batch(data, self.batch_size).target
        if pattern is None and (target is None or target.is_floating_point()):
            raise SettingsError(
                "Expected a pattern= of networks for numbers, the plain network before this method changed it, but got "
                "none; pass the function that builds it."
            )
        trainer = self._trainer(networks[0] if pattern is None else pattern, [data], 0, progress)
        copies = [copy.deepcopy(network) for network in networks]
        method = self._of_task(trainer.task)
        return method._predictor(trainer, copies, trainer.targets[0], data, calibration, progress)

    def prepared(self, pattern: nn.Module | Factory, data: Data) -> Prepared:
        """What it takes to train the networks of this method elsewhere, for `assemble`.

        Args:
            pattern: the plain network, or a function that builds it.
            data: all rows that the networks will be trained on.
        """
        trainer = self._trainer(pattern, [data], 0, progress=False)
        method = self._of_task(trainer.task)
        return Prepared.of(trainer, pattern, method._changed, method._step)

    def _predictor(
        self,
        trainer: Trainer,
        networks: Sequence[nn.Module],
        targets: Mapping[str, Tensor],
        data: Data,
        calibration: Data | None,
        progress: bool,
    ) -> NetworkPredictor:
        """What trained networks are once everything beside them is learned."""
        tensors = {f"fitted.{name}": value for name, value in targets.items()}
        predictor = NetworkPredictor(self, networks, trainer.architecture, tensors)
        device = next(predictor.base.parameters()).device
        predictor.fitted.to(device)
        self._finish(predictor, data, progress)
        known = first_batch(data, self.batch_size).to(predictor.base)
        check_answer(predictor.answer(*known.args, **known.kwargs)[0], type(self).__name__)
        if self._temperature and calibration is not None:
            rows = _calibration_logits(predictor, trainer, calibration, progress)
            predictor.fitted.add("temperature", fit_temperature(*rows, self._temperature).to(device))
        first = Likeness.of(first_batch(data, self.rows_per_call).to(predictor.base))
        predictor.fingerprint = Fingerprint.of(predictor.base, predictor.observed, first)
        return predictor


def _calibration_logits(
    predictor: NetworkPredictor, trainer: Trainer, data: Data, progress: bool
) -> tuple[Tensor, Tensor]:
    """Logits (n, K) of the method on calibration data, and labels (n,)."""
    logits, labels = [], []
    for batch in bar(labelled(data, predictor.method.rows_per_call), "calibration", progress):
        moved = batch.to(predictor.base)
        answer, _ = predictor.answer(*moved.args, **moved.kwargs)
        assert isinstance(answer, ClassAnswer)
        label = trainer.canonical(moved.target)
        kept = trainer.task.present(label)
        logits.append(answer.scaled.movedim(1, -1)[kept].cpu())
        labels.append(label[kept].cpu())
    found = torch.cat(logits)
    if not bool(found.isfinite().all()):
        raise DataError("Expected finite logits on the calibration data, but got NaN or inf; check the inputs.")
    return found, torch.cat(labels)
