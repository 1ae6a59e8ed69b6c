"""Wrappers of networks that compile, spread or place one and otherwise answer as it does: what is inside them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

WRAPPERS: Mapping[str, str] = {
    "OptimizedModule": "_orig_mod",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "_FabricModule": "_original_module",
}
"""Classes that wrap a network, as PyTorch and Lightning Fabric name them, and under which name they hold it."""


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside `torch.compile`, `DataParallel`, `DistributedDataParallel` and Lightning Fabric's module.

    A network that is in none of them is given back as it is; its weights are the same tensors either way.

    >>> network = nn.Linear(2, 1)
    >>> unwrapped(nn.DataParallel(network)) is network
    True
    """
    while (inner := _inside(model)) is not None:
        model = inner
    return model


def _inside(model: nn.Module) -> nn.Module | None:
    """What a wrapper holds; None for any other network. Told by the class's name, which imports no library."""
    for kind in type(model).__mro__:
        name = WRAPPERS.get(kind.__name__, "")
        if name in model._modules:
            return model._modules[name]
    return None
