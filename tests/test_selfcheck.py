"""What a fit says of its rows: features that do not move, too few rows, calibration rows that were trained on."""

import pytest
import torch
from torch import nn

import splitpoint as sp
from splitpoint.selfcheck import fresh, moving, row_checks

ROWS = 400


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def numbers(features, seed=1):
    output = drawn(seed, len(features), 1)
    return sp.Recording.of(sp.Regression(), features, output, output + drawn(seed + 1, len(features), 1))


def part(recording, rows):
    whole = {name: values[rows] for name, values in recording.table.whole().items()}
    return sp.Recording.of(recording.task, whole["features"], whole["output"], whole["output"] + whole["residual"])


@pytest.mark.parametrize(("stuck", "verdict"), [(0, "ok"), (50, "ok"), (94, "ok"), (96, "warn"), (100, "warn")])
def test_features_that_never_move_fail_where_hardly_any_is_left(stuck, verdict):
    features = drawn(0, ROWS, 100)
    features[:, :stuck] = 3.0
    found = moving(numbers(features).table)
    assert found.verdict == verdict
    assert found.value == pytest.approx(1 - stuck / 100)


def test_rows_are_counted_for_each_feature_that_moves():
    features = drawn(0, 24, 100)
    found = moving(numbers(features).table)
    assert found.verdict == "warn"
    assert "24 rows are few for 100 features" in found.advice
    features[:, 50:] = 0.0
    assert moving(numbers(features).table).verdict == "ok"


@pytest.mark.parametrize(("share", "verdict"), [(0.0, "ok"), (0.01, "ok"), (0.1, "warn"), (1.0, "warn")])
def test_calibration_rows_that_are_training_rows_are_found(share, verdict):
    known, other = numbers(drawn(0, ROWS, 8)), numbers(drawn(5, ROWS, 8), seed=6)
    count = int(share * ROWS)
    one, two = known.table.whole(), other.table.whole()
    rows = {name: torch.cat([one[name][:count], two[name][count:]]) for name in one}
    mixed = sp.Recording.of(sp.Regression(), rows["features"], rows["output"], rows["output"] + rows["residual"])
    found = fresh(known, mixed)
    assert found.value == pytest.approx(share, abs=1e-9)
    assert found.verdict == verdict


def test_the_last_bits_of_features_do_not_hide_a_row():
    known = numbers(drawn(0, ROWS, 8))
    whole = known.table.whole()
    blurred = sp.Recording.of(
        sp.Regression(),
        whole["features"] * (1 + 2e-7 * drawn(9, ROWS, 8)),
        whole["output"],
        whole["output"] + whole["residual"],
    )
    assert fresh(known, blurred).value > 0.97


def test_sets_that_hold_rows_twice_are_forgiven():
    """Half of the rows are there twice; a random half of all of them serves calibration."""
    features = drawn(0, ROWS, 8)
    whole = numbers(torch.cat([features, features[: ROWS // 2]])).table.whole()
    for name in ("output", "residual"):
        whole[name][ROWS:] = whole[name][: ROWS // 2]
    order = torch.randperm(len(features) + ROWS // 2, generator=torch.Generator().manual_seed(0))
    every = sp.Recording.of(sp.Regression(), whole["features"], whole["output"], whole["output"] + whole["residual"])
    train, held_out = part(every, order[: len(order) // 2]), part(every, order[len(order) // 2 :])
    found = fresh(train, held_out)
    assert 0.2 < found.value < 0.5
    assert found.verdict == "ok"


def test_labels_make_rows_different():
    features, logits = drawn(0, ROWS, 8), drawn(1, ROWS, 3)
    label = torch.arange(ROWS) % 3
    task = sp.Classification()
    known = sp.Recording.of(task, features, logits, label)
    assert fresh(known, sp.Recording.of(task, features, logits, label)).verdict == "warn"
    assert fresh(known, sp.Recording.of(task, features, logits, (label + 1) % 3)).verdict == "ok"


def test_without_calibration_rows_nothing_is_said_of_them():
    recording = numbers(drawn(0, ROWS, 8))
    assert [check.name for check in row_checks(recording, None)] == ["features"]
    assert [check.name for check in row_checks(recording, recording)] == ["features", "calibration rows"]


def test_fit_warns_of_calibration_rows_that_it_was_given_for_training_too():
    x, y = drawn(0, ROWS, 4), drawn(1, ROWS, 1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with pytest.warns(sp.SplitPointWarning, match="calibration rows: 100% of the calibration rows are training rows"):
        sp.SplitPointRegressor(0.9, epochs=1).fit(model, (x, y), calibration=(x, y), progress=False)
    label = torch.arange(ROWS) % 3
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    with pytest.warns(sp.SplitPointWarning, match="calibration rows: 100%"):
        sp.SplitPointClassifier(epochs=1).fit(model, (x, label), calibration=(x, label), progress=False)
