"""Classification: outputs of any shape, the simplex, calibration, and what the scores are worth."""

import time

import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint.classification.method import DELTA0_GRID
from splitpoint.metrics import accuracy, auroc, brier, ece, nll

QUICK = {"epochs": 3}
both_mars = pytest.mark.parametrize("mars", ["simplex", "free"])


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def network(outputs, inputs=2, width=16, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, outputs)).eval()


def sampled(probs, seed=0):
    return torch.multinomial(probs, 1, generator=torch.Generator().manual_seed(seed)).flatten()


def own_labels(model, x, seed=0, factor=1.0):
    """Labels drawn from the model's own probabilities: it is calibrated by construction."""
    with torch.no_grad():
        return sampled((factor * model(x)).softmax(1), seed)


def fit(method, model, data, **arguments):
    return method.fit(model, data, progress=False, **arguments)


CENTRES = torch.tensor([[3.0, 0.0], [-1.5, 2.6], [-1.5, -2.6]])


def blobs(seed, rows):
    label = torch.randint(3, (rows,), generator=torch.Generator().manual_seed(seed))
    return CENTRES[label] + drawn(seed + 1, rows, 2), label


@pytest.fixture(scope="module")
def trained():
    """A network trained well on three overlapping blobs."""
    x, y = blobs(0, 2000)
    model = network(3).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(200):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model.eval(), x, y


# Shapes


def check_probabilities(out, axis=1):
    for probs in (out.probs, out.base_probs):
        assert ((probs >= 0) & (probs <= 1)).all()
        torch.testing.assert_close(probs.sum(axis), torch.ones(out.label.shape))
    assert torch.equal(out.label, out.probs.argmax(axis))


@both_mars
@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("calibrated", [False, True])
def test_logits_of_several_classes(mars, classes, calibrated):
    model, x = network(classes), drawn(0, 200, 2)
    y = own_labels(model, x)
    held_out = drawn(1, 200, 2)
    calibration = (held_out, own_labels(model, held_out)) if calibrated else None
    uq = fit(sp.SplitPointClassifier(mars=mars, delta0=float("inf"), **QUICK), model, (x, y), calibration=calibration)
    out = uq(x)
    assert uq.calibrated == calibrated
    assert out.probs.shape == out.mar.shape == (200, classes)
    check_probabilities(out)
    if not calibrated:
        assert torch.equal(out.probs, out.base_probs)


class Reshaped(nn.Module):
    def __init__(self, inner, function):
        super().__init__()
        self.inner, self.function = inner, function

    def forward(self, x):
        return self.function(self.inner(x))


ONE_OUTPUT = {
    "(N,) logits": (lambda out: out.squeeze(1), "logits"),
    "(N, 1) logits": (lambda out: out, "logits"),
    "(N,) probs": (lambda out: out.squeeze(1).sigmoid(), "probs"),
    "(N, 1) probs": (lambda out: out.sigmoid(), "probs"),
}


@both_mars
@pytest.mark.parametrize("form", ONE_OUTPUT)
@pytest.mark.parametrize("calibrated", [False, True])
def test_one_output_is_the_same_as_its_two_logits(mars, form, calibrated):
    function, output = ONE_OUTPUT[form]
    single, double = network(1), network(2)
    with torch.no_grad():
        double[0].load_state_dict(single[0].state_dict())
        single[2].weight.mul_(4)
        double[2].weight.copy_(torch.cat([-single[2].weight, single[2].weight]) / 2)
        double[2].bias.copy_(torch.cat([-single[2].bias, single[2].bias]) / 2)
    x = drawn(0, 300, 2)
    y = own_labels(double, x)
    held_out = (drawn(1, 300, 2), own_labels(double, drawn(1, 300, 2), seed=1)) if calibrated else None
    method = {"mars": mars, "delta0": 0.5, **QUICK}
    one = fit(
        sp.SplitPointClassifier(output=output, **method), Reshaped(single, function), (x, y), calibration=held_out
    )
    two = fit(sp.SplitPointClassifier(**method), double, (x, y), calibration=held_out)
    inputs = torch.cat([x, 4 * x])
    first, second = one(inputs), two(inputs)
    check_probabilities(first)
    with torch.no_grad():
        torch.testing.assert_close(first.base_probs[:, 1], single(inputs).sigmoid().squeeze(1))
    for name in ("probs", "base_probs", "mar", "epistemic", "aleatoric", "total"):
        torch.testing.assert_close(getattr(first, name), getattr(second, name), rtol=2e-3, atol=2e-4)


