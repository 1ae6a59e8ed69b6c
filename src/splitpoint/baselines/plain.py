"""Plain networks, trained by squared error or log loss: what post-hoc methods stand on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splitpoint.baselines.blueprint import Blueprint
from splitpoint.baselines.plan import Plan
from splitpoint.baselines.settings import Settings
from splitpoint.batches import Batch, Data
from splitpoint.errors import SettingsError
from splitpoint.stacking import Stack
from splitpoint.surgery import Factory, build, settle_spectral_norm, with_spectral_norm


def train_network(
    factory: Factory,
    data: Data,
    *,
    task: Literal["regression", "classification", "auto"] = "auto",
    spectral_norm: float | None = None,
    seed: int = 0,
    progress: bool = True,
    **settings: Any,
) -> nn.Module:
    """Train a plain network, as a base for post-hoc methods: squared error for numbers, log loss for classes.

    Args:
        factory: a function that builds the untrained network.
        data: training data.
        task: as in `Settings`.
        spectral_norm: largest spectral norm of every layer but the last; None for no bound.
        seed: of initial weights and row order.
        progress: whether to show progress bars.
        **settings: of the optimiser, as in `Settings`: epochs, learning_rate, batch_size, weight_decay, optimiser,
            milestones; also output, output_key and ignore_index.
    """
    return train_plain(
        Settings(task=task, **settings), [factory], [data], [seed], spectral_bound=spectral_norm, progress=progress
    )[0]


def train_plain(
    settings: Settings,
    factories: Sequence[Factory],
    data: Sequence[Data],
    seeds: Sequence[int],
    *,
    spectral_bound: float | None = None,
    progress: bool = True,
) -> list[nn.Module]:
    """Train one network for each data set, all as one stack, with the optimiser settings of a method.

    Regression networks learn standardised targets; the units are then folded into the last layer, so that the network
    itself answers in the units of the targets. Where an activation follows the last layer, targets are left as they
    are.

    Args:
        settings: of the task and the optimiser.
        factories: functions that build the untrained networks.
        data: for each network.
        seeds: of initial weights and row order.
        spectral_bound: largest spectral norm of every layer but the last; None for no bound.
        progress: whether to show progress bars.
    """
    plan = Plan.of(settings, factories[0], data, seeds[0], progress)
    folds = plan.method.task == "regression" and plan.blueprint.direct
    if folds:
        _check_bias(build(factories[0], seeds[0]).get_submodule(plan.blueprint.last), plan.blueprint.outputs)

    def change(network: nn.Module, blueprint: Blueprint) -> nn.Module:
        if spectral_bound is None:
            return network
        return with_spectral_norm(network, blueprint.layers[:-1], spectral_bound)

    def step(stack: Stack, blueprint: Blueprint, batch: Batch, target: Tensor, _: float) -> Tensor:
        raw = blueprint.canonical(stack(*batch.args, **batch.kwargs).flatten(0, 1), 1)
        if plan.method.task == "regression":
            return (raw.float() - target).square()
        return F.cross_entropy(plan.method._logits(raw), target, reduction="none")

    networks = [own for (own,) in plan.train(factories, data, seeds, change, step, progress=progress)]
    for network in networks:
        settle_spectral_norm(network)
    if folds:
        for network, target in zip(networks, plan.targets, strict=True):
            _fold(network.get_submodule(plan.blueprint.last), target["center"], target["spread"])
    return networks


def _check_bias(layer: nn.Module, outputs: int) -> None:
    bias = getattr(layer, "bias", None)
    if not isinstance(bias, Tensor) or len(bias) != outputs:
        raise SettingsError(
            f"Expected a last layer with a bias for every output, but got {layer}; give it a bias, or train the "
            "network yourself."
        )


def _fold(layer: nn.Module, center: Tensor, spread: Tensor) -> None:
    """Let a last layer answer ``center + spread * f(x)``."""
    weight, bias = layer.weight, layer.bias
    assert isinstance(weight, Tensor)
    assert isinstance(bias, Tensor)
    with torch.no_grad():
        weight.mul_(spread.to(weight).reshape(-1, *[1] * (weight.dim() - 1)))
        bias.mul_(spread.to(bias)).add_(center.to(bias))
