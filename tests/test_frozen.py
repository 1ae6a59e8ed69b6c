"""Frozen views: they answer as the model does in eval mode, follow its changes, and leave it alone."""

import collections
import copy
import functools
import os
import signal
import sys
import threading
import time
import types
import weakref

import pytest
import torch
from torch import nn

import splitpoint as sp
from problems import each, fitted, problem, tensors
from splitpoint.errors import LayerError
from splitpoint.frozen import FrozenView, frozen, frozen_view
from splitpoint.hooks import Watched, find_module, named_parts

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


class Noisy(nn.Module):
    """Hidden layer, dropout and output, joined by whatever `run` does."""

    def __init__(self, run=None):
        super().__init__()
        self.hidden, self.drop, self.fc = nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1)
        self.scale, self.calls, self.run = 1.0, 0, run

    def body(self, x):
        return self.scale * self.fc(self.drop(self.hidden(x).tanh()))

    def forward(self, x):
        self.calls += 1
        return self.body(x) if self.run is None else self.run(x)


def by_list():
    model = Noisy()
    parts = [model.hidden, nn.Tanh(), model.drop, model.fc]
    model.run = None
    object.__setattr__(model, "parts", parts)
    model.body = types.MethodType(lambda self, x: functools.reduce(lambda h, part: part(h), self.parts, x), model)
    return model


def by_closure():
    model = Noisy()
    model.run = lambda x: model.fc(model.drop(model.hidden(x).tanh()))
    return model


def by_partial():
    model = Noisy()
    model.run = functools.partial(Noisy.body, model)
    return model


def by_bound_method():
    model = Noisy()
    model.run = model.body
    return model


def by_default():
    model = Noisy()
    model.run = lambda x, inner=model: inner.body(x)
    return model


GLOBAL = Noisy()
GLOBAL.run = lambda x: GLOBAL.body(x)


def by_global():
    return GLOBAL


def nested_wrapper():
    return nn.Sequential(nn.DataParallel(Noisy()), torch.compile(nn.Tanh(), backend="eager"))


def recurrent():
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.drop, self.fc = nn.LSTM(2, 6, dropout=0.5, num_layers=2), nn.Dropout(), nn.Linear(6, 1)

        def forward(self, x):
            return self.fc(self.drop(self.rnn(x.reshape(2, 5, 2))[0][-1]))

    return Last()


def transformer():
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (1, 4)), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(4, 1))


def normed():
    weight = torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 8))
    spectral = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    return nn.Sequential(weight, nn.BatchNorm1d(8), spectral, nn.Dropout(), nn.Linear(8, 1))


def graph():
    return torch.fx.symbolic_trace(nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1)))


WAYS = [
    Noisy, by_list, by_closure, by_partial, by_bound_method, by_default, by_global, nested_wrapper, recurrent,
    transformer, normed, graph,
]  # fmt: skip


@pytest.mark.parametrize("make", WAYS, ids=lambda make: make.__name__)
def test_a_view_of_a_model_in_train_mode_answers_as_the_model_in_eval_mode(make):
    model = make()
    with torch.no_grad():
        expected = model.eval()(X)
    model.train()
    modes = {name: part.training for name, part in model.named_modules()}
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with frozen(model) as view:
        assert torch.equal(view(X), view(X))
        torch.testing.assert_close(view(X), expected)
    assert {name: part.training for name, part in model.named_modules()} == modes
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_a_view_shares_weights_in_place_and_follows_what_is_exchanged():
    model = Noisy()
    watched = Watched(model, [("fc:input", None)])

    def answers():
        model.eval()
        found, (features,), _ = watched((X,), {})
        assert torch.equal(found, model(X))
        assert torch.equal(features.value, model.hidden(X).tanh())
        model.train()

    answers()
    view = watched.module
    with torch.no_grad():
        model.fc.weight.mul_(3)
    model.hidden.train()
    assert watched.module is view
    answers()
    model.fc.weight = nn.Parameter(torch.ones(1, 8))
    answers()
    model.scale = 255.0
    answers()
    model.hidden = nn.Sequential(nn.Linear(4, 8), nn.Sigmoid())
    answers()
    model.hidden.register_forward_hook(lambda _module, _args, output: 2 * output)
    assert watched.module is not view
    answers()