@both_mars
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_probabilities_are_the_same_as_their_logits(mars, classes):
    model, x = network(classes), drawn(0, 300, 2)
    y = own_labels(model, x)
    held_out = (drawn(1, 300, 2), own_labels(model, drawn(1, 300, 2), seed=1))
    softmax = Reshaped(model, lambda out: out.softmax(1))
    method = {"mars": mars, "delta0": 0.5, **QUICK}
    probs = fit(sp.SplitPointClassifier(output="probs", **method), softmax, (x, y), calibration=held_out)(x)
    logits = fit(sp.SplitPointClassifier(**method), model, (x, y), calibration=held_out)(x)
    for name in ("probs", "base_probs", "mar", "epistemic", "total"):
        torch.testing.assert_close(getattr(probs, name), getattr(logits, name), rtol=2e-3, atol=2e-4)


def test_saturated_probabilities_give_finite_scores():
    """Probabilities of exactly 0 and 1 have no finite logit."""
    model, x = network(3), drawn(0, 100, 2)
    hard = Reshaped(model, lambda out: nn.functional.one_hot(out.argmax(1), 3) + 0 * out)
    y = torch.arange(100) % 3
    out = fit(sp.SplitPointClassifier(output="probs", **QUICK), hard, (x, y), calibration=(x, y))(x)
    check_probabilities(out)
    assert out.epistemic.isfinite().all()
    assert out.aleatoric.isfinite().all()


@both_mars
@pytest.mark.parametrize("calibrated", [False, True])
def test_maps(mars, calibrated):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1))
    x = drawn(0, 12, 3, 5, 6)
    y = torch.randint(4, (12, 5, 6), generator=torch.Generator().manual_seed(0))
    y[:, 0] = -100
    uq = fit(sp.SplitPointClassifier(mars=mars, **QUICK), model, (x, y), calibration=(x, y) if calibrated else None)
    out = uq(x)
    assert out.probs.shape == out.base_probs.shape == out.mar.shape == (12, 4, 5, 6)
    assert out.label.shape == out.epistemic.shape == out.aleatoric.shape == out.total.shape == (12, 5, 6)
    check_probabilities(out)
    with torch.no_grad():
        torch.testing.assert_close(out.base_probs, model(x).softmax(1))


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_map_is_its_pixels(calibrated):
    """Pixel-wise 1x1 convolutions: the closed-form score is that of the same network on the pixels as rows."""
    rows = network(3, inputs=2)
    maps = nn.Sequential(nn.Conv2d(2, 16, 1), nn.ReLU(), nn.Conv2d(16, 3, 1)).eval()
    with torch.no_grad():
        for place in (0, 2):
            maps[place].weight.copy_(rows[place].weight[:, :, None, None])
            maps[place].bias.copy_(rows[place].bias)
    x = drawn(0, 20, 2, 4, 5)
    pixels = x.movedim(1, 3).reshape(-1, 2)
    y = own_labels(rows, pixels)
    label = y.reshape(20, 4, 5)
    method = sp.SplitPointClassifier(**QUICK)
    held_out = (x, label) if calibrated else None
    flat_held_out = (pixels, y) if calibrated else None
    dense = fit(method, maps, (x, label), calibration=held_out)
    flat = fit(method, rows, (pixels, y), calibration=flat_held_out)
    assert dense.network is None
    assert flat.network is None
    one, other = dense(x), flat(pixels)
    torch.testing.assert_close(one.epistemic.flatten(), other.epistemic, rtol=1e-2, atol=1e-5)
    torch.testing.assert_close(one.base_probs.movedim(1, 3).reshape(-1, 3), other.base_probs)
    expected = other.base_probs
    if calibrated:
        with torch.no_grad():
            shift = dense.correction.shift(rows[:2](pixels))
            expected = (dense.correction.factor * rows(pixels) + shift).softmax(1)
    torch.testing.assert_close(one.probs.movedim(1, 3).reshape(-1, 3), expected)


