"""RCML: losses and conflicts by SciPy and by hand, views of any network, and what a network of one view is."""

import math

import numpy as np
import pytest
import torch
from scipy.special import digamma, gammaln
from torch import nn

import splitpoint as sp
from splitpoint.baselines import METHODS, Rcml
from splitpoint.baselines.rcml import conflictive_degrees, fused, log_risk
from splitpoint.errors import LayerError, SettingsError


class LateFusion(nn.Module):
    """The mean of what two branches say of two inputs, one of which may end in several layers."""

    def __init__(self, classes=3, hidden=0):
        super().__init__()
        wide = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, classes))
        self.branches = nn.ModuleDict({"left": nn.Linear(2, classes), "right": wide})
        self.scale = nn.Identity()

    def forward(self, left, right):
        return self.scale((self.branches["left"](left) + self.branches["right"](right)) / 2)


def rows(count=240, seed=0):
    """Two views that tell three classes apart."""
    generator = torch.Generator().manual_seed(seed)
    label = torch.arange(count) % 3
    centres = torch.tensor([[2.0, 0.0, 1.0], [-2.0, 2.0, 0.0], [0.0, -3.0, -1.0]])[label]
    noise = torch.randn(count, 5, generator=generator)
    return centres[:, :2] + 0.4 * noise[:, :2], centres + 0.4 * noise[:, 2:], label


VIEWS = ("left", "middle", "right")


def by_hand(logits, label, weight, order, gamma=1.0):
    """The loss of one row with NumPy and SciPy, from logits (V, K)."""
    evidence = np.log1p(np.exp(logits))
    whole = evidence.mean(0)
    if order == "sequential":
        whole = evidence[0]
        for own in evidence[1:]:
            whole = (whole + own) / 2
    losses = []
    for own in [whole, *evidence]:
        alpha = own + 1
        risk = digamma(alpha.sum()) - digamma(alpha[label])
        wrong = alpha.copy()
        wrong[label] = 1
        total, classes = wrong.sum(), len(wrong)
        divergence = gammaln(total) - gammaln(wrong).sum() - gammaln(classes)
        divergence += ((wrong - 1) * (digamma(wrong) - digamma(total))).sum()
        losses.append(risk + weight * divergence)
    probs = (evidence + 1) / (evidence + 1).sum(1, keepdims=True)
    doubt = evidence.shape[1] / (evidence + 1).sum(1)
    views, conflict = len(evidence), 0.0
    for v in range(views):
        for w in range(views):
            if w != v:
                pair = abs(probs[v] - probs[w]).sum() / 2 * (1 - doubt[v]) * (1 - doubt[w])
                conflict += pair / (views - 1)
    return np.mean(losses) + gamma * conflict


@pytest.mark.parametrize("order", ["mean", "sequential"])
@pytest.mark.parametrize("part", [0.0, 0.03, 0.1, 1.0])
def test_the_loss_is_that_of_the_paper(order, part):
    raw = 2 * torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    label = torch.tensor([0, 4, 2, 2])
    found = Rcml(order=order, views=VIEWS[:3])._loss(raw.flatten(1), label, part)
    expected = [by_hand(own.numpy(), int(k), min(1, part / 0.1), order) for own, k in zip(raw, label, strict=True)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10)


def test_the_gradient_is_that_of_the_loss():
    raw = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64, requires_grad=True)
    label = torch.tensor([0, 1, 3])
    for order in ("mean", "sequential"):
        method = Rcml(order=order, views=VIEWS[:2])
        assert torch.autograd.gradcheck(lambda own, m=method: m._loss(own.flatten(1), label, 0.5), raw)


def test_opinions_that_agree_or_know_nothing_are_in_no_conflict():
    sure, other, unsure = ([101.0, 1.0, 1.0], [1.0, 101.0, 1.0], [1.0, 1.0, 1.0])
    alpha = torch.tensor([[sure, sure, sure], [sure, other, unsure]])
    found = conflictive_degrees(alpha)
    by_views = (100 / 103) * (100 / 103) ** 2
    torch.testing.assert_close(found, torch.tensor([[0.0, by_views, 0.0]] * 2))
    assert conflictive_degrees(alpha[:1]).abs().max() == 0


def test_the_last_view_weighs_half_in_sequence():
    evidence = torch.eye(4).unsqueeze(1)
    torch.testing.assert_close(fused(evidence, "sequential"), torch.tensor([[0.125, 0.125, 0.25, 0.5]]))
    torch.testing.assert_close(fused(evidence, "mean"), torch.full((1, 4), 0.25))


def test_the_log_risk_is_the_mean_log_loss_of_sampled_probabilities():
    alpha = torch.tensor([[2.0, 3.0, 5.0]])
    sampled = np.random.default_rng(0).dirichlet(alpha[0].numpy(), 200_000)
    found = log_risk(alpha, torch.tensor([[0.0, 1.0, 0.0]]))
    assert found.item() == pytest.approx(-np.log(sampled[:, 1]).mean(), abs=0.01)


