"""From functions that build networks and data to trained networks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from splitpoint.batches import Batch, Data, first_batch, labelled, output_tensor
from splitpoint.cache import Moments
from splitpoint.errors import DataError, SettingsError
from splitpoint.model_inputs import retold
from splitpoint.networks.architecture import Architecture
from splitpoint.networks.stack import Stack
from splitpoint.networks.surgery import Factory, build, factory_of, settle_spectral_norm, with_spectral_norm
from splitpoint.networks.training import NetworkTraining, Prepare, StepLoss, train_stack
from splitpoint.recording import bar
from splitpoint.tasks import Classification, ModelOutput, Regression, Task, TaskName, decided_task

Decide = Callable[[Tensor, Tensor], Task]
"""From the output of a fresh network and the targets of a first batch to the task."""

Step = Callable[[Stack, Architecture, Batch, Tensor, float], Tensor]
"""From a stack, its architecture, a batch (E, B, ...), its canonical targets (E B, ...) and the share of the training
that is done to the loss of every target."""

Change = Callable[[nn.Module, Architecture], nn.Module]
"""From a fresh network to the one that is trained."""


@dataclass(frozen=True)
class Units:
    """Mean and deviation (..., D) of regression targets: networks learn ``(y - center) / spread``."""

    center: Tensor
    spread: Tensor

    @staticmethod
    def of(targets: Iterator[Tensor]) -> Units:
        """Moments of canonical targets (N, D, ...), NaN left out; a constant target has deviation 1."""
        found = Moments(target.movedim(1, 0).flatten(1).T for target in targets)
        if not found.count.dim() or not bool((found.count >= 2).all()):
            raise DataError("Expected at least two targets for every output, but got fewer; give more data.")
        spread = torch.where(found.deviation > 1e-7 * found.mean.abs(), found.deviation, 1.0)
        center, spread = found.mean.float(), spread.float()
        if not bool((center.isfinite() & spread.isfinite()).all()):
            raise DataError(
                f"Expected targets that float32 can hold, but their mean is {found.mean.abs().max().item():.3g}; give "
                "them in another unit."
            )
        return Units(center, spread)

    @staticmethod
    def stacked(units: Sequence[Mapping[str, Tensor]]) -> Units:
        """Units of E members, (1, E, 1, D), for targets (S, E, B, D, ...)."""
        center, spread = (torch.stack([own[name] for own in units])[None, :, None] for name in ("center", "spread"))
        return Units(center, spread)

    def standard(self, target: Tensor) -> Tensor:
        """Targets (..., D, *positions) in standard units."""
        wide = [*self.center.shape, *[1] * (target.dim() - max(self.center.dim(), 2))]
        return (target - self.center.to(target.device).reshape(wide)) / self.spread.to(target.device).reshape(wide)


@dataclass(frozen=True)
class Trainer:
    """What is known before networks are trained: the task, their architecture and what the targets are like.

    Attributes:
        task: how targets are read.
        architecture: of the plain network.
        settings: of the optimiser.
        output_key: which entry of a network's output is the prediction.
        targets: for every data set, "center" and "spread" of numbers; nothing for classes.
        complete: whether no target is missing anywhere.
    """

    task: Task
    architecture: Architecture
    settings: NetworkTraining
    output_key: str | int | None
    targets: Sequence[dict[str, Tensor]] = ()
    complete: bool = False

    @staticmethod
    def of(
        model_or_factory: nn.Module | Factory,
        data: Sequence[Data],
        settings: NetworkTraining,
        decide: Decide,
        *,
        output_key: str | int | None,
        seed: int,
        progress: bool,
    ) -> Trainer:
        """Look at a fresh network, the first batch and all targets."""
        probe = build(factory_of(model_or_factory), seed)
        batch = first_batch(data[0], settings.batch_size).to(probe)
        assert batch.target is not None
        training = probe.training
        with torch.no_grad():
            output = output_tensor(_answered(probe.eval(), batch), output_key)
        probe.train(training)
        task = decide(output, batch.target)
        architecture = Architecture.of(probe, batch, output_key, task.squeezable)
        task.targets(architecture.layout, output, batch.target)
        blank = Trainer(task, architecture, settings, output_key)
        missing: list[bool] = []
        surveys = [blank._survey(part, missing, probe.eval(), progress) for part in data]
        probe.train(training)
        return replace(blank, targets=surveys, complete=not any(missing))

    def _survey(self, data: Data, missing: list[bool], probe: nn.Module, progress: bool) -> dict[str, Tensor]:
        """What the targets of a data set are like; notes for every batch whether it lacks any.

        Inputs that are not finite are refused unless the untrained network `probe` answers them in finite numbers.
        """

        def read() -> Iterator[Tensor]:
            for batch in bar(labelled(data, 65_536), "reading targets", progress):
                _check_inputs(batch, probe, self.output_key)
                target = self.canonical(batch.target)
                missing.append(not bool(self.task.present(target).all()))
                yield target

        if not isinstance(self.task, Regression):
            if not max(bool(self.task.present(target).any()) for target in read()):
                raise DataError("Expected labels to train on, but all of them are to be ignored; check the labels.")
            return {}
        units = Units.of(read())
        if not self.architecture.direct:
            units = Units(torch.zeros_like(units.center), torch.ones_like(units.spread))
        return {"center": units.center, "spread": units.spread}

    def canonical(self, target: Tensor | None, *, known: bool = False) -> Tensor:
        """Targets (N, ...) in canonical form, marked where there is none."""
        assert target is not None
        return self.architecture.targets(self.task, target, known=known)

    def train(
        self,
        models_or_factories: Sequence[nn.Module | Factory],
        data: Sequence[Data],
        seeds: Sequence[int],
        change: Change,
        step: Step,
        *,
        members: int = 1,
        progress: bool,
    ) -> list[list[nn.Module]]:
        """Train `members` networks for every data set, all as one stack; returns them for each data set."""
        numbers = [
            (own, number)
            for own, seed in zip(models_or_factories, seeds, strict=True)
            for number in member_seeds(seed, members)
        ]
        networks = [
            build(factory_of(own), number, lambda net: change(net, self.architecture)) for own, number in numbers
        ]
        trained = train_stack(
            networks,
            [part for part in data for _ in range(members)],
            self.loss(step),
            self.settings,
            prepare=self.prepare([target for target in self.targets for _ in range(members)]),
            seeds=[number for _, number in numbers],
            output_key=self.output_key,
            label=f"training {len(networks)} network{'s' if len(networks) > 1 else ''}",
            progress=progress,
        )
        return [trained[i * members : (i + 1) * members] for i in range(len(data))]

    def prepare(self, targets: Sequence[Mapping[str, Tensor]]) -> Prepare:
        """How targets are read, by members with these entries of `targets`: canonical, numbers in standard units."""
        units = Units.stacked(targets) if isinstance(self.task, Regression) else None

        def prepare(target: Tensor) -> Tensor:
            found = self.canonical(target.flatten(0, 2), known=True).unflatten(0, target.shape[:3])
            return found if units is None else units.standard(found)

        return prepare

    def loss(self, step: Step) -> StepLoss:
        """Mean loss (E,) of every member over the targets that are there."""

        def loss(stack: Stack, batch: Batch, part: float) -> Tensor:
            assert batch.target is not None
            members, target = len(batch.target), batch.target.flatten(0, 1)
            if self.complete:
                return step(stack, self.architecture, batch, target, part).reshape(members, -1).mean(1)
            valid = self.task.present(target)
            losses = step(stack, self.architecture, batch, torch.where(valid, target, 0), part)
            kept = torch.where(valid, losses, 0).reshape(members, -1)
            return kept.sum(1) / valid.reshape(members, -1).sum(1).clamp(min=1)

        return loss


def _answered(network: nn.Module, batch: Batch) -> Any:
    """What a network returns for a batch, and one sentence where it raises."""
    try:
        return network(*batch.args, **batch.kwargs)
    except Exception as error:
        retold(error, network)
        raise


def _check_inputs(batch: Batch, probe: nn.Module, key: str | int | None) -> None:
    """Refuse inputs with NaN or infinity that the network hands on."""
    if all(bool(value.isfinite().all()) for value in batch.tensors(target=False) if value.is_floating_point()):
        return
    moved = batch.to(probe)
    with torch.no_grad():
        if not bool(output_tensor(_answered(probe, moved), key).isfinite().all()):
            raise DataError(
                "Expected finite inputs to train on, but got NaN or inf; leave these rows out or fill them in."
            )


@dataclass(frozen=True)
class Prepared:
    """Networks that a loop of one's own trains: what they are, and the loss that they learn.

    Attributes:
        trainer: what is known of task, architecture and targets.
        factory: builds one network, untrained.
        loss: from a stack, a batch (E, B, ...) and the share of the training that is done to the loss (E,).
        read: from targets (S, E, B, ...) as they are in the data to those of the loss.
    """

    trainer: Trainer
    factory: Factory
    loss: StepLoss
    read: Prepare

    @staticmethod
    def of(trainer: Trainer, pattern: nn.Module | Factory, change: Change, step: Step) -> Prepared:
        """Networks of a trainer that looked at one data set."""
        fresh = factory_of(pattern)
        return Prepared(
            trainer,
            lambda: change(fresh(), trainer.architecture),
            trainer.loss(step),
            trainer.prepare(trainer.targets[:1]),
        )


def prepared_plain(pattern: nn.Module | Factory, data: Data, settings: NetworkTraining) -> Prepared:
    """What it takes to train a plain network for numbers elsewhere; `fold_units` finishes it.

    Args:
        pattern: a network, or a function that builds it.
        data: all rows that the network will be trained on.
        settings: of the batches in which they are read.
    """
    trainer = Trainer.of(pattern, [data], settings, lambda *_: Regression(), output_key=None, seed=0, progress=False)
    return Prepared.of(trainer, pattern, lambda network, _: network, plain_step(trainer.task))


def member_seeds(seed: int, count: int) -> list[int]:
    """Seeds of several networks, from the seed of a fit."""
    return torch.randint(2**31, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def train_network(
    factory: Factory,
    data: Data,
    *,
    task: TaskName | Literal["auto"] = "auto",
    output: ModelOutput = "logits",
    ignore_index: int = -100,
    output_key: str | int | None = None,
    spectral_norm: float | None = None,
    seed: int = 0,
    progress: bool = True,
    **settings: Any,
) -> nn.Module:
    """Train a plain network, as a base for post-hoc methods: squared error for numbers, log loss for classes.

    Args:
        factory: a function that builds the untrained network.
        data: training data.
        task: "regression", "classification", or "auto": classification where targets are integers.
        output: what a classifier returns, "logits" or "probs".
        ignore_index: label that does not count.
        output_key: which entry of the network's output is the prediction, where it has several.
        spectral_norm: largest spectral norm of every layer but the last; None for no bound.
        seed: of initial weights and row order.
        progress: whether to show progress bars.
        **settings: of the optimiser, see `NetworkTraining`.
    """
    readers: dict[TaskName, Task] = {
        "regression": Regression(),
        "classification": Classification(output, ignore_index),
    }
    if task not in (*readers, "auto"):
        raise SettingsError(f"Expected task to be 'regression', 'classification' or 'auto', but got {task!r}.")

    def decide(found: Tensor, target: Tensor) -> Task:
        return readers[decided_task(found, target) if task == "auto" else task]

    trained = train_networks(
        [factory],
        [data],
        [seed],
        NetworkTraining(**settings),
        decide=decide,
        output_key=output_key,
        spectral_bound=spectral_norm,
        progress=progress,
    )
    return trained[0]


def train_networks(
    factories: Sequence[Factory],
    data: Sequence[Data],
    seeds: Sequence[int],
    settings: NetworkTraining,
    *,
    decide: Decide,
    output_key: str | int | None = None,
    spectral_bound: float | None = None,
    progress: bool = True,
) -> list[nn.Module]:
    """Train one plain network for each data set, all as one stack.

    Regression networks learn standardised targets; the units are then folded into the last layer, so that the network
    itself answers in the units of the targets. Where an activation follows the last layer, targets are left as they
    are.

    Args:
        factories: functions that build the untrained networks.
        data: for each network.
        seeds: of initial weights and row order.
        settings: of the optimiser.
        decide: see `Decide`.
        output_key: which entry of a network's output is the prediction.
        spectral_bound: largest spectral norm of every layer but the last; None for no bound.
        progress: whether to show progress bars.
    """
    trainer = Trainer.of(factories[0], data, settings, decide, output_key=output_key, seed=seeds[0], progress=progress)
    last, task = trainer.architecture.last, trainer.task
    folds = isinstance(task, Regression) and trainer.architecture.direct
    if folds:
        _check_bias(build(factories[0], seeds[0]).get_submodule(last), trainer.architecture.outputs)

    def change(network: nn.Module, architecture: Architecture) -> nn.Module:
        if spectral_bound is None:
            return network
        return with_spectral_norm(network, architecture.layers[:-1], spectral_bound)

    networks = [own for (own,) in trainer.train(factories, data, seeds, change, plain_step(task), progress=progress)]
    for network in networks:
        settle_spectral_norm(network)
    if folds:
        for network, target in zip(networks, trainer.targets, strict=True):
            fold_units(network.get_submodule(last), target["center"], target["spread"])
    return networks


def plain_step(task: Task) -> Step:
    """The loss of a network that answers in numbers or logits and nothing else: squared error, or log loss."""

    def step(stack: Stack, architecture: Architecture, batch: Batch, target: Tensor, _: float) -> Tensor:
        return task.errors(architecture.canonical(stack(*batch.args, **batch.kwargs).flatten(0, 1), 1), target)

    return step


def _check_bias(layer: nn.Module, outputs: int) -> None:
    bias = getattr(layer, "bias", None)
    if not isinstance(bias, Tensor) or len(bias) != outputs:
        raise SettingsError(
            f"Expected a last layer with a bias for every output, but got {layer}; give it a bias, or train the "
            "network yourself."
        )


def fold_units(layer: nn.Module, center: Tensor, spread: Tensor) -> None:
    """Let a last layer answer ``center + spread * f(x)``."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    assert isinstance(bias, Tensor)
    with torch.no_grad():
        weight.mul_(spread.to(weight).reshape(-1, *[1] * (weight.dim() - 1)))
        bias.mul_(spread.to(bias)).add_(center.to(bias))
