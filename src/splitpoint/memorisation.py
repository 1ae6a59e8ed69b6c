"""Whether a network memorised its rows, without training it again: what fitting them as well would do to others.

Kernel ridge regression with the kernel that a network has before it is trained can fit the rows as well as the network
does. How much larger its errors are at rows that it leaves out is known in closed form, and about as large they are for
the network. The kernel of the trained network says less: training turned it towards the very targets that it fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import Dataset, IterableDataset, Subset

from splitpoint.batches import Batch, Data, flattened, item_of, labelled, mapped, output_tensor, whole_arrays
from splitpoint.checks import Check
from splitpoint.frozen import frozen
from splitpoint.layout import Layout
from splitpoint.prediction import aligned
from splitpoint.recording import Recording, Source
from splitpoint.tasks import Regression

SAMPLE, OF_WIDE, OF_LARGE = 500, 200, 100
"""Most answers that are looked at; of networks with more than a million parameters, whose gradients cost more; and of
large ones, which are judged by their own kernel."""

WIDE, LARGE_ON_MAPS = 1_000_000, 10_000_000
"""Parameters above which a network is large: where answers are maps or sequences it takes more of them, since a U-Net
that was trained from the start soon has millions."""

LEAST = 20
COORDINATES = 50_000
"""Fewest answers that say something, and most parameters whose gradients are compared."""

AHEAD = 4
"""How many times as many rows of a stream are read as are looked at, so that they do not all come from its start."""

Kernel = Literal["before", "both", "own"]
"""Whose kernel told: the network's before it was trained, that one and its own, or its own alone."""

LIMITS: dict[Kernel, tuple[tuple[float, float], ...]] = {
    "before": ((1.28, 14.0),),
    "both": ((1.28, 14.0), (1.14, 140.0)),
    "own": ((1.06, 9.0),),
}
"""Error at left-out rows over that at training rows from which intervals from training residuals are too short: the
least ``a + b / n`` for n rows, since quantiles of few rows are wide; docs/decisions.md."""

NAME = "memorised base"


def memorised(recording: Recording, data: Data | None, source: Source, start: nn.Module | None = None) -> Check:
    """The check of a network by kernel regression on a sample of its training rows.

    Args:
        recording: its recorded rows.
        data: what they were recorded from; None where that is not known.
        source: how rows are read.
        start: the network before it was trained, or one like it; None where there is none.
    """
    if recording.tap is None or data is None or isinstance(data, Iterator):
        return unknown("the network and its data are needed, in a form that can be read twice.")
    if not isinstance(recording.task, Regression):
        return unknown("leverage tells nothing of saturated probabilities; pass calibration data.")
    model = recording.tap.model
    most = OF_LARGE if is_large(model, recording.layout) else OF_WIDE if _size(model) > WIDE else SAMPLE
    rows = sample(data, source.batch_size, most)
    if not rows:
        return unknown("rows could not be taken out of the batches one by one.")
    try:
        table = recording.table
        total = table.rows * table.width("residual")
        found = fitted_as_well(model, rows, recording.layout, source.output_key, most, total, start)
        kernel: Kernel = "own" if start is None else "before"
        if start is not None and total > most and not recording.layout.dense:
            kernel = "both"
            own = fitted_as_well(model, rows, recording.layout, source.output_key, most, total)
            found = found._replace(excess=blended(found.excess, own.excess, most / total))
    except Exception as error:  # whatever a network does with single rows: what cannot be looked at fails no fit
        return unknown(f"the network cannot be run on single rows ({type(error).__name__}).")
    if math.isnan(found.excess):
        return unknown(f"it takes {LEAST} rows, and answers that depend on the parameters.")
    return memorised_check(found.excess, limit(recording.table.rows, kernel))


def is_large(model: nn.Module, layout: Layout) -> bool:
    """Whether a network usually comes pretrained, so that its beginning says nothing of what it learned last."""
    return _size(model) > (LARGE_ON_MAPS if layout.dense else WIDE)


def _size(model: nn.Module) -> int:
    return sum(own.numel() for own in model.parameters())


def blended(before: float, own: float, share: float) -> float:
    """The excess where a `share` of the answers was looked at, from that by the kernels before training and after.

    The kernel before training has not learned what all the rows taught the network: on few of them it can fit as well
    as the network does only by memorising, however sober the network is. So its weight falls with the share:
    ``1 + (before - 1)^w (own - 1)^(1 - w)`` with ``w = sqrt(share)``.
    """
    weight = math.sqrt(share)
    product: float = max(before - 1, 0.0) ** weight * max(own - 1, 0.0) ** (1 - weight)
    return 1 + product


def limit(rows: int, kernel: Kernel) -> float:
    """The excess from which so many rows were memorised."""
    return min(least + few / rows for least, few in LIMITS[kernel])


