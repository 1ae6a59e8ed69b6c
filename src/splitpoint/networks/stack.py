"""Many networks of one architecture as one: a stack runs and trains all of them in a single step.

Parameters of different members never meet, and Adam and SGD act on every number by itself, so a member of a stack
learns what it would learn alone.
"""

from __future__ import annotations

import copy
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from splitpoint.batches import mapped, output_tensor
from splitpoint.heads import stacked_linear
from splitpoint.networks.surgery import ChannelMaskDropout, Conditioned, MaskDropout, condition, conditioned

POINTWISE_MODULES = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softplus,
    nn.Hardtanh, nn.Identity, nn.Dropout,
)  # fmt: skip
POINTWISE_FUNCTIONS: set[Callable[..., Any]] = {
    torch.relu, torch.tanh, torch.sigmoid, F.relu, F.leaky_relu, F.elu, F.selu, F.gelu, F.silu, F.softplus, F.tanh,
    torch.add, torch.mul, torch.sub, operator.add, operator.mul, operator.sub, operator.neg,
}  # fmt: skip
POINTWISE_METHODS = {"relu", "tanh", "sigmoid", "add", "mul", "sub", "neg"}


class Stack(nn.Module, ABC):
    """E networks of one architecture; every argument and the output carry a leading axis E."""

    @staticmethod
    def of(networks: Sequence[nn.Module], output_key: str | int | None = None) -> Stack:
        """A stack of copies: batched products where the architecture is linear layers and pointwise functions.

        Any other architecture runs member by member; grouped convolutions, which could run them at once, are no
        faster on a CPU.
        """
        if len(networks) > 1:
            graph = _pointwise_graph(networks[0])
            if graph is not None:
                return BatchedStack(networks, graph, output_key)
        return ListedStack(networks, output_key)

    @abstractmethod
    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Outputs (E, B, ...) for arguments (E, B, ...), and a condition (E, B, 1) where layers are `conditioned`."""

    @abstractmethod
    def networks(self) -> list[nn.Module]:
        """The members as networks of their own."""


class ListedStack(Stack):
    """A stack of any architecture, run member by member."""

    def __init__(self, networks: Sequence[nn.Module], output_key: str | int | None = None) -> None:
        super().__init__()
        self.members = nn.ModuleList(copy.deepcopy(network) for network in networks)
        self.output_key = output_key

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """See `Stack`."""
        outputs, shared = [], condition()
        for number, network in enumerate(self.members):
            own, named = mapped(operator.itemgetter(number), (args, kwargs))
            with nullcontext() if shared is None else conditioned(shared[number]):
                outputs.append(output_tensor(network(*own, **named), self.output_key))
        return torch.stack(outputs)

    def networks(self) -> list[nn.Module]:
        """See `Stack`."""
        return [copy.deepcopy(network) for network in self.members]


class StackedLinear(nn.Module):
    """E linear layers: (E, B, ..., inputs) -> (E, B, ..., outputs) by one batched product."""

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.stack([layer.weight.detach().T for layer in layers]))
        biases = [layer.bias.detach()[None] for layer in layers if layer.bias is not None]
        self.bias = nn.Parameter(torch.stack(biases)) if biases else None

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        rows = x.flatten(1, -2)
        found = torch.bmm(rows, self.weight) if self.bias is None else stacked_linear(rows, self.weight, self.bias)
        stacked: Tensor = found.unflatten(1, x.shape[1:-1])
        return stacked

    def unstack(self, number: int, layer: nn.Linear) -> None:
        """Copy the weights of member `number` into `layer`."""
        layer.weight.copy_(self.weight[number].T)
        if self.bias is not None:
            layer.bias.copy_(self.bias[number, 0])


class StackedDropout(nn.Module):
    """Dropout whose mask comes from sixteen random bits a number, drawn four at a time, in place of a Bernoulli each.

    The rate is rounded to a multiple of 2^-16; what is kept is scaled up by the rounded one. At rate 1 nothing is.
    """

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.dropped = round(rate * 2**16)

    def forward(self, x: Tensor) -> Tensor:
        """Numbers of any shape, some of them zero in train mode."""
        if not self.training or not self.dropped:
            return x
        if self.dropped == 2**16:
            return x * 0.0
        bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        kept = bits.view(torch.int16)[: x.numel()].view(x.shape) >= self.dropped - 2**15
        return x * (kept.to(x.dtype) * (2**16 / (2**16 - self.dropped)))


class BatchedStack(Stack):
    """A stack of networks (B, ..., inputs) -> (B, ..., outputs) made of linear layers and pointwise functions."""

    def __init__(
        self, networks: Sequence[nn.Module], graph: fx.GraphModule, output_key: str | int | None = None
    ) -> None:
        super().__init__()
        self.output_key = output_key
        self.originals = [copy.deepcopy(network) for network in networks]
        self.linears = [name for name, module in graph.named_modules() if isinstance(module, nn.Linear)]
        for name in self.linears:
            graph.set_submodule(name, StackedLinear([network.get_submodule(name) for network in networks]))  # type: ignore[misc]
        for name in [name for name, module in graph.named_modules() if type(module) in (nn.Dropout, MaskDropout)]:
            graph.set_submodule(name, StackedDropout(graph.get_submodule(name).p))  # type: ignore[arg-type]
        self.graph = graph

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """See `Stack`."""
        return output_tensor(self.graph(*args, **kwargs), self.output_key)

    @torch.no_grad()
    def networks(self) -> list[nn.Module]:
        """See `Stack`."""
        found = [copy.deepcopy(network) for network in self.originals]
        for number, network in enumerate(found):
            for name in self.linears:
                layer, stacked = network.get_submodule(name), self.graph.get_submodule(name)
                assert isinstance(layer, nn.Linear)
                assert isinstance(stacked, StackedLinear)
                stacked.unstack(number, layer)
        return found


class LayerTracer(fx.Tracer):
    """Tracer that keeps conditioned layers and dropout whole, since their state is set from outside."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether the module is kept as one call."""
        return isinstance(m, Conditioned | nn.Dropout) or super().is_leaf_module(m, module_qualified_name)


def _pointwise_graph(network: nn.Module) -> fx.GraphModule | None:
    """The network as a graph that also takes a leading member axis, or None where it has other parts."""
    leaves = [module for module in network.modules() if next(module.children(), None) is None]
    if not all(type(leaf) is nn.Linear or isinstance(leaf, POINTWISE_MODULES) for leaf in leaves):
        return None
    if any(isinstance(leaf, ChannelMaskDropout) for leaf in leaves):
        return None  # it would take rows for channels
    weights = [parameter for leaf in leaves for parameter in leaf.parameters()]
    if len({id(weight) for weight in weights}) < len(weights) or not all(weight.requires_grad for weight in weights):
        return None  # tied or frozen weights, which copies in a stack would not be
    others = [module for module in network.modules() if not isinstance(module, Conditioned | MaskDropout)]
    if any(module._forward_hooks or module._forward_pre_hooks for module in others):
        return None
    traced = copy.deepcopy(network)
    try:
        graph = fx.GraphModule(traced, LayerTracer().trace(traced))
    except Exception:  # whatever a forward does that cannot be traced
        return None
    return graph if all(_is_pointwise(node) for node in graph.graph.nodes) else None


def _is_pointwise(node: fx.Node) -> bool:
    if node.op == "call_function":
        return node.target in POINTWISE_FUNCTIONS
    if node.op == "call_method":
        return node.target in POINTWISE_METHODS
    if node.op == "output":
        return isinstance(node.args[0], fx.Node)
    return node.op in ("placeholder", "call_module")
