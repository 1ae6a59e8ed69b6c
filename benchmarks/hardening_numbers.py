"""Extreme numbers: scales of targets and outputs, false alarms of the threshold, and how the cost of a fit grows.

Property examples are rows at a scale: of every fit, 500 rows (a fifth of them far from the training rows) are
predicted at a scale ``a`` drawn from 1e-30 to 1e30, with targets and outputs ``a y + b``, in float32 or float64. An
example holds where every field of the row is finite and equals ``a`` times (scores in squared units ``a^2`` times)
that of the same fit at scale 1, and where `flagged` is the same. Of powers of two without an offset, which rounding
leaves alone, that is to within 1e-4 of the field, of its median or, for scores in squared units, which are
differences of them, of the product of the MARs of the sides; of others, whose last bits heads are trained on too, to
within a tenth, and rows whose score is within 2% of the threshold may fall on either side. False alarms count fresh
exchangeable rows above the threshold, over many references.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn

import splitpoint as sp
from hardening_figures import Figure
from rows_and_classes import SIZES, costs, exponents

EXAMPLES, EACH = 100_000, 500

METHODS = {
    "default": (sp.SplitPointRegressor((0.5, 0.9), epochs=2), False),
    "calibrated": (sp.SplitPointRegressor((0.5, 0.9), epochs=2), True),
    "no leverage": (sp.SplitPointRegressor((0.5, 0.9), epochs=2, leverage=False, shared=True, folds=0), False),
    "scores of the paper": (
        sp.SplitPointRegressor((0.5, 0.9), epochs=2, scores="sds", interval="consistent"),
        False,
    ),
}
POWERS = {
    "aleatoric": 1, "total": 1, "mar": 1, "mar_up": 1, "mar_down": 1, "epistemic": 2, "sds": 2,
}  # fmt: skip
"""Power of the unit of the target that a field is in."""

ROWS, QUANTILE, TRIALS, FRESH = (20, 50, 200, 1000), 0.95, 20_000, 20
MOST = 1.0
"""Largest exponent that is in proportion, a tenth of it granted to the clock."""


class Scaled(nn.Module):
    """A network whose answers come in other units."""

    def __init__(self, net: nn.Module, a: float, b: float) -> None:
        super().__init__()
        self.net, self.a, self.b = net, a, b

    def forward(self, x: Tensor) -> Tensor:
        """``a net(x) + b``."""
        answer: Tensor = self.a * self.net(x) + self.b
        return answer


def network() -> nn.Module:
    """Two outputs of three inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


@torch.no_grad()
def drawn(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Rows with noise that depends on them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, generator=generator)
    return x, network()(x) + (0.2 + x[:, :1].abs()) * torch.randn(count, 2, generator=generator)


NEW = torch.cat([drawn(30, EACH - EACH // 5)[0], 6 * drawn(40, EACH // 5)[0]])


def predicted(name: str, a: float, b: float, dtype: torch.dtype) -> tuple[dict[str, Tensor], sp.RegressionPrediction]:
    """The fields of the new rows in units of a = 1 and b = 0, and the prediction."""
    method, calibrated = METHODS[name]
    data, held_out = ((x.to(dtype), a * y.to(dtype) + b) for x, y in (drawn(0, 150), drawn(10, 120)))
    uq = method.fit(
        Scaled(network().to(dtype), a, b), data, calibration=held_out if calibrated else None, progress=False
    )
    out = uq.set_threshold(drawn(20, 200)[0].to(dtype), quantile=0.9)(NEW.to(dtype))
    fields = {field: getattr(out, field).double() / a**power for field, power in POWERS.items()}
    fields |= {field: (getattr(out, field).double() - b) / a for field in ("mean", "lowers", "uppers")}
    return fields, out


@functools.lru_cache
def at_one(name: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], sp.RegressionPrediction]:
    """The same at scale 1."""
    return predicted(name, 1.0, 0.0, dtype)


def examples(quick: bool) -> list[Figure]:
    """Rows that are right at their scale, and flags that are."""
    total = EXAMPLES // (10 if quick else 1)
    generator = torch.Generator().manual_seed(0)
    right, flags, worst, wrong = 0, 0, (0.0, "none"), "none"
    for number in range(total // EACH):
        name, dtype = list(METHODS)[number % len(METHODS)], (torch.float32, torch.float64)[number // 4 % 2]
        exact, exponent = number % 3 > 0, 60 * float(torch.rand((), generator=generator)) - 30
        a = 2.0 ** round(exponent * math.log2(10)) if exact else 10**exponent
        b = 0.0 if exact else (0.0, -2.0, 5.0)[number // 3 % 3] * a
        near, far = (1e-4, 1e-4) if exact else (0.02, 0.1)
        (expected, known), (found, out) = at_one(name, dtype), predicted(name, a, b, dtype)
        good = torch.ones(EACH, dtype=torch.bool)
        for field, value in found.items():
            size = expected[field].abs().maximum(expected[field].abs().median())
            if POWERS.get(field) == 2:
                size = size.maximum(expected["mar_up"] * expected["mar_down"])
            off = ((value - expected[field]).abs() / size).flatten(1).amax(1).nan_to_num(math.inf)
            worst = max(worst, (float(off.max()) / far, f"{field} of {name} at {a:.0e}"))
            good &= (off <= far) & value.isfinite().flatten(1).all(1)
        either = (known.support / known.reference.threshold - 1).abs() < near
        same = ((out.flagged == known.flagged) | either).all(1)
        wrong = wrong if bool(same.all()) else f"{name} at {a:.0e}"
        right, flags = right + int(good.sum()), flags + int(same.sum())
    return [
        Figure(
            "rows finite and right at scales 1e-30..1e30",
            right,
            total,
            f"{worst[0]:.1g} of what is allowed: {worst[1]}",
        ),
        Figure("rows flagged as at scale 1", flags, total, wrong),
    ]


def false_alarms(quick: bool) -> list[Figure]:
    """Share of fresh rows above the threshold, for references of several sizes."""
    found, trials = [], TRIALS // (10 if quick else 1)
    for rows in ROWS:
        generator = torch.Generator().manual_seed(rows)
        shares = torch.empty(trials, dtype=torch.float64)
        for trial in range(trials):
            scores = torch.randn(rows + FRESH, generator=generator, dtype=torch.float64).abs()
            reference = sp.calibration.reference([scores[:rows]], (), QUANTILE)
            shares[trial] = reference.flagged(scores[rows:]).double().mean()
        mean, error = float(shares.mean()), float(shares.std()) / math.sqrt(trials)
        held = mean <= 1 - QUANTILE + 2 * error
        said = f"{mean:.4f} +- {error:.4f} of {trials * FRESH:,} fresh rows, nominal {1 - QUANTILE:.2f}"
        found.append(Figure(f"false alarms with {rows} reference rows", int(held), 1, said))
    return found


def growth(quick: bool) -> list[Figure]:
    """Exponents of time and memory of fits."""
    found = []
    for name in SIZES:
        measured = costs(name, quick)
        time, memory = exponents(measured)
        held = int(time <= 1.1 * MOST) + int(memory <= 1.1 * MOST)
        said = f"time {time:.2f}, memory {memory:.2f}; {measured[-1].seconds:.0f} CPU s at {measured[-1].size:,}"
        found.append(Figure(f"growth no faster than linear: {name}", held, 2, said))
    return found


def figures(quick: bool) -> list[Figure]:
    """All of them."""
    return [*examples(quick), *false_alarms(quick), *growth(quick)]
