"""Features of a frozen model: the right layer, in one forward pass, and a base model that nobody can tell was used."""

import copy
import pickle
import threading
from types import MethodType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import splitpoint as sp
from splitpoint.batches import Batch
from splitpoint.errors import LayerError
from splitpoint.features import open_tap
from splitpoint.hooks import first_tensor, frozen

N = 6


class Net(nn.Module):
    """Layers by name, and a forward pass that is handed over as a function of (net, inputs)."""

    def __init__(self, run, **layers):
        super().__init__()
        self.run, self.calls = run, 0
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *args, **kwargs):
        self.calls += 1
        return self.run(self, *args, **kwargs)


class Encoder(nn.Module):
    """A model with a method of its own for the features, which can be pickled."""

    def __init__(self, width=8):
        super().__init__()
        self.hidden, self.fc, self.calls = nn.Linear(4, width), nn.Linear(width, 1), 0

    def encode(self, x):
        return self.hidden(x).relu()

    def forward(self, x):
        self.calls += 1
        return self.fc(self.encode(x))


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def regressor(**settings):
    return sp.SplitPointRegressor(**{"epochs": 2, "folds": 0} | settings)


def fitted(model, data, **settings):
    return regressor(**settings).fit(model, data, progress=False)


def mlp():
    return Net(lambda m, x: m.fc(m.hidden(x).relu()), hidden=nn.Linear(4, 8), fc=nn.Linear(8, 1))


def rows(count=24, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    return x, x.sum(1, keepdim=True) + torch.randn(count, 1, generator=generator)


def snapshot(model):
    """Everything of a model that fitting and predicting must leave alone."""
    state = dict(model.named_parameters()) | dict(model.named_buffers())
    return {
        "tensors": {name: (id(tensor), tensor.detach().clone()) for name, tensor in state.items()},
        "requires_grad": {name: tensor.requires_grad for name, tensor in state.items()},
        "grad": {name: None if t.grad is None else t.grad.clone() for name, t in model.named_parameters()},
        "training": {name: module.training for name, module in model.named_modules()},
        "attributes": {name: set(vars(module)) for name, module in model.named_modules()},
        "hooks": {
            (name, kind): list(found.items())
            for name, module in model.named_modules()
            for kind, found in vars(module).items()
            if "hooks" in kind
        },
    }


def assert_untouched(model, before):
    after = snapshot(model)
    for part in ("requires_grad", "training", "attributes", "hooks"):
        assert after[part] == before[part], part
    assert after["tensors"].keys() == before["tensors"].keys()
    for name, (identity, tensor) in before["tensors"].items():
        assert after["tensors"][name][0] == identity, name
        assert torch.equal(after["tensors"][name][1], tensor), name
    for name, grad in before["grad"].items():
        now = after["grad"][name]
        assert now is None if grad is None else torch.equal(now, grad), name


def same(one, other):
    """Whether two regression predictions agree in every number."""
    names = ("mean", "lowers", "uppers", "aleatoric", "epistemic", "total", "mar", "mar_up", "mar_down")
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in names)


# The base model is left alone


def fragile():
    """Dropout, batch norm, frozen parts, hooks, gradients and modes of every kind in one model."""

    def run(m, x):
        return m.fc(m.drop(m.norm(m.hidden(x)).relu()))

    model = Net(run, hidden=nn.Linear(4, 8), norm=nn.BatchNorm1d(8), drop=nn.Dropout(0.5), fc=nn.Linear(8, 1))
    model.register_buffer("unsaved", torch.ones(2), persistent=False)
    model.hidden.weight.requires_grad_(False)
    model.norm.register_forward_hook(lambda *_: None)
    model.drop.register_forward_pre_hook(lambda *_: None)
    model(torch.randn(16, 4)).sum().backward()
    return model


MODES = {
    "train": lambda model: model.train(),
    "eval": lambda model: model.eval(),
    "batch norm alone in eval": lambda model: model.train().norm.eval(),
    "dropout alone in train": lambda model: model.eval().drop.train(),
}
every_mode = pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())


@every_mode
def test_fitting_and_predicting_leave_the_base_model_bit_for_bit_as_it_was(mode):
    model = fragile()
    mode(model)
    before = snapshot(model)
    assert int(before["tensors"]["norm.num_batches_tracked"][1]) == 1
    x, y = rows()
    uq = fitted(model, (x, y))
    assert_untouched(model, before)
    uq(x)
    uq.predict((x, y))
    uq.set_threshold(x)
    assert_untouched(model, before)


