"""Probes: what they are made of, and logits that a linear last layer would give them."""

import torch

from splitpoint.classification.probes import COUNT, probes


def rows(count=400, width=6, classes=3):
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(count) % classes
    features = torch.randn(count, width, generator=generator) + 3 * torch.eye(classes, width)[label]
    weight = torch.randn(width, classes, generator=generator)
    return {"features": features, "logits": features @ weight + 0.5, "label": label[:, None]}, weight


def test_logits_are_those_of_the_linear_last_layer():
    known, weight = rows()
    kinds = probes(known)
    assert len(kinds) == 3
    for features, logits in kinds:
        torch.testing.assert_close(logits, features @ weight + 0.5, rtol=1e-3, atol=1e-3)


def test_noise_has_the_moments_of_the_rows():
    known, _ = rows()
    noise, _ = probes(known)[1]
    assert len(noise) == COUNT
    torch.testing.assert_close(noise.mean(0), known["features"].mean(0), rtol=0, atol=0.4)
    torch.testing.assert_close(noise.std(0), known["features"].std(0), rtol=0.2, atol=0)


def test_shuffled_features_are_those_of_rows_in_other_company():
    known, _ = rows()
    shuffled, _ = probes(known)[2]
    for column in range(shuffled.shape[1]):
        assert torch.isin(shuffled[:, column], known["features"][:, column]).all()
    assert not any((row == known["features"]).all(1).any() for row in shuffled)


def test_mixtures_lie_between_rows_of_different_classes():
    """One feature that is the class: no mixture is near a class itself."""
    label = torch.arange(300) % 2
    known = {"features": label[:, None].float(), "logits": label[:, None] * torch.ones(2), "label": label[:, None]}
    mixed, _ = probes(known)[0]
    assert float(mixed.min()) >= 0.3
    assert float(mixed.max()) <= 0.7


def test_one_class_has_no_mixtures():
    known, _ = rows()
    assert len(probes(known | {"label": torch.zeros_like(known["label"])})) == 2


def test_crossed_branches_are_whole_branches_of_rows_in_other_company():
    known, weight = rows()
    kinds = probes(known, (2, 4))
    assert len(kinds) == 4
    crossed, logits = kinds[3]
    torch.testing.assert_close(logits, crossed @ weight + 0.5, rtol=1e-3, atol=1e-3)
    for branch in (slice(0, 2), slice(2, 6)):
        assert all((row[branch] == known["features"][:, branch]).all(1).any() for row in crossed)
    whole = [(row == known["features"]).all(1).any() for row in crossed]
    assert sum(map(bool, whole)) < 0.05 * len(crossed)
