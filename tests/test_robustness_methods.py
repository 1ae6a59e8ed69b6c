"""Networks, data and habits from outside that once broke a method of the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import splitpoint as sp
from splitpoint.baselines import METHODS, Gaussian

ROWS = 40


def mlp(outputs: int = 1, inputs: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


def numbers(inputs: int = 4) -> tuple[Tensor, Tensor]:
    x = torch.randn(ROWS, inputs, generator=torch.Generator().manual_seed(0))
    return x, x[:, :1] + 0.1


class Squeezed(nn.Module):
    """A network that squeezes its output, along one axis or along all."""

    def __init__(self, network: nn.Module, *axis: int) -> None:
        super().__init__()
        self.network, self.axis = network, axis

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x).squeeze(*self.axis)


class Named(nn.Module):
    """A network that returns a mapping."""

    def __init__(self, key: str, outputs: int = 1) -> None:
        super().__init__()
        self.network, self.key = mlp(outputs), key

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {self.key: self.network(x), "other": x}


def regression_methods() -> list[str]:
    return [name for name, method in METHODS.items() if "regression" in method.about.tasks]


def trained_methods() -> list[str]:
    return [name for name in regression_methods() if not METHODS[name].about.post_hoc]


def fit(name: str, factory: Any, data: Any, **settings: Any) -> Any:
    return METHODS[name](epochs=1, **settings).fit(factory, data, calibration=data, progress=False)


@pytest.mark.parametrize("name", trained_methods())
def test_a_single_row_of_a_network_that_squeezes_everything(name: str) -> None:
    x, y = numbers()
    uq = fit(name, lambda: Squeezed(mlp()), (x, y[:, 0]))
    one, all_rows = uq(x[:1]), uq(x)
    assert one.mean.shape == (1,)
    assert torch.allclose(one.upper, all_rows.upper[:1], atol=1e-5)


@pytest.mark.parametrize("name", trained_methods())
def test_sequences_and_maps_without_a_channel_axis(name: str) -> None:
    x = torch.randn(ROWS, 6, 3, generator=torch.Generator().manual_seed(0))
    assert fit(name, lambda: Squeezed(mlp(1, 3), -1), (x, x.sum(2))).predict(x).mean.shape == (ROWS, 6)
    maps = x.reshape(ROWS, 1, 6, 3)
    convolutions = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1))
    uq = fit(name, Squeezed(convolutions, 1), (maps, maps[:, 0]))
    assert uq.predict(maps).upper.shape == (ROWS, 6, 3)


def test_members_of_an_ensemble_that_are_linear_layers_on_sequences() -> None:
    x = torch.randn(ROWS, 6, 3, generator=torch.Generator().manual_seed(0))
    prediction = fit("deep_ensemble", lambda: mlp(1, 3), (x, x.sum(2, keepdim=True))).predict(x)
    assert prediction.mean.shape == (ROWS, 6, 1)


@pytest.mark.parametrize(("key", "settings"), [("logits", {}), ("answer", {"output_key": "answer"})])
def test_members_of_an_ensemble_that_return_mappings(key: str, settings: dict[str, str]) -> None:
    prediction = fit("deep_ensemble", lambda: Named(key), numbers(), **settings).predict(numbers()[0])
    assert prediction.mean.shape == (ROWS, 1)


@pytest.mark.parametrize("name", regression_methods())
def test_networks_in_double_precision(name: str) -> None:
    x, y = (part.double() for part in numbers())
    assert torch.isfinite(fit(name, lambda: mlp().double(), (x, y)).predict(x).upper).all()


@pytest.mark.parametrize("name", ["oc", "sqr_oc"])
def test_certificates_come_back_from_a_file_bit_for_bit(name: str, tmp_path: Path) -> None:
    x, y = numbers(3)

    def factory() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 13), nn.ReLU(), nn.Linear(13, 1))

    uq = fit(name, factory, (x, y))
    uq.save(tmp_path / "uq")
    assert all(tensor.is_contiguous() for tensor in uq.fitted.buffers())
    assert torch.equal(sp.load(tmp_path / "uq", factory).predict(x).epistemic, uq.predict(x).epistemic)


def test_a_network_that_drops_channels_of_its_last_layer_is_refused() -> None:
    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = mlp()

        def forward(self, x: Tensor) -> Tensor:
            return self.network(x)[:, :1]

    with pytest.raises(sp.ShapeError, match="pass on every channel of its last layer"):
        Gaussian(epochs=1).fit(First, numbers(), progress=False)
