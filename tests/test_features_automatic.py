"""The layer that is chosen where none is named."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import splitpoint as sp
from feature_models import Mixing, N, Net, fitted, keyword_only, mlp, resnet, rows, seen_by, with_head
from splitpoint.batches import Batch
from splitpoint.errors import LayerError
from splitpoint.features import open_tap


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


# The automatic choice


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


def in_passing(m, h, output):
    """Execute the auxiliary head after the output is made."""
    m.aux(h)
    return output


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


def entry(raw, key):
    raw = raw if key is None else raw[key]
    return raw if isinstance(raw, torch.Tensor) else raw["depth"] if isinstance(raw, dict) else raw.logits


@every_case
def test_the_input_of_the_layer_that_makes_the_output_is_chosen(case):
    build, shapes, key, chosen, direct, _ = case
    model = build().eval()
    args, kwargs = call_of(shapes, torch.Generator().manual_seed(2))
    tap, (output, features, *_) = open_tap(model, None, Batch(args, kwargs, None), key)
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
    output, features, *_ = tap(*args, **kwargs)
    with torch.no_grad():
        torch.testing.assert_close(output, entry(model(*args, **kwargs), key), rtol=0, atol=1e-6)
    torch.testing.assert_close(features[0], seen_by(model, chosen, args, kwargs), rtol=0, atol=1e-6)


@every_case
def test_every_architecture_is_fitted_in_one_pass_and_predicts_in_one(case):
    build, shapes, key, _, direct, target = case
    model = build()
    calls = []
    model.register_forward_hook(lambda *_: None if torch.is_grad_enabled() else calls.append(1))
    args, kwargs = call_of(shapes, torch.Generator().manual_seed(2))
    y = torch.randn(target, generator=torch.Generator().manual_seed(4))
    batch = {**kwargs, "labels": y} if kwargs else (*args, y)
    uq = fitted(model, [batch] * 3, output_key=key, positions=8)
    passes = len(calls) - 2  # without those of the fingerprint, which asks twice about made-up rows
    assert passes == 3 if direct else 3 < passes <= 3 + 8
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
    tap, (output, first, *_) = open_tap(model, None, Batch((a, b), {}, None), 0)
    assert torch.equal(output, model.fc(model.hidden(a)).detach())
    again = tap(a, b).features
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
