"""`sp.layers`: which layers run, what they give, which one is chosen, and how that is printed."""

import pytest
import torch
from torch import nn

import splitpoint as sp


class Net(nn.Module):
    """Shared, idle and nested layers."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.twice = nn.Conv2d(4, 4, 1, bias=False)
        self.idle = nn.Linear(7, 7)
        self.fc = nn.Linear(4, 2)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        maps = self.twice(self.twice(self.stem(x)))
        return self.fc(maps.mean((2, 3)))


X = torch.zeros(5, 3, 6, 6)


def by_name(table):
    return {row.name: row for row in table}


def test_rows_are_the_modules_that_ran_in_the_order_they_finished():
    table = sp.layers(Net(), X)
    assert [row.name for row in table] == ["stem.0", "stem.1", "stem.2", "stem", "twice", "fc"]
    assert len(table) == 6
    assert [row.kind for row in table] == ["Conv2d", "BatchNorm2d", "ReLU", "Sequential", "Conv2d", "Linear"]


def test_rows_tell_shapes_own_parameters_and_calls():
    rows = by_name(sp.layers(Net(), X))
    assert (rows["stem.0"].input_shape, rows["stem.0"].output_shape) == ((5, 3, 6, 6), (5, 4, 6, 6))
    assert (rows["fc"].input_shape, rows["fc"].output_shape) == ((5, 4), (5, 2))
    assert {name: row.parameters for name, row in rows.items()} == {
        "stem.0": 3 * 4 * 9 + 4,
        "stem.1": 8,
        "stem.2": 0,
        "stem": 0,
        "twice": 16,
        "fc": 10,
    }
    assert {name: row.calls for name, row in rows.items() if row.calls != 1} == {"twice": 2}


def test_the_choice_is_that_of_fit_and_marked_in_one_row():
    table = sp.layers(Net(), X)
    assert table.chosen == "fc:input"
    assert [row.name for row in table if row.chosen] == ["fc"]
    assert table.reason == "its output is the model's output, (5, 2)"
    data = (torch.randn(8, 3, 6, 6), torch.randn(8, 2))
    uq = sp.SplitPointRegressor(epochs=1, folds=0).fit(Net(), data, progress=False)
    assert uq.layer == table.chosen


def test_the_printed_form_is_an_aligned_table_and_a_verdict():
    model = nn.Sequential(nn.Linear(1000, 3), nn.Tanh(), nn.Linear(3, 1), nn.Sigmoid())
    text = (
        "layer  kind     input   output  parameters  calls\n"
        "0      Linear   2x1000  2x3          3,003      1\n"
        "1      Tanh     2x3     2x3              0      1\n"
        "2      Linear   2x3     2x1              4      1  <- its input is chosen\n"
        "3      Sigmoid  2x1     2x1              0      1\n"
        "layer=None reads 2:input: the last layer that the model's output depends on"
    )
    table = sp.layers(model, torch.randn(2, 1000))
    assert str(table) == text
    assert repr(table) == text


def test_every_listed_layer_can_be_named_and_gives_the_listed_shape():
    model = Net()
    for row in sp.layers(model, X):
        for name, shape in ((row.name, row.output_shape), (f"{row.name}:input", row.input_shape)):
            method = sp.SplitPointRegressor(epochs=1, folds=0, layer=name)
            uq = method.fit(model, (torch.randn(8, 3, 6, 6), torch.randn(8, 2)), progress=False)
            assert uq.heads.center.shape[-1] == shape[1], name


def test_a_layer_called_with_several_shapes_is_listed_with_the_one_that_layer_reads():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.act, self.fc = nn.Tanh(), nn.Linear(4, 3)

        def forward(self, x):
            return self.act(self.fc(self.act(x)))

    model, x = Twice(), torch.randn(8, 4)
    row = by_name(sp.layers(model, x))["act"]
    assert (row.output_shape, row.calls) == ((8, 3), 2)
    uq = sp.SplitPointRegressor(epochs=1, folds=0, layer="act").fit(model, (x, torch.randn(8, 3)), progress=False)
    assert uq.heads.center.shape[-1] == 3


def test_modules_that_take_or_give_no_tensor_have_no_shape():
    class Silent(nn.Module):
        def forward(self, x, flag=None):
            return "text"

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.silent, self.fc = Silent(), nn.Linear(4, 1)

        def forward(self, x):
            self.silent(3)
            return self.fc(x)

    table = sp.layers(Outer(), torch.zeros(2, 4))
    row = by_name(table)["silent"]
    assert (row.input_shape, row.output_shape) == (None, None)
    assert str(table).splitlines()[1].split() == ["silent", "Silent", "-", "-", "0", "1"]


def test_a_model_without_a_fitting_layer_is_listed_with_the_reason():
    table = sp.layers(nn.Sequential(nn.Tanh()), torch.zeros(2, 4))
    assert table.chosen is None
    assert [row.name for row in table] == ["0"]
    assert not any(row.chosen for row in table)
    assert str(table).splitlines()[-1] == table.reason
    assert "name a layer with layer=" in table.reason


def test_a_model_with_several_outputs_is_still_listed():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 1), nn.Linear(4, 2)

        def forward(self, x):
            return self.a(x), self.b(x)

    table = sp.layers(Pair(), torch.zeros(2, 4))
    assert [row.name for row in table] == ["a", "b"]
    assert table.chosen is None
    assert "output_key=" in table.reason


def test_the_models_own_arguments_are_taken_positional_and_keyword():
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 1)

        def forward(self, a, *, scale):
            return self.fc(input=a * scale)

    table = sp.layers(Keywords(), torch.ones(3, 4), scale=2.0)
    assert table.chosen == "fc:input"
    assert by_name(table)["fc"].input_shape == (3, 4)


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(fails):
    model = Net().train()
    model.stem[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    if fails:
        with pytest.raises(RuntimeError):
            sp.layers(model, torch.zeros(2, 9))
    else:
        sp.layers(model, torch.randn(5, 3, 6, 6))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
