"""Answers for training rows by networks that have not seen them: reset copies, trained as far as the given network.

A network that memorised its rows has training residuals that say little about new rows. Copies of it, each trained
without a fifth of the rows until it fits its own rows as well as the given network does, memorise as much, and answer
for the rows that they left out as the given network does for new ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from tqdm import tqdm

from splitpoint.batch_rows import Columns
from splitpoint.batches import Data, item_of, labelled, output_tensor
from splitpoint.divergence import diverged
from splitpoint.errors import DataError, LayerError, SettingsError
from splitpoint.frozen import frozen
from splitpoint.groups import random_folds
from splitpoint.layout import Layout
from splitpoint.networks.stack import Stack
from splitpoint.networks.surgery import build, factory_of, seeded
from splitpoint.networks.trainer import Trainer, Units, member_seeds, plain_step
from splitpoint.networks.training import ArrayFeed, NetworkTraining, member_of, rows_in, train_epoch
from splitpoint.recording import Source
from splitpoint.tasks import Regression, Rows

COPIES = 5
MOST_EPOCHS, MOST_STEPS = 3_000, 40_000
JUDGED = 4096
"""Most rows of every copy that its training error is measured on."""

SMALL = 0.01
"""Training error over the error on left-out rows, or over that before training where it is smaller, at which a copy has
memorised its rows, whatever it does later."""

Retrain = Callable[[nn.Module, Data], nn.Module]
"""From a reset copy of the network and the rows that it may see to the same network, trained."""


class LeftOut(NamedTuple):
    """What the copies of one network say about the rows that they have not seen.

    Attributes:
        rows: what the task records of outputs and targets (output and residual, or logits and label), in the order of
            a recording of the same data.
        fold: (N,) for every row of the data the number of the copy that left it out.
        networks: the copies, in eval mode; they answer with one tensor, in the units of the targets.
        reached: share of the copies that came to fit their rows as well as the given network.
    """

    rows: Rows
    fold: Tensor
    networks: tuple[Copy, ...]
    reached: float


@dataclass(frozen=True)
class Refit:
    """Networks with their data in memory, and how they are read.

    Attributes:
        models: trained networks of one architecture.
        arrays: for each, columns that hold its whole data, as `in_memory` gives them.
        layouts: for each, how its output is shaped.
        source: how rows are recorded.
        seeds: for each.
        progress: whether to show a progress bar.
        groups: for each, the groups that its rows belong to, (N,), or None; copies leave out whole ones.
    """

    models: Sequence[nn.Module]
    arrays: Sequence[dict[Any, Tensor]]
    layouts: Sequence[Layout]
    source: Source
    seeds: Sequence[int]
    progress: bool
    groups: Sequence[Tensor | None]

    def run(self, settings: NetworkTraining | None = None, retrain: Retrain | None = None) -> list[LeftOut]:
        """Train the copies, all as one stack, or one after the other by `retrain`, and read their answers."""
        parts = zip(self.arrays, self.seeds, self.groups, strict=True)
        folds = [_folds(rows_in(own), seed, groups) for own, seed, groups in parts]
        seeds = [number for seed in self.seeds for number in member_seeds(seed, COPIES)]
        owners = [number for number in range(len(self.models)) for _ in range(COPIES)]
        networks = [reset_copy(self.models[own], seed) for own, seed in zip(owners, seeds, strict=True)]
        if retrain is not None:
            trained = self._by_hand(networks, folds, seeds, retrain)
            reached = [True] * len(networks)
        else:
            trained, reached = self._trained(networks, folds, seeds, settings or NetworkTraining())
        found = []
        for number, fold in enumerate(folds):
            own = slice(number * COPIES, (number + 1) * COPIES)
            rows = self._answers(number, trained[own], fold)
            found.append(LeftOut(rows, fold, tuple(trained[own]), sum(reached[own]) / COPIES))
        return found

    def _by_hand(
        self, networks: Sequence[nn.Module], folds: Sequence[Tensor], seeds: Sequence[int], retrain: Retrain
    ) -> list[Copy]:
        """Copies that the user's own function trained."""
        trained: list[Copy] = []
        for number, (network, seed) in enumerate(zip(networks, seeds, strict=True)):
            columns, fold = self.arrays[number // COPIES], folds[number // COPIES]
            kept = {name: values[fold != number % COPIES] for name, values in columns.items()}
            with torch.inference_mode(False), torch.enable_grad(), seeded(seed):
                own = retrain(network.train(), item_of(kept))
            if not isinstance(own, nn.Module):
                raise SettingsError(
                    f"Expected retrain to return the trained network, but got {type(own).__name__}; return the network."
                )
            trained.append(Copy(own, self.source.output_key, self.layouts[number // COPIES], {}).eval())
        return trained

    def _trained(
        self, networks: Sequence[nn.Module], folds: Sequence[Tensor], seeds: Sequence[int], settings: NetworkTraining
    ) -> tuple[list[Copy], list[bool]]:
        """Copies that fit their own rows as well as the given networks do, and which of them came as far."""
        data, task, key = [item_of(columns) for columns in self.arrays], self.source.task, self.source.output_key
        try:
            trainer = Trainer.of(
                self.models[0], data, settings, lambda *_: task, output_key=key, seed=0, progress=False
            )
        except LayerError as error:
            raise SettingsError(
                "Expected a Linear or Conv layer that produces the output to train copies of the network, but none was "
                "seen; train them by retrain=, or use another residuals=."
            ) from error
        trainer = replace(trainer, targets=self._units(trainer))
        starts = _starts([len(fold) for fold in folds])
        parts = [(start, fold, n) for start, fold in zip(starts, folds, strict=True) for n in range(COPIES)]
        places = [start + (fold != number).nonzero().flatten() for start, fold, number in parts]
        unseen = [start + (fold == number).nonzero().flatten() for start, fold, number in parts]
        given = torch.cat([self._errors(trainer, number) for number in range(len(self.models))])
        targets = [own for own in trainer.targets for _ in range(COPIES)]
        columns = {name: torch.cat([own[name] for own in self.arrays]) for name in self.arrays[0]}
        size = min(settings.batch_size, min(map(len, places)))
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        steps = -(-max(map(len, places)) // size)
        feed = ArrayFeed(steps, columns, places, size, networks[0], generators, trainer.prepare(targets))
        race = Race(trainer, feed, [_some(own) for own in places], [_some(own) for own in unseen], given)
        with torch.inference_mode(False), torch.enable_grad(), seeded(seeds[0]):
            stack = Stack.of([network.train() for network in networks], key)
            trained, reached = race.run(stack, settings, self.progress)
        layout = trainer.architecture.layout
        return [Copy(own, key, layout, units).eval() for own, units in zip(trained, targets, strict=True)], reached

    def _units(self, trainer: Trainer) -> list[dict[str, Tensor]]:
        """Units that the networks can learn in: without a bias no centre, with an activation at the end their own."""
        if not isinstance(trainer.task, Regression):
            return list(trainer.targets)
        free = self._is_free(trainer)
        bias = getattr(self.models[0].get_submodule(trainer.architecture.last), "bias", None)
        return [
            {
                "center": own["center"] if free and bias is not None else torch.zeros_like(own["center"]),
                "spread": own["spread"] if free else torch.ones_like(own["spread"]),
            }
            for own in trainer.targets
        ]

    def _is_free(self, trainer: Trainer) -> bool:
        """Whether the outputs are the numbers of the last layer whatever these are, with no activation after it."""
        probe, numbers = reset_copy(self.models[0], 0), torch.empty(0)

        def stretch(_module: nn.Module, _args: Any, output: Tensor) -> Tensor:
            nonlocal numbers
            numbers = -1e3 * output
            return numbers.clone()

        probe.get_submodule(trainer.architecture.last).register_forward_hook(stretch)
        batch = next(labelled(item_of(self.arrays[0]), self.source.batch_size)).to(probe)
        with frozen(probe) as view:
            output = output_tensor(view(*batch.args, **batch.kwargs), self.source.output_key)
        same = torch.equal(numbers.flatten().sort().values, output.flatten().sort().values)
        return same and trainer.architecture.direct

    def _errors(self, trainer: Trainer, number: int) -> Tensor:
        """Error (N,) of a given network on every row of its data, in the units that its copies learn in."""
        model, found = self.models[number], []
        units = trainer.targets[number] if isinstance(trainer.task, Regression) else None
        with frozen(model) as view:
            for batch in labelled(item_of(self.arrays[number]), self.source.batch_size):
                moved = batch.to(model)
                output = output_tensor(view(*moved.args, **moved.kwargs), self.source.output_key)
                raw, target = trainer.architecture.canonical(output, 1), trainer.canonical(moved.target, known=True)
                if units is not None:
                    both = Units(units["center"], units["spread"])
                    raw, target = both.standard(raw.float()), both.standard(target)
                found.append(_row_errors(trainer, raw, target))
        return torch.cat(found)

    def _answers(self, number: int, networks: Sequence[nn.Module], fold: Tensor) -> Rows:
        """What is recorded of the answers for every row by the network that left it out."""
        source, layout, parts, start = self.source, self.layouts[number], [], 0
        for place, batch in enumerate(labelled(item_of(self.arrays[number]), source.batch_size)):
            moved, answers = batch.to(networks[0]), []
            assert moved.target is not None
            for network in networks:
                with frozen(network) as view:
                    answers.append(view(*moved.args, **moved.kwargs))
            own = fold[start : start + len(moved.target)].to(answers[0].device)
            output = torch.stack(answers)[own, torch.arange(len(own), device=own.device)]
            if not output.isfinite().all():
                raise DataError(
                    "Expected finite answers of the copies of the network, but got NaN or inf; check retrain=, or use "
                    "another residuals=."
                )
            targets = source.task.targets(layout, output, moved.target)
            columns = Columns(targets.columns, targets.valid)
            parts.append(columns.drawn(source.positions, place) if layout.dense else columns.rows())
            start += len(own)
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@dataclass
class Race:
    """Training until every copy fits its rows as well as the given network.

    Attributes:
        trainer: loss and shapes.
        feed: batches.
        seen: for every copy, rows that its training error is measured on.
        unseen: for every copy, rows that it left out.
        given: (N,) error of the given networks on every row.
    """

    trainer: Trainer
    feed: ArrayFeed
    seen: Sequence[Tensor]
    unseen: Sequence[Tensor]
    given: Tensor

    def run(self, stack: Stack, settings: NetworkTraining, progress: bool) -> tuple[list[nn.Module], list[bool]]:
        """Train; every copy is kept as it was when it reached its goal, or at the end if it learned anything."""
        goals = torch.stack([self.given[rows].nanmean() for rows in self.seen])
        first = seen = self._errors(stack, self.seen)
        optimiser = settings.over(stack.parameters())
        loss = self.trainer.loss(plain_step(self.trainer.task))
        total = settings.epochs or min(MOST_EPOCHS, math.ceil(MOST_STEPS / self.feed.steps))
        kept: dict[int, nn.Module] = {}
        look = 1
        with tqdm(total=total, desc="refitting", leave=False, disable=not progress, dynamic_ncols=True) as shown:
            for epoch in range(1, total + 1):
                train_epoch(stack.train(), self.feed, optimiser, loss, settings, (epoch - 1) / total, 1 / total)
                shown.update()
                if epoch < look and epoch < total:
                    continue
                look = max(epoch + 1, int(1.1 * epoch))
                seen, unseen = self._errors(stack, self.seen), self._errors(stack, self.unseen)
                done = seen.isfinite() & ((seen <= goals) | (seen <= SMALL * torch.minimum(unseen, first)))
                new = [number for number, own in enumerate(done.tolist()) if own and number not in kept]
                if new:
                    networks = stack.networks()
                    kept |= {number: networks[number] for number in new}
                shown.set_postfix_str(f"{len(kept)} of {len(goals)} done", refresh=False)
                if len(kept) == len(goals):
                    break
        lost = sum(number not in kept for number in (~(seen < first)).nonzero().flatten().tolist())
        wild = [number for number in (~seen.isfinite()).nonzero().flatten().tolist() if number not in kept]
        if wild:
            raise diverged("refitted copy", wild, len(goals), "lost its way", settings.learning_rate)
        if lost:
            raise DataError(
                f"Expected copies of the network to learn their rows, but the training error of {lost} of {len(goals)} "
                "did not fall; train them by retrain= as the network was, or use another residuals=."
            )
        last = stack.networks() if len(kept) < len(goals) else []
        trained = [kept[n] if n in kept else last[n] for n in range(len(goals))]
        return [own.eval().requires_grad_(False) for own in trained], [n in kept for n in range(len(goals))]

    def _errors(self, stack: Stack, places: Sequence[Tensor]) -> Tensor:
        """Mean error (E,) of every copy on rows of its own."""
        size = max(map(len, places))
        padded = torch.stack([own[torch.arange(size) % len(own)] for own in places])
        feed = replace(self.feed, places=list(places))
        found = []
        stack.eval()
        with torch.no_grad():
            for some in padded.split(feed.batch_size * 8, 1):
                batch = feed.gathered(some[None])
                first = member_of(batch, 0)
                assert first.target is not None
                raw = self.trainer.architecture.canonical(stack(*first.args, **first.kwargs).flatten(0, 1), 1)
                rows = _row_errors(self.trainer, raw, first.target.flatten(0, 1))
                found.append(rows.unflatten(0, some.shape))
        return torch.cat(found, 1).nanmean(1)


def _row_errors(trainer: Trainer, raw: Tensor, target: Tensor) -> Tensor:
    """Mean error (N,) over the targets of every row that are there, NaN for a row without any; that of NaN is inf."""
    valid = trainer.task.present(target)
    errors = trainer.task.errors(raw, torch.where(valid, target, 0)).nan_to_num(torch.inf, torch.inf)
    return torch.where(valid, errors, torch.nan).reshape(len(raw), -1).nanmean(1).cpu()


class Copy(nn.Module):
    """A network that answers with one tensor, in the units of the targets, whatever units it learned in."""

    network: nn.Module
    center: Tensor
    spread: Tensor

    def __init__(
        self, network: nn.Module, output_key: str | int | None, layout: Layout, units: Mapping[str, Tensor]
    ) -> None:
        super().__init__()
        self.network, self.output_key, self.layout = network, output_key, layout
        self.register_buffer("center", units.get("center", torch.zeros(1)))
        self.register_buffer("spread", units.get("spread", torch.ones(1)))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Output of the network."""
        output = output_tensor(self.network(*args, **kwargs), self.output_key)
        found = self.layout.output(output)
        wide = [-1, *[1] * (found.dim() - 2)]
        center, spread = self.center.to(found.device).reshape(wide), self.spread.to(found.device).reshape(wide)
        return self.layout.restore(center + spread * found, output)


def reset_copy(model: nn.Module, seed: int) -> nn.Module:
    """A copy of the network, initialised anew; layers that are frozen beside others that learn stay as they are."""
    network = build(factory_of(model), seed)
    own = {name: list(module.parameters(recurse=False)) for name, module in model.named_modules()}
    still = {name for name, weights in own.items() if weights and not any(w.requires_grad for w in weights)}
    if len(still) < sum(map(bool, own.values())):
        before = model.state_dict()
        network.load_state_dict({key: before[key] for key in before if key.rpartition(".")[0] in still}, strict=False)
        for name in still:
            for weight in network.get_submodule(name).parameters(recurse=False):
                weight.requires_grad_(False)
    return network


def _folds(rows: int, seed: int, groups: Tensor | None) -> Tensor:
    if rows < 2 * COPIES:
        raise DataError(
            f"Expected at least {2 * COPIES} rows to train copies without a part of them, but got {rows}; "
            "use another residuals=."
        )
    if groups is not None and len(groups.unique()) < COPIES:
        raise DataError(
            f"Expected at least {COPIES} groups to train copies without a part of them, but got "
            f"{len(groups.unique())}; use another residuals=."
        )
    return random_folds(rows, COPIES, torch.Generator().manual_seed(seed), groups)


def _starts(counts: Sequence[int]) -> list[int]:
    return [sum(counts[:number]) for number in range(len(counts))]


def _some(places: Tensor) -> Tensor:
    """At most `JUDGED` of the places, the same every time."""
    if len(places) <= JUDGED:
        return places
    return places[torch.randperm(len(places), generator=torch.Generator().manual_seed(0))[:JUDGED]]