@every_mode
def test_a_model_in_any_mode_is_run_in_eval_mode(mode):
    model = fragile()
    reference = copy.deepcopy(model).eval()
    mode(model)
    x, y = rows()
    uq = fitted(model, (x, y))
    out = uq(x)
    assert torch.equal(out.mean, reference(x).detach())
    assert same(out, fitted(reference, (x, y))(x))


@pytest.mark.parametrize("layer", [None, "hidden", "hidden:input", ["hidden", "fc:input"]], ids=str)
@pytest.mark.parametrize("place", ["norm", "fc"])
def test_a_model_that_fails_in_the_middle_of_its_forward_pass_is_left_as_it_was(layer, place):
    model = fragile().train()
    model.norm.eval()
    x, y = rows()
    uq = fitted(model, (x, y), layer=layer)

    def fail(*_):
        raise RuntimeError("out of order")

    model.get_submodule(place).register_forward_pre_hook(fail)
    before = snapshot(model)
    with pytest.raises(RuntimeError, match="out of order"):
        uq(x)
    assert_untouched(model, before)
    with pytest.raises(RuntimeError, match="out of order"):
        fitted(model, (x, y), layer=layer)
    assert_untouched(model, before)


def test_a_method_that_is_recorded_in_passing_is_put_back_when_the_model_fails():
    model = Encoder()
    x, y = rows()
    uq = fitted(model, (x, y), layer=model.encode)
    before = snapshot(model)
    with pytest.raises(RuntimeError):
        uq(torch.zeros(2, 5))
    assert_untouched(model, before)
    assert model.encode.__func__ is Encoder.encode


def test_a_method_that_the_user_has_replaced_on_the_model_survives():
    def encode(self, x):
        return self.hidden(x).tanh()

    model = Encoder()
    model.encode = MethodType(encode, model)
    replaced, before = model.encode, snapshot(model)
    x, y = rows()
    uq = fitted(model, (x, y), layer=model.encode)
    assert_untouched(model, before)
    assert model.encode is replaced
    assert torch.equal(uq(x).mean, model.fc(model.hidden(x).tanh()).detach())
    assert model.encode is replaced


def unsettled(layer):
    """The layer with spectral normalisation, whose power iteration moves two buffers when read in train mode."""
    normed = parametrizations.spectral_norm(layer)
    power = normed.parametrizations.weight[0]
    power._u.copy_(F.normalize(torch.randn(len(power._u)), dim=0))
    return normed


def test_spectral_normalisation_in_train_mode_takes_no_step():
    model = Net(lambda m, x: m.fc(m.hidden(x).relu()), hidden=unsettled(nn.Linear(4, 8)), fc=nn.Linear(8, 1))
    model.train()
    before = snapshot(model)
    x, y = rows()
    fitted(model, (x, y))(x)
    sp.layers(model, x)
    assert_untouched(model, before)


