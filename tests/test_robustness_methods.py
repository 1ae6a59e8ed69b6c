"""Networks, data and habits from outside that once broke a method of the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import splitpoint as sp
from splitpoint.baselines import METHODS, Gaussian, NetworkTraining

ROWS = 130


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
    return [name for name, method in METHODS.items() if "regression" in method.tasks]


def trained_methods() -> list[str]:
    return [name for name in regression_methods() if METHODS[name].start == "factory"]


def fit(name: str, factory: Any, data: Any, **settings: Any) -> Any:
    short = {"epochs": 1} if METHODS[name].start == "factory" else {"training": NetworkTraining(epochs=1)}
    heads = {"epochs": 1} if name.startswith("splitpoint") else {}
    return METHODS[name](**short | heads | settings).fit(factory, data, calibration=data, progress=False)


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


@pytest.mark.parametrize("name", regression_methods())
def test_a_last_batch_of_one_row_in_front_of_batch_norm(name: str) -> None:
    x, y = numbers()

    def factory() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    loader = DataLoader(TensorDataset(x[:129], y[:129]), 64, shuffle=True)
    assert len(fit(name, factory, loader).predict(x)) == ROWS


def test_batches_of_one_row_train_where_there_are_no_others() -> None:
    x, y = numbers()
    uq = fit("gaussian", mlp, DataLoader(TensorDataset(x[:30], y[:30]), 1))
    assert len(uq.predict(x)) == ROWS


class Rows(IterableDataset):  # type: ignore[type-arg]
    """Rows one after the other."""

    def __iter__(self) -> Any:
        return iter(zip(*numbers(), strict=True))


@pytest.mark.parametrize("name", ["gaussian", "deep_ensemble", "laplace"])
def test_iterable_data_sets(name: str) -> None:
    assert len(fit(name, mlp, Rows()).predict(numbers()[0])) == ROWS


@pytest.mark.parametrize("name", [name for name in regression_methods() if not name.startswith("splitpoint")])
@pytest.mark.parametrize("unit", [1e6, 1e-9])
def test_intervals_follow_the_units_of_the_targets(name: str, unit: float) -> None:
    x, y = numbers()
    plain, scaled = fit(name, mlp, (x, y)).predict(x), fit(name, mlp, (x, y * unit)).predict(x)
    width = (plain.upper - plain.lower).mean()
    assert ((scaled.upper - scaled.lower).mean() / unit) == pytest.approx(float(width), rel=0.05)


@pytest.mark.parametrize("hessian", ["kron", "full"])
def test_a_laplace_predictor_in_double_precision(hessian: str) -> None:
    x, _ = numbers()
    label = (x[:, 0] > 0).long()
    uq = fit("laplace", lambda: mlp(2), (x, label), hessian=hessian).to(torch.float64)
    assert torch.isfinite(uq.predict(x.double()).probs).all()


class Encoder(nn.Module):
    """Token ids through a transformer layer, which has a fused path in eval mode."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_dropout_and_quantile_levels_reach_the_inside_of_a_transformer(dropout: float) -> None:
    tokens = torch.randint(9, (ROWS, 5), generator=torch.Generator().manual_seed(0))
    data = tokens, tokens[:, :1].float()
    assert (fit("mc_dropout", lambda: Encoder(dropout), data).predict(tokens).epistemic > 0).all()
    prediction = fit("sqr_oc", lambda: Encoder(dropout), data).predict(tokens)
    assert (prediction.upper - prediction.lower).std() > 0
    assert torch.backends.mha.get_fastpath_enabled()
