"""Changes that a method makes to a fresh network before it is trained, so that all build on one backbone."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from splitpoint.batches import Batch
from splitpoint.errors import SettingsError
from splitpoint.frozen import frozen
from splitpoint.hooks import find_module

Factory = Callable[[], nn.Module]

_MASKS: ContextVar[torch.Generator | None] = ContextVar("masks", default=None)
_CONDITION: ContextVar[Tensor | None] = ContextVar("condition", default=None)


def factory_of(model_or_factory: nn.Module | Factory) -> Factory:
    """A function that builds untrained networks: the given one, or fresh copies of the given network.

    A copy of a network is initialised anew by every layer's own ``reset_parameters``, and all of it learns, even where
    the network itself is frozen.
    """
    if isinstance(model_or_factory, nn.Module):
        template = model_or_factory
        return lambda: _initialised(copy.deepcopy(template))
    if not callable(model_or_factory):
        raise SettingsError(
            "Expected a network, or a function without arguments that builds one, but got "
            f"{type(model_or_factory).__name__}."
        )
    return model_or_factory


def _initialised(network: nn.Module) -> nn.Module:
    missing = not_resettable(network)
    if missing is not None:
        raise SettingsError(
            f"Expected layers with reset_parameters to train fresh copies of the network, but {missing} has none; "
            "pass a function that builds the network instead."
        )
    for module in network.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    return network.requires_grad_(True)


def not_resettable(network: nn.Module) -> str | None:
    """Name and type of the first layer with parameters that cannot be initialised anew; None where all can."""
    for name, module in network.named_modules():
        own = next(module.parameters(recurse=False), None) is not None
        if own and not callable(getattr(module, "reset_parameters", None)):
            return f"'{name}' ({type(module).__name__})"
    return None


def build(factory: Factory, seed: int, change: Callable[[nn.Module], nn.Module] | None = None) -> nn.Module:
    """A fresh network whose initial weights depend on `seed` alone; the global random state stays as it was.

    Args:
        factory: builds it.
        seed: of the initial weights, those of layers that `change` adds included.
        change: what is done to the network before it is used.
    """
    _check_factory(factory)
    with torch.inference_mode(False), seeded(seed):
        network = factory()
        if not isinstance(network, nn.Module):
            raise SettingsError(f"Expected a function that builds a torch.nn.Module, but got {type(network).__name__}.")
        return network if change is None else change(network)


def _check_factory(factory: Factory) -> None:
    """Refuse what cannot be called without arguments, such as a class of networks, or the forward pass of one."""
    try:
        inspect.signature(factory).bind()
    except ValueError:  # a built-in function that does not say what it takes
        return
    except TypeError:
        name = getattr(factory, "__name__", type(factory).__name__)
        raise SettingsError(
            f"Expected a torch.nn.Module, or a function without arguments that builds one, but got {name}, which "
            "takes some; call it, or wrap it in a lambda."
        ) from None


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global random state for as long as the context lasts, for layers that know no other."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield


def weight_layers(network: nn.Module, batch: Batch) -> list[str]:
    """Names of the linear and convolution layers in the order in which they first run."""
    order: dict[str, None] = {}

    def note(module: nn.Module, *_: object) -> None:
        order.setdefault(layers[module])

    with frozen(network) as view:
        layers: dict[nn.Module, str] = {
            module: name for name, module in view.named_modules() if isinstance(module, nn.Linear | _ConvNd)
        }
        for module in layers:
            module.register_forward_pre_hook(note)
        view(*batch.args, **batch.kwargs)
    return list(order)


def widen(network: nn.Module, name: str, factor: int) -> nn.Module:
    """The network with `factor` times the outputs in its last layer, which is called `name`."""
    layer = find_module(network, name)
    bias = getattr(layer, "bias", None) is not None
    if type(layer) is nn.Linear:
        wide: nn.Module = nn.Linear(layer.in_features, factor * layer.out_features, bias)
    elif isinstance(layer, _ConvNd) and not isinstance(layer, _ConvTransposeNd) and layer.groups == 1:
        wide = type(layer)(
            layer.in_channels, factor * layer.out_channels, layer.kernel_size, stride=layer.stride,
            padding=layer.padding, dilation=layer.dilation, bias=bias, padding_mode=layer.padding_mode,
        )  # type: ignore[call-arg]  # fmt: skip
    else:
        raise SettingsError(
            f"Expected the network to end in a Linear or Conv layer, but '{name}' is a {type(layer).__name__}; "
            "end the network in one of those."
        )
    weight = next(layer.parameters())
    return _replaced(network, name, wide.to(weight.device, weight.dtype))


def _replaced(network: nn.Module, name: str, module: nn.Module) -> nn.Module:
    if not name:
        return module
    network.set_submodule(name, module)
    return network


class MaskDropout(nn.Dropout):
    """Dropout that can also be sampled in eval mode, with one mask for all rows of a batch.

    A mask that all rows share leaves the law of every row's output as it is, and makes a prediction independent of
    the other rows of its batch.
    """

    def __init__(self, p: float) -> None:
        super().__init__(p)
        keep_apart(self)

    def forward(self, x: Tensor) -> Tensor:
        """A mask where masks are drawn, see `sampling`; else plain dropout in training, and the input after it."""
        generator = _MASKS.get()
        if generator is None:
            return super().forward(x)
        mask = torch.rand(x.shape[1:], generator=generator, dtype=torch.float32) >= self.p
        return x * self._scaled(mask).to(x.device, x.dtype)

    def _scaled(self, mask: Tensor) -> Tensor:
        """A mask that keeps the mean; nothing is left at rate 1."""
        return mask / (1 - self.p) if self.p < 1 else mask


class ChannelMaskDropout(MaskDropout):
    """`MaskDropout` of whole channels (N, C, ...), in place of ``nn.Dropout1d`` to ``nn.Dropout3d``."""

    def forward(self, x: Tensor) -> Tensor:
        """Dropout of channels."""
        generator = _MASKS.get()
        if generator is None:
            dropped: Tensor = torch.feature_dropout(x, self.p, self.training)
            return dropped
        mask = torch.rand(x.shape[1], generator=generator, dtype=torch.float32) >= self.p
        return x * self._scaled(mask).reshape(-1, *[1] * (x.dim() - 2)).to(x.device, x.dtype)


def with_dropout(network: nn.Module, places: Sequence[str], rate: float) -> nn.Module:
    """The network with its own dropout layers made to sample, or dropout before the layers `places` if it has none."""
    dropouts = [(n, m) for n, m in network.named_modules() if isinstance(m, nn.modules.dropout._DropoutNd)]
    own = [name for name, module in dropouts if module.p > 0]
    for name in own:
        layer = network.get_submodule(name)
        channels = isinstance(layer, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d)
        network = _replaced(network, name, (ChannelMaskDropout if channels else MaskDropout)(float(layer.p)))  # type: ignore[arg-type]
    for name in [] if own else places:
        network = _replaced(network, name, nn.Sequential(MaskDropout(rate), network.get_submodule(name)))
    return _without_nesting(network)


def keep_apart(layer: nn.Module) -> None:
    """Keep transformers around this layer from their fused path, which reads weights and skips the layers themselves.

    A hook on one of their parts does that, whatever it does.
    """
    layer.register_forward_hook(_nothing)


def _nothing(_module: nn.Module, _args: Any, _output: Any) -> None:
    """What the hook does."""


def _without_nesting(network: nn.Module) -> nn.Module:
    """The network without another form of padded sequences, which only the fused path takes."""
    for module in network.modules():
        if isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
    return network


@contextmanager
def sampling(seed: int) -> Iterator[None]:
    """Let dropout layers draw the masks of `seed` for as long as the context lasts, in this thread."""
    token = _MASKS.set(torch.Generator().manual_seed(seed))
    try:
        yield
    finally:
        _MASKS.reset(token)


class Conditioned(nn.Module):
    """A first layer that takes one number more: the same as appending a constant `condition` to its input channels.

    The number is set around every call, see `conditioned`, since only the network's own arguments pass through its
    forward.
    """

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        outputs = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
        assert isinstance(outputs, int)
        weight = next(layer.parameters())
        self.layer = layer
        self.linear = isinstance(layer, nn.Linear)
        self.shift = nn.Linear(1, outputs, bias=False, device=weight.device, dtype=weight.dtype)
        keep_apart(self)

    def forward(self, x: Tensor) -> Tensor:
        """Output of the layer for `x` with the condition (..., 1) of every row."""
        value = condition()
        assert value is not None
        output: Tensor = self.layer(x)
        shift: Tensor = self.shift(value.to(self.shift.weight))
        if self.linear:
            between = [1] * (output.dim() - shift.dim())
            return output + shift.reshape(*shift.shape[:-1], *between, shift.shape[-1])
        return output + shift.reshape(*shift.shape, *[1] * (output.dim() - shift.dim()))


def with_condition(network: nn.Module, first: str) -> nn.Module:
    """The network with its layer `first` conditioned."""
    return _without_nesting(_replaced(network, first, Conditioned(network.get_submodule(first))))


@contextmanager
def conditioned(value: Tensor) -> Iterator[None]:
    """Let conditioned layers read the condition (..., B, 1) for as long as the context lasts, in this thread."""
    token = _CONDITION.set(value)
    try:
        yield
    finally:
        _CONDITION.reset(token)


def condition() -> Tensor | None:
    """What conditioned layers read now."""
    return _CONDITION.get()


class SpectralBound(nn.Module):
    """Parametrisation that scales a weight down to spectral norm `bound` where it is larger (soft normalisation).

    The norm is that of the weight as a matrix (outputs, rest), followed by one power iteration per training step.
    """

    direction: Tensor

    def __init__(self, weight: Tensor, bound: float) -> None:
        super().__init__()
        self.bound = bound
        self.register_buffer("direction", torch.zeros_like(weight.detach().flatten(1)[:, 0]))
        self.settle(weight)

    @torch.no_grad()
    def settle(self, weight: Tensor) -> None:
        """Find the direction of the largest singular value exactly."""
        self.direction.copy_(torch.linalg.svd(weight.flatten(1), full_matrices=False).U[:, 0])

    def forward(self, weight: Tensor) -> Tensor:
        """The bounded weight."""
        matrix = weight.flatten(1)
        with torch.no_grad():
            right = nn.functional.normalize(matrix.T @ self.direction, dim=0)
            if self.training:
                self.direction.copy_(nn.functional.normalize(matrix @ right, dim=0))
        norm = self.direction.clone() @ matrix @ right  # a copy, since the next call moves the direction on
        return weight * (self.bound / norm.clamp(min=self.bound))


def with_spectral_norm(network: nn.Module, places: Sequence[str], bound: float) -> nn.Module:
    """The network with the spectral norm of the layers `places` kept at `bound` or below."""
    for name in places:
        layer = network.get_submodule(name)
        assert isinstance(layer.weight, Tensor)
        nn.utils.parametrize.register_parametrization(layer, "weight", SpectralBound(layer.weight, bound))
    return network


def settle_spectral_norm(network: nn.Module) -> None:
    """Make the bounds of a trained network exact: training follows norms step by step and may lag behind."""
    for module in network.modules():
        if isinstance(module, nn.utils.parametrize.ParametrizationList):
            for bound in module:
                if isinstance(bound, SpectralBound):
                    bound.settle(module.original)
