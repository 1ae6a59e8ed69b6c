"""A second device on a machine that has none: it computes on the CPU, and refuses to mix its tensors with others.

`Pretending` takes over torch's device ``meta`` while it lasts. Tensors that are moved there are `Away`: they hold a
tensor of the CPU, and a computation with them and one of the CPU is the error that a true device gives.
"""

import contextlib

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

NAME = "meta"
CROSSING = {torch.ops.aten.copy_.default, torch.ops.aten.index.Tensor}
"""What true devices do with tensors of the CPU too: copying from one to another, and places by a CPU index."""


class Away(torch.Tensor):
    """A tensor on the pretended device."""

    is_meta = False

    @staticmethod
    def __new__(cls, inner):
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **layout, device=NAME, requires_grad=False)

    def __init__(self, inner):
        self.inner = inner

    def tolist(self):
        return self.inner.tolist()

    def __format__(self, specification):
        return format(self.inner, specification)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return computed(function, args, kwargs or {})


class Pretending(TorchDispatchMode):
    """As long as it lasts there is a second device, `NAME`."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return computed(function, args, kwargs or {})


def computed(function, args, kwargs):
    """What a function gives, on the device where its arguments are or that it names."""
    leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    there = [leaf for leaf in leaves if isinstance(leaf, Away)]
    named = kwargs.get("device")
    here = [leaf for leaf in leaves if not isinstance(leaf, Away) and leaf.dim() > 0]
    if there and here and function not in CROSSING:
        raise RuntimeError(f"Expected all tensors to be on the same device, but {function} got two devices.")
    wrappers = {id(leaf.inner): leaf for leaf in there}
    away = bool(there) if named is None else torch.device(named).type == NAME
    if function is torch.ops.aten.copy_.default:
        away = isinstance(args[0], Away)
    kwargs = kwargs if named is None else kwargs | {"device": torch.device("cpu")}
    args, kwargs = tree_map(lambda leaf: leaf.inner if isinstance(leaf, Away) else leaf, (args, kwargs))
    found = function(*args, **kwargs)

    def wrapped(value):
        if not away or not isinstance(value, torch.Tensor):
            return value
        return wrappers.get(id(value)) if id(value) in wrappers else Away(value)

    return tree_map(wrapped, found)


def made_here(data, *, device=None, make=torch.tensor, **options):
    """`torch.tensor`, which no dispatch mode sees, moved to the device afterwards."""
    return make(data, **options).to(device)


@contextlib.contextmanager
def pretending():
    """The pretended device; notes the devices of all images that enter a convolution."""
    entered = set()

    def note(module, args):
        if isinstance(module, nn.Conv2d):
            entered.add(args[0].device.type)

    hook = nn.modules.module.register_module_forward_pre_hook(note)
    with pytest.MonkeyPatch.context() as patch, Pretending():
        patch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())  # which this device has not
        patch.setattr(torch, "is_autocast_enabled", lambda *_: False)
        patch.setattr(torch, "tensor", made_here)
        try:
            yield entered
        finally:
            hook.remove()
