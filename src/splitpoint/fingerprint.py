"""What tells one base model from another: its weights, and what it answers on a few made-up rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from splitpoint.batches import placement
from splitpoint.checks import Check
from splitpoint.features import Tap
from splitpoint.files import digest, one_line, text_digest
from splitpoint.likeness import Likeness
from splitpoint.wrappers import inner_prefix, plain_name, plain_state, unwrapped

Observe = Callable[..., Sequence[Tensor]]
"""Runs a frozen model on arguments of its own and gives its output and its features."""

MOST_NUMBERS = 512
"""Most numbers of one row of an output or of features that are kept, evenly spread over all of them."""

CLOSE, CLOSE_ELSEWHERE, CLOSE_IN_HALF = 1e-3, 1e-2, 0.05
"""Largest difference, see `deviation`, that rounding explains: on the CPU, with other devices, in 16 bits."""

LEVEL = 1e-2
"""Share of the largest number that counts as spread, for outputs that hardly differ from row to row."""

NAME = "base model"
"""What the check of a fingerprint is called."""


class Difference(NamedTuple):
    """What is known of a model beside that of the fit.

    Attributes:
        words: what differs, in words that follow "but"; empty where nothing does.
        deviation: of outputs and features, see `deviation`; NaN where they cannot be compared.
        shape: whether outputs or features have another shape, or the model does not run at all.
    """

    words: str
    deviation: float
    shape: bool = False


@dataclass(frozen=True)
class Fingerprint:
    """A base model as it was at a fit. Names of weights are those inside of wrappers, see `wrappers.inner_prefix`.

    Attributes:
        weights: digest of the names, types, shapes and contents of parameters and buffers.
        names: digest of names and shapes; empty where it is not known, in old files.
        types: digest of the types.
        modules: digest of the names and classes of all modules.
        prefix: what stood before the names inside.
        dtype: of the first floating-point weight, as ``"float32"``.
        device: kind of device that it ran on.
        shapes: of output and features on the made-up rows.
        likeness: what its inputs were like; None where nothing can be compared but weights.
        seen: output and features on rows made up in that likeness, some numbers (n, k) of each in float32.
    """

    weights: str
    names: str = ""
    types: str = ""
    modules: str = ""
    prefix: str = ""
    dtype: str = "float32"
    device: str = "cpu"
    shapes: str = ""
    likeness: Likeness | None = None
    seen: tuple[Tensor, ...] = ()

    @staticmethod
    def of(model: nn.Module, observe: Observe, likeness: Likeness | None) -> Fingerprint:
        """Take that of a model, which runs twice on a few rows: what it does not repeat cannot be compared."""
        device, dtype = placement(model)
        seen: list[Tensor] = []
        shapes = ""
        if likeness is not None:
            with suppress(Exception):  # whatever a model says to rows that make no sense to it
                (seen, shapes), (again, _) = _behaviour(observe, likeness, device, {}, times=2)
                seen = seen if all(_usable(*pair) for pair in zip(seen, again, strict=True)) else []
        return Fingerprint(
            weights=_weights(model)[0],
            names=_names(model),
            types=_types(model),
            modules=_modules(model),
            prefix=inner_prefix(model),
            dtype=str(dtype).removeprefix("torch."),
            device=device.type,
            shapes=shapes,
            likeness=likeness if seen else None,
            seen=tuple(seen),
        )

    @staticmethod
    def at(tap: Tap, likeness: Likeness | None) -> Fingerprint:
        """That of the model of a tap, by its output and the features that are read."""
        return Fingerprint.of(tap.model, tapped(tap), likeness)

    def difference(self, model: nn.Module, observe: Observe) -> Difference:
        """Compare a model with that of the fit; its weights first, and then what it answers."""
        words = self.weights_differ(model)
        if self.likeness is None:
            other = self.modules and self.modules != _modules(model)
            return Difference(words or ("its modules are others" if other else ""), torch.nan)
        device, dtype = placement(model)
        cast = {getattr(torch, self.dtype): dtype}
        try:
            ((now, shapes),) = _behaviour(observe, self.likeness, device, cast)
        except Exception as error:  # whatever a model says to inputs that it does not take
            said = f"it does not run on rows like those of the fit ({one_line(error)})"
            return Difference(said, torch.inf, shape=True)
        if shapes != self.shapes:
            return Difference(words or "its outputs or features have another shape", torch.inf, shape=True)
        worst = max(deviation(*pair) for pair in zip(now, self.seen, strict=True))
        if not words and not worst <= self._tolerance(device, dtype):
            words = (
                f"with the same weights its outputs or features are others, by {100 * worst:.3g}% of their spread (an "
                "activation, a scale of the inputs or something else without weights was changed)"
            )
        return Difference(words, worst)

    def weights_differ(self, model: nn.Module) -> str:
        """In words, or nothing where they are the same or of another type, which only answers can tell."""
        if placement(model)[0].type == "meta":
            return "its weights are not there, since it is on the meta device"
        if self.names and self.names != _names(model):
            return "the weights differ"
        if self.likeness is not None and self.types != _types(model):
            return ""
        return "" if self.weights in _weights(model) else "the weights differ"

    def check(self, model: nn.Module, observe: Observe) -> Check:
        """Whether a model still is that of the fit."""
        found = self.difference(model, observe)
        if found.words:
            advice = f"expected the base model as it was at the fit, but {found.words}; restore it, or fit again"
            return Check(NAME, found.deviation, "warn", advice)
        if self.likeness is None:
            advice = "the weights are those of the fit, but its answers were not or could not be kept to compare with"
            return Check(NAME, torch.nan, "unknown", advice)
        advice = "weights, outputs and features are those of the fit; the value is the largest difference by rounding"
        return Check(NAME, found.deviation, "ok", advice)

    def described(self) -> dict[str, Any]:
        """What a file holds of it beside the tensors that were `seen`."""
        texts = {name: getattr(self, name) for name in TEXTS}
        return texts | {"likeness": None if self.likeness is None else self.likeness.described()}

    @staticmethod
    def read(saved: Mapping[str, Any], seen: Sequence[Tensor]) -> Fingerprint:
        """That of a file."""
        likeness = None if saved["likeness"] is None else Likeness.read(saved["likeness"])
        return Fingerprint(**{name: str(saved[name]) for name in TEXTS}, likeness=likeness, seen=tuple(seen))

    def _tolerance(self, device: torch.device, dtype: torch.dtype) -> float:
        if torch.finfo(dtype).bits < 32 or torch.finfo(getattr(torch, self.dtype)).bits < 32:
            return CLOSE_IN_HALF
        return CLOSE if {device.type, self.device} == {"cpu"} else CLOSE_ELSEWHERE


TEXTS = ("weights", "names", "types", "modules", "prefix", "dtype", "device", "shapes")
"""Fields of a fingerprint that are texts."""


def deviation(now: Tensor, then: Tensor) -> float:
    """``max |a - b| / (max b - min b + max |b| / 100)`` of what is seen now and what was seen then.

    The largest difference in units of the spread; infinite where a number is not finite.

    >>> deviation(torch.tensor([[0.0], [1.5]]), torch.tensor([[0.0], [1.0]]))  # 0.5 / 1.01
    0.495...
    """
    if not then.numel():
        return 0.0
    now, then = now.double(), then.double()
    spread = then.max() - then.min() + LEVEL * then.abs().max()
    worst = float((now - then).abs().max() / spread.clamp(min=torch.finfo(torch.float64).tiny))
    return worst if worst == worst else torch.inf


def tapped(tap: Tap) -> Observe:
    """What a tap sees: the output of its model and the features of every place."""

    def observe(*args: Any, **kwargs: Any) -> list[Tensor]:
        reading = tap(*args, **kwargs)
        return [reading.output, *reading.features]

    return observe


def _behaviour(
    observe: Observe,
    likeness: Likeness,
    device: torch.device,
    cast: Mapping[torch.dtype, torch.dtype],
    times: int = 1,
) -> list[tuple[list[Tensor], str]]:
    """Some numbers (n, k) of output and features on the made-up rows, and their shapes, in several runs.

    The state of random numbers is left as it was.
    """
    batch = likeness.batch(device, cast)
    own = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(own), torch.autocast(device.type, enabled=False), torch.no_grad():
        runs = [list(observe(*batch.args, **batch.kwargs)) for _ in range(times)]
    return [(list(map(_some, run)), " ".join(str(tuple(value.shape)) for value in run)) for run in runs]


def _some(value: Tensor) -> Tensor:
    rows = value.detach().float().cpu().flatten(1) if value.dim() > 1 else value.detach().float().cpu().unsqueeze(1)
    if rows.shape[1] <= MOST_NUMBERS:
        return rows.contiguous()
    return rows[:, torch.linspace(0, rows.shape[1] - 1, MOST_NUMBERS, dtype=torch.float64).long()].contiguous()


def _usable(one: Tensor, again: Tensor) -> bool:
    """Whether numbers are finite and come out the same twice."""
    return one.shape == again.shape and bool(one.isfinite().all()) and deviation(again, one) <= CLOSE


def _weights(model: nn.Module) -> list[str]:
    """Digests of all weights, with names inside of one wrapper after the other, the innermost first."""
    state, prefix = plain_state(model), inner_prefix(model)
    contents = digest(state[name] for name in sorted(state))
    ways = [prefix]
    while ways[-1]:
        ways.append("".join(f"{part}." for part in ways[-1].split(".")[:-2]))
    return [_digest_of(name.removeprefix(way) for name in sorted(state)) + contents for way in ways]


def _digest_of(lines: Iterable[str]) -> str:
    return text_digest("\n".join(lines), 4)


def _names(model: nn.Module) -> str:
    state, prefix = plain_state(model), inner_prefix(model)
    return text_digest("\n".join(f"{name.removeprefix(prefix)} {tuple(state[name].shape)}" for name in sorted(state)))


def _types(model: nn.Module) -> str:
    state = plain_state(model)
    return text_digest(" ".join(str(state[name].dtype) for name in sorted(state)))


def _modules(model: nn.Module) -> str:
    prefix = inner_prefix(model)
    named = {plain_name(model, name): type(module).__qualname__ for name, module in unwrapped(model).named_modules()}
    inside = {f"{name}.".removeprefix(prefix): kind for name, kind in named.items() if f"{name}.".startswith(prefix)}
    return text_digest("\n".join(f"{name} {kind}" for name, kind in sorted(inside.items())))
