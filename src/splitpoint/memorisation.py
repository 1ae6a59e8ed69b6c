"""Whether a network memorised its rows, without training it again: how far each row decides its own answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import Dataset, IterableDataset, Subset

from splitpoint.batches import Batch, Data, labelled, output_tensor, whole_arrays
from splitpoint.checks import Check
from splitpoint.hooks import frozen
from splitpoint.layout import Layout
from splitpoint.prediction import aligned
from splitpoint.recording import Recording, Source
from splitpoint.tasks import Regression

SAMPLE, OF_LARGE, LARGE = 500, 100, 1_000_000
"""Most answers that are looked at, and of networks with more than a million parameters, whose gradients cost more."""

LEAST = 20
COORDINATES = 50_000
"""Fewest answers that say something, and most parameters whose gradients are compared."""

AHEAD = 4
"""How many times as many rows of a stream are read as are looked at, so that they do not all come from its start."""

MEMORISED, OF_FEW = 0.055, 8.0
"""Mean leverage above which intervals from training residuals are too short, and how much more of it few rows bear: the
threshold is ``MEMORISED + OF_FEW / n``, since quantiles of few rows are wide; docs/decisions.md."""

NAME = "memorised base"


def memorised(recording: Recording, data: Data | None, source: Source) -> Check:
    """The check of a network by the leverage of its training rows, on a sample of them.

    Args:
        recording: its recorded rows.
        data: what they were recorded from; None where that is not known.
        source: how rows are read.
    """
    if recording.tap is None or data is None or isinstance(data, Iterator):
        return unknown("the network and its data are needed, in a form that can be read twice.")
    if not isinstance(recording.task, Regression):
        return unknown("leverage tells nothing of saturated probabilities; pass calibration data.")
    model = recording.tap.model
    most = OF_LARGE if sum(own.numel() for own in model.parameters()) > LARGE else SAMPLE
    rows = sample(data, source.batch_size, most)
    if not rows:
        return unknown("rows could not be taken out of the batches one by one.")
    try:
        table = recording.table
        total = table.rows * table.width("residual")
        value = leverage(model, rows, recording.layout, source.output_key, most, total)
    except Exception as error:  # whatever a network does with single rows: what cannot be looked at fails no fit
        return unknown(f"the network cannot be run on single rows ({type(error).__name__}).")
    if math.isnan(value):
        return unknown(f"it takes {LEAST} rows, and answers that depend on the parameters.")
    return memorised_check(value, recording.table.rows)


def memorised_check(value: float, rows: int, reason: str = "") -> Check:
    """The verdict on the mean leverage of so many rows; `reason` says why copies that would help were not trained."""
    if value <= MEMORISED + OF_FEW / rows:
        return Check(NAME, value, "ok", "rows decide little of their own answers: training residuals tell of new rows.")
    advice = (
        f"each training row decides {value:.0%} of its own answer, so training residuals are smaller than those of new "
        "rows and intervals too narrow; pass calibration data"
    )
    more = f" ({reason.rstrip('.')})." if reason else ", or use residuals='refit'."
    return Check(NAME, value, "warn", advice + more)


def unknown(reason: str) -> Check:
    """The check where nothing could be measured."""
    return Check(NAME, math.nan, "unknown", f"not looked at: {reason}")


def sample(data: Data, batch_size: int, most: int) -> list[Batch]:
    """At most so many random rows, each a batch of its own; none where batches hold more than arrays of rows.

    Arrays and data sets are read where the rows are; of loaders and other streams only the beginning is.
    """
    generator = torch.Generator().manual_seed(0)
    arrays = whole_arrays(data)
    if arrays is not None and all(getattr(value, "ndim", 0) for value in arrays.values()):
        rows = len(next(iter(arrays.values())))
        chosen = torch.randperm(rows, generator=generator)[:most].sort().values
        named = {
            key: value[chosen.numpy() if not isinstance(value, Tensor) else chosen] for key, value in arrays.items()
        }
        data = named if isinstance(next(iter(arrays)), str) else tuple(named.values())
    elif isinstance(data, Dataset) and not isinstance(data, IterableDataset) and hasattr(data, "__len__"):
        data = Subset(data, torch.randperm(len(data), generator=generator)[:most].sort().values.tolist())
    found: list[Batch] = []
    for batch in labelled(data, batch_size):
        assert batch.target is not None
        columns = [*batch.args, *batch.kwargs.values()]
        if any(not hasattr(value, "shape") or len(value) != len(batch.target) for value in columns):
            return []
        found += [_row(batch, row) for row in range(len(batch.target))]
        if len(found) >= AHEAD * most:
            break
    kept = torch.randperm(len(found), generator=generator)[:most].sort().values
    return [found[row] for row in kept.tolist()]


def _row(batch: Batch, row: int) -> Batch:
    assert batch.target is not None
    own = slice(row, row + 1)
    args = tuple(value[own] for value in batch.args)
    return Batch(args, {name: value[own] for name, value in batch.kwargs.items()}, batch.target[own])


class Answers(NamedTuple):
    """Single answers of a network: numbers of one row, one output and one position.

    Attributes:
        gradients: (m, P) with respect to the parameters.
        values: (m,) the answers themselves.
        targets: (m,) what they should be.
        outputs: (m,) the number of the output.
    """

    gradients: Tensor
    values: Tensor
    targets: Tensor
    outputs: Tensor

    def some(self, places: Tensor) -> Answers:
        """Those at the given places."""
        return Answers(*(values[places] for values in self))

    def in_units(self) -> Answers:
        """The same in units of every output: targets of mean 0 and deviation 1, gradients of length 1 on average."""
        gradients, values, targets = self.gradients.clone(), self.values.clone(), self.targets.clone()
        for output in self.outputs.unique():
            own = self.outputs == output
            center, spread = targets[own].mean(), targets[own].std(correction=0)
            spread = torch.where(spread > 0, spread, 1.0)
            gradients[own] /= gradients[own].double().square().sum(1).mean().sqrt().clamp(min=1e-30).to(gradients)
            values[own], targets[own] = (values[own] - center) / spread, (targets[own] - center) / spread
        return Answers(gradients, values, targets, self.outputs)


def leverage(
    model: nn.Module,
    rows: list[Batch],
    layout: Layout,
    output_key: str | int | None = None,
    most: int = SAMPLE,
    total: int | None = None,
) -> float:
    """Mean leverage in [0, 1] of training answers in the network linearised at its weights; NaN where there is none.

    With J (m, P) the gradients of m answers with respect to all parameters, ``K = J J'`` with eigenvalues l, and y the
    targets less their mean, kernel ridge regression has residuals ``r (K + r I)^-1 y``. The ridge r is the one at which
    their mean square is that of the network's own training residuals, and ``mean l / (l + r)`` is how far a row decides
    its own answer: about the number of parameters in use over the number of rows.

    Args:
        model: the network.
        rows: training rows, each a batch of its own.
        layout: how its output is shaped.
        output_key: see `batches.output_tensor`.
        most: answers that are looked at; rows with several give as many of theirs as that leaves room for.
        total: answers that there are in all; None for those of the rows.

    The fewer answers are looked at, the more each decides of its own. Where there are more in all, the leverage h(m)
    of a sample goes on to fall as it does from half of the sample to the whole: ``h(n) = h(m) (m / n)^b`` with
    ``2^b = h(m / 2) / h(m)``.
    """
    found = _answers(model, rows, layout, output_key, max(1, most // max(len(rows), 1)))
    if found is None or len(found.values) < LEAST:
        return math.nan
    answers = found.in_units()
    count = len(answers.values)
    kernel = torch.zeros(count, count, dtype=torch.float64)
    for part in answers.gradients.split(4096, 1):
        wide = part.double()
        kernel += wide @ wide.T
    whole = _mean_leverage(kernel, answers)
    if math.isnan(whole) or total is None or total <= count or whole <= 0:
        return whole
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    halves = [_mean_leverage(kernel[half][:, half], answers.some(half)) for half in order.chunk(2)]
    fall = math.log2(max(sum(halves) / 2, whole) / whole)
    return float(whole * (count / total) ** min(fall, 1.0))


def _mean_leverage(kernel: Tensor, answers: Answers) -> float:
    """Of the answers that the kernel is of; NaN where they do not depend on parameters."""
    values, vectors = torch.linalg.eigh(kernel)
    values = values.clamp(min=0)
    if not values.max() > 0:
        return math.nan
    spectrum = (vectors.T @ answers.targets).square()
    ridge = _matched(values, spectrum, float((answers.targets - answers.values).square().sum()))
    return float((values / (values + ridge)).mean())


def _answers(
    model: nn.Module, rows: list[Batch], layout: Layout, output_key: str | int | None, each: int
) -> Answers | None:
    """Up to `each` random answers of every row, among those with a target; None where no parameter moves them."""
    parameters = {name: value.detach() for name, value in model.named_parameters() if value.is_floating_point()}
    size = sum(value.numel() for value in parameters.values())
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(size, generator=generator)[:COORDINATES] if size > COORDINATES else None
    gradients: list[Tensor] = []
    numbers: list[tuple[float, float, int]] = []
    with frozen(model), torch.enable_grad():
        for row in rows:
            moved = row.to(model)
            assert moved.target is not None
            live = {name: value.detach().requires_grad_() for name, value in parameters.items()}
            output = output_tensor(functional_call(model, live, moved.args, moved.kwargs), output_key)
            if not output.requires_grad:
                return None
            answers, target = layout.output(output), layout.output(aligned(output, moved.target))
            positions = answers[0, 0].numel()
            flat, wanted = answers.flatten(), target.detach().flatten()
            present = (~wanted.isnan()).nonzero().flatten().cpu()
            for place in present[torch.randperm(len(present), generator=generator)[:each]].tolist():
                own = torch.autograd.grad(flat[place], list(live.values()), retain_graph=True, allow_unused=True)
                gradients.append(_joined(own, live, chosen))
                numbers.append((float(flat[place].detach()), float(wanted[place]), place // positions))
    if not numbers:
        return None
    values, targets, outputs = (torch.tensor(column, dtype=torch.float64) for column in zip(*numbers, strict=True))
    return Answers(torch.stack(gradients), values, targets, outputs)


def _joined(gradients: tuple[Any, ...], live: Mapping[str, Tensor], chosen: Tensor | None) -> Tensor:
    """(P,) gradients of all parameters, zeros for those without, or the `chosen` ones of them."""
    pairs = zip(gradients, live.values(), strict=True)
    whole = torch.cat([(torch.zeros_like(v) if g is None else g).flatten().float() for g, v in pairs]).cpu()
    return whole if chosen is None else whole[chosen]


def _matched(values: Tensor, spectrum: Tensor, wanted: float) -> float:
    """The ridge at which the residuals ``r / (l + r)`` of the spectrum have the sum of squares `wanted`."""
    low, high = 1e-9 * float(values.max()), 1e6 * float(values.max())
    for _ in range(50):
        middle = math.sqrt(low * high)
        left = float(((middle / (values + middle)).square() * spectrum).sum())
        low, high = (low, middle) if left > wanted else (middle, high)
    return high
