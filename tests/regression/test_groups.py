"""Intervals of grouped rows: conformal ones hold for new images and patients, and folds see what groups have alone."""

import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint.errors import DataError, SettingsError

LEVEL = 0.8
QUICK = {"epochs": 3, "residuals": "train"}


def zero(*layers):
    """A network that answers with nothing."""
    for parameter in layers[-1].parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(*layers).eval()


def blind():
    """Of images, whose features say nothing either."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return zero(nn.Conv2d(1, 4, 1), nn.Conv2d(4, 1, 1))


def scenes(count, seed):
    """Images whose errors belong to the image: those of some are four times as large as those of others."""
    generator = torch.Generator().manual_seed(seed)
    size = (0.7 * torch.randn(count, 1, 1, 1, generator=generator)).exp()
    x, noise = torch.randn(2, count, 1, 6, 8, generator=generator)
    return x, size * noise


def coverage(uq, data):
    out = uq(data[0])
    inside = (data[1] >= out.lower) & (data[1] <= out.upper)
    return float(inside.double().mean())


@pytest.mark.filterwarnings("ignore::splitpoint.errors.SplitPointWarning")
def test_conformal_intervals_hold_the_pixels_of_new_images():
    model = blind()
    method, found = sp.SplitPointRegressor(LEVEL, folds=0, leverage=False, **QUICK), []
    for seed in range(25):
        uq = method.fit(model, scenes(30, seed), calibration=scenes(10, seed + 100), progress=False)
        found.append(coverage(uq, scenes(60, seed + 200)))
    found = torch.tensor(found)
    error = float(found.std()) / len(found) ** 0.5
    assert LEVEL - 2 * error < float(found.mean()) < LEVEL + 0.1


def test_as_many_images_are_needed_as_rows():
    method = sp.SplitPointRegressor(0.95, **QUICK)
    with pytest.raises(DataError, match=r"Expected at least 19 calibration groups \(images, sequences\) of residuals"):
        method.fit(blind(), scenes(30, 0), calibration=scenes(18, 1), progress=False)


# Patients whose targets differ by an amount that is their own, which heads can learn by heart but not tell of others


def patients(count, visits, seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 1, 3, generator=generator).expand(count, visits, 3)
    own, noise = torch.randn(count, 1, 1, generator=generator), torch.randn(count, visits, 1, generator=generator)
    x = torch.cat([features, torch.randn(count, visits, 1, generator=generator)], 2)
    return x.flatten(0, 1), (own + 0.2 * noise).flatten(0, 1), torch.arange(count).repeat_interleave(visits)


def test_heads_that_know_patients_by_heart_are_told_by_patients_left_out():
    x, y, who = patients(30, 20, 0)
    method = sp.SplitPointRegressor(0.9, residuals="train", leverage=False, epochs=80, width=None)
    new = patients(200, 5, 1)
    plain, told = (method.fit(zero(nn.Linear(4, 1)), (x, y), groups=own, progress=False) for own in (None, who))
    assert coverage(told, new) > 0.86
    assert coverage(plain, new) < coverage(told, new) - 0.05


@pytest.mark.filterwarnings("ignore::splitpoint.errors.SplitPointWarning")
def test_conformal_factors_count_patients():
    x, y, _ = patients(30, 20, 0)
    *held_out, theirs = patients(12, 20, 2)
    method = sp.SplitPointRegressor(0.8, **QUICK)
    rest = {"calibration": held_out, "progress": False}
    plain, told = (method.fit(zero(nn.Linear(4, 1)), (x, y), calibration_groups=own, **rest) for own in (None, theirs))
    assert bool((told.factors > plain.factors).any())
    alone = method.fit(zero(nn.Linear(4, 1)), (x, y), calibration_groups=range(len(theirs)), **rest)
    assert torch.equal(alone.factors, plain.factors)


def test_many_fits_take_groups_of_each():
    *data, who = patients(12, 6, 0)
    method = sp.SplitPointRegressor(0.5, **QUICK)
    models = [zero(nn.Linear(4, 1)), zero(nn.Linear(4, 1))]
    many = method.fit_many(models, [data, data], groups=[who, who], progress=False)
    alone = method.fit(models[0], data, groups=who.tolist(), progress=False)
    assert torch.equal(many[0].shape, alone.shape)
    with pytest.raises(SettingsError, match="Expected groups of each of the 2 data sets, but got 1; give None"):
        method.fit_many(models, [data, data], groups=[who], progress=False)


def test_groups_of_calibration_rows_that_are_not_there_are_refused():
    x, y, who = patients(12, 6, 0)
    with pytest.raises(SettingsError, match="Expected calibration data with calibration_groups=, but got none"):
        sp.SplitPointRegressor(**QUICK).fit(zero(nn.Linear(4, 1)), (x, y), calibration_groups=who, progress=False)