class Mixing(nn.Module):
    """A layer of one's own with a weight matrix."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4))

    def forward(self, x):
        return x @ self.weight.T


def test_spectral_normalisation_of_a_layer_of_ones_own_takes_no_step():
    model = Net(lambda m, x: m.fc(m.hidden(x)), hidden=unsettled(Mixing()), fc=nn.Linear(8, 1))
    model.train()
    before = snapshot(model)
    x, y = rows()
    fitted(model, (x, y))(x)
    assert_untouched(model, before)


def test_frozen_gives_every_module_its_mode_back_and_switches_gradients_off():
    model = fragile().train()
    model.norm.eval()
    before = snapshot(model)
    with frozen(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    assert_untouched(model, before)


def test_no_gradient_flows_out_of_a_prediction():
    model = mlp()
    x, y = rows()
    out = fitted(model, (x, y))(x.clone().requires_grad_())
    assert not any(value.requires_grad for value in vars(out).values() if isinstance(value, torch.Tensor))


# The automatic choice


def resnet():
    def run(m, x):
        x = F.relu(m.norm(m.stem(x)))
        x = F.relu(x + m.second(F.relu(m.first(x))))
        return m.fc(m.pool(x).flatten(1))

    return Net(
        run,
        stem=nn.Conv2d(3, 4, 3, padding=1),
        norm=nn.BatchNorm2d(4),
        first=nn.Conv2d(4, 4, 3, padding=1),
        second=nn.Conv2d(4, 4, 3, padding=1),
        pool=nn.AdaptiveAvgPool2d(1),
        fc=nn.Linear(4, 2),
    )


def unet():
    def run(m, x):
        fine = m.down(x).relu()
        coarse = m.bottom(F.max_pool2d(fine, 2)).relu()
        return m.out(torch.cat([fine, F.interpolate(coarse, scale_factor=2.0)], 1))

    return Net(run, down=nn.Conv2d(3, 4, 3, padding=1), bottom=nn.Conv2d(4, 6, 3, padding=1), out=nn.Conv2d(10, 1, 1))


def transformer(head, run):
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    return Net(run, encoder=nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), fc=head, aux=nn.Linear(4, 1))


def tied():
    model = Net(lambda m, x: m.decoder(m.embed(x).tanh()), embed=nn.Embedding(5, 4), decoder=nn.Linear(4, 5))
    model.decoder.weight = model.embed.weight
    return model


def with_head(run, **more):
    return Net(run, hidden=nn.Linear(4, 8), fc=nn.Linear(8, 1), aux=nn.Linear(8, 1), **more)


def in_passing(m, h, output):
    """Execute the auxiliary head after the output is made."""
    m.aux(h)
    return output


def keyword_only(m, *, x, scale):
    return m.fc(m.hidden(x).relu() * scale)


VECTOR, IMAGE, SEQUENCE = (N, 4), (N, 3, 8, 8), (N, 5, 4)
CASES = {
    # name: (model, shapes of the inputs, output_key, chosen, whether its output is the model's, target shape)
    "MLP": (mlp, VECTOR, None, "fc", True, (N, 1)),
    "one layer": (lambda: nn.Sequential(nn.Linear(4, 1)), VECTOR, None, "0", True, (N, 1)),
    "CNN": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)),
        IMAGE,
        None,
        "3",
        True,
        (N, 2),
    ),
    "ResNet": (resnet, IMAGE, None, "fc", True, (N, 2)),
    "U-Net": (unet, IMAGE, None, "out", True, (N, 1, 8, 8)),
    "Conv1d": (
        lambda: nn.Sequential(nn.Conv1d(5, 6, 1), nn.Tanh(), nn.Conv1d(6, 2, 1)),
        SEQUENCE,
        None,
        "2",
        True,
        (N, 2, 4),
    ),
    "Conv3d": (
        lambda: nn.Sequential(nn.Conv3d(1, 3, 1), nn.Tanh(), nn.Conv3d(3, 1, 1)),
        (N, 1, 2, 3, 4),
        None,
        "2",
        True,
        (N, 1, 2, 3, 4),
    ),
    "transposed convolution": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 2, 2), nn.ReLU(), nn.ConvTranspose2d(4, 1, 2, 2)),
        IMAGE,
        None,
        "2",
        True,
        (N, 1, 8, 8),
    ),
    "LSTM for every token": (
        lambda: Net(lambda m, x: m.fc(m.lstm(x)[0]), lstm=nn.LSTM(4, 6, batch_first=True), fc=nn.Linear(6, 2)),
        SEQUENCE,
        None,
        "fc",
        True,
        (N, 5, 2),
    ),
    "LSTM, last state": (
        lambda: Net(lambda m, x: m.fc(m.lstm(x)[0][:, -1]), lstm=nn.LSTM(4, 6, batch_first=True), fc=nn.Linear(6, 2)),
        SEQUENCE,
        None,
        "fc",
        True,
        (N, 2),
    ),
    "transformer for every token": (
        lambda: transformer(nn.Linear(4, 2), lambda m, x: m.fc(m.encoder(x))),
        SEQUENCE,
        None,
        "fc",
        True,
        (N, 5, 2),
    ),
    "transformer, pooled": (
        lambda: transformer(nn.Linear(4, 2), lambda m, x: m.fc(m.encoder(x).mean(1))),
        SEQUENCE,
        None,
        "fc",
        True,
        (N, 2),
    ),
    "transformer with an idle auxiliary head": (
        lambda: transformer(
            nn.Linear(4, 1), lambda m, x: in_passing(m, h := m.encoder(x).mean(1), m.fc(h).sigmoid().squeeze(1))
        ),
        SEQUENCE,
        None,
        "fc",
        False,
        (N,),
    ),
    "auxiliary head last": (
        lambda: with_head(lambda m, x: in_passing(m, h := m.hidden(x).relu(), m.fc(h))),
        VECTOR,
        None,
        "fc",
        True,
        (N, 1),
    ),
    "auxiliary head last, sigmoid": (
        lambda: with_head(lambda m, x: in_passing(m, h := m.hidden(x).relu(), m.fc(h).sigmoid())),
        VECTOR,
        None,
        "fc",
        False,
        (N, 1),
    ),
    "sigmoid": (lambda: nn.Sequential(nn.Linear(4, 1), nn.Sigmoid()), VECTOR, None, "0", False, (N, 1)),
    "scaled": (lambda: with_head(lambda m, x: 100 * m.fc(m.hidden(x)) + 3), VECTOR, None, "fc", False, (N, 1)),
    "squeezed": (lambda: with_head(lambda m, x: m.fc(m.hidden(x)).squeeze(1)), VECTOR, None, "fc", True, (N,)),
    "residual on the input": (
        lambda: with_head(lambda m, x: x[:, :1] + m.fc(m.hidden(x).relu())),
        VECTOR,
        None,
        "fc",
        False,
        (N, 1),
    ),
    "tied to an embedding": (tied, torch.arange(N * 5).reshape(N, 5) % 5, None, "decoder", True, (N, 5, 5)),
    "a layer used twice": (
        lambda: Net(lambda m, x: m.fc(m.twice(m.twice(x)).relu()), twice=nn.Linear(4, 4), fc=nn.Linear(4, 1)),
        VECTOR,
        None,
        "fc",
        True,
        (N, 1),
    ),
    "two inputs": (
        lambda: Net(lambda m, a, b: m.fc(torch.cat([a, b], 1)), fc=nn.Linear(8, 1)),
        (VECTOR, VECTOR),
        None,
        "fc",
        True,
        (N, 1),
    ),
    "keyword only": (lambda: with_head(keyword_only), {"x": VECTOR, "scale": (N, 1)}, None, "fc", True, (N, 1)),
    "dict": (lambda: with_head(lambda m, x: {"depth": m.fc(m.hidden(x))}), VECTOR, None, "fc", True, (N, 1)),
    "dict of several": (
        lambda: with_head(lambda m, x: {"depth": m.fc(h := m.hidden(x)), "other": m.aux(h)}),
        VECTOR,
        "depth",
        "fc",
        True,
        (N, 1),
    ),
    "object with logits": (
        lambda: with_head(lambda m, x: SimpleNamespace(logits=m.fc(m.hidden(x)))),
        VECTOR,
        None,
        "fc",
        True,
        (N, 1),
    ),
    "tuple": (
        lambda: with_head(lambda m, x: (m.fc(h := m.hidden(x)), m.aux(h))),
        VECTOR,
        0,
        "fc",
        True,
        (N, 1),
    ),
    "in-place activation": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1)),
        VECTOR,
        None,
        "2",
        True,
        (N, 1),
    ),
    "a layer of one's own": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), Mixing()),
        VECTOR,
        None,
        "2",
        True,
        (N, 8),
    ),
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def call_of(shapes, generator):
    """Arguments of one call of the model: positional and keyword."""
    if isinstance(shapes, torch.Tensor):
        return (shapes,), {}
    if isinstance(shapes, dict):
        return (), {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    if isinstance(shapes[0], tuple):
        return tuple(torch.randn(shape, generator=generator) for shape in shapes), {}
    return (torch.randn(shapes, generator=generator),), {}


def seen_by(model, name, args, kwargs):
    """What plain torch says goes into a layer."""
    found = []
    handle = model.get_submodule(name).register_forward_pre_hook(lambda _, given: found.append(given[0].clone()))
    with torch.no_grad():
        model(*args, **kwargs)
    handle.remove()
    return found[-1]


def entry(raw, key):
    raw = raw if key is None else raw[key]
    return raw if isinstance(raw, torch.Tensor) else raw["depth"] if isinstance(raw, dict) else raw.logits


@every_case
def test_the_input_of_the_layer_that_makes_the_output_is_chosen(case):
    build, shapes, key, chosen, direct, _ = case
    model = build().eval()
    args, kwargs = call_of(shapes, torch.Generator().manual_seed(2))
    tap, output, features = open_tap(model, None, Batch(args, kwargs, None), key)
    assert tap.names == (f"{chosen}:input",)
    assert ("its output is the model's output" in tap.reason) == direct
    with torch.no_grad():
        torch.testing.assert_close(output, entry(model(*args, **kwargs), key), rtol=0, atol=1e-6)
    torch.testing.assert_close(features[0], seen_by(model, chosen, args, kwargs), rtol=0, atol=1e-6)


@every_case
def test_features_of_later_batches_are_read_at_the_same_place(case):
    build, shapes, key, chosen, *_ = case
    model = build().eval()
    args, kwargs = call_of(shapes, torch.Generator().manual_seed(2))
    tap, *_ = open_tap(model, None, Batch(args, kwargs, None), key)
    args, kwargs = call_of(shapes, torch.Generator().manual_seed(3))
    output, features = tap(*args, **kwargs)
    with torch.no_grad():
        torch.testing.assert_close(output, entry(model(*args, **kwargs), key), rtol=0, atol=1e-6)
    torch.testing.assert_close(features[0], seen_by(model, chosen, args, kwargs), rtol=0, atol=1e-6)


@every_case
def test_every_architecture_is_fitted_in_one_pass_and_predicts_in_one(case):
    build, shapes, key, _, direct, target = case
    model = build()
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    args, kwargs = call_of(shapes, torch.Generator().manual_seed(2))
    y = torch.randn(target, generator=torch.Generator().manual_seed(4))
    batch = {**kwargs, "labels": y} if kwargs else (*args, y)
    uq = fitted(model, [batch] * 3, output_key=key, positions=8)
    assert len(calls) == 3 if direct else 3 < len(calls) <= 3 + 8
    calls.clear()
    out = uq(*args, **kwargs)
    assert len(calls) == 1
    assert out.mean.shape == target
    with torch.no_grad():
        expected = entry(model.eval()(*args, **kwargs), key)
    torch.testing.assert_close(out.mean, expected, rtol=0, atol=1e-6)
    for name in ("lower", "upper", "aleatoric", "epistemic", "total"):
        assert getattr(out, name).shape == target
        assert torch.isfinite(getattr(out, name)).all(), name
    assert (out.lower < out.mean).all()
    assert (out.mean < out.upper).all()


def test_features_of_a_shared_layer_are_those_of_the_call_that_makes_the_output():
    """With output_key=0 the first of two calls counts, in the first batch and in all that follow."""

    def run(m, a, b):
        return m.fc(m.hidden(a)), m.fc(m.hidden(b))

    model = Net(run, hidden=nn.Linear(4, 8), fc=nn.Linear(8, 1))
    a, b = torch.randn(N, 4), torch.randn(N, 4)
    tap, output, first = open_tap(model, None, Batch((a, b), {}, None), 0)
    assert torch.equal(output, model.fc(model.hidden(a)).detach())
    _, again = tap(a, b)
    assert torch.equal(again[0], first[0])
    assert torch.equal(again[0], model.hidden(a).detach())


def test_many_idle_heads_after_the_output_are_never_chosen():
    def run(m, x):
        output = m.fc(m.hidden(x))
        for head in m.idle:
            head(x)
        return output

    idle = nn.ModuleList([nn.Linear(4, 1) for _ in range(12)])
    model = Net(run, hidden=nn.Linear(4, 8), fc=nn.Linear(8, 1), idle=idle)
    try:
        tap, *_ = open_tap(model, None, Batch((torch.randn(N, 4),), {}, None))
    except LayerError as error:
        assert "name a layer with layer=" in str(error)  # noqa: PT017
    else:
        assert tap.names == ("fc:input",)


def test_a_model_without_linear_or_convolution_layers_is_told_to_name_one():
    model = Net(lambda m, x: m.act(x), act=nn.Tanh())
    with pytest.raises(LayerError, match=r"Expected a Linear or Conv layer that produces .* 6 rows; name a layer with"):
        open_tap(model, None, Batch((torch.randn(N, 4),), {}, None))


def test_an_idle_layer_alone_is_not_chosen():
    model = Net(lambda m, x: x.tanh() if m.idle(x) is not None else x, idle=nn.Linear(4, 4))
    with pytest.raises(LayerError, match="name a layer with layer="):
        open_tap(model, None, Batch((torch.randn(N, 4),), {}, None))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_models_of_any_precision_are_fitted_with_heads_in_float32(dtype):
    model = mlp().to(dtype)
    x, y = rows()
    uq = fitted(model, (x.to(dtype), y), confidence_level=(0.5, 0.9))
    assert {p.dtype for p in uq.heads.parameters()} == {torch.float32}
    out = uq(x.to(dtype))
    assert out.mean.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(out.mean.to(dtype), model(x.to(dtype)).detach())
    assert all(torch.isfinite(v).all() for v in vars(out).values() if isinstance(v, torch.Tensor))
    assert (out.lower < out.upper).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("output", ["logits", "probs"])
def test_classifiers_of_any_precision_are_fitted(dtype, output):
    """Probabilities rounded to eight bits need not sum to one within a thousandth."""
    torch.manual_seed(1)
    head = [nn.Softmax(1)] if output == "probs" else []
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 10), *head).to(dtype)
    x = 5 * torch.randn(200, 4)
    labels = torch.arange(200) % 10
    clf = sp.SplitPointClassifier(epochs=2, output=output).fit(model, (x.to(dtype), labels), progress=False)
    out = clf(x.to(dtype))
    torch.testing.assert_close(out.probs.sum(1).float(), torch.ones(200), rtol=0, atol=1e-5)
    assert torch.isfinite(out.epistemic).all()


# layer=


def features_of(model, layer, *args):
    return open_tap(model, layer, Batch(args, {}, None))


def test_a_name_reads_the_output_of_a_layer_and_with_input_what_goes_in():
    model, (x, _) = mlp(), rows()
    assert torch.equal(features_of(model, "hidden", x)[2][0], model.hidden(x).detach())
    assert torch.equal(features_of(model, "hidden:input", x)[2][0], x)
    assert torch.equal(features_of(model, "fc:input", x)[2][0], model.hidden(x).relu().detach())


def test_a_module_stands_for_its_name():
    model, (x, _) = mlp(), rows()
    tap, _, features = features_of(model, model.hidden, x)
    assert tap.names == ("hidden",)
    assert torch.equal(features[0], model.hidden(x).detach())


def test_several_layers_are_joined_with_their_maps_pooled():
    model = resnet().eval()
    x, y = torch.randn(12, 3, 8, 8), torch.randn(12, 2)
    uq = fitted(model, (x, y), layer=["stem", model.fc, "fc:input"])
    assert uq.layer == "stem + fc + fc:input"
    assert uq.heads.center.shape[-1] == 4 + 2 + 4
    with torch.no_grad():
        expected = torch.cat([model.stem(x).mean((2, 3)), model(x), seen_by(model, "fc", (x,), {})], 1)
    torch.testing.assert_close(uq.heads.center[0, 0], expected.mean(0), rtol=1e-4, atol=1e-5)
    assert torch.isfinite(uq(x).epistemic).all()


def test_the_layer_changes_what_the_heads_see():
    model, (x, y) = mlp(), rows()
    assert fitted(model, (x, y), layer="hidden:input").heads.center.shape[-1] == 4
    assert fitted(model, (x, y), layer="hidden").heads.center.shape[-1] == 8
    assert fitted(model, (x, y), layer=["hidden", "hidden:input"]).heads.center.shape[-1] == 12


def test_a_layer_followed_by_an_in_place_activation_gives_its_own_output():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    x, _ = rows()
    features = features_of(model, "0", x)[2][0]
    assert torch.equal(features, F.linear(x, model[0].weight, model[0].bias).detach())


def test_a_method_of_the_model_is_recorded_in_passing():
    model, (x, y) = Encoder(), rows()
    uq = fitted(model, [(x, y), (x, y)], layer=model.encode)
    assert model.calls == 2
    assert uq.heads.center.shape[-1] == 8
    torch.testing.assert_close(uq.heads.center[0, 0], model.encode(x).detach().mean(0), rtol=1e-4, atol=1e-5)
    model.calls = 0
    uq(x)
    assert model.calls == 1


def test_a_method_of_a_part_of_the_model_is_recorded_in_passing():
    model = nn.Sequential(Encoder(), nn.Tanh())
    x, _ = rows()
    tap, _, features = features_of(model, model[0].encode, x)
    assert model[0].calls == 1
    assert torch.equal(features[0], model[0].encode(x).detach())
    assert tap.names == ("0.encode()",)


def test_a_recorded_method_serves_calibration_data_too():
    model, (x, y) = Encoder(), rows(200)
    method = sp.SplitPointRegressor(0.5, epochs=2, folds=0, layer=model.encode)
    uq = method.fit(model, (x, y), calibration=rows(100, seed=3), progress=False)
    assert uq.method.interval == "conformal"
    assert torch.isfinite(uq(x).upper).all()


def test_a_callable_computes_features_from_the_inputs():
    model, (x, y) = mlp(), rows()
    uq = fitted(model, (x, y), layer=lambda inputs: torch.cat([inputs, inputs.square()], 1))
    assert model.calls == 1
    expected = torch.cat([x, x.square()], 1).mean(0)
    torch.testing.assert_close(uq.heads.center[0, 0], expected, rtol=1e-4, atol=1e-5)
    uq(x)
    assert model.calls == 2
    assert "<lambda>" in uq.layer


def test_a_callable_may_run_a_part_of_a_model_in_train_mode_which_is_still_in_eval_mode():
    model = fragile().train()
    x, _ = rows()
    part = copy.deepcopy(nn.Sequential(model.hidden, model.norm)).eval()
    features = features_of(model, lambda inputs: model.norm(model.hidden(inputs)), x)[2][0]
    assert torch.equal(features, part(x).detach())


def test_a_callable_takes_keyword_arguments_like_the_model():
    model = with_head(keyword_only)
    data = {"x": torch.randn(N, 4), "scale": torch.ones(N, 1), "labels": torch.randn(N, 1)}
    uq = fitted(model, data, layer=lambda x, scale: x * scale)
    assert uq.heads.center.shape[-1] == 4
    assert torch.isfinite(uq(x=data["x"], scale=data["scale"]).epistemic).all()


# Wrong layers


def test_an_unknown_name_suggests_close_ones():
    model, (x, _) = mlp(), rows()
    with pytest.raises(LayerError, match=r"none called 'hiden'; did you mean \['hidden'\]\? sp\.layers\(model, x\)"):
        features_of(model, "hiden", x)
    with pytest.raises(LayerError, match=r"none called 'hiden'"):
        features_of(model, "hiden:input", x)
    with pytest.raises(LayerError, match=r"none called 'zzz'; did you mean \['hidden', 'fc'\]\?"):
        features_of(model, ["hidden", "zzz"], x)


def test_a_module_of_another_model_is_refused():
    model, (x, _) = mlp(), rows()
    with pytest.raises(LayerError, match="Expected a module of the model, but this Linear is not part of it"):
        features_of(model, mlp().hidden, x)


def test_a_layer_that_does_not_run_is_refused():
    model, (x, y) = with_head(lambda m, x: m.fc(m.hidden(x))), rows()
    with pytest.raises(
        LayerError, match=r"Expected layer 'aux' to run .* but it did not; sp\.layers\(model, x\) lists"
    ):
        fitted(model, (x, y), layer="aux")


def test_a_method_that_does_not_run_is_refused():
    model, (x, y) = Encoder(), rows()
    with pytest.raises(LayerError, match="to run and give a floating-point tensor, but it did not"):
        fitted(model, (x, y), layer=model.half)


@pytest.mark.parametrize(
    ("reshape", "shape"),
    [(lambda x: x.reshape(-1, 2), "(12, 2)"), (lambda x: x.sum(1), "(6,)"), (lambda x: x[:-1], "(5, 4)")],
    ids=["more rows", "no channels", "fewer rows"],
)
def test_features_with_other_rows_are_refused_with_their_shape(reshape, shape):
    model = Net(lambda m, x: m.fc(x) + m.other(reshape(x)).sum(), fc=nn.Linear(4, 1), other=nn.Identity())
    expected = rf"with the output's 6 rows from layer 'other', but got {shape};".replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(LayerError, match=expected):
        features_of(model, "other", torch.randn(N, 4))


class Silent(nn.Module):
    """A module whose answer is no tensor of floats."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def forward(self, x):
        return self.answer


