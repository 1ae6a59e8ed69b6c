"""Layers by name, module, list, method and callable, and what is said about wrong ones."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import splitpoint as sp
from feature_models import Encoder, N, Net, fitted, fragile, keyword_only, mlp, resnet, rows, seen_by, with_head
from splitpoint.batches import Batch
from splitpoint.errors import LayerError
from splitpoint.features import open_tap
from splitpoint.hooks import first_tensor


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


# layer=


def features_of(model, layer, *args):
    tap, (output, features, *_) = open_tap(model, layer, Batch(args, {}, None))
    return tap, output, features


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
    assert model.calls == 2 + 2  # the fingerprint asks twice about made-up rows
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
    assert model.calls == 1 + 2  # the fingerprint asks twice about made-up rows
    expected = torch.cat([x, x.square()], 1).mean(0)
    torch.testing.assert_close(uq.heads.center[0, 0], expected, rtol=1e-4, atol=1e-5)
    uq(x)
    assert model.calls == 4
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


@pytest.mark.parametrize("layer", [3, 0.5], ids=repr)
def test_a_layer_of_an_odd_kind_is_refused(layer):
    with pytest.raises(LayerError, match=rf"a list of them or a callable, but got {type(layer).__name__}\."):
        features_of(mlp(), layer, torch.randn(N, 4))


def test_the_first_floating_point_tensor_is_found_wherever_it_is():
    wanted = torch.ones(2)
    nested = (None, "text", [torch.arange(2), {"a": 3, "b": (wanted, torch.zeros(2))}])
    assert first_tensor(nested) is wanted
    assert first_tensor((torch.arange(2), True)) is None