def test_a_converted_model_is_followed():
    model, x = normed(), X.double()
    watched = Watched(model, [])
    watched((X,), {})
    model.double()
    assert torch.equal(watched((x,), {})[0], model.eval()(x))


def test_what_a_forward_counts_is_counted_on_the_model_and_tensors_that_it_keeps_are_not():
    def run(x):
        model.last = x
        return model.body(x)

    model = Noisy(run)
    watched = Watched(model, [])
    for _ in range(3):
        watched((X,), {})
    with frozen(model) as view:
        view(X)
    assert model.calls == 4
    model.calls = 0
    watched((X,), {})
    assert model.calls == 1
    assert not hasattr(model, "last")


def test_hooks_on_a_view_are_no_hooks_on_the_model():
    model = Noisy()
    view = FrozenView(model)
    view.module.hidden.register_forward_hook(lambda *_: 1 / 0)
    assert view.current
    assert not model.hidden._forward_hooks
    model.eval()(X)


def test_no_hook_is_on_the_model_and_no_flag_is_flipped_during_a_prediction():
    seen = []
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1)).train()
    own = types.SimpleNamespace(parts=list(model.modules()))  # where a view does not look for them

    def look(*_):
        seen.append([(part.training, len(part._forward_hooks)) for part in own.parts])

    model[1].register_forward_hook(look)
    uq = sp.SplitPointRegressor(epochs=1, residuals="train").fit(model, (X, X[:, :1]), progress=False)
    seen.clear()
    uq(X)
    assert seen == [[(True, 0), (True, 0), (True, 1), (True, 0)]]


def test_a_model_that_runs_itself_in_train_mode_by_another_way_is_refused():
    class Holder:
        """What holds a model where nobody looks."""

    holder = Holder()
    model = Noisy(lambda x: holder.model.body(x))
    holder.model = model
    pair = X, X[:, :1]
    with pytest.raises(
        LayerError, match=r"Expected a model that reaches its layers by its own attributes, but a Linear"
    ):
        sp.SplitPointRegressor(epochs=1, layer="fc").fit(model.train(), pair, progress=False)


def test_what_passes_the_view_by_is_watched_in_every_call():
    class Holder:
        """What holds a part of a model where nobody looks."""

    holder, model = Holder(), Noisy().eval()
    holder.body, model.run = model.body, lambda x: holder.body(x)
    watched = Watched(model, [])
    assert torch.equal(watched((X,), {})[0], model.body(X))
    model.train()
    with pytest.raises(LayerError, match=r"call model\.eval\(\) first"):
        watched((X,), {})
    model.eval()
    assert torch.equal(watched((X,), {})[0], model.body(X))


class Child(nn.Module):
    """What runs the parts of its parent, and keeps a number where no dictionary has it."""

    __slots__ = ("__scale",)

    def __init__(self, parent):
        super().__init__()
        self.parent = weakref.ref(parent)
        object.__setattr__(self, "_Child__scale", 2.0)

    def forward(self, x):
        return self.__scale * self.parent().body(x)


def test_weak_references_lead_to_the_view_and_slots_are_kept():
    model = Noisy()
    model.child = Child(model)
    model.run = model.child
    with frozen(model) as view:
        found = view(X)
    assert torch.equal(found, 2 * model.eval().body(X))


Pair = collections.namedtuple("Pair", "first second")


@pytest.mark.parametrize(
    "kept",
    [
        list,
        tuple,
        lambda parts: Pair(*parts),
        lambda parts: collections.defaultdict(list, enumerate(parts)),
        lambda parts: [[part] for part in parts],
    ],
)
def test_parts_in_containers_of_any_kind_are_followed_when_they_are_exchanged(kept):
    model = Noisy()
    model.box = kept([model.hidden, nn.Tanh()])
    pick = (lambda box, n: box[n][0]) if isinstance(model.box[0], list) else (lambda box, n: box[n])
    model.body = types.MethodType(lambda self, x: self.fc(pick(self.box, 1)(pick(self.box, 0)(x))), model)
    watched = Watched(model, [("hidden", None)])
    assert torch.equal(watched((X,), {})[0], model.body(X))
    if isinstance(model.box, tuple):
        model.box = kept([model.hidden, nn.Sigmoid()])
    elif isinstance(model.box[1], list):
        model.box[1][0] = nn.Sigmoid()
    else:
        model.box[1] = nn.Sigmoid()
    found, (heard,), _ = watched((X,), {})
    assert torch.equal(found, model.body(X))
    assert torch.equal(heard.value, model.hidden(X))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_part_in_torchscript_is_refused_with_a_sentence():
    with pytest.raises(
        LayerError, match=r"^Expected Python modules, but a part of the model is a RecursiveScriptModule"
    ):
        frozen_view(nn.Sequential(torch.jit.script(nn.Linear(4, 4)), nn.Linear(4, 1)))


