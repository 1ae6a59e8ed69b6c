"""The only head-training loop: a stack of independent heads, one batched step for all of them.

Every member of the stack has its own rows, its own random generator and its own early stopping, so a member ends up
as it would alone. Randomness comes from the generators only; the global state is never touched.

The optimisers do the arithmetic of `torch.optim` without what it does around every step: a step of many small networks
takes a few tenths of a millisecond, of which `torch.optim.Adam.step` spends a sizeable part on hooks and on grouping.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from tqdm import tqdm

from splitpoint.batches import one_pass
from splitpoint.cache import Table
from splitpoint.divergence import check_bounded, check_converging, check_finite
from splitpoint.errors import DataError, SettingsError
from splitpoint.groups import random_folds, random_part
from splitpoint.heads import Heads
from splitpoint.settings import settle
from splitpoint.tasks import Rows

HELD_BACK_LIMIT = 20_000
LOOKS = 25

Losses = dict[str, Tensor]
Loss = Callable[[Heads, Rows], Losses]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Settings of the optimiser.

    Attributes:
        epochs: most passes over the rows; None for 50, or what makes 1,000 to 3,000 steps.
        learning_rate: of Adam, falling to zero along a cosine when `decay`.
        batch_size: rows a step and member; None picks it by the number of rows, 64 to 4096.
        weight_decay: decoupled weight decay (AdamW).
        held_back: share of the rows kept aside to choose the best epoch by; 0 trains on all rows.
        patience: epochs without improvement before stopping; None makes all passes and keeps the best state.
        decay: whether the learning rate falls.
    """

    epochs: int | None = None
    learning_rate: float = 1e-3
    batch_size: int | None = None
    weight_decay: float = 0.0
    held_back: float = 0.1
    patience: int | None = None
    decay: bool = True

    def __post_init__(self) -> None:
        settle(self)
        for name in ("epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"Expected {name} >= 1 or None, but got {value!r}.")
        if not (self.learning_rate > 0 and self.weight_decay >= 0):
            raise SettingsError(
                f"Expected learning_rate > 0 and weight_decay >= 0, but got {self.learning_rate}, {self.weight_decay}."
            )
        if not 0 <= self.held_back < 1:
            raise SettingsError(f"Expected held_back in [0, 1), but got {self.held_back}.")

    def batch(self, rows: int) -> int:
        """Rows a step: `batch_size`, or about a hundredth of the rows as a power of two between 64 and 4096."""
        wanted = self.batch_size or min(4096, max(64, 2 ** (rows // 64).bit_length() // 2))
        return max(1, min(wanted, rows))

    def rate(self, part: float) -> float:
        """Learning rate when a share `part` of the training is done."""
        return self.learning_rate * (1 + math.cos(math.pi * part)) / 2 if self.decay else self.learning_rate

    def passes(self, rows: int) -> int:
        """Number of epochs for a member with that many rows."""
        steps = -(-rows // self.batch(rows))
        return self.epochs or min(max(50, -(-1000 // steps)), max(1, 3000 // steps))


class Optimiser(ABC):
    """Some parameters and how they follow their gradients."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)

    def clear(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @abstractmethod
    def step(self, rate: float) -> None:
        """Move the parameters along their gradients; those without one stay."""


class Adam(Optimiser):
    """Adam (Kingma & Ba 2015), with an L2 penalty or with decoupled weight decay (Loshchilov & Hutter 2019)."""

    def __init__(self, parameters: Iterable[nn.Parameter], weight_decay: float = 0.0, *, decoupled: bool) -> None:
        super().__init__(parameters)
        self.weight_decay = weight_decay
        self.update = adamw if decoupled else adam
        self.states = [
            (torch.zeros_like(own), torch.zeros_like(own), torch.zeros((), dtype=torch.float32, device=own.device))
            for own in self.parameters
        ]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """See `Optimiser`."""
        moved = [
            (parameter, parameter.grad, *state)
            for parameter, state in zip(self.parameters, self.states, strict=True)
            if parameter.grad is not None
        ]
        parameters, gradients, first, second, steps = map(list, zip(*moved, strict=True))
        self.update(
            parameters, gradients, first, second, [], steps, lr=rate, weight_decay=self.weight_decay,
            beta1=0.9, beta2=0.999, eps=1e-8, amsgrad=False, maximize=False, fused=True,
        )  # fmt: skip


class Sgd(Optimiser):
    """Stochastic gradient descent with Nesterov momentum 0.9 and an L2 penalty."""

    def __init__(self, parameters: Iterable[nn.Parameter], weight_decay: float = 0.0) -> None:
        super().__init__(parameters)
        self.inner = torch.optim.SGD(self.parameters, lr=0.0, momentum=0.9, nesterov=True, weight_decay=weight_decay)

    def step(self, rate: float) -> None:
        """See `Optimiser`."""
        self.inner.param_groups[0]["lr"] = rate
        self.inner.step()


@dataclass(frozen=True)
class Member:
    """Rows of one member of a stack.

    Attributes:
        table: where they are.
        left_out: (rows,) mask of the rows it is not trained on.
        scored: (rows,) mask of the rows it is scored on.
    """

    table: Table
    left_out: Tensor
    scored: Tensor

    def scored_rows(self) -> Rows:
        """The rows it is scored on."""
        parts, start = [], 0
        for part in self.table.slices():
            stop = start + _length(part)
            parts.append(_select(part, self.scored[start:stop]))
            start = stop
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def train(
    heads: Heads,
    members: Sequence[Member],
    loss: Loss,
    score: Loss | None,
    settings: Training,
    generators: Sequence[torch.Generator],
    *,
    group: int = 1,
    label: str,
    progress: bool,
) -> Rows:
    """Train the stack `heads` in place, each member on its own rows, and keep the best state of every trunk.

    Args:
        heads: stack of as many networks as there are members.
        members: their rows; only a stack of one may read from disk.
        loss: from heads and rows (E, B, ...) to the training loss (E,) of every trunk.
        score: from heads and scored rows (E, R, ...) to the score (E / group,) of the trunks that keep their best
            epoch, which the members of a group share; other trunks keep the last one. None to keep the last of all.
        settings: optimiser settings.
        generators: one for each member; batches are drawn from them.
        group: number of consecutive members that share their best epoch.
        label: of the progress bar.
        progress: whether to show it.

    Returns:
        The scored rows (E, R, ...).
    """
    feed = Feed(members, settings, generators, heads.center.device)
    optimiser = Adam(heads.parameters(), settings.weight_decay, decoupled=True)
    best = Best(heads, group, settings.patience)
    epochs = settings.passes(feed.largest)
    look = max(1, epochs // LOOKS) if settings.patience is None else 1
    last: Losses = {}
    first: Tensor | None = None
    with tqdm(total=epochs, desc=label, leave=False, disable=not progress, dynamic_ncols=True) as shown:
        for epoch in range(1, epochs + 1):
            losses: list[Tensor] = []
            for part, rows in feed.batches():
                optimiser.clear()
                found = loss(heads, rows)
                total = torch.stack(list(found.values())).sum()
                last = {name: value.detach() for name, value in found.items()}
                first = torch.stack(list(last.values())).max() if first is None else first
                total.backward()
                optimiser.step(settings.rate((epoch - 1 + part) / epochs))
                losses.append(total.detach())
            mean = float(torch.stack(losses).mean() / len(members))
            check_converging(torch.stack(list(last.values())), "head", epoch, settings.learning_rate)
            shown.set_postfix_str(f"loss {mean:.4g}", refresh=False)
            shown.update()
            if score is not None and (epoch % look == 0 or epoch == epochs):
                with torch.no_grad():
                    best.update(score(heads, feed.scored), epoch)
                if best.exhausted(epoch):
                    break
    best.restore()
    check_finite([heads], "head", settings.learning_rate)
    kept = {name: best.scores.get(name, value) for name, value in last.items()}
    for values in kept.values():
        check_bounded(values, 0.0 if first is None else float(first), "head", settings.learning_rate)
    return feed.scored


@dataclass
class Best:
    """Best state of every scored trunk so far; the members of a group change together."""

    heads: Heads
    group: int
    patience: int | None
    epochs: dict[str, Tensor] = field(default_factory=dict)
    scores: dict[str, Tensor] = field(default_factory=dict)
    states: dict[str, list[Tensor]] = field(default_factory=dict)
    stopped: dict[str, list[Tensor]] = field(default_factory=dict)

    def update(self, scores: Losses, epoch: int) -> None:
        """Keep the state of the groups that improved and have not run out of patience."""
        for name, value in scores.items():
            parameters = list(self.heads.trunks[name].parameters())
            if name not in self.states:
                self.scores[name], self.epochs[name] = value.clone(), torch.full_like(value, epoch)
                self.states[name] = [p.detach().clone() for p in parameters]
                continue
            better = value < self.scores[name]
            if self.patience is not None:
                better &= epoch - self.epochs[name] <= self.patience
            self.scores[name] = torch.where(better, value, self.scores[name])
            self.epochs[name] = torch.where(better, float(epoch), self.epochs[name])
            chosen = better.repeat_interleave(self.group)
            for kept, parameter in zip(self.states[name], parameters, strict=True):
                kept[chosen] = parameter.detach()[chosen]

    def exhausted(self, epoch: int) -> bool:
        """Whether no scored trunk of any group has patience left; other trunks of a group stop when its own ends."""
        if self.patience is None:
            return False
        waited = torch.stack([epoch - epochs for epochs in self.epochs.values()]).amin(0)
        self._stop((waited == self.patience).repeat_interleave(self.group))
        return bool((waited >= self.patience).all())

    def _stop(self, members: Tensor) -> None:
        """Remember the trunks that are not scored as they are now, for members that stop here."""
        for name, trunk in self.heads.trunks.items():
            if name not in self.states:
                parameters = list(trunk.parameters())
                kept = self.stopped.setdefault(name, [torch.full_like(p, torch.nan) for p in parameters])
                for tensor, parameter in zip(kept, parameters, strict=True):
                    tensor[members] = parameter.detach()[members]

    def restore(self) -> None:
        """Put the best states back."""
        with torch.no_grad():
            for name, state in (self.states | self.stopped).items():
                for kept, parameter in zip(state, self.heads.trunks[name].parameters(), strict=True):
                    parameter.copy_(torch.where(kept.isnan(), parameter, kept))


class Feed:
    """Shuffled batches (E, B, ...) straight from tensors, and the rows to score on."""

    def __init__(
        self,
        members: Sequence[Member],
        settings: Training,
        generators: Sequence[torch.Generator],
        device: torch.device,
    ) -> None:
        self.largest = max(int((~member.left_out).sum()) for member in members)
        if min(member.table.rows for member in members) < 2 or not self.largest:
            raise DataError("Expected at least two rows with a target to train on, but got fewer; give more data.")
        self.members, self.settings, self.generators, self.device = members, settings, generators, device
        self.on_disk = any(member.table.window < member.table.rows for member in members)
        if self.on_disk and len(members) > 1:
            raise SettingsError(
                f"Expected tables that fit in memory to train {len(members)} heads at once, but got one on disk; "
                "fit one model at a time, or use cache='ram'."
            )
        self.scored = self._moved(_stack([member.scored_rows() for member in members]))
        tables = {} if self.on_disk else {id(member.table): member.table for member in members}
        starts = dict(zip(tables, accumulate((t.rows for t in tables.values()), initial=0), strict=False))
        whole = [table.whole() for table in tables.values()]
        joined = (
            whole[0] if len(whole) == 1 else {k: torch.cat([rows[k] for rows in whole]) for k in (whole or [{}])[0]}
        )
        self.rows = self._moved(joined)
        self.places = [starts.get(id(m.table), 0) + (~m.left_out).nonzero()[:, 0] for m in members]

    def _moved(self, rows: Rows) -> Rows:
        return {name: value.to(self.device) for name, value in rows.items()}

    def batches(self) -> Iterator[tuple[float, Rows]]:
        """One pass over the rows of every member: the part of the pass that is done, and a batch."""
        if not self.on_disk:
            yield from self._shuffled(self.rows, self.places, 0.0, 1.0)
            return
        table, left_out, done = self.members[0].table, self.members[0].left_out, 0
        for start, window in table.windows(self.generators[0]):
            count = _length(window)
            places = (~left_out[start : start + count]).nonzero()[:, 0]
            yield from self._shuffled(self._moved(window), [places], done / table.rows, count / table.rows)
            done += count

    def _shuffled(
        self, rows: Rows, places: Sequence[Tensor], done: float, share: float
    ) -> Iterator[tuple[float, Rows]]:
        """Batches of the rows at each member's places; the last batch is filled up with rows of the same pass."""
        counts = [len(place) for place in places]
        if not min(counts):
            return
        size = min(self.settings.batch(self.largest), min(counts))
        steps = -(-max(counts) // size)
        orders = [one_pass(*own, steps * size) for own in zip(places, self.generators, strict=True)]
        taken = torch.stack(orders).unflatten(1, (steps, size)).transpose(0, 1).flatten(1)
        for number, step in enumerate(taken.to(self.device)):
            batch = {k: v.index_select(0, step).unflatten(0, (len(counts), size)) for k, v in rows.items()}
            yield done + share * number / steps, batch


def _length(rows: Rows) -> int:
    return len(next(iter(rows.values())))


def held_back(table: Table, share: float, generator: torch.Generator) -> Member:
    """A member that leaves out a random share of its rows, at most 20,000, to be scored on; whole groups of them."""
    most = min(int(share * table.rows), HELD_BACK_LIMIT)
    mask = random_part(table.rows, most, generator, table.groups())
    return Member(table, mask, mask)


def folded(table: Table, folds: int, generator: torch.Generator) -> list[Member]:
    """Members that leave out one fold each to be scored on it, and a last one that is trained on all rows."""
    fold = random_folds(table.rows, folds, generator, table.groups())
    masks = [fold == number for number in range(folds)]
    return [*(Member(table, mask, mask) for mask in masks), Member(table, torch.zeros_like(masks[0]), masks[0])]


def _select(rows: Rows, mask: Tensor) -> Rows:
    return {name: value[mask] for name, value in rows.items()}


def _stack(members: list[Rows]) -> Rows:
    """Rows of all members as (E, R, ...), cut to the smallest number of rows."""
    size = min(map(_length, members))
    return {name: torch.stack([rows[name][:size] for rows in members]) for name in members[0]}