@pytest.mark.parametrize("answer", [None, "text", 3, torch.arange(N), (), {}], ids=repr)
def test_a_layer_that_gives_no_tensor_of_floats_is_refused(answer):
    model = Net(lambda m, x: (m.silent(x), m.fc(x))[1], fc=nn.Linear(4, 1), silent=Silent(answer))
    with pytest.raises(LayerError, match="Expected layer 'silent' to run and give a floating-point tensor"):
        features_of(model, "silent", torch.randn(N, 4))


def test_a_callable_that_gives_no_tensor_is_refused_by_name():
    def nothing(x):
        return None

    with pytest.raises(LayerError, match="nothing' to run and give a floating-point tensor"):
        features_of(mlp(), nothing, torch.randn(N, 4))


def test_an_empty_list_of_layers_is_refused():
    with pytest.raises(LayerError, match="Expected at least one layer, but got an empty list; leave layer=None"):
        features_of(mlp(), [], torch.randn(N, 4))


@pytest.mark.parametrize("layer", [3, 0.5, {"hidden": 1}], ids=repr)
def test_a_layer_of_an_odd_kind_is_refused(layer):
    with pytest.raises(LayerError, match=rf"a list of them or a callable, but got {type(layer).__name__}\."):
        features_of(mlp(), layer, torch.randn(N, 4))