def memorised_check(value: float, most: float, reason: str = "") -> Check:
    """The verdict on an excess and its `limit`; `reason` says why copies that would help were not trained."""
    if value <= most:
        return Check(NAME, value, "ok", "times the training error at new rows, by kernel regression that fits as well.")
    advice = (
        f"to fit its rows as well as it does, kernel regression would err {value:.3g} times as much on new ones, so "
        "training residuals are too small and intervals too narrow; pass calibration data"
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
        data = item_of(named)
    elif isinstance(data, Dataset) and not isinstance(data, IterableDataset) and hasattr(data, "__len__"):
        data = Subset(data, torch.randperm(len(data), generator=generator)[:most].sort().values.tolist())
    found: list[Batch] = []
    for batch in labelled(data, batch_size):
        assert batch.target is not None
        columns = flattened(dict(enumerate(batch.args)) | batch.kwargs).values()
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
    args, kwargs = mapped(lambda value: value[own], (batch.args, batch.kwargs))
    return Batch(args, kwargs, batch.target[own])


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
            length = gradients[own].double().square().sum(1).mean().sqrt()
            gradients[own] /= torch.where(length > 0, length, 1.0).to(gradients)
            values[own], targets[own] = (values[own] - center) / spread, (targets[own] - center) / spread
        return Answers(gradients, values, targets, self.outputs)


class Fit(NamedTuple):
    """A kernel ridge regression on training rows.

    Attributes:
        leverage: mean share in [0, 1] with which a row decides its own answer.
        excess: root mean square of the residuals of rows left out over that of the residuals themselves.
    """

    leverage: float
    excess: float


NOTHING = Fit(math.nan, math.nan)


def fitted_as_well(
    model: nn.Module,
    rows: list[Batch],
    layout: Layout,
    output_key: str | int | None = None,
    most: int = SAMPLE,
    total: int | None = None,
    start: nn.Module | None = None,
) -> Fit:
    """Kernel ridge regression that fits training answers as well as the network does; NaN where there is none.

    With J (m, P) the gradients of m answers with respect to all parameters, ``K = J J'`` with eigenvalues l, and y the
    targets less their mean, its residuals are ``e = r (K + r I)^-1 y``. The ridge r is the one at which their mean
    square is that of the network's own. A row decides its own answer to a share h, the diagonal of ``K (K + r I)^-1``,
    on average the number of parameters in use over the number of rows; left out it would have the residual
    ``e / (1 - h)``.

    Args:
        model: the network.
        rows: training rows, each a batch of its own.
        layout: how its output is shaped.
        output_key: see `batches.output_tensor`.
        most: answers that are looked at; rows with several give as many of theirs as that leaves room for.
        total: answers that there are in all; None for those of the rows.
        start: whose gradients they are; None for those of the network itself.

    The fewer answers are looked at, the more each decides of its own. Where there are more in all, leverage and excess
    of a sample go on to fall as they do from half of the sample to the whole: ``h(n) = h(m) (m / n)^b`` with ``2^b =
    h(m / 2) / h(m)``.
    """
    found = _answers(model, start or model, rows, layout, output_key, max(1, most // max(len(rows), 1)))
    if found is None or len(found.values) < LEAST:
        return NOTHING
    answers = found.in_units()
    count = len(answers.values)
    kernel = torch.zeros(count, count, dtype=torch.float64)
    for part in answers.gradients.split(4096, 1):
        wide = part.double()
        kernel += wide @ wide.T
    whole = _ridge_regression(kernel, answers)
    if math.isnan(whole.excess) or total is None or total <= count:
        return whole
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    halves = [_ridge_regression(kernel[half][:, half], answers.some(half)) for half in order.chunk(2)]
    leverages, excesses = zip(*halves, strict=True)
    return Fit(
        _continued(sum(leverages) / 2, whole.leverage, count, total),
        1 + _continued(sum(excesses) / 2 - 1, whole.excess - 1, count, total),
    )


def _continued(half: float, whole: float, count: int, total: int) -> float:
    """What falls from `half` to `whole` as rows double to `count`, at `total` rows; it does not rise."""
    if whole <= 0:
        return whole
    return float(whole * (count / total) ** min(math.log2(max(half, whole) / whole), 1.0))


def _ridge_regression(kernel: Tensor, answers: Answers) -> Fit:
    """Of the answers that the kernel is of; NaN where they do not depend on parameters."""
    values, vectors = torch.linalg.eigh(kernel)
    values = values.clamp(min=0)
    if not values.max() > 0:
        return NOTHING
    turned = vectors.T @ answers.targets
    ridge = _matched(values, turned.square(), float((answers.targets - answers.values).square().sum()))
    kept = ridge / (values + ridge)
    residual, own = vectors @ (kept * turned), (vectors.square() @ kept).clamp(min=1e-9)
    excess = ((residual / own).square().mean() / residual.square().mean().clamp(min=1e-300)).sqrt()
    return Fit(float((1 - kept).mean()), float(excess))


def _answers(
    model: nn.Module, start: nn.Module, rows: list[Batch], layout: Layout, output_key: str | int | None, each: int
) -> Answers | None:
    """Up to `each` random answers of every row, among those with a target; None where no parameter moves them.

    Gradients are those of `start`, answers those of the network.
    """
    parameters = {name: value.detach() for name, value in start.named_parameters() if value.is_floating_point()}
    size = sum(value.numel() for value in parameters.values())
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randperm(size, generator=generator)[:COORDINATES] if size > COORDINATES else None
    gradients: list[Tensor] = []
    numbers: list[tuple[float, float, int]] = []
    with frozen(model) as view, frozen(start) as begun:
        for row in rows:
            moved = row.to(model)
            assert moved.target is not None
            live = {name: value.detach().requires_grad_() for name, value in parameters.items()}
            with torch.enable_grad():
                given = output_tensor(view(*moved.args, **moved.kwargs), output_key)
                output = output_tensor(functional_call(begun, live, moved.args, moved.kwargs), output_key)
                flat = layout.output(output).flatten()
            if not output.requires_grad:
                return None
            answers, target = layout.output(given.detach()), layout.output(aligned(output, moved.target))
            positions = answers[0, 0].numel()
            known, wanted = answers.flatten(), target.detach().flatten()
            present = (~wanted.isnan()).nonzero().flatten().cpu()
            for place in present[torch.randperm(len(present), generator=generator)[:each]].tolist():
                with torch.enable_grad():
                    answer = flat[place]
                own = torch.autograd.grad(answer, list(live.values()), retain_graph=True, allow_unused=True)
                gradients.append(_joined(own, live, chosen))
                numbers.append((float(known[place]), float(wanted[place]), place // positions))
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
