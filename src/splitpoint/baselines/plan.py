"""From a factory and data to trained networks: what all methods that train share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from splitpoint.baselines.blueprint import IGNORED, Blueprint, Units
from splitpoint.baselines.method import first_batch, fit_seeds
from splitpoint.baselines.settings import Settings
from splitpoint.batches import Batch, Data, labelled, output_tensor
from splitpoint.errors import DataError
from splitpoint.networks import Prepare, StepLoss, train_stack
from splitpoint.recording import bar
from splitpoint.stacking import Stack
from splitpoint.surgery import Factory, build, factory_of

M = TypeVar("M", bound=Settings)

Step = Callable[[Stack, Blueprint, Batch, Tensor, float], Tensor]
"""From a stack, the blueprint, a batch (E, B, ...), its canonical targets (E B, ...) and the share of the training that
is done to the loss of every target."""

Change = Callable[[nn.Module, Blueprint], nn.Module]
"""From a fresh network to the one that is trained."""


@dataclass(frozen=True)
class Plan(Generic[M]):
    """Settings with the task decided, how networks are read, and what the targets of every data set are like.

    Attributes:
        method: the settings.
        blueprint: see `Blueprint`.
        targets: for every data set, "center" and "spread" of numbers; nothing for classes.
        complete: whether no target is missing anywhere.
    """

    method: M
    blueprint: Blueprint
    targets: list[dict[str, Tensor]]
    complete: bool = False

    @staticmethod
    def of(
        method: M, model_or_factory: nn.Module | Factory, data: Sequence[Data], seed: int, progress: bool
    ) -> Plan[M]:
        """Look at a fresh network, the first batch and all targets."""
        probe = build(factory_of(model_or_factory), seed)
        batch = first_batch(data[0], method.batch_size).to(probe)
        assert batch.target is not None
        training = probe.training
        with torch.no_grad():
            output = output_tensor(probe.eval()(*batch.args, **batch.kwargs), method.output_key)
        probe.train(training)
        decided = method._resolved(output, batch.target)
        source = decided._source()
        blueprint = Blueprint.of(probe, batch, method.output_key, source.squeezable)
        source.targets(blueprint.layout, output, batch.target)
        plan = Plan(decided, blueprint, [])
        missing: list[bool] = []
        surveys = [plan._survey(part, missing, progress) for part in data]
        return Plan(decided, blueprint, surveys, complete=not any(missing))

    def _survey(self, data: Data, missing: list[bool], progress: bool) -> dict[str, Tensor]:
        """What the targets of a data set are like; notes for every batch whether it lacks any."""

        def read() -> Iterator[Tensor]:
            for batch in bar(labelled(data, 65_536), "reading targets", progress):
                target = self.canonical(batch.target)
                missing.append(not bool(self._there(target).all()))
                yield target

        targets = read()
        if self.method.task == "classification":
            if max(int(target.amax()) for target in targets) == IGNORED:
                raise DataError("Expected labels to train on, but all of them are to be ignored; check the labels.")
            return {}
        units = Units.of(targets)
        if not self.blueprint.direct:
            units = Units(torch.zeros_like(units.center), torch.ones_like(units.spread))
        return {"center": units.center, "spread": units.spread}

    def canonical(self, target: Tensor | None, *, known: bool = False) -> Tensor:
        """Targets (N, ...) in canonical form: numbers with NaN, or labels with -100, where there is none."""
        assert target is not None
        if self.method.task == "regression":
            return self.blueprint.numbers(target, known=known)
        return self.blueprint.labels(target, max(self.blueprint.outputs, 2), self.method.ignore_index, known=known)

    def _there(self, target: Tensor) -> Tensor:
        """Which canonical targets are there."""
        return ~target.isnan() if self.method.task == "regression" else target != IGNORED

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
        blueprint = self.blueprint
        numbers = [
            (own, number)
            for own, seed in zip(models_or_factories, seeds, strict=True)
            for number in fit_seeds(seed, members)
        ]
        networks = [build(factory_of(own), number, lambda net: change(net, blueprint)) for own, number in numbers]
        trained = train_stack(
            networks,
            [part for part in data for _ in range(members)],
            self._loss(step),
            self.method._training(),
            prepare=self._prepare([target for target in self.targets for _ in range(members)]),
            seeds=[number for _, number in numbers],
            output_key=self.method.output_key,
            label=f"training {len(networks)} network{'s' if len(networks) > 1 else ''}",
            progress=progress,
        )
        return [trained[i * members : (i + 1) * members] for i in range(len(data))]

    def _prepare(self, targets: Sequence[Mapping[str, Tensor]]) -> Prepare:
        """Targets in canonical form, numbers in standard units."""
        numbers = self.method.task == "regression"
        units = Units.stacked([Units(t["center"], t["spread"]) for t in targets]) if numbers else None

        def prepare(target: Tensor) -> Tensor:
            found = self.canonical(target.flatten(0, 2), known=True).unflatten(0, target.shape[:3])
            return found if units is None else units.standard(found)

        return prepare

    def _loss(self, step: Step) -> StepLoss:
        """Mean loss (E,) of every member over the targets that are there."""

        def loss(stack: Stack, batch: Batch, part: float) -> Tensor:
            assert batch.target is not None
            members, target = len(batch.target), batch.target.flatten(0, 1)
            if self.complete:
                return step(stack, self.blueprint, batch, target, part).reshape(members, -1).mean(1)
            valid = self._there(target)
            losses = step(stack, self.blueprint, batch, torch.where(valid, target, 0), part)
            kept = torch.where(valid, losses, 0).reshape(members, -1)
            return kept.sum(1) / valid.reshape(members, -1).sum(1).clamp(min=1)

        return loss