def fitted(**settings):
    *views, label = rows()
    method = Rcml(**{"epochs": 40, "learning_rate": 0.02, **settings})
    return method.fit(LateFusion, (*views, label), progress=False)


def test_views_are_found_and_a_row_that_mixes_two_classes_is_in_conflict():
    uq = fitted()
    assert uq.method.views == ("branches.left", "branches.right")
    left, right, label = rows(seed=1)
    clean, mixed = uq(left, right), uq(left.roll(1, 0), right)
    assert (clean.label == label).double().mean() > 0.97
    assert clean.blame.shape == (240, 2)
    torch.testing.assert_close(clean.conflict, clean.blame.mean(1))
    assert mixed.conflict.mean() > 5 * clean.conflict.mean()
    assert len(uq.predict((left, right))[:7].blame) == 7


def test_views_may_be_named_and_the_rest_of_the_network_is_not_used():
    named = fitted(views=("branches.right",))
    left, right, label = rows(seed=1)
    out = named(left, right)
    assert out.conflict is None
    torch.testing.assert_close(out.probs, named(left.roll(1, 0), right).probs)
    assert (out.label == label).double().mean() > 0.9


def test_it_is_saved_with_its_views(tmp_path):
    uq = fitted(epochs=2)
    uq.save(tmp_path / "rcml.safetensors")
    again = sp.load(tmp_path / "rcml.safetensors", LateFusion)
    left, right, _ = rows(seed=1)
    assert torch.equal(again(left, right).blame, uq(left, right).blame)
    assert again.method == uq.method


def test_networks_that_were_trained_elsewhere_are_put_together():
    *views, label = rows()
    method, data = Rcml(epochs=2), (*views, label)
    known = method.prepared(LateFusion, data)
    network = known.factory().eval()
    uq = method.assemble([network], data, pattern=LateFusion, progress=False)
    assert uq(*views).blame.shape == (240, 2)
    with pytest.raises(SettingsError, match="pattern="):
        method.assemble([network], data, progress=False)


def test_order_and_weight_of_the_conflict_change_what_is_said():
    runs = torch.randn(1, 5, 9, generator=torch.Generator().manual_seed(0))
    said = [Rcml(order=order, views=VIEWS)._answer(None, runs, None).probs for order in ("mean", "sequential")]
    assert (said[0] - said[1]).abs().max() > 1e-3
    left, right, _ = rows(seed=1)
    plain = fitted(epochs=3)(left, right).probs
    assert (fitted(epochs=3, gamma=5.0)(left, right).probs - plain).abs().max() > 1e-3


def test_a_network_of_one_view_is_plain_evidential_classification():
    left, _, label = rows()
    method = METHODS["rcml"](epochs=40, learning_rate=0.02)
    uq = method.fit(lambda: nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3)), (left, label), progress=False)
    out = uq(left)
    assert uq.method.views == ("",)
    assert out.conflict is None
    assert (out.label == label).double().mean() > 0.95
    evidence = math.log1p(math.e)
    raw = torch.ones(1, 3)
    assert method._loss(raw, torch.tensor([0]), 0.0).item() == pytest.approx(
        digamma(3 * evidence + 3) - digamma(evidence + 1)
    )


class Segments(nn.Module):
    """Two views of maps, fused by their sum."""

    def __init__(self):
        super().__init__()
        self.color, self.depth = nn.Conv2d(2, 3, 1), nn.Conv2d(1, 3, 3, padding=1)

    def forward(self, color, depth):
        return self.color(color) + self.depth(depth)


def test_maps_and_ignored_labels():
    generator = torch.Generator().manual_seed(0)
    color, depth = torch.randn(6, 2, 4, 5, generator=generator), torch.randn(6, 1, 4, 5, generator=generator)
    label = (color[:, 0] > 0).long()
    label[0] = -100
    uq = Rcml(epochs=3).fit(Segments, (color, depth, label), progress=False)
    out = uq(color, depth)
    assert out.probs.shape == (6, 3, 4, 5)
    assert out.conflict.shape == (6, 4, 5)
    assert out.blame.shape == (6, 2, 4, 5)


def test_settings_and_views_that_make_no_sense_are_refused():
    wrong = ({"gamma": -1.0}, {"annealing": 0.0}, {"order": "last"}, {"views": ()}, {"views": "left"})
    for settings in wrong:
        with pytest.raises(SettingsError, match="Expected"):
            Rcml(**settings)
    with pytest.raises(LayerError, match="none called"):
        fitted(views=("middle",))
    with pytest.raises(SettingsError, match="gives"):
        fitted(views=("branches.right.0", "branches.left"))
