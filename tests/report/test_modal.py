"""Findings of several modalities: changes trial by trial, claims, conflict and blame, the entropy of the code."""

from functools import partial

import pytest

from splitpoint.bench.modal_artefacts import ENTROPY, OWN, SpoiltDrawing, SpoiltScore
from splitpoint.bench.record import Cell
from splitpoint.errors import DataError
from splitpoint.report.claims import Experiment, verdict
from splitpoint.report.findings import Finding, Grid, as_markdown, as_page
from splitpoint.report.modal import findings


@pytest.fixture
def trials(cell):
    """The function that makes records of one cell of the stand-in."""
    return partial(cell, "three_modal", suite="multimodal", protocol="short", network="all")


def scores(aleatoric, epistemic, **more):
    return {"mean_aleatoric": aleatoric, "mean_epistemic": epistemic, **more}


def parts(records, drawings=()):
    (finding,) = findings(records, drawings)
    return {part.title: part for part in finding.parts if isinstance(part, Grid)}, finding


def test_changes_are_those_of_the_same_trial(trials):
    records = trials("mc_dropout", scores([1.0, 2.0], [0.1, 0.1], accuracy=[0.9, 0.9], auroc_ood=[0.8, 0.8]))
    records += trials("mc_dropout", scores([2.0, 3.0], [0.1, 0.05]), noise="label")
    experiment = Experiment.of(records)
    assert experiment.changes("all", "label", "mc_dropout", "aleatoric") == [pytest.approx(100), pytest.approx(50)]
    assert experiment.changes("all", "label", "mc_dropout", "epistemic") == [0, pytest.approx(-50)]
    grid = parts(records)[0]["Change of the mean scores with noise"]
    assert grid.head[-2:] == ("label, aleatoric %", "label, epistemic %")
    (row,) = grid.rows
    assert row[0] == "all, MC dropout"
    assert row[1:] == (
        "0.900 ± 0.000 (○ 0.9893)",
        "0.800 ± 0.000 (○ 0.50)",
        "75.0 ± 25.0 (○ 122.44)",
        "-25.0 ± 25.0 (○ 11.60)",
    )


def test_scores_that_are_not_positive_have_no_percentage(trials):
    records = trials("energy", scores([1.0], [-3.0])) + trials("energy", scores([1.0], [-2.0]), noise="label")
    assert Experiment.of(records).changes("all", "label", "energy", "epistemic") == []
    assert parts(records)[0]["Change of the mean scores with noise"].rows[0][-1] == "-"


def test_a_failed_trial_is_not_left_out_of_a_change(trials):
    records = trials("softmax", scores([1.0, 1.0], [1.0, 1.0]))
    records += trials("softmax", scores([2.0, 2.0], [1.0, 1.0]), noise="label", errors=(1,))
    assert Experiment.of(records).changes("all", "label", "softmax", "aleatoric") == [pytest.approx(100), None]
    assert parts(records)[0]["Change of the mean scores with noise"].rows[0][-2] == "1 of 2 failed"


def test_claims_have_numbers_trials_and_a_verdict(trials):
    records = trials("splitpoint_paper", scores([1.0] * 4, [1.0] * 4))
    records += trials("splitpoint_paper", scores([1.5, 1.6, 1.4, 1.5], [0.9, 1.2, 1.1, 0.85]), noise="label")
    records += trials("splitpoint_paper", scores([1.0] * 4, [0.5, 0.6, 0.55, 0.5]), noise="diversity")
    rows = parts(records)[0]["Three claims of the paper"].rows
    found = {(row[0], row[2]): row[3:] for row in rows}
    assert found["aleatoric uncertainty rises with label and sample noise", "label"] == (
        "50.0 ± 4.1",
        "4 of 4",
        "holds",
    )
    assert found["epistemic uncertainty rises when diversity is lost", "diversity"][1:] == ("0 of 4", "does not hold")
    assert found["epistemic uncertainty rises with label noise", "label"][1:] == ("2 of 4", "open")
    assert len(rows) == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [([], "not judged"), ([1.0, None], "not judged"), ([4.0], "one trial"), ([1.0, 1.0], "holds"), ([0.0] * 3, "open")],
)
def test_verdicts_at_the_edges(changes, said):
    assert verdict(changes) == said


