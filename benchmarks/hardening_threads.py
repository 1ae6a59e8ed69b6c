"""Predictions from many threads at once, of every method, beside a thread that trains on the same network."""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from hardening_figures import Figure
from splitpoint import SplitPointWarning
from splitpoint.baselines import METHODS
from splitpoint.tasks import TaskName

THREADS, CALLS = 8, 20_000
"""Threads that predict, and calls of all methods together."""


@dataclass(frozen=True)
class Tally:
    """Calls and how many of them were answered otherwise; steps of training and how many of them lost their dropout."""

    calls: int
    wrong: int
    steps: int
    lost: int


def figures(quick: bool) -> list[Figure]:
    """Every method for every task it can do; threads take turns as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        cases = list(_cases(CALLS // (10 if quick else 1)))
        found = {f"{name}, {task}": _tally(name, task, each) for name, task, each in cases}
    finally:
        sys.setswitchinterval(before)
    calls, wrong, steps, lost = (sum(getattr(own, field.name) for own in found.values()) for field in fields(Tally))
    worst = max(found, key=lambda case: found[case].wrong)
    return [
        Figure(
            f"a call from one of {THREADS} threads, beside training, is answered as a call alone",
            calls - wrong,
            calls,
            f"{found[worst].wrong} wrong ({worst})" if wrong else f"none wrong, {len(found)} methods and tasks",
        ),
        Figure("a step of training beside predictions keeps its dropout", steps - lost, steps, f"{lost} lost it"),
    ]


def _cases(calls: int) -> Iterator[tuple[str, TaskName, int]]:
    cases = [(name, task) for name, recipe in METHODS.items() for task in recipe.tasks]
    for name, task in cases:
        yield name, task, -(-calls // len(cases))


class Watched(nn.Dropout):
    """Dropout that notes in how many calls with gradients nothing was dropped."""

    def __init__(self) -> None:
        super().__init__(0.5)
        self.kept: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        """Plain dropout."""
        given = super().forward(x)
        if torch.is_grad_enabled():
            self.kept.append(bool((given == x).all()))
        return given


def _network(outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 32), nn.Tanh(), Watched(), nn.Linear(32, outputs))


def _tally(name: str, task: TaskName, calls: int) -> Tally:
    """Fit a method, and let threads ask it again and again what was asked before they began."""
    generator = torch.Generator().manual_seed(0)
    x, other = torch.randn(2, 96, 3, generator=generator)
    y, own = (_targets(rows, task, generator) for rows in (x, other))
    torch.manual_seed(0)
    recipe = METHODS[name]
    known = {field.name for field in fields(recipe.method)}
    if name.startswith("splitpoint"):
        known |= {"epochs"}
    settings: dict[str, Any] = {"task": task} | ({"epochs": 2} if "epochs" in known else {})
    outputs = 1 if task == "regression" else 2
    model = _network(outputs)
    start: Any = model if recipe.start == "model" else lambda: _network(outputs)
    held_out = (other, own) if task in recipe.held_out else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SplitPointWarning)  # of networks that nobody trained
        uq: Any = recipe(**settings).fit(start, (x, y), calibration=held_out, progress=False)
    network = model if recipe.start == "model" else uq.base
    questions = list(torch.randn(16, 5, 3, generator=generator))
    answers = [_tensors(uq(question)) for question in questions]
    wrong, done, each = [0] * THREADS, threading.Event(), -(-calls // THREADS)
    layers = [module for module in model.modules() if isinstance(module, Watched)]
    for layer in layers:
        layer.kept.clear()  # what `fit` looked at with gradients

    def ask(number: int) -> None:
        for turn in range(each):
            place = (turn * (number + 1)) % len(questions)
            try:
                pairs = zip(_tensors(uq(questions[place])), answers[place], strict=True)
                wrong[number] += any(not torch.equal(one, other) for one, other in pairs)
            except Exception:  # whatever threads do to each other
                wrong[number] += 1

    def train() -> None:
        learning = [weight for weight in network.parameters() if weight.is_floating_point()]
        while not done.is_set():
            network.train()
            inner = network[0] if isinstance(network, nn.ModuleList) else network
            if recipe.start == "model":
                inner(x).sum().backward()
                for weight in learning:
                    weight.grad = None

    trainer = threading.Thread(target=train)
    threads = [threading.Thread(target=ask, args=(number,)) for number in range(THREADS)]
    for thread in (trainer, *threads):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    trainer.join()
    kept = [own for layer in layers for own in layer.kept]
    return Tally(each * THREADS, sum(wrong), len(kept), sum(kept))


def _targets(x: Tensor, task: TaskName, generator: torch.Generator) -> Tensor:
    if task == "regression":
        return x[:, :1] + 0.3 * torch.randn(len(x), 1, generator=generator)
    return (x[:, 0] > 0).long()


def _tensors(prediction: Any) -> list[Tensor]:
    """Every tensor of a prediction; numbers that are not there are the same as each other."""
    values = [getattr(prediction, field.name) for field in fields(prediction)]
    return [
        value.nan_to_num(nan=-1.0) if value.is_floating_point() else value
        for value in values
        if isinstance(value, Tensor)
    ]
