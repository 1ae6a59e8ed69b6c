"""The only head-training loop: a stack of independent heads, one batched step for all of them.

Every member of the stack has its own rows, its own random generator and its own early stopping, so a member ends up
as it would alone. Randomness comes from the generators only; the global state is never touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from tqdm import tqdm

from splitpoint.cache import Table
from splitpoint.errors import DataError, SettingsError
from splitpoint.heads import Heads

HELD_BACK_LIMIT = 20_000
FULL_BATCHES = 64

Rows = dict[str, Tensor]
Losses = dict[str, Tensor]
Loss = Callable[[Heads, Rows], Losses]


@dataclass(frozen=True)
class Training:
    """Settings of the optimiser.

    Attributes:
        epochs: most passes over the rows.
        learning_rate: of Adam; falls along a cosine to a hundredth when `decay`.
        batch_size: rows a step and member; None picks it by the number of rows, 64 to 4096.
        weight_decay: decoupled weight decay (AdamW).
        held_back: share of the rows kept aside for early stopping; 0 trains on all rows for all epochs.
        patience: epochs without improvement after which a trunk stops.
        decay: whether the learning rate falls.
    """

    epochs: int = 50
    learning_rate: float = 1e-3
    batch_size: int | None = None
    weight_decay: float = 0.0
    held_back: float = 0.1
    patience: int = 10
    decay: bool = False

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.learning_rate <= 0 or self.patience < 1:
            raise SettingsError(
                "Expected epochs, patience >= 1 and learning_rate > 0, but got " + repr(self) + "."
            )
        if self.batch_size is not None and self.batch_size < 1:
            raise SettingsError(f"Expected batch_size >= 1 or None, but got {self.batch_size}.")
        if not 0 <= self.held_back < 1:
            raise SettingsError(f"Expected held_back in [0, 1), but got {self.held_back}.")

    def batch(self, rows: int) -> int:
        """Rows a step: `batch_size`, or about a 64th of the rows as a power of two between 64 and 4096."""
        wanted = self.batch_size or min(4096, max(64, 2 ** (rows // FULL_BATCHES).bit_length() // 2))
        return max(1, min(wanted, rows))


@dataclass(frozen=True)
class Outcome:
    """How training went.

    Attributes:
        epochs: passes made.
        loss: mean training loss of the last pass, one for each member.
        best: epoch of the state that was kept, for each trunk and member; the last one without early stopping.
    """

    epochs: int
    loss: list[float]
    best: dict[str, list[int]]


def train(
    heads: Heads,
    tables: Sequence[Table],
    loss: Loss,
    score: Loss,
    settings: Training,
    generators: Sequence[torch.Generator],
    *,
    label: str,
    progress: bool,
) -> Outcome:
    """Train the stack `heads` in place, member e on ``tables[e]``.

    Args:
        heads: stack of as many members as there are tables.
        tables: rows of each member; only a stack of one may read from disk.
        loss: from heads and rows (E, B, ...) to the training loss (E,) of every trunk.
        score: the same for early stopping, on the held-back rows.
        settings: optimiser settings.
        generators: one for each member; batches are drawn from them.
        label: of the progress bar.
        progress: whether to show it.
    """
    feed = Feed(tables, settings, generators, heads.center.device)
    optimiser = torch.optim.AdamW(
        heads.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
    best = Best(heads, settings.patience)
    mean, epoch = torch.zeros(len(tables)), 0
    with tqdm(
        total=settings.epochs, desc=label, leave=False, disable=not progress, dynamic_ncols=True
    ) as shown:
        for epoch in range(1, settings.epochs + 1):
            if settings.decay:
                optimiser.param_groups[0]["lr"] = _cosine(settings, epoch)
            losses = []
            for rows in feed.batches():
                optimiser.zero_grad()
                members = torch.stack(list(loss(heads, rows).values())).sum(0)
                members.sum().backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                losses.append(members.detach())
            mean = torch.stack(losses).mean(0)
            shown.set_postfix_str(f"loss {mean.mean():.4g}", refresh=False)
            shown.update()
            if _length(feed.held) and next(iter(feed.held.values())).shape[1]:
                with torch.no_grad():
                    best.update(score(heads, feed.held), epoch)
                if best.exhausted(epoch):
                    break
    best.restore()
    kept = best.epochs or {name: torch.full((len(tables),), epoch) for name in heads.trunks}
    return Outcome(epoch, mean.tolist(), {name: epochs.tolist() for name, epochs in kept.items()})


def _cosine(settings: Training, epoch: int) -> float:
    turn = torch.pi * (epoch - 1) / max(settings.epochs, 1)
    return settings.learning_rate * (0.01 + 0.99 * 0.5 * (1 + float(torch.cos(torch.tensor(turn)))))


@dataclass
class Best:
    """Best state of every trunk and member so far, by the score on held-back rows."""

    heads: Heads
    patience: int
    epochs: dict[str, Tensor] = field(default_factory=dict)
    scores: dict[str, Tensor] = field(default_factory=dict)
    states: dict[str, list[Tensor]] = field(default_factory=dict)

    def update(self, scores: Losses, epoch: int) -> None:
        """Keep the state of the members that improved and have not run out of patience."""
        for name, value in scores.items():
            parameters = list(self.heads.trunks[name].parameters())
            if name not in self.states:
                self.scores[name], self.epochs[name] = value.clone(), torch.full(value.shape, epoch)
                self.states[name] = [p.detach().clone() for p in parameters]
                continue
            waiting = (epoch - self.epochs[name] <= self.patience).to(value.device)
            better = (value < self.scores[name]) & waiting
            self.scores[name] = torch.where(better, value, self.scores[name])
            self.epochs[name] = torch.where(better.cpu(), epoch, self.epochs[name])
            for kept, parameter in zip(self.states[name], parameters, strict=True):
                kept[better] = parameter.detach()[better]

    def exhausted(self, epoch: int) -> bool:
        """Whether no trunk of any member has patience left."""
        return all(bool((epoch - epochs >= self.patience).all()) for epochs in self.epochs.values())

    def restore(self) -> None:
        """Put the best states back."""
        with torch.no_grad():
            for name, state in self.states.items():
                for kept, parameter in zip(state, self.heads.trunks[name].parameters(), strict=True):
                    parameter.copy_(kept)


class Feed:
    """Shuffled batches (E, B, ...) straight from tensors, and the held-back rows."""

    def __init__(
        self,
        tables: Sequence[Table],
        settings: Training,
        generators: Sequence[torch.Generator],
        device: torch.device,
    ) -> None:
        if min(table.rows for table in tables) < 2:
            raise DataError(
                "Expected at least two rows with a target to train on, but got fewer; give more data."
            )
        self.generators, self.device, self.settings = generators, device, settings
        self.table, self.on_disk = tables[0], tables[0].window < tables[0].rows
        held, rest = [], []
        for table, generator in zip(tables, generators, strict=True):
            table.attach("held_back", _held_back(table.rows, settings.held_back, generator))
            parts = [_select(part, part.pop("held_back")) for part in table.slices()]
            held.append({name: torch.cat([part[name] for part in parts]) for name in parts[0]})
            if not self.on_disk:
                window = next(table.windows(generator))
                rest.append(_select(window, ~window.pop("held_back")))
        self.held = self._moved(_stack(held))
        self.counts = [_length(rows) for rows in rest]
        self.rest = {k: torch.cat([rows[k] for rows in rest]) for k in rest[0]} if rest else {}
        self.rest = self._moved(self.rest)

    def _moved(self, rows: Rows) -> Rows:
        return {name: value.to(self.device) for name, value in rows.items()}

    def batches(self) -> Iterator[Rows]:
        """One pass over the rows of every member; the last batch is filled up with rows of the same pass."""
        if not self.on_disk:
            yield from self._shuffled(self.rest, self.counts)
            return
        for window in self.table.windows(self.generators[0]):
            rows = self._moved(_select(window, ~window.pop("held_back")))
            yield from self._shuffled(rows, [_length(rows)])

    def _shuffled(self, rows: Rows, counts: list[int]) -> Iterator[Rows]:
        """Batches of members whose rows lie one after the other, `counts` rows each."""
        if not min(counts):
            return
        size = min(self.settings.batch(max(counts)), min(counts))
        steps = -(-max(counts) // size)
        orders, start = [], 0
        for count, generator in zip(counts, self.generators, strict=True):
            order = torch.randperm(count, generator=generator)
            orders.append(start + order[torch.arange(steps * size) % count].reshape(steps, size))
            start += count
        for step in torch.stack(orders, 1).flatten(1).to(self.device):
            yield {k: v.index_select(0, step).unflatten(0, (len(counts), size)) for k, v in rows.items()}


def _length(rows: Rows) -> int:
    return len(next(iter(rows.values())))


def _held_back(rows: int, share: float, generator: torch.Generator) -> Tensor:
    mask = torch.zeros(rows, dtype=torch.bool)
    mask[torch.randperm(rows, generator=generator)[: min(int(share * rows), HELD_BACK_LIMIT)]] = True
    return mask


def _select(rows: Rows, mask: Tensor) -> Rows:
    return {name: value[mask] for name, value in rows.items()}


def _stack(members: list[Rows]) -> Rows:
    """Held-back rows as (E, R, ...), cut to the smallest number of rows."""
    size = min(map(_length, members))
    return {name: torch.stack([rows[name][:size] for rows in members]) for name in members[0]}