@pytest.mark.parametrize("layer", ["closure", "global", "partial", "object"])
def test_a_callable_layer_reads_the_view_too(layer):
    model = GLOBAL if layer == "global" else Noisy()
    ways = {
        "closure": lambda x: model.drop(model.hidden(x)),
        "global": lambda x: GLOBAL.drop(GLOBAL.hidden(x)),
        "partial": functools.partial(lambda inner, x: inner.drop(inner.hidden(x)), model),
        "object": nn.Sequential(model.hidden, model.drop).forward,
    }
    pair = X, X[:, :1]
    model.train()
    uq = sp.SplitPointRegressor(epochs=1, layer=ways[layer], residuals="train").fit(model, pair, progress=False)
    assert torch.equal(uq(X).upper, uq(X).upper)
    torch.testing.assert_close(uq.heads.center[0, 0], model.hidden(X).mean(0).detach(), rtol=1e-4, atol=1e-5)


def test_wrappers_are_no_part_of_names():
    model = torch.compile(
        nn.Sequential(nn.DataParallel(nn.Sequential(nn.Linear(4, 2))), nn.Linear(2, 1)), backend="eager"
    )
    names = [name for name, _ in named_parts(model)]
    assert names == ["", "0", "0.0", "1"]
    assert all(isinstance(find_module(model, name), nn.Module) for name in names)
    assert [name for name, _ in frozen_view(model).named_modules()] == names


def test_a_copy_of_what_is_watched_watches_a_model_of_its_own():
    watched = Watched(Noisy().eval(), [("hidden", None)])
    expected = watched((X,), {})[0]
    other = copy.deepcopy(watched)
    with torch.no_grad():
        watched.model.fc.weight.zero_()
    assert torch.equal(other((X,), {})[0], expected)


# Threads and processes


@pytest.fixture
def hasty():
    """Threads that take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@each
def test_threads_get_the_answers_of_a_call_alone(name, own, hasty):
    uq, questions = fitted(name, own), list(problem(own).fresh.split(3))
    expected = [tensors(uq(question)) for question in questions]
    wrong = []

    def ask(number):
        for turn in range(10):
            place = (turn + number) % len(questions)
            for field, value in tensors(uq(questions[place])).items():
                same = torch.equal(value.nan_to_num(), expected[place][field].nan_to_num())
                wrong.extend([] if same else [field])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_training_in_another_thread_keeps_its_dropout_and_does_not_reach_predictions(hasty):
    model = Noisy().train()
    uq = sp.SplitPointRegressor(epochs=1, residuals="train").fit(model, (X, X[:, :1]), progress=False)
    expected, lost, steps, done = uq(X).upper, 0, 0, threading.Event()

    def train():
        nonlocal lost, steps
        while not done.is_set():
            model.train()
            lost += bool((model.drop(torch.ones(100)) == 1).all())
            steps += 1

    trainer = threading.Thread(target=train)
    trainer.start()
    answers = [uq(X).upper for _ in range(200)]
    done.set()
    trainer.join(20)
    assert all(torch.equal(answer, expected) for answer in answers)
    assert steps > 0
    assert lost == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_that_is_forked_while_threads_predict_can_predict():
    model = Noisy().train()
    uq = sp.SplitPointRegressor(epochs=1, residuals="train").fit(model, (X, X[:, :1]), progress=False)
    uq(X)
    done = threading.Event()

    def ask():
        while not done.is_set():
            uq(X)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                uq(X)
                os._exit(0)
            ended, limit = 0, time.monotonic() + 20
            while not ended and time.monotonic() < limit:
                ended, status = os.waitpid(child, os.WNOHANG)
                time.sleep(0.005)
            if not ended:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            assert ended, "the child hangs"
            assert status == 0
    finally:
        done.set()
        for thread in threads:
            thread.join(20)
