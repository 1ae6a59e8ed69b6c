"""Networks that see a row in several ways: which of their parts are views, and all views' outputs at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from splitpoint.batches import Batch, output_tensor
from splitpoint.errors import LayerError, SettingsError
from splitpoint.hooks import Calls, Listener, Recorder, Watched, find_module

WHOLE = ("",)
"""The views of a network that is one view itself."""


class Views(nn.Module):
    """A network that answers with the outputs of its views side by side instead of what it makes of them.

    Args:
        network: runs as it is; it may fuse the views in any way.
        names: its modules that are views, see `find_views`.
        axis: of the classes in the output of a view; None where there is none, and the views become that axis.
    """

    def __init__(self, network: nn.Module, names: Sequence[str], axis: int | None) -> None:
        super().__init__()
        self.network, self.names, self.axis, self.calls = network, tuple(names), axis, Calls()
        for number, name in enumerate(self.names):
            find_module(network, name).register_forward_hook(Listener(self.calls, number), with_kwargs=True)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """(N, V K, ...): the K outputs of the first view, those of the second, and so on."""
        recorders = [Recorder(name) for name in self.names]
        with self.calls.heard(recorders):
            self.network(*args, **kwargs)
        found = [_ran(name, recorder.value) for name, recorder in zip(self.names, recorders, strict=True)]
        if self.axis is None or found[0].dim() == 1:
            return torch.stack(found, 1 if self.axis is None else self.axis)
        return torch.cat(found, self.axis)


def _ran(name: str, value: Tensor | None) -> Tensor:
    if value is None:
        raise LayerError(
            f"Expected the view '{name}' to run and give a floating-point tensor, but it did not; give the input of "
            "every view."
        )
    return value


def find_views(network: nn.Module, batch: Batch, output_key: str | int | None) -> tuple[str, ...]:
    """Names of the modules whose outputs add up to the network's output, or whose mean it is; `WHOLE` if none do.

    Looked for are the outermost modules with parameters that give what has the shape of the network's output.
    """
    own = [name for name, module in network.named_modules() if name and next(module.parameters(), None) is not None]
    output, values = _outputs(network, own, batch, output_key)
    names: list[str] = []
    for name, value in values.items():
        inside = any(name.startswith(f"{outer}.") for outer in names)
        if value is not None and value.shape == output.shape and not inside:
            names.append(name)
    if len(names) < 2:
        return WHOLE
    total = torch.stack([value for name in names if (value := values[name]) is not None]).sum(0)
    fused = any(torch.allclose(total / count, output, rtol=1e-3, atol=1e-5) for count in (1, len(names)))
    return tuple(names) if fused else WHOLE


def check_views(network: nn.Module, names: Sequence[str], batch: Batch, output_key: str | int | None) -> None:
    """Refuse views that do not exist, do not run or give something else than outputs of the network's shape."""
    output, values = _outputs(network, names, batch, output_key)
    for name, value in values.items():
        if value is None or value.shape != output.shape:
            got = "nothing" if value is None else str(tuple(value.shape))
            raise SettingsError(
                f"Expected views that give logits of the shape of the network's output, {tuple(output.shape)}, but "
                f"'{name}' gives {got}; name the modules that end in the logits of one view each."
            )


def _outputs(
    network: nn.Module, names: Sequence[str], batch: Batch, output_key: str | int | None
) -> tuple[Tensor, dict[str, Tensor | None]]:
    """The output of the network, and of each of the modules."""
    with torch.no_grad():
        answer, recorders, _ = Watched(network, [(name, None) for name in names])(batch.args, batch.kwargs)
    values = [recorder.value for recorder in recorders]
    return output_tensor(answer, output_key), dict(zip(names, values, strict=True))