def test_the_first_floating_point_tensor_is_found_wherever_it_is():
    wanted = torch.ones(2)
    nested = (None, "text", [torch.arange(2), {"a": 3, "b": (wanted, torch.zeros(2))}])
    assert first_tensor(nested) is wanted
    assert first_tensor((torch.arange(2), True)) is None


# Copies and threads


@pytest.mark.parametrize("layer", [None, "hidden", ["hidden", "fc:input"], "method"], ids=str)
@pytest.mark.parametrize(
    "duplicate", [copy.deepcopy, lambda uq: pickle.loads(pickle.dumps(uq))], ids=["copy", "pickle"]
)
def test_a_copy_answers_with_the_features_of_the_new_input(layer, duplicate):
    model = Encoder()
    (x, y), (new, _) = rows(), rows(seed=9)
    uq = fitted(model, (x, y), layer=model.encode if layer == "method" else layer)
    old, expected = uq(x), uq(new)
    other = duplicate(uq)
    assert not same(old, expected)
    assert same(other(new), expected)
    assert same(other(x), old)
    assert same(uq(new), expected)


@pytest.mark.parametrize("layer", [None, "method"], ids=str)
def test_a_copy_has_a_base_model_of_its_own(layer):
    model, (x, y) = Encoder(), rows()
    uq = fitted(model, (x, y), layer=model.encode if layer == "method" else layer)
    expected = uq(x)
    other = copy.deepcopy(uq)
    with torch.no_grad():
        model.hidden.weight.zero_()
    assert same(other(x), expected)
    assert not same(uq(x), expected)


