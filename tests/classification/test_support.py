"""Support of a classifier's inputs: distances, evidence, prior and the mass on the training rows."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from properties import examples
from splitpoint.cache import Table
from splitpoint.classification.support import Support, doubt, energy


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def table(rows=200, width=5, classes=3, seed=0, spread=2.0, labels=None):
    label = torch.arange(rows) % classes if labels is None else labels
    centres = spread * drawn(seed + 1, classes, width)
    features = centres[label] + drawn(seed, rows, width) * torch.linspace(0.5, 3, width)
    logits = features @ drawn(seed + 2, width, classes)
    return Table.in_memory({"features": features, "logits": logits, "label": label[:, None]})


def columns(rows):
    return rows.column("features"), rows.column("logits"), rows.column("label")[:, 0]


def shrunk(x, label, classes):
    """Centres and covariance by their formulas, with numpy: (S, C) and (C, C)."""
    counts = np.bincount(label, minlength=classes)
    seen = np.flatnonzero(counts)
    means, overall, n = np.stack([x[label == k].mean(0) for k in seen]), x.mean(0), len(x)
    place = np.searchsorted(seen, label)
    free = n - len(seen)
    within = ((x - means[place]) ** 2).sum() / max(free, 1)
    between = max(((x - overall) ** 2).sum() / max(n - 1, 1) - within, 1e-9)
    own = counts[seen]
    weight = np.where(own > 1, own / (own + within / between), 0.0) if free else np.zeros(len(seen))
    centres = overall + weight[:, None] * (means - overall)
    d = x - centres[place]
    covariance = d.T @ d / n
    target = np.trace(covariance) / len(covariance)
    error = np.mean([((np.outer(row, row) - covariance) ** 2).sum() for row in d]) / n
    share = np.clip(error / ((covariance - target * np.eye(len(covariance))) ** 2).sum(), 0.02, 1)
    return centres, (1 - share) * covariance + share * target * np.eye(len(covariance)), place


def test_distance_is_the_tied_mahalanobis_distance_to_the_nearest_centre():
    rows = table()
    features, _, label = columns(rows)
    support = Support.fit(rows, 3, 1.0, 0.005)
    x = features.double().numpy()
    x = (x - x.mean(0)) / x.std(0)
    centres, covariance, _ = shrunk(x, label.numpy(), 3)
    expected = cdist(x, centres, "mahalanobis", VI=np.linalg.inv(covariance)).min(1)
    np.testing.assert_allclose(support.distance(features), expected, rtol=1e-3, atol=1e-3)


def test_the_scale_of_the_distance_is_that_of_rows_left_out():
    """In sample the rows seem nearer than new rows of the same classes are."""
    rows = table(60, width=4, spread=4.0)
    features, _, _ = columns(rows)
    support = Support.fit(rows, 3, 1.0, 0.005)
    usual = float(support.usual[0])
    in_sample = float(support.distance(features).mean())
    fresh = table(4000, width=4, spread=4.0)
    fresh_features = fresh.column("features")[60:]
    held_out = float(support.distance(fresh_features).mean())
    assert usual > in_sample
    assert abs(usual - held_out) < 0.15 * held_out


@pytest.mark.parametrize("rows", [12, 30, 120])
def test_ordinary_rows_stand_near_zero_however_few_rows_there_are(rows):
    """Twenty features: in sample, rows seem far nearer than new ones are."""
    known, fresh = table(rows, width=20, spread=3.0), table(3000, width=20, spread=3.0)
    support = Support.fit(known, 3, 1.0, 0.005)
    z = (support.distance(fresh.column("features")[rows:]).double() - support.usual[0]) / support.deviation[0]
    assert abs(float(z.mean())) < 1.5


def test_energy_is_minus_the_logsumexp_of_the_centred_logits():
    logits = np.array([[3.0, 1.0, -1.0], [0.0, 0.0, 0.0], [10.0, 9.0, 8.0]])
    expected = -logsumexp(logits - logits.mean(1, keepdims=True), axis=1)
    found = energy(torch.tensor(logits))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert found.dtype == torch.float64
    torch.testing.assert_close(energy(torch.tensor(logits) + 50.0), found)
    assert energy(torch.tensor([[1e4, 0.0, -1e4]])).isfinite().all()


@examples(15)
@given(st.sampled_from([0.001, 0.005, 0.1, 0.5]), st.sampled_from([0.5, 2.0, 5.0]), st.integers(0, 100))
def test_the_mean_share_of_calibration_rows_is_the_mass(mass, steepness, seed):
    rows, held_out = table(seed=seed), table(150, seed=seed)
    support = Support.fit(rows, 3, steepness, mass, held_out)
    features, logits, _ = columns(held_out)
    share = support.share(support(support.distance(features), logits))
    assert math.isclose(float(share.mean()), mass, rel_tol=1e-6)
    assert ((share > 0) & (share <= 1)).all()


def test_calibration_rows_set_the_scales_where_there_are_any():
    held_out = table(150, seed=7)
    support = Support.fit(table(), 3, 1.0, 0.005, held_out)
    features, logits, _ = columns(held_out)
    distance = support.distance(features).double()
    clipped = distance.clamp(max=float(distance.sort().values[148]))  # 99% of the rows lie within it
    torch.testing.assert_close(support.usual[0], clipped.mean())
    torch.testing.assert_close(support.usual[1], energy(logits).mean())
    torch.testing.assert_close(support.deviation[1], energy(logits).std(correction=0))


def test_weaker_evidence_never_lowers_the_score():
    support = Support.fit(table(), 3, 1.0, 0.005)
    logits = torch.tensor([[2.0, 0.0, -2.0]]).repeat(6, 1)
    usual, deviation = float(support.usual[0]), float(support.deviation[0])
    by_distance = support(usual + deviation * torch.tensor([0.0, 0.5, 1.0, 2.0, 4.0, 80.0]), logits)
    assert (by_distance.diff() > 0).all()
    by_confidence = support(torch.full((6,), usual), logits * torch.tensor([[0.0], [0.5], [1.0], [2.0], [4.0], [9.0]]))
    assert (by_confidence.diff() < 0).all()


def test_features_that_collapse_to_the_mean_are_far_too():
    """The features of an empty image lie nearer to the centre than any training row."""
    support = Support.fit(table(600, width=40, spread=0.0), 3, 1.0, 0.005)
    logits = torch.zeros(2, 3)
    collapsed, usual = support(torch.stack([torch.zeros(()), support.usual[0].float()]), logits)
    assert collapsed > usual + 1


def test_one_row_a_class_has_the_mean_of_all_rows_as_its_centre():
    support = Support.fit(table(6, classes=6, width=4), 6, 1.0, 0.005)
    assert float(support.centres.std(0).max()) < 1e-5


def test_the_prior_is_the_class_frequency_with_one_more_row_each():
    labels = torch.tensor([0] * 6 + [1] * 3 + [3])
    support = Support.fit(table(10, classes=5, labels=labels), 5, 2.0, 0.005)
    torch.testing.assert_close(support.prior.float(), torch.tensor([7.0, 4.0, 1.0, 2.0, 1.0]) / 15)


def test_classes_without_rows_have_no_centre():
    labels = torch.tensor([0, 2] * 20)
    support = Support.fit(table(40, classes=4, labels=labels), 4, 2.0, 0.005)
    assert support.centres.shape == (2, 5)


@pytest.mark.parametrize("kind", ["one row", "one class", "constant features", "fewer rows than features"])
def test_degenerate_training_rows(kind):
    labels = torch.zeros(30, dtype=torch.long)
    rows = {
        "one row": lambda: table(1),
        "one class": lambda: table(30, labels=labels),
        "constant features": lambda: Table.in_memory(
            {"features": torch.ones(30, 5), "logits": torch.zeros(30, 3), "label": labels[:, None]}
        ),
        "fewer rows than features": lambda: table(6, width=20),
    }[kind]()
    features, logits, _ = columns(rows)
    support = Support.fit(rows, 3, 2.0, 0.005)
    score = support(support.distance(features), logits)
    assert score.isfinite().all()
    assert support.share(score).isfinite().all()


def test_maps_are_rows_in_another_shape():
    rows = table()
    features, logits, _ = columns(rows)
    support = Support.fit(rows, 3, 2.0, 0.005)
    distance = support.distance(features)
    flat = support(distance, logits)
    mapped = support(distance.reshape(10, 20), logits.reshape(10, 20, 3).movedim(2, 1))
    torch.testing.assert_close(mapped.flatten(), flat)


def test_rows_that_alone_move_a_feature_do_not_widen_the_scale():
    """Left out, such a row lies hundreds of times as far as the rest, which would be all of the deviation."""
    plain, rare = table(400), table(400)
    for row, column in ((3, 1), (7, 2)):
        rare.column("features")[row, column] += 1e4
    usual, widened = (Support.fit(rows, 3, 1.0, 0.005).deviation[0] for rows in (plain, rare))
    assert widened < 2 * usual


def test_a_free_score_takes_over_where_the_features_say_nothing():
    """Sixty rows of fifty features that are noise, whatever the logits."""
    label = torch.arange(60) % 8
    logits = 6 * torch.nn.functional.one_hot(label, 8).float() + drawn(1, 60, 8)
    known = Table.in_memory({"features": drawn(0, 60, 50), "logits": logits, "label": label[:, None]})
    lost = Support.fit(known, 8, 1.0, 0.005)
    assert lost.weights.tolist() == [0, 0, 1]
    assert lost.rivalry[2] > lost.rivalry[0] + 0.05
    surest = lost(torch.tensor([0.0, 1e3]), torch.tensor([[9.0] + 7 * [0.0], [1.0, 0.9] + 6 * [0.8]]))
    assert surest[0] < surest[1]


def test_distance_and_energy_are_kept_where_they_tell_foreign_rows():
    kept = Support.fit(table(600, spread=4.0), 3, 1.0, 0.005)
    expected = torch.tensor([0.25 * 600 / 630, 1, 0.25 * 30 / 630], dtype=torch.float64)
    torch.testing.assert_close(kept.weights, expected)
    assert kept.rivalry[0] > kept.rivalry[1:].max() - 0.05


def test_the_doubt_is_the_log_of_the_largest_probability():
    logits = torch.tensor([[3.0, 1.0, -1.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(doubt(logits).float(), -logits.softmax(1).amax(1).log())


def test_few_rows_say_nothing_of_probes():
    support = Support.fit(table(49), 3, 1.0, 0.005)
    assert support.rivalry.isnan().all()
    assert support.weights[1] == 1
    assert not Support.fit(table(50), 3, 1.0, 0.005).rivalry.isnan().any()


def several(rows=300, widths=(4, 4, 4), classes=6):
    """Rows of branches that each tell the class, and the mean of what each says of it."""
    generator = torch.Generator().manual_seed(5)
    label = torch.arange(rows) % classes
    parts, answers = [], []
    for width in widths:
        centres = 2 * torch.randn(classes, width, generator=generator)
        own = centres[label] + torch.randn(rows, width, generator=generator)
        parts.append(own)
        answers.append(own @ centres.T - centres.square().sum(1) / 2)
    logits = torch.stack(answers).mean(0)
    return Table.in_memory({"features": torch.cat(parts, 1), "logits": logits, "label": label[:, None]})


def test_the_doubt_of_several_branches_is_the_entropy():
    rows = several()
    support = Support.fit(rows, 6, 1.0, 0.005, parts=(4, 4, 4))
    probs = rows.column("logits").double().softmax(1)
    expected = -(probs * probs.log()).sum(1)
    torch.testing.assert_close(support.evidence(rows)[:, 2], expected)
    again = Support(support.state_dict(), 1.0, fused=True)
    features, logits, _ = columns(rows)
    assert torch.equal(again(again.distance(features), logits), support(support.distance(features), logits))


def test_where_entropy_takes_over_the_distance_of_several_branches_stays_a_guard():
    """A branch far from everything, and an answer that is sure of the class: the entropy alone would be low."""
    label = torch.arange(60) % 8
    logits = 6 * torch.nn.functional.one_hot(label, 8).float() + drawn(1, 60, 8)
    known = Table.in_memory({"features": drawn(0, 60, 50), "logits": logits, "label": label[:, None]})
    support = Support.fit(known, 8, 1.0, 0.005, parts=(25, 25))
    assert support.weights.tolist() == pytest.approx([0.1 * 0.25 * 60 / 90, 0, 1])
    features = known.column("features")
    usual = support(support.distance(features), logits)
    away = features + torch.cat([torch.full((25,), 1e3), torch.zeros(25)])
    assert (support(support.distance(away), 10 * logits) > usual.max()).all()
