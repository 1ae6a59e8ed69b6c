"""Small models and comparisons that the tests of features share."""

import torch
from torch import nn
from torch.nn import functional as F

import splitpoint as sp

N = 6


class Net(nn.Module):
    """Layers by name, and a forward pass that is handed over as a function of (net, inputs)."""

    def __init__(self, run, **layers):
        super().__init__()
        self.run, self.calls = run, 0
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *args, **kwargs):
        self.calls += not torch.is_grad_enabled()
        return self.run(self, *args, **kwargs)


class Encoder(nn.Module):
    """A model with a method of its own for the features, which can be pickled."""

    def __init__(self, width=8):
        super().__init__()
        self.hidden, self.fc, self.calls = nn.Linear(4, width), nn.Linear(width, 1), 0

    def encode(self, x):
        return self.hidden(x).relu()

    def forward(self, x):
        self.calls += not torch.is_grad_enabled()
        return self.fc(self.encode(x))


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


class Mixing(nn.Module):
    """A layer of one's own with a weight matrix."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4))

    def forward(self, x):
        return x @ self.weight.T


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


def seen_by(model, name, args, kwargs):
    """What plain torch says goes into a layer."""
    found = []
    handle = model.get_submodule(name).register_forward_pre_hook(lambda _, given: found.append(given[0].clone()))
    with torch.no_grad():
        model(*args, **kwargs)
    handle.remove()
    return found[-1]


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


def with_head(run, **more):
    return Net(run, hidden=nn.Linear(4, 8), fc=nn.Linear(8, 1), aux=nn.Linear(8, 1), **more)


def keyword_only(m, *, x, scale):
    return m.fc(m.hidden(x).relu() * scale)
