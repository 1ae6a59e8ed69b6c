"""Networks and data from the wild, each of which once gave a wrong answer or a raw error."""

import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint.metrics import accuracy, auroc

QUICK = {"epochs": 3}


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def built(make, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def regressor(**settings):
    return sp.SplitPointRegressor(**({"epochs": 3, "folds": 0} | settings))


@pytest.mark.parametrize("tail", [nn.Softmax(1), nn.LogSoftmax(1), nn.LayerNorm(2)], ids=["softmax", "log", "norm"])
@pytest.mark.parametrize("rows", [1, 2, 8])
def test_the_layer_before_a_normalising_tail_is_found_with_few_rows_too(tail, rows):
    for seed in range(5):
        net = built(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), tail), seed)
        assert sp.layers(net, drawn(rows, 4)).chosen == "2:input"


class Padded(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(8, 1)

    def forward(self, x, mask):
        return self.head(self.encoder(x, src_key_padding_mask=mask).mean(1))


@pytest.mark.filterwarnings("ignore:.*nested tensor.*")
def test_a_transformer_with_a_padding_mask():
    net = built(Padded)
    mask = torch.zeros(30, 5, dtype=torch.bool)
    mask[::2, 3:] = True
    uq = regressor().fit(net, (drawn(30, 5, 8), mask, drawn(30, 1, seed=1)), progress=False)
    assert uq.layer == "head:input"
    assert uq(drawn(4, 5, 8), mask[:4]).epistemic.isfinite().all()


def test_a_permuted_map_keeps_its_channels():
    class LastChannels(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 2, 1)

        def forward(self, x):
            return self.conv(x).permute(0, 2, 3, 1)

    net, x = built(LastChannels), drawn(20, 3, 6, 5)
    with torch.no_grad():
        clean = net(x)
    noise = drawn(*clean.shape, seed=1) * torch.tensor([1.0, 100.0])
    out = regressor(epochs=20).fit(net, (x, clean + noise), progress=False)(x)
    small, large = out.mar.mean((0, 1, 2))
    assert 30 < large / small < 300


def test_a_squeezing_network_takes_a_single_row():
    class Squeezed(nn.Sequential):
        def forward(self, x):
            return super().forward(x).squeeze()

    net = built(lambda: Squeezed(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)))
    uq = regressor().fit(net, (drawn(41, 3), drawn(41, seed=1)), progress=False)
    assert uq(drawn(1, 3)).mean.shape == (1,)
    assert len(uq.predict(drawn(257, 3))) == 257


def test_an_input_that_the_network_overwrites_is_refused():
    class Wiping(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(3, 8), nn.Linear(8, 1)

        def forward(self, x):
            hidden = self.body(x)
            out = self.head(hidden)
            hidden.zero_()
            return out

    with pytest.raises(sp.LayerError, match=r"overwrites .* in place; choose another layer"):
        regressor().fit(built(Wiping), (drawn(600, 3), drawn(600, 1)), progress=False)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_torchscript_model_is_refused_with_a_sentence():
    net = torch.jit.trace(nn.Sequential(nn.Linear(3, 1)), torch.zeros(2, 3), check_trace=False)
    with pytest.raises(sp.LayerError, match="pass the model it was made of"):
        regressor().fit(net, (drawn(20, 3), drawn(20, 1)), progress=False)


def test_two_callables_do_not_share_a_cache(tmp_path):
    net, data = built(lambda: nn.Linear(3, 1)), (drawn(30, 3), drawn(30, 1, seed=1))
    regressor(layer=lambda x: x, cache=tmp_path).fit(net, data, progress=False)
    with pytest.raises(sp.CacheError, match="same layer"):
        regressor(layer=lambda x: 100 + x**3, cache=tmp_path).fit(net, data, progress=False)


def test_a_sigmoid_taken_for_a_logit_is_refused():
    net = nn.Sequential(nn.Linear(1, 1), nn.Sigmoid())
    with torch.no_grad():
        net[0].weight.fill_(3.0)
    x = drawn(300, 1)
    y = (x[:, 0] > 0).long()
    with pytest.raises(sp.DataError, match="like a probability; use output='probs'"):
        sp.SplitPointClassifier(**QUICK).fit(net, (x, y), progress=False)
    assert sp.SplitPointClassifier(output="probs", **QUICK).fit(net, (x, y), progress=False)(x).probs.shape == (300, 2)


def test_an_output_without_a_single_target_is_refused():
    y = drawn(40, 3, seed=1)
    y[:, 2] = torch.nan
    with pytest.raises(sp.DataError, match="got none for output 2"):
        regressor().fit(built(lambda: nn.Linear(4, 3)), (drawn(40, 4), y), progress=False)


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_another_default_type_changes_nothing(task):
    net = built(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1 if task == "regression" else 3)))
    x = drawn(60, 4)
    y = drawn(60, 1, seed=1) if task == "regression" else torch.arange(60) % 3
    method = regressor() if task == "regression" else sp.SplitPointClassifier(**QUICK)
    data = {"calibration": (x, y)} if task == "classification" else {}
    expected = method.fit(net, (x, y), progress=False, **data)(x)
    torch.set_default_dtype(torch.float64)
    try:
        found = method.fit(net, (x, y), progress=False, **data)(x)
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(found.epistemic, expected.epistemic)
    assert torch.equal(found.total, expected.total)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_fitting_needs_no_gradients_around_it(context):
    net, data = built(lambda: nn.Linear(3, 1)), (drawn(30, 3), drawn(30, 1, seed=1).requires_grad_())
    expected = regressor().fit(net, data, progress=False)(data[0])
    with context():
        found = regressor().fit(net, data, progress=False)(data[0])
    assert torch.equal(found.upper, expected.upper)


def test_maps_of_several_sizes_can_set_the_threshold():
    net = built(lambda: nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 1, 1)))
    sizes = [(6, 5), (8, 9)]
    data = [(drawn(4, 1, *size), drawn(4, 1, *size, seed=1)) for size in sizes]
    uq = regressor().fit(net, data, progress=False)
    uq.set_threshold(data, quantile=0.9)
    share = torch.cat([uq(x).flagged.flatten() for x, _ in data]).float().mean()
    assert abs(float(share) - 0.1) < 0.02
    with pytest.raises(sp.ShapeError, match="predict them one by one"):
        uq.predict(data)


def test_a_confident_network_cannot_argue_a_distance_away():
    """Logits grow without bound away from the data, and so does the confidence of the network."""
    x, y = drawn(900, 2), torch.arange(900) % 3
    x = x * 0.4 + torch.tensor([[0.0, 2.0], [2.0, -1.0], [-2.0, -1.0]])[y]
    net = built(lambda: nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3)))
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(100):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x[:600]), y[:600], label_smoothing=0.3).backward()
        optimiser.step()
    uq = sp.SplitPointClassifier(**QUICK).fit(net, (x[:600], y[:600]), progress=False)
    inside, outside = uq(x[600:]), uq(10 * x[600:])
    assert accuracy(inside.base_probs, y[600:]) > 0.98
    assert auroc(inside.epistemic, outside.epistemic) > 0.95


def test_few_separable_calibration_rows_do_not_ask_for_endless_confidence():
    net = built(lambda: nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 2)))
    x = drawn(200, 2)
    y = net(x).argmax(1)
    uq = sp.SplitPointClassifier(**QUICK).fit(net, (x, y), calibration=(x[:20], y[:20]), progress=False)
    assert float(uq.correction.factor) < 20