@both_mars
def test_sequences_and_ignored_positions(mars):
    model, x = network(3), drawn(0, 30, 6, 2)
    y = torch.randint(3, (30, 6), generator=torch.Generator().manual_seed(0))
    y[:, 4:] = -100
    y[3] = -100
    method = sp.SplitPointClassifier(mars=mars, **QUICK)
    uq = fit(method, model, (x, y), calibration=(x, y))
    out = uq(x)
    assert out.probs.shape == out.mar.shape == (30, 6, 3)
    assert out.label.shape == out.epistemic.shape == (30, 6)
    check_probabilities(out, axis=2)
    other = torch.where((y == -100)[..., None], 100 * x + 7, x)
    again = fit(method, model, (other, y), calibration=(other, y))(x)
    for name in ("probs", "mar", "epistemic"):
        assert torch.equal(getattr(out, name), getattr(again, name)), name


# Identities


def test_without_calibration_the_probabilities_are_the_models_own():
    model, x = network(4), drawn(0, 100, 2)
    for mars in ("simplex", "free"):
        out = fit(sp.SplitPointClassifier(mars=mars, **QUICK), model, (x, own_labels(model, x)))(x)
        assert torch.equal(out.probs, out.base_probs)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("kept", [False, True])
def test_mars_lie_on_the_simplex(classes, kept):
    """From z = P(1-p) + (1-P)p follows P, which must be class frequencies, and the identities of E13."""
    model, x = network(classes).double(), drawn(0, 400, 2).double()
    with torch.no_grad():
        label = model(x).argmax(1)
    y = (label + 1) % classes if kept else own_labels(model, x)
    uq = fit(sp.SplitPointClassifier(), model, (x, y))
    assert (uq.network is not None) == kept
    out = uq(torch.cat([x, 10 * x]))
    p, z = out.base_probs, out.mar
    safe = ((1 - 2 * p).abs() > 1e-3).all(1)
    p, z = p[safe], z[safe]
    frequency = (z - p) / (1 - 2 * p)
    assert safe.double().mean() > 0.8
    assert ((frequency > -1e-9) & (frequency < 1 + 1e-9)).all()
    torch.testing.assert_close(frequency.sum(1), torch.ones(len(p), dtype=torch.float64), rtol=0, atol=1e-9)
    up, down = frequency * (1 - p), (1 - frequency) * p
    torch.testing.assert_close(z, up + down, rtol=0, atol=1e-12)
    torch.testing.assert_close(p + up - down, frequency, rtol=0, atol=1e-12)
    expected = (2 * p * (1 - p) - z).abs().sum(1)
    torch.testing.assert_close(out.sds[safe], expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(expected, ((frequency - p) * (1 - 2 * p)).abs().sum(1), rtol=1e-9, atol=1e-12)


# Calibration


def test_calibration_repairs_a_model_with_logits_three_times_too_large():
    model = network(3)
    with torch.no_grad():
        model[2].weight.mul_(15)
    x, held_out, fresh = drawn(0, 2000, 2), drawn(1, 4000, 2), drawn(2, 8000, 2)
    y, held_out_y, fresh_y = (own_labels(model, part, seed, 1 / 3) for seed, part in enumerate((x, held_out, fresh)))
    uq = fit(sp.SplitPointClassifier(), model, (x, y), calibration=(held_out, held_out_y))
    out = uq(fresh)
    before, after = ece(out.base_probs, fresh_y), ece(out.probs, fresh_y)
    assert before > 0.1
    assert after < 0.03
    assert abs(accuracy(out.probs, fresh_y) - accuracy(out.base_probs, fresh_y)) < 0.005
    true = (model(fresh).detach() / 3).softmax(1)
    assert nll(out.probs, fresh_y) < nll(true, fresh_y) + 0.01


def test_calibration_does_no_harm_to_a_calibrated_model():
    model = network(3)
    with torch.no_grad():
        model[2].weight.mul_(5)
    x, held_out, fresh = drawn(0, 500, 2), drawn(1, 500, 2), drawn(2, 8000, 2)
    y, held_out_y, fresh_y = (own_labels(model, part, seed) for seed, part in enumerate((x, held_out, fresh)))
    out = fit(sp.SplitPointClassifier(), model, (x, y), calibration=(held_out, held_out_y))(fresh)
    assert nll(out.probs, fresh_y) < nll(out.base_probs, fresh_y) + 0.01
    assert accuracy(out.probs, fresh_y) > accuracy(out.base_probs, fresh_y) - 0.01


def overconfident(seed=0):
    model = network(3)
    with torch.no_grad():
        model[2].weight.mul_(15)
    parts = [drawn(seed + part, rows, 2) for part, rows in enumerate((600, 1000, 4000))]
    return model, [(x, own_labels(model, x, seed + part, 1 / 4)) for part, x in enumerate(parts)]


def test_a_cross_validated_gate_comes_from_the_grid_and_is_no_worse_than_never_correcting():
    model, (train, held_out, fresh) = overconfident()
    method = sp.SplitPointClassifier(mars="free", delta0="cv", epochs=60)
    uq = fit(method, model, train, calibration=held_out)
    assert method.delta0 == "cv"
    assert uq.method.delta0 in DELTA0_GRID
    assert uq.method.delta0 > 0  # there is much to correct
    out = uq(fresh[0])
    check_probabilities(out)
    assert brier(out.probs, fresh[1]) < brier(out.base_probs, fresh[1]) - 0.02
    never = fit(sp.SplitPointClassifier(mars="free", delta0=0.0, epochs=60), model, train, calibration=held_out)
    assert torch.equal(never(fresh[0]).probs, out.base_probs)


def test_a_cross_validated_gate_stays_shut_on_a_calibrated_model():
    model = network(3)
    with torch.no_grad():
        model[2].weight.mul_(5)
    parts = [drawn(part, rows, 2) for part, rows in enumerate((300, 300, 4000))]
    train, held_out, fresh = [(x, own_labels(model, x, part)) for part, x in enumerate(parts)]
    uq = fit(sp.SplitPointClassifier(mars="free", delta0="cv", epochs=3), model, train, calibration=held_out)
    out = uq(fresh[0])
    assert brier(out.probs, fresh[1]) <= brier(out.base_probs, fresh[1]) + 0.005


def test_the_papers_gate_opens_where_the_calibration_networks_agree():
    model, (train, held_out, fresh) = overconfident()
    found = {}
    for delta0 in (0.01, 0.05, 0.3, float("inf")):
        method = sp.SplitPointClassifier(mars="free", delta0=delta0, epochs=60)
        out = fit(method, model, train, calibration=held_out)(fresh[0])
        check_probabilities(out)
        found[delta0] = float((out.probs != out.base_probs).any(1).double().mean())
    assert sorted(found.values()) == list(found.values())
    assert found[0.01] < found[float("inf")]
    assert found[float("inf")] > 0.9


# What the scores are worth


def test_the_network_is_dropped_where_the_base_model_is_right(trained):
    model, x, y = trained
    assert fit(sp.SplitPointClassifier(), model, (x, y)).network is None


def test_the_network_is_kept_where_the_base_model_is_biased_and_finds_the_region(trained):
    model, x, y = trained
    there = x[:, 0] > 1.5
    flipped = torch.where(there, (y + 1) % 3, y)
    uq = fit(sp.SplitPointClassifier(), model, (x, flipped))
    assert uq.network is not None
    fresh, _ = blobs(70, 3000)
    score, region = uq(fresh).sds, fresh[:, 0] > 1.5
    assert score[region].median() > 5 * score[~region].median()
    assert auroc(score[~region], score[region]) > 0.95


def test_far_inputs_have_a_higher_epistemic_score_than_the_test_rows(trained):
    model, x, y = trained
    uq = fit(sp.SplitPointClassifier(), model, (x, y))
    usual = uq(blobs(70, 3000)[0]).epistemic.quantile(0.95)
    between = 0.2 * drawn(71, 200, 2)
    assert (uq(between).epistemic > usual).double().mean() > 0.9


def test_far_features_of_a_bounded_network_have_a_higher_epistemic_score():
    """A linear classifier on two features that separate and two that do not: far along the latter is unsupported."""
    x, y = blobs(0, 1500)
    wide = torch.cat([x, drawn(5, 1500, 2)], 1)
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight.copy_(torch.cat([CENTRES, torch.zeros(3, 2)], 1))
        model.bias.zero_()
    uq = fit(sp.SplitPointClassifier(), model, (wide, y))
    fresh = torch.cat([blobs(70, 2000)[0], drawn(72, 2000, 2)], 1)
    usual = uq(fresh).epistemic.quantile(0.95)
    foreign = fresh[:300].clone()
    foreign[:, 2:] += 50
    assert torch.allclose(uq(foreign).base_probs, uq(fresh[:300]).base_probs)
    assert (uq(foreign).epistemic > usual).double().mean() > 0.95


def test_the_total_score_finds_errors(trained):
    model, x, y = trained
    uq = fit(sp.SplitPointClassifier(), model, (x, y))
    fresh, label = blobs(70, 4000)
    out = uq(fresh)
    wrong = out.label != label
    assert auroc(out.total[~wrong], out.total[wrong]) > 0.85


# Unusual data


@both_mars
def test_a_thousand_classes_and_few_rows(mars):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(64, 1000)
    x = drawn(0, 60, 64)
    y = torch.randint(1000, (60,), generator=torch.Generator().manual_seed(0))
    start = time.perf_counter()
    out = fit(sp.SplitPointClassifier(mars=mars, epochs=5), model, (x, y), calibration=(x, y))(x)
    assert time.perf_counter() - start < 15
    check_probabilities(out)
    assert out.epistemic.isfinite().all()
    assert (out.epistemic >= 0).all()


@both_mars
@pytest.mark.parametrize("present", [[0], [0, 3], [4]])
def test_classes_missing_from_the_data(mars, present):
    model, x = network(5), drawn(0, 100, 2)
    y = torch.tensor(present)[torch.arange(100) % len(present)]
    out = fit(sp.SplitPointClassifier(mars=mars, **QUICK), model, (x, y), calibration=(x, y))(x)
    assert out.probs.shape == (100, 5)
    check_probabilities(out)
    assert all(t.isfinite().all() for t in (out.epistemic, out.total, out.aleatoric, out.mar))
    if mars == "simplex":
        assert nll(out.probs, y) < nll(out.base_probs, y)


@both_mars
def test_imbalanced_classes(mars):
    generator = torch.Generator().manual_seed(0)
    y = (torch.rand(3000, generator=generator) < 0.03).long()
    x = drawn(1, 3000, 2) + 2 * y[:, None]
    model = nn.Linear(2, 2)
    with torch.no_grad():  # the log-odds of two unit Gaussians at 0 and (2, 2) with prior 0.03
        model.weight.copy_(torch.tensor([[0.0, 0.0], [2.0, 2.0]]))
        model.bias.copy_(torch.tensor([0.0, -4 + torch.logit(torch.tensor(0.03)).item()]))
    data, held_out, fresh = [(x[part], y[part]) for part in (slice(1000), slice(1000, 2000), slice(2000, 3000))]
    out = fit(sp.SplitPointClassifier(mars=mars, epochs=20), model, data, calibration=held_out)(fresh[0])
    check_probabilities(out)
    assert abs(float(out.probs[:, 1].mean()) - 0.03) < 0.02
    assert accuracy(out.probs, fresh[1]) > 0.97
    assert nll(out.probs, fresh[1]) < nll(out.base_probs, fresh[1]) + 0.03
