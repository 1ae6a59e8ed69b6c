"""Features of a frozen model, in one forward pass, and a base model that nobody can tell was used."""

import copy
import pickle
import threading
from types import MethodType

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import splitpoint as sp
from feature_models import Encoder, Mixing, Net, assert_untouched, fitted, fragile, mlp, rows, same, snapshot
from splitpoint.frozen import frozen


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


# The base model is left alone


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


def test_spectral_normalisation_of_a_layer_of_ones_own_takes_no_step():
    model = Net(lambda m, x: m.fc(m.hidden(x)), hidden=unsettled(Mixing()), fc=nn.Linear(8, 1))
    model.train()
    before = snapshot(model)
    x, y = rows()
    fitted(model, (x, y))(x)
    assert_untouched(model, before)


def test_a_frozen_view_is_in_eval_mode_without_gradients_and_the_model_stays_as_it_is():
    model = fragile().train()
    model.norm.eval()
    before = snapshot(model)
    with frozen(model) as view:
        assert not any(module.training for module in view.modules())
        assert_untouched(model, before)
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    assert_untouched(model, before)


def test_no_gradient_flows_out_of_a_prediction():
    model = mlp()
    x, y = rows()
    out = fitted(model, (x, y))(x.clone().requires_grad_())
    assert not any(value.requires_grad for value in vars(out).values() if isinstance(value, torch.Tensor))


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
