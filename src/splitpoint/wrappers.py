"""Wrappers of networks that compile, spread or place one and otherwise answer as it does: what is inside them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor, nn

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
        name = WRAPPERS.get(kind.__name__)
        if name is not None:
            return model._modules.get(name)
    return None


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers as `state_dict` has them, by names that leave wrappers out.

    >>> sorted(plain_state(nn.Sequential(nn.DataParallel(nn.Linear(2, 1)))))
    ['0.bias', '0.weight']
    """
    state = unwrapped(model).state_dict()
    return {plain_name(model, name): value for name, value in state.items() if isinstance(value, Tensor)}


def plain_name(model: nn.Module, name: str) -> str:
    """The name of a part of the unwrapped model or of a weight, without the names of wrappers on the way to it."""
    module: nn.Module | None = unwrapped(model)
    kept = []
    for part in name.split("."):
        found = None if module is None else module._modules.get(part)
        if module is None or found is None or found is not _inside(module):
            kept.append(part)
        module = found
    return ".".join(kept)


def inner_prefix(model: nn.Module) -> str:
    """What all names of weights begin with: the way through modules that hold one other with weights, and none else.

    A network means the same inside such modules as outside of them, as long as it answers the same.

    >>> inner_prefix(nn.Sequential(nn.Sequential(nn.Linear(2, 1)), nn.ReLU())), inner_prefix(nn.Linear(2, 1))
    ('0.0.', '')
    """
    names = list(plain_state(model))
    prefix = ""
    while names and all("." in name for name in names) and len({name.split(".")[0] for name in names}) == 1:
        prefix += names[0].split(".")[0] + "."
        names = [name.partition(".")[2] for name in names]
    return prefix


def moved_place(place: str, old: str, new: str) -> str:
    """A place in a model with one inner prefix as it is called in a model with another; see `inner_prefix`.

    >>> moved_place("fc:input", "", "net."), moved_place("net.encode()", "net.", "")
    ('net.fc:input', 'encode()')
    """
    name, rest = re.fullmatch(r"([^:@]*)(.*)", place).groups()  # type: ignore[union-attr]
    if old and f"{name}."[: len(old)] != old:
        return place
    inside = name[len(old) :]
    return (new + inside if inside else new.removesuffix(".")) + rest