def in_threads(*jobs):
    """Run the jobs at the same time; their results in order, and the first error raised here."""
    results, errors = [None] * len(jobs), []

    def run(number, job):
        try:
            results[number] = job()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
    return results


class Meeting(Encoder):
    """An encoder in which two threads wait for each other in the middle of the forward pass."""

    meeting = None

    def encode(self, x):
        hidden = super().encode(x)
        if self.meeting is not None:
            self.meeting.wait()
        return hidden


@pytest.mark.parametrize("layer", [None, "hidden", "method"], ids=str)
def test_two_threads_at_once_get_their_own_answers(layer):
    model = Meeting()
    (x, y), (new, _) = rows(), rows(seed=9)
    uq = fitted(model, (x, y), layer=model.encode if layer == "method" else layer)
    before, expected = snapshot(model), (uq(x), uq(new))
    model.meeting = threading.Barrier(2, timeout=10)
    for _ in range(5):
        one, other = in_threads(lambda: uq(x), lambda: uq(new))
        assert same(one, expected[0])
        assert same(other, expected[1])
    del model.meeting
    assert_untouched(model, before)


def test_a_thread_that_ends_first_does_not_switch_the_other_to_train_mode():
    """The slow thread reaches the dropout after the fast one has given the model its train mode back."""
    inside, finished = threading.Event(), threading.Event()

    def run(m, x):
        h = m.hidden(x)
        if threading.current_thread().name == "slow":
            inside.set()
            assert finished.wait(10)
        return m.fc(m.drop(h))

    model = Net(run, hidden=nn.Linear(4, 8), drop=nn.Dropout(0.9), fc=nn.Linear(8, 1)).train()
    x, y = rows()
    uq = fitted(model, (x, y))
    expected, got = uq(x), []

    def fast_and_slow():
        slow = threading.Thread(target=lambda: got.append(uq(x)), name="slow")

        def start(*_):
            if threading.current_thread().name != "slow" and not inside.is_set():
                slow.start()
                assert inside.wait(10)

        handle = model.hidden.register_forward_hook(start)  # so that the slow thread starts inside the fast one's call
        uq(x)
        handle.remove()
        finished.set()
        slow.join(20)

    fast_and_slow()
    assert same(got[0], expected)
    assert all(module.training for module in model.modules())


def test_a_hook_of_the_users_that_takes_its_time_does_no_harm_to_the_other_thread():
    """The recorder of one thread is still in the other one's list of hooks after it has been removed."""
    waiting, finished = threading.Event(), threading.Event()
    model, (x, y) = mlp(), rows()

    def linger(*_):
        if threading.current_thread().name == "slow":
            waiting.set()
            assert finished.wait(10)

    model.fc.register_forward_hook(linger)
    uq = fitted(model, (x, y))
    expected, got = uq(x), []
    slow = threading.Thread(target=lambda: got.append(uq(x)), name="slow")

    def start(*_):
        if threading.current_thread().name != "slow" and not waiting.is_set():
            slow.start()
            assert waiting.wait(10)

    model.hidden.register_forward_hook(start)
    errors = []
    threading.excepthook, hook = (lambda args: errors.append(args.exc_value)), threading.excepthook
    try:
        uq(x)
        finished.set()
        slow.join(20)
    finally:
        threading.excepthook = hook
    assert errors == []
    assert same(got[0], expected)