def drawing(method, trial, own, blamed=(), accuracy=(), noise="conflict", entropy=None):
    place = Cell("multimodal", "short", noise, "three_modal", method, network="all")
    given = {OWN: own, ENTROPY: entropy}
    found = tuple(SpoiltScore(name, values) for name, values in given.items() if values is not None)
    return SpoiltDrawing(place, trial, 0, ("image", "text"), found, accuracy, blamed)


def test_conflict_stands_beside_entropy_and_sds_by_spoilt_modality(trials):
    records = trials("agreement", {"auroc_ood": [0.8, 0.9]})
    records += trials("agreement", {"auroc_conflict": [0.9, 0.8]}, noise="conflict")
    records += trials("splitpoint_paper", {"auroc_ood": [0.95, 0.95]})
    records += trials("splitpoint_paper", {"auroc_conflict": [0.6, 0.6]}, noise="conflict")
    drawings = [
        drawing("agreement", 0, (1.0, 0.8), ((0.75, 0.25), (0.5, 0.5))),
        drawing("agreement", 1, (0.8, 0.8), ((0.25, 0.75), (0.0, 1.0))),
        drawing("softmax", 0, (0.7, 0.6), entropy=(0.5, 0.6), accuracy=(0.9, 0.1)),
        drawing("softmax", 0, None, accuracy=(0.95, 0.2), noise="missing"),
    ]
    grids, finding = parts(records, drawings)
    assert grids["AUROC by the modality that is of another class"].rows == (
        ("Softmax, support", "0.700", "0.600", "0.650", "-"),
        ("Softmax, entropy", "0.500", "0.600", "0.550", "-"),
        ("agreement, conflict", "0.900 ± 0.100", "0.800 ± 0.000", "0.850 ± 0.050", "0.850 ± 0.050"),
    )
    text = (
        "where one modality is of another class 0.850 ± 0.050 against 0.600 ± 0.000 (difference 0.250 ± 0.050); where "
        "all are strange 0.850 ± 0.050 against 0.950 ± 0.000 (difference -0.100 ± 0.050)."
    )
    assert any(isinstance(part, str) and part.endswith(text) for part in finding.parts)
    blame = grids["Blame by agreement"]
    assert blame.shares == ((0.5, 0.5), (0.25, 0.75))
    assert "blamed in 0.625 ± 0.000, by chance in 0.500" in blame.note
    assert grids["Accuracy, one modality missing"].rows == (("Softmax", "-", "0.950", "0.200"),)


def test_the_entropy_of_the_published_code_stands_beside_the_right_one(trials):
    records = trials("deep_ensemble", {"auroc_ood": [0.9, 0.9]})
    records += trials("deep_ensemble", {"auroc_ood": [0.5, 0.6]}, variant="entropy=published")
    grids, finding = parts(records)
    row = grids["AUROC out of distribution by the axis of the softmax"].rows
    assert row == (("all, Deep ensemble", "0.900 ± 0.000", "0.550 ± 0.050", "0.53"),)
    assert "softmax of their uncertainty is taken over the rows of the batch" in finding.parts[-1]


def test_other_suites_have_no_findings(cell):
    assert findings(cell("boston", "softmax", {"rmse": [1.0]}), ()) == ()


def test_findings_are_written_as_markdown_and_on_the_page():
    grid = Grid("A <grid>", ("row", "one"), (("a|b", "0.5"),), ((0.5,),), "A note.")
    finding = Finding("Three modalities: noise", ("Some words.", grid))
    lines = as_markdown([finding])
    assert lines[:3] == ["## Three modalities: noise", "Some words.", "### A <grid>"]
    assert "| a\\|b | 0.5 |" in lines[3]
    page = as_page([finding])
    assert "A &lt;grid&gt;" in page
    assert "<td style=" in page
    assert "30%" in page
    assert '<section id="three-modalities--noise">' in page


def test_drawings_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="equally many numbers in the parts of a score"):
        drawing("agreement", 0, (0.5,))
    with pytest.raises(DataError, match="shares of each of 2 modalities"):
        drawing("agreement", 0, (0.5, 0.5), ((0.5, 0.5),))
