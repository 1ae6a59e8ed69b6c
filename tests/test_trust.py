"""The script that says whether the defaults can be trusted: what it counts, and what it compares."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import splitpoint as sp

ROOT = Path(__file__).parents[1]


@pytest.fixture
def kit(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import trust

    yield trust
    for name in [name for name in sys.modules if name.startswith(("trust", "development"))]:
        del sys.modules[name]


def cell(kit, rows=300, seed=0):
    """Three classes in four features, what lies far outside of them, and noise where they are."""
    parts = sys.modules["development_cell"]
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(4, 3)).astype(np.float32)
    centres = 3 * np.eye(3, 4, dtype=np.float32)

    def drawn(count, shift=0.0, labelled=True):
        label = np.arange(count) % 3
        features = (centres[label] + rng.normal(size=(count, 4)) + shift).astype(np.float32)
        logits = 3 * features[:, :3] + 0.1 * features @ weight
        return parts.Rows(features, logits, label.astype(np.int64) if labelled else None)

    return parts.Cell(drawn(rows), drawn(rows), {"far": drawn(100, 40.0, False), "near": drawn(100, 0.0, False)})


# Counts


def test_a_promise_counts_the_lines_on_which_it_holds(kit):
    found = kit.bar("is it so", [0.1, 0.0, -0.2])
    assert (found.held, found.lines, found.worst) == (2, 3, -0.2)
    assert str(found) == "| is it so | 2 of 3 | 66.7% | -0.200 |"


def test_a_promise_without_lines_is_not_kept(kit):
    assert "| 0 of 0 | no line |" in str(kit.bar("is it so", []))


def test_coverage_has_to_lie_within_the_band(kit):
    assert kit.within(0.9) == pytest.approx(0.03)
    assert kit.within(0.84) == pytest.approx(-0.03)
    assert kit.within(0.96) == pytest.approx(-0.02)


# Classifiers


def test_far_rows_are_found_and_rows_like_the_others_are_not(kit):
    (fit,) = list(kit.classes.fits("toy", cell(kit), (0,), (0,)))[:1]
    assert fit.rows == 300
    assert fit.foreign["far"]["support"] > 0.99
    assert fit.foreign["far"]["caught support"] > 0.99
    assert 0.4 < fit.foreign["near"]["support"] < 0.6
    assert fit.foreign["near"]["caught support"] < 0.2


def test_fits_are_with_and_without_calibration_rows_which_are_not_judged(kit):
    own = cell(kit)
    found = list(kit.classes.fits("toy", own, (5,), (0, 1)))
    assert [(fit.calibrated, fit.seed, fit.rows) for fit in found] == [
        (False, 0, 15), (False, 1, 15), (True, 0, 15), (True, 1, 15),
    ]  # fmt: skip
    names = [check.name for check in found[2].checks]
    assert "calibration rows" in names


def test_so_many_rows_of_a_class_are_drawn(kit):
    own = cell(kit).train
    places = kit.classes.chosen(own, 7, 0)
    assert np.bincount(own.label[places]).tolist() == [7, 7, 7]
    assert not np.array_equal(places, kit.classes.chosen(own, 7, 1))
    assert len(kit.classes.chosen(own, 0, 0)) == 300


def test_the_free_scores_are_those_of_their_authors(kit):
    own = cell(kit)
    uq = sp.SplitPointClassifier(epochs=1).fit_rows(kit.classes.recorded(own.train), progress=False)
    found = kit.classes.scores(uq, own.train, own.test)
    logits = torch.from_numpy(own.test.logits).double()
    torch.testing.assert_close(found["energy"], -logits.exp().sum(1).log())
    torch.testing.assert_close(found["max-probability"].exp(), 1 / logits.softmax(1).amax(1))
    distances = np.sort(np.linalg.norm(unit(own.test.features)[:1, None] - unit(own.train.features)[None], axis=2))
    assert float(found["kNN"][0]) == pytest.approx(distances[0, 9], abs=1e-3)


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_lines_and_promises_of_a_cell(kit, tmp_path, capsys):
    cell(kit).write(tmp_path / "overfit_mlp.npz")
    found = kit.class_lines(["overfit_mlp"], tmp_path, (20,), (0,))
    printed = capsys.readouterr().out
    assert len(re.findall(r"^\| overfit_mlp", printed, re.MULTILINE)) == 4
    assert [own.lines for own in found[:3]] == [4, 4, 4]


def test_a_cell_that_cannot_be_built_is_named(kit, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SPLITPOINT_DATA", str(tmp_path))
    assert list(kit.cells(["overfit_mlp"], tmp_path)) == []
    assert "overfit_mlp is skipped. Expected multiview/handwritten.npz" in capsys.readouterr().out


# Tables


def test_the_made_up_set_needs_no_files(kit, monkeypatch, tmp_path):
    monkeypatch.setenv("SPLITPOINT_DATA", str(tmp_path))
    assert kit.tables.available() == [kit.tables.FRIEDMAN]
    part = kit.tables.split(kit.tables.FRIEDMAN, 200, 0)
    for values in part.fit:
        torch.testing.assert_close(values.mean(0), torch.zeros(values.shape[1]), atol=1e-5, rtol=0)
        torch.testing.assert_close(values.std(0), torch.ones(values.shape[1]), atol=1e-4, rtol=0)
    assert len(part.judged[0]) == kit.tables.JUDGED
    assert kit.tables.split(kit.tables.FRIEDMAN, 5950, 0) is None


def test_coverage_is_told_by_setting(kit):
    part = kit.tables.split(kit.tables.FRIEDMAN, 100, 0)
    network = kit.tables.networks([part], 300, 0)[0]
    plain, copied = (kit.tables.covered("friedman", 300, kind, 0, part, network) for kind in ("loo", "refit"))
    assert plain.coverage < 0.6 < copied.coverage
    assert plain.warned
    assert not copied.warned
    assert kit.coverage_line([plain, plain]).startswith("| friedman | 100 | 300 | loo | 0.")
